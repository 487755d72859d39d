"""Recipes as scripts that train without the studio."""
