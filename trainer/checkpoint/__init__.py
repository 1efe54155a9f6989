"""A MaxText checkpoint on storage: its tree and its arrays, read without MaxText."""
