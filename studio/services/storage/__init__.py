"""File locks of the home, and folders that are created and replaced atomically."""
