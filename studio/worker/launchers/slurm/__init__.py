"""Attempts as jobs of Slurm."""
