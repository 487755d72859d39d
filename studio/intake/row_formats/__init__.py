"""Canonical rows.

Their schema, and how Alpaca, ShareGPT, OpenAI, preference and thread rows are converted.
"""
