"""Exports and background tasks: which comes next, and the processes that do them."""
