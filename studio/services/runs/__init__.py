"""Runs: submitted, attempted, controlled, explained when they fail, and tidied away."""
