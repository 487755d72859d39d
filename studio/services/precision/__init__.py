"""Which precision to use for a model, what rules one out, and the number formats of a run."""
