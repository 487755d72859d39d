"""Evaluations: a run's model and its base model answer the same rows, and are compared."""
