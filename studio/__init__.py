"""Mantissa Studio: fine-tune language models in the browser."""

__version__ = "0.1.0"
