"""Decisions from what was seen: the verdict on a job, limits before training, goodput. Pure."""
