"""The OpenAI-compatible API under /v1: files, jobs, graders, models, completions, embeddings."""

from studio.web.api.openai import chat, embeddings, files, graders, jobs, models, rerank

ROUTERS = (
    files.router,
    jobs.router,
    graders.router,
    models.router,
    chat.router,
    embeddings.router,
    rerank.router,
)
