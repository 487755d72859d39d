"""The OpenAI-compatible API under /v1: files, fine-tuning jobs, models and completions."""

from studio.web.api.openai import chat, files, jobs

ROUTERS = (files.router, jobs.router, chat.models_router, chat.router)
