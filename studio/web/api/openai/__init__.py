"""The OpenAI-compatible API under /v1: files, jobs, graders, models, completions, embeddings."""
