"""Tools for the page: a fleet to look at, photographs, a measurement of its smoothness."""
