"""Attempts as jobs of a cluster, on a machine that sees the same home."""
