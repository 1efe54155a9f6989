"""`evaluate`: the held-out loss of an exported model."""
