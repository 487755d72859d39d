"""Notifications: sent by mail and webhook."""
