"""What every REST route shares: schemas, the route class, conditional requests."""
