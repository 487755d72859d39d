"""What the OpenAI-compatible API serves: files, fine-tuning jobs, their events, and models."""
