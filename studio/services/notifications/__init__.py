"""Notifications by webhook and other channels, delivered with retries."""
