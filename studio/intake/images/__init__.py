"""Images of rows: where they are, whether they can be used, and how they are stored."""
