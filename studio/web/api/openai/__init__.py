"""The OpenAI-compatible API under /v1: files, fine-tuning jobs, graders, models and completions."""

from studio.web.api.openai import chat, files, graders, jobs, models

ROUTERS = (files.router, jobs.router, graders.router, models.router, chat.router)
