"""What a model's files say of it: read in milliseconds, without torch and without its weights."""
