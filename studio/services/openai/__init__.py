"""Services of the OpenAI-compatible API: files, fine-tuning jobs, job events, and models."""
