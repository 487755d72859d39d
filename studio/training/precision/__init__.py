"""Number formats of a training step: set, emulated and verified."""
