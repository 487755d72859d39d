"""The page to chat with the model of a run beside its base model."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.protocols.run_dir import RunDir
from studio.services.chat import chat_models, slot_wait, suggested_prompts
from studio.services.runs import runs
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, page

router = APIRouter(prefix="/runs/{run_id}/chat", include_in_schema=False)

Step = Annotated[str, Query(max_length=12, pattern=r"^\d*$")]
"""The step of a checkpoint; empty for the newest model."""


Prompt = Annotated[str, Query(max_length=suggested_prompts.MAX_LINKED_CHARS)]
"""The text of the first message before it is sent."""


@router.get("")
def show(
    request: Request,
    run_id: int,
    db: DB,
    config: Config,
    checkpoint: Step = "",
    prompt: Prompt = "",
) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run_id))
    trained = chat_models.list_models(run, folder)
    context: dict[str, Any] = {"run": run, "trained": trained, "wait": slot_wait.find_wait(db)}
    if not trained.has_result and not trained.steps:
        missing = chat_models.missing_reason(run, folder)
        return page(request, "chat/show.html", **context, missing=missing, prompts=[])
    step = trained.choose_step(int(checkpoint) if checkpoint else None)
    return page(
        request,
        "chat/show.html",
        **context,
        missing=None,
        draft=prompt,
        step=step,
        sees=chat_models.sees_images(run, folder),
        is_text=suggested_prompts.trains_on_text(db, run),
        prompts=suggested_prompts.list_prompts(db, run, config.datasets),
    )


@router.get("/wait")
def wait_block(request: Request, run_id: int, db: DB) -> Response:
    """Show what chat waits for; empty once a model could answer."""
    run = runs.get(db, run_id)
    return block(request, "chat/show.html", "wait", run=run, wait=slot_wait.find_wait(db))
