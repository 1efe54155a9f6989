"""GKE: the run as a Pathways JobSet, export and evaluation as Jobs; slices that are there, or that Kueue gives."""
