"""Graders for people who do not write code: built from a form, and tried on rows."""
