"""The steps of a pipeline, whoever runs it: one protocol, two kinds. Standard library only at import."""
