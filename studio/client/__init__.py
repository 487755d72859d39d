"""The Python client: the same calls as a synchronous (`Studio`) and an async client.

    from studio.client import Studio

    with Studio() as studio:
        run = studio.runs.submit("first try", {"base_model": "starter", "dataset": "starter"})
        print(studio.runs.wait(run.id).metrics)

Each call is declared once, in `endpoints.py`; the responses are in `schemas.py`.
"""

from studio.client.async_client import AsyncStudio
from studio.client.errors import ApiError, UnreachableError
from studio.client.schemas import Run
from studio.client.sync_client import Studio

__all__ = ["ApiError", "AsyncStudio", "Run", "Studio", "UnreachableError"]
