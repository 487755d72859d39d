"""Background tasks, one module per kind; `studio.protocols.tasks` lists them."""
