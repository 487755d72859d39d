"""Uploaded files.

Their format, compression, archives, encoding, and the limits for reading them.
"""
