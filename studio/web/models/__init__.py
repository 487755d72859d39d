"""Pages of base models, and of models exported from runs."""
