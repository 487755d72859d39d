"""Pages of runs: the run table, one run, its history and health."""
