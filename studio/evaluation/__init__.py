"""Scores of a model's answers to the rows of a dataset, and what differences between them show."""
