"""HTTP building blocks for routes: dependencies, errors, uploads, event streams, idempotency."""
