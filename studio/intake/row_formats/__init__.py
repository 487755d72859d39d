"""Canonical rows.

Their schema, and how alpaca, ShareGPT, OpenAI, preference and thread rows become one.
"""
