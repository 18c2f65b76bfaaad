"""What all nouns share: runner, steps, keeper, waiting, history, health, housekeeping."""
