"""Readable validation errors: the field, what it must be, and its allowed range.

Pydantic includes union branches in the location (`messages.0.content.constrained-str`) and reports
only the bound that was exceeded. This module finds the real fields through the model's types.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Discriminator, Tag
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_UNION_BRANCH = re.compile(
    r"(str|int|float|bool|none|dict|list|bytes|datetime)|(constrained|tagged|function|model)-.*"
    r"|.*\[.*"
)
"""The names that pydantic gives union branches that are not models."""
_MAPPING_TYPES = (dict, Mapping)
_LIST_TYPES = (list, tuple, set, frozenset, Sequence)
_RANGE_ERRORS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
_DATABASE_LIMIT = 2**53
"""Larger bounds are storage limits, which mean nothing to users."""
_ABSENT_FIELD_ERRORS = frozenset({"missing", "extra_forbidden"})
"""Errors whose location ends in a missing or unknown field."""
_MUST_BE = "Must be "


@dataclass(frozen=True, slots=True)
class FieldError:
    param: str
    """The dotted name of the field, such as `messages.0.content`; empty for the whole input."""
    message: str
    """One or two sentences."""

    def __str__(self) -> str:
        return f"{self.param}: {self.message}" if self.param else self.message


@dataclass(frozen=True, slots=True)
class _FieldLocation:
    """The location of an error: the path of fields, and the types allowed there."""

    path: tuple[str, ...]
    types: tuple[Any, ...]
    siblings: tuple[str, ...]
    """Names of the fields in the same object."""


def field_errors(errors: Iterable[ErrorDetails], model: Any = None) -> list[FieldError]:  # noqa: ANN401 -- any annotation
    """Return one error per field, in the order of the errors.

    `model` is the annotation that the input was validated against, or a mapping of names to
    annotations; without it, messages give no range. If every branch of a union failed, only the
    errors deepest in the input are returned.
    """
    fields: dict[tuple[str, ...], list[str]] = {}
    for error in errors:
        location = _locate_field(error["loc"], model, is_new=error["type"] in _ABSENT_FIELD_ERRORS)
        path = location.path + _discriminator(error)
        fields.setdefault(path, []).append(_sentence(error, location))
    return [
        FieldError(".".join(path), _join_branches(messages))
        for path, messages in fields.items()
        if not any(len(other) > len(path) and other[: len(path)] == path for other in fields)
    ]


def _join_branches(messages: Sequence[str]) -> str:
    """Join the requirements of all branches of a union into one sentence."""
    distinct = list(dict.fromkeys(messages))
    if len(distinct) == 1 or not all(message.startswith(_MUST_BE) for message in distinct):
        return distinct[0]
    requirements = [message.removeprefix(_MUST_BE).rstrip(".") for message in distinct]
    return f"{_MUST_BE}{' or '.join(requirements)}."


def _discriminator(error: ErrorDetails) -> tuple[str, ...]:
    is_tag = error["type"] in {"union_tag_invalid", "union_tag_not_found"}
    # It is quoted if it is a field, and followed by brackets if it is a function, named like one.
    return (error["ctx"]["discriminator"].strip("'()"),) if is_tag else ()


def _locate_field(loc: Sequence[int | str], model: Any, *, is_new: bool) -> _FieldLocation:  # noqa: ANN401 -- any annotation
    path: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    types = tuple(_union_members(model))
    for number, part in enumerate(loc):
        if branch := _tagged_branch(types, part):
            types = (branch,)
            continue
        inner = tuple(_types_inside(types, part))
        is_field = bool(inner) or (not types and not _UNION_BRANCH.fullmatch(str(part)))
        if is_field or (is_new and number == len(loc) - 1):
            siblings = tuple(name for kind in types for name in _field_names(kind))
            path, types = (*path, str(part)), inner
    return _FieldLocation(path, types, siblings)


def _tagged_branch(types: Iterable[Any], part: int | str) -> type[BaseModel] | None:
    """Return the member of a tagged union that has this tag.

    The tag stands in a location before the fields of its branch, and may be named like one.
    """
    names: list[str] = []
    tag = ""
    for kind in types:
        if isinstance(kind, Discriminator):
            names.append(str(kind.discriminator))
        elif isinstance(kind, Tag):
            tag = kind.tag
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = (field for name in names if (field := kind.model_fields.get(name)))
            if part in [tag, *(value for field in fields for value in get_args(field.annotation))]:
                return kind
            tag = ""
    return None


def _field_names(kind: Any) -> Iterable[str]:  # noqa: ANN401 -- any annotation
    if isinstance(kind, Mapping):
        yield from map(str, kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from (info.alias or name for name, info in kind.model_fields.items())


def _types_inside(types: Iterable[Any], part: int | str) -> Iterator[Any]:
    """Yield the types allowed for a field or index inside the given types."""
    for kind in types:
        origin, args = get_origin(kind) or kind, get_args(kind)
        if kind is Any:
            yield kind
        elif isinstance(kind, Mapping):
            yield from _union_members(kind.get(part))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _model_field_types(kind, part)
        elif isinstance(part, int) and origin in _LIST_TYPES:
            yield from _union_members(args[0] if args else Any)
        elif (
            isinstance(part, str) and origin in _MAPPING_TYPES and not _UNION_BRANCH.fullmatch(part)
        ):
            yield from _union_members(args[1] if args else Any)


def _model_field_types(model: type[BaseModel], part: int | str) -> Iterator[Any]:
    for name, info in model.model_fields.items():
        if part in {name, info.alias}:
            yield from _union_members(info)


def _union_members(kind: Any) -> Iterator[Any]:  # noqa: ANN401 -- any annotation
    """Yield each member of a union, and the constraints it is annotated with."""
    if kind is None:
        return
    if isinstance(kind, FieldInfo):
        yield from _constraints(kind)
        yield from _union_members(kind.annotation)
    elif get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        yield from (constraint for item in metadata for constraint in _constraints(item))
        yield from _union_members(inner)
    elif get_args(kind) and get_origin(kind) not in (*_MAPPING_TYPES, *_LIST_TYPES):
        for branch in get_args(kind):
            yield from _union_members(branch)
    else:
        yield kind


def _constraints(item: Any) -> Iterator[Any]:  # noqa: ANN401 -- what a type is annotated with
    yield from getattr(item, "metadata", [item])
    if isinstance(item, FieldInfo) and isinstance(item.discriminator, str):
        yield Discriminator(item.discriminator)


def accepts_list(kind: Any) -> bool:  # noqa: ANN401 -- any annotation
    """Whether the type accepts a list."""
    return any((get_origin(member) or member) in _LIST_TYPES for member in _union_members(kind))


def range_message(types: Iterable[Any], what: str = "") -> str:
    """Return the allowed range as a sentence, empty if unbounded; `what` names the number type."""
    bounds = {
        name: _format_number(limit)
        for kind in types
        for name in _BOUNDS
        if isinstance(limit := getattr(kind, name, None), int | float)
        and abs(limit) < _DATABASE_LIMIT
    }
    low, high = (next((name for name in side if name in bounds), "") for side in _BOUND_SIDES)
    template = (_TYPED_RANGE_MESSAGES if what else _RANGE_MESSAGES).get((low, high), "")
    return template.format(what=what, low=bounds.get(low), high=bounds.get(high))


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


_BOUND_SIDES = (("gt", "ge"), ("lt", "le"))
_BOUNDS = ("gt", "ge", "lt", "le")
_RANGE_MESSAGES = {
    ("ge", "le"): "Must be between {low} and {high}.",
    ("ge", "lt"): "Must be at least {low} and less than {high}.",
    ("gt", "le"): "Must be more than {low} and at most {high}.",
    ("gt", "lt"): "Must be more than {low} and less than {high}.",
    ("ge", ""): "Must be at least {low}.",
    ("gt", ""): "Must be more than {low}.",
    ("", "le"): "Must be at most {high}.",
    ("", "lt"): "Must be less than {high}.",
}
_TYPED_RANGE_MESSAGES = {
    ("ge", "le"): "Must be {what} between {low} and {high}.",
    ("ge", "lt"): "Must be {what}, at least {low} and less than {high}.",
    ("gt", "le"): "Must be {what}, more than {low} and at most {high}.",
    ("gt", "lt"): "Must be {what}, more than {low} and less than {high}.",
    ("ge", ""): "Must be {what}, at least {low}.",
    ("gt", ""): "Must be {what}, more than {low}.",
    ("", "le"): "Must be {what}, at most {high}.",
    ("", "lt"): "Must be {what}, less than {high}.",
    ("", ""): "Must be {what}.",
}


def _sentence(error: ErrorDetails, location: _FieldLocation) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if error.get("input") == "" or context.get("min_length") == 1:
        return _ERROR_SENTENCES["missing"]
    if kind in _RANGE_ERRORS:
        bounds = SimpleNamespace(**{name: context[name] for name in _BOUNDS if name in context})
        return range_message(location.types) or range_message([bounds])
    if kind == "extra_forbidden":
        suggestion = _suggestion(error["loc"][-1], location.siblings)
        return " ".join(filter(None, ("Unknown field.", suggestion)))
    if template := _ERROR_SENTENCES.get(kind):
        return template.format(**context)
    if what := _NUMBER_ERRORS.get(kind):
        return range_message(location.types, what)
    return _reword(error["msg"])


def _suggestion(name: int | str, siblings: Sequence[str]) -> str:
    near = get_close_matches(str(name), siblings, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else ""


def _reword(message: str) -> str:
    """Reword a message from pydantic, or from a validator of the studio, as a sentence."""
    text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    for theirs, ours in (("Input should be ", _MUST_BE), ("Value should ", "Must ")):
        text = text.replace(theirs, ours)
    return text if text.endswith((".", "!", "?")) else f"{text}."


_NUMBER_ERRORS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size"), "a whole number"),
    "int_from_float": "a whole number",
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
}
_ERROR_SENTENCES = {
    "missing": "A value is required.",
    **dict.fromkeys(("bool_type", "bool_parsing"), "Must be true or false."),
    "string_type": "Must be text.",
    "string_unicode": "Must be text in UTF-8.",
    "string_too_long": "Must have at most {max_length} characters.",
    "string_too_short": "Must have at least {min_length} characters.",
    "string_pattern_mismatch": "Must match the pattern {pattern}",
    **dict.fromkeys(("literal_error", "enum"), "Must be {expected}."),
    "union_tag_invalid": "Must be one of {expected_tags}.",
    "union_tag_not_found": "A value is required.",
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "Must be a list."),
    "dict_type": "Must be an object with fields.",
    "mapping_type": "Must be an object with fields.",
    "model_type": "Must be an object with fields.",
    "model_attributes_type": "Must be an object with fields.",
    "too_short": "Must have at least {min_length} entries.",
    "too_long": "Must have at most {max_length} entries.",
    "json_invalid": "Invalid JSON: {error}.",
    "none_required": "Must be null.",
    "multiple_of": "Must be a multiple of {multiple_of}.",
}
"""API messages by pydantic error type; see https://docs.pydantic.dev/latest/errors/."""
