"""Shared by all pydantic models: field descriptions from docstrings, readable validation errors."""
