"""What a run should be: the spec, the rules it must keep, and the plan that follows from it."""
