"""What a run reports as it trains: metrics, numeric health and divergence."""
