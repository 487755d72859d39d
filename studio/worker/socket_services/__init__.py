"""Processes started when a client connects to their socket: tokenizer and inference service."""
