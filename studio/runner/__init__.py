"""The training process: it sees a run's folder and nothing else of the studio."""
