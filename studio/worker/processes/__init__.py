"""Processes of runs and tasks: launch, limit, find and end them."""
