"""Convert a whole file to canonical rows: inspect, preview, convert."""
