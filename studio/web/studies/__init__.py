"""Pages of precision studies."""
