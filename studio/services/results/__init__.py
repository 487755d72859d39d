"""What a run achieved, and what to try next."""
