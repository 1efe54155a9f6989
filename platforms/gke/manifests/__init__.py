"""The manifests of a run: the Pathways JobSet that trains, and a Job each for export and evaluation. Pure."""
