"""Pages on which several models answer side by side."""
