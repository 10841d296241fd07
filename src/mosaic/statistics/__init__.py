"""Statistics for comparing runs: pure functions over numpy arrays, shared by the window and the command line."""
