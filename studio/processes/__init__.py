"""Operating system processes: identity, exit with the parent, malloc settings, Unix sockets."""
