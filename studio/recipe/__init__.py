"""The vocabulary of fine-tuning: what a user can ask for. Pure data: no torch, no tables."""
