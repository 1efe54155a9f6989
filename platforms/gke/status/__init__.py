"""What the objects of a run in a cluster mean: from their JSON to an observation, and to reasons in words. Pure."""
