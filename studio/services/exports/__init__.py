"""Exports of a run's model, and the available formats."""
