"""Give back every slice of a run and wait until it is gone. Safe to call at any time and repeatedly."""
