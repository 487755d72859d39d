"""Schemas shared by the OpenAI-compatible API, and its rules for fields.

A field without effect here is ignored. A field that cannot be honoured is rejected, unless its
value changes nothing. An unknown field is rejected.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from studio.errors import InvalidError
from studio.schemas.field_docs import FieldDocs

T = TypeVar("T")


class Body(FieldDocs, BaseModel):
    """A request body. `check_fields` checks the fields that are not declared."""

    model_config = ConfigDict(extra="allow")


class Out(FieldDocs, BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="null")


class OpenAIListing(Out, Generic[T]):
    """One page of a list. Pass its last id as `after` to get the next page."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Deleted(Out):
    id: str
    object: str
    deleted: bool = True


def make_page(shown: Sequence[T], ids: Sequence[str], limit: int) -> OpenAIListing[T]:
    """Make a page of at most `limit` items; one extra id signals that there are more."""
    page_ids = ids[:limit]
    return OpenAIListing(
        data=list(shown[:limit]),
        first_id=page_ids[0] if page_ids else None,
        last_id=page_ids[-1] if page_ids else None,
        has_more=len(ids) > limit,
    )


def unix_seconds(moment: datetime) -> int:
    """Return a time as in OpenAI's API: seconds since 1970."""
    return int(moment.timestamp())


def check_fields(
    sent: Body, ignored: Collection[str], neutral: Mapping[str, Collection[object]]
) -> None:
    """Reject fields of a body that cannot be honoured, instead of ignoring them silently.

    Raises:
        InvalidError: A field is unknown, or unsupported with its value.

    """
    for name, value in (sent.model_extra or {}).items():
        if name in ignored or value is None:
            continue
        if name not in neutral:
            raise _unsupported("unknown_parameter", f"Unrecognized request argument: {name}.", name)
        if not _is_neutral(value, neutral[name]):
            message = f"{name} is not supported by this studio; leave it out."
            raise _unsupported("unsupported_parameter", message, name)


def _is_neutral(value: Any, neutral_values: Collection[object]) -> bool:  # noqa: ANN401 -- any JSON
    return any(
        value == neutral and isinstance(value, bool) is isinstance(neutral, bool)
        for neutral in neutral_values
    )


def _unsupported(code: str, message: str, param: str) -> InvalidError:
    error = InvalidError(message[:300], param=param[:100])
    error.code = code
    return error
