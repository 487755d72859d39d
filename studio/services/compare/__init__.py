"""Runs side by side: recipe differences, common metrics, seed noise, saved comparisons."""
