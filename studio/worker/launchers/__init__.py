"""What starts the attempts of runs: this machine, Slurm or Ray."""
