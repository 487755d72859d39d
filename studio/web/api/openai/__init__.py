"""The OpenAI-compatible API under /v1: files, fine-tuning jobs, models and completions."""

from studio.web.api.openai import chat, files, jobs, models

ROUTERS = (files.router, jobs.router, models.router, chat.router)
