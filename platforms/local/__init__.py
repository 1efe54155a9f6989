"""Simulated slices: real processes of this machine under one supervisor (contracts.md 11)."""
