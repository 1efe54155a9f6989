"""The run directory: who drives the run, where training is, what happened, and what is proven."""
