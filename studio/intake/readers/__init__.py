"""One reader for each file format: raw rows, a few at a time."""
