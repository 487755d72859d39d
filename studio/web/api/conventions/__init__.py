"""What all REST routes share: schemas, the route class, conditional requests."""
