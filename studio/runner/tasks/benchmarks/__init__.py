"""Benchmarks: lm-eval measures a model in a process of its own."""
