"""OpenAI's interface over the studio: files, fine-tuning jobs, models and answers, under /v1."""

from studio.web.api.openai import chat, files, jobs, models

ROUTERS = tuple(module.router for module in (files, jobs, models, chat))
