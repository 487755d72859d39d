"""Rollouts: answers that the model in training writes, with their scores."""
