"""What every route uses: dependencies, errors, uploads, event streams, idempotency."""
