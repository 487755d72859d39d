"""Models of the OpenAI-compatible API: those that can answer."""

from typing import Literal

from fastapi import APIRouter

from studio.services.openai import model_names
from studio.services.openai.model_names import ModelInfo
from studio.web.api.openai.schemas import Deleted, OpenAIListing, Out, make_page, unix_seconds
from studio.web.http.deps import DB, Config

router = APIRouter(prefix="/v1/models", tags=["openai"])


class OpenAIModelOut(Out):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


@router.get("")
def newest(db: DB) -> OpenAIListing[OpenAIModelOut]:
    """List the models: fine-tuned models, then base models, each newest first."""
    listed = [_model_out(model) for model in model_names.list_models(db)]
    return make_page(listed, [model.id for model in listed], len(listed))


# Names contain slashes and colons, and clients do not escape them.
@router.get("/{name:path}")
def show(name: str, db: DB, config: Config) -> OpenAIModelOut:
    return _model_out(model_names.get(db, config.runs, name))


@router.delete("/{name:path}")
def delete(name: str, db: DB, config: Config) -> Deleted:
    """Move the run that trained the model to the trash, where it can be restored for weeks."""
    model_names.delete(db, config.runs, name)
    return Deleted(id=name, object="model")


def _model_out(model: ModelInfo) -> OpenAIModelOut:
    return OpenAIModelOut(
        id=model.name, created=unix_seconds(model.created_at), owned_by=model_names.ORGANISATION
    )
