"""Requests to other machines: safe HTTP, internal networks, the Hugging Face hub."""
