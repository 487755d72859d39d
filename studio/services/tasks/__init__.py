"""Background tasks: queued, run in a process of their own, and why such a process ended."""
