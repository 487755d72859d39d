"""Checkpoints: written, verified, pruned and resumed from."""
