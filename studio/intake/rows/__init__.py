"""Rows on their way to train.jsonl.

Filtered, deduplicated, sampled, written, and read back by page.
"""
