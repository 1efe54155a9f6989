"""The `elastic-tpu` command."""
