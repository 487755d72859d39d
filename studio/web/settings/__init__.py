"""Pages of settings, secrets and the language."""
