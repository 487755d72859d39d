"""Runs that are sent to trackers: which, how far, and when to try again."""
