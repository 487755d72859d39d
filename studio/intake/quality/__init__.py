"""Data checks: suspicious rows of a dataset, and how long its rows are in tokens."""
