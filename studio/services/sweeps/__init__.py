"""Hyperparameter sweeps: previewed, sampled by Optuna, advanced and ranked."""
