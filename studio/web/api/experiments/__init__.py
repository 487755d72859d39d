"""REST routes of experiments, sweeps and precision studies."""
