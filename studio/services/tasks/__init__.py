"""Background tasks, each in its own process, and diagnosis of how such processes end."""
