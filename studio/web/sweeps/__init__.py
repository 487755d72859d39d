"""Pages of hyperparameter sweeps."""
