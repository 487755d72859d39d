"""Operating system processes: identity, end with the parent, malloc settings, Unix sockets."""
