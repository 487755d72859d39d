"""Judges of answers: an endpoint, a chat model, or a reward model of this studio."""
