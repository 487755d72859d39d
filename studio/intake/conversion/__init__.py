"""A whole file as canonical rows: inspected, previewed, converted."""
