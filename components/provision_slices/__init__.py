"""Take the slices of a run and wait until they are ready. For a run that is already trained nothing is bought."""
