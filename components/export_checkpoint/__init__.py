"""Export the final, proven checkpoint to a Hugging Face directory. Needs only CPU."""
