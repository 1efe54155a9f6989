"""What the objects of a run in a cluster mean: from raw JSON to an observation. Pure."""
