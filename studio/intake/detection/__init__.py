"""Detect which columns play which role, from a file's first rows."""
