"""Requests to other machines: guarded HTTP, internal networks, the Hugging Face hub."""
