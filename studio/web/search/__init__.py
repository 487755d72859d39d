"""Search from any page: the command palette and query completions."""
