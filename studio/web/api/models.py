"""Models that runs can start from."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from studio.services import models
from studio.web.api.shapes import Body, Listing, Name, Out
from studio.web.deps import DB

router = APIRouter(prefix="/api/v1/models", tags=["models"])


class NewModel(Body):
    name: Name
    kind: Literal["folder", "hub"]
    location: Annotated[str, Field(min_length=1, max_length=4096)]
    """A folder on this machine, or owner/name on the hub."""


class ModelOut(Out):
    id: int
    name: str
    kind: str
    location: str
    run_id: int | None
    facts: dict[str, Any]
    created_at: datetime


@router.get("")
def newest(db: DB) -> Listing[ModelOut]:
    found = [ModelOut.model_validate(model) for model in models.newest(db)]
    return Listing(data=found, has_more=False, next_after=None)


@router.post("", status_code=201)
def add(new: NewModel, db: DB) -> ModelOut:
    return ModelOut.model_validate(models.add(db, new.name, new.location, new.kind))


@router.get("/{model_id}")
def show(model_id: int, db: DB) -> ModelOut:
    model = models.get(db, model_id)
    return ModelOut.model_validate(model)


@router.delete("/{model_id}", status_code=204)
def remove(model_id: int, db: DB) -> None:
    models.remove(db, model_id)
