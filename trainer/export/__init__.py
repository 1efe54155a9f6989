"""`export`: from a checkpoint to a Hugging Face directory."""
