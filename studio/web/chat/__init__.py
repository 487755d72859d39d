"""Chat with the model of a run beside its base model."""
