"""Train on the slices as one long job that recovers from lost slices by itself and outlives its orchestrator."""
