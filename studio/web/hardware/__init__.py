"""The hardware strip on pages."""
