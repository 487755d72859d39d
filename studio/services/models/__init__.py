"""Models: added, downloaded, trusted, and asked through the tokenizer and inference services."""
