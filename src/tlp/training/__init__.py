"""Training of ranking models on measured programs."""
