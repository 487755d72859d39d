"""Memory of a training step: measured in a run, or simulated in a dry run."""
