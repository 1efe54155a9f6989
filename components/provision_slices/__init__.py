"""Take the slices of a run and wait until they are ready; nothing is bought for a run that is complete."""
