"""The process that trains: it sees a run's folder, and nothing else of the studio."""
