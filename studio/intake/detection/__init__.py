"""Which columns play which role: guessed from a file's first rows."""
