"""The objects that a run is in a cluster: the Pathways JobSet, and Jobs for export and evaluation. Pure."""
