"""Endpoints: models that are served under a name of their own, and what serves them."""
