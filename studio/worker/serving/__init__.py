"""Serve models under names of their own: processes of engines, and models kept in memory."""
