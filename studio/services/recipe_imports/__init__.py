"""Recipes from the files of other training tools."""
