"""REST routes that compare runs."""
