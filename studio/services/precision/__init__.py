"""Which precision suits a model, what rules it out, and the formats a run computes in."""
