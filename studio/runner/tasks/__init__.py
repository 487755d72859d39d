"""Background tasks, one module a kind; studio.tasks names them."""
