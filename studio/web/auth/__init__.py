"""Identities, permissions, the route table and login throttling."""
