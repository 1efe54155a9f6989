"""Evaluate the export on held-out data and apply the gate. Needs only CPU."""
