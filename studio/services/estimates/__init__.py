"""Estimates of memory and time before a run, what they are based on, and progress during it."""
