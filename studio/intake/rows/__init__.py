"""Process rows into train.jsonl.

Filter, deduplicate, sample and write them, and read them back by page.
"""
