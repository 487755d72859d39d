"""Export of a run's model in another format, with the loss measured."""
