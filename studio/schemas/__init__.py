"""What all pydantic models share.

Field descriptions from docstrings, readable validation errors.
"""
