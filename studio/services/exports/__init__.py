"""Exports of a run's model, and the formats they can have."""
