"""Operating a studio: its home folder, backup and restore, health checks, Prometheus metrics."""
