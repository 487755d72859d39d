"""Evaluation of a model: sample answers and perplexity."""
