"""REST routes that tokenize a row as training does."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import ConfigDict, Field
from sqlmodel import Session

from studio.db.session import read_session
from studio.protocols.tokenizer_service import TemplateSource, TokenizerRequest, TokenPreview
from studio.services.datasets import datasets, token_preview
from studio.services.datasets.versions import Part
from studio.services.models import tokenizer_client
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Id
from studio.web.http.deps import Config

router = APIRouter(
    route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}/preview", tags=["datasets"]
)


class PreviewSettings(Body):
    """The settings that determine how a row is tokenized."""

    # OpenAPI describes query parameters one by one.
    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str = Field(min_length=1, max_length=500)
    """The base model, by the name that recipes use."""
    max_length: int = Field(default=1024, ge=1, le=1_048_576)
    chat_template: TemplateSource = "model"


class PreviewQuery(PreviewSettings):
    model_config = ConfigDict(strict=False)  # Query parameters are text.

    row: int = Field(default=1, ge=1, lt=2**53)
    """Row number, starting at one."""
    split: Part = "train"
    version: int | None = Field(default=None, ge=1, lt=2**31)
    """Defaults to the version that new runs train on."""
    packing: bool = False
    """Whether to return the rows that are packed into the same example."""
    validation_share: float = Field(default=0.05, gt=0, le=0.5)
    """The recipe's validation share, for a dataset without a validation split. Validation rows are
    not packed."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """The seed that selects the validation rows."""


class PreviewRequest(PreviewSettings):
    """A row that is not saved yet."""

    row: dict[str, Any]
    """A conversation (`messages`), a text, a preference pair or a rated answer."""


@router.get("")
def preview(
    request: Request, config: Config, dataset_id: Id, wanted: Annotated[PreviewQuery, Query()]
) -> TokenPreview:
    """Show a row as training sees it: its tokens, which are trained on, which are truncated."""
    with read_session(request.app.state.engine) as db:
        dataset = datasets.get(db, dataset_id)
        exact_row = token_preview.exact_row(db, dataset, wanted.split, wanted.row, wanted.version)
        tokenizer_request = _preview_request(
            db, wanted, token_preview.read_row(config.datasets, exact_row)
        )
    if wanted.packing:
        split_options = wanted.validation_share, wanted.seed
        tokenizer_request = token_preview.with_packing_window(
            tokenizer_request, config.datasets, exact_row, *split_options
        )
    return tokenizer_client.tokenize_row(config, tokenizer_request)


@router.post("")
def preview_unsaved(
    request: Request, config: Config, dataset_id: Id, wanted: PreviewRequest
) -> TokenPreview:
    """Show an unsaved row as training would see it."""
    with read_session(request.app.state.engine) as db:
        datasets.get(db, dataset_id)
        tokenizer_request = _preview_request(db, wanted, wanted.row)
    return tokenizer_client.tokenize_row(config, tokenizer_request)


def _preview_request(
    db: Session, settings: PreviewSettings, row: dict[str, Any]
) -> TokenizerRequest:
    return token_preview.tokens_request(
        db,
        settings.model,
        row,
        max_length=settings.max_length,
        chat_template=settings.chat_template,
    )
