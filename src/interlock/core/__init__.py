"""Pure decisions: no I/O, no clock, no randomness.  Time, ids and facts come in as arguments."""
