"""Exports and background tasks: schedule them and manage their processes."""
