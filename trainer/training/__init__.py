"""`train`: MaxText's loop, what a failure means, recovery, and proofs of checkpoints."""
