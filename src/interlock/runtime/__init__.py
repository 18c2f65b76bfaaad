"""What all nouns share: runner, settling, keeper, wait graph, health, history, housekeeping."""
