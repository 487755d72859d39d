"""Pages of the queue, background tasks and the worker."""
