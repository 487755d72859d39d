"""Metrics of runs: stored, summarised, and queried as curves."""
