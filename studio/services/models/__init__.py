"""Models: list, download and trust them; clients of the tokenizer and inference services."""
