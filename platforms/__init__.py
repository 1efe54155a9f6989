"""Where slices come from and where jobs run."""
