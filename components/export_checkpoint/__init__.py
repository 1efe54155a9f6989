"""Export the final, proven checkpoint to a Hugging Face directory; needs only CPU."""
