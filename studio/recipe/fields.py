"""Knobs: the fields a person turns. The type says what is legal, the docstring what it does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from studio.schemas.field_docs import FieldDocs


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """How a field looks on screen. Bounds, default and help live on the field itself."""

    label: str
    unit: str = ""
    advanced: bool = False
    titles: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What choices are called on a page, where their names do not say enough."""
    is_studio_own: bool = False
    """Whether it is the studio's own, in a section that otherwise bears upstream's names."""
    usable_range: tuple[float, float] | None = None
    """The least and greatest number that a run can use, where the type allows others."""
    related: tuple[str, ...] = ()
    """Knobs of other sections to think of with this one, by dotted name."""


class Section(FieldDocs, BaseModel):
    """A titled group of knobs. One section is one fieldset, one YAML block, one JSON object.

    Strict: a program that sends "1e-4" or true where a number belongs is told so. Forms and YAML,
    which know only text, are read with `validate_python(values, strict=False)`.
    """

    upstream: ClassVar[str] = ""
    """The config whose names its knobs bear and which they are handed to, or nothing."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )


def field_spec(info: FieldInfo) -> FieldSpec | None:
    """Return the field's knob, or None for a field that no person sets."""
    return next((item for item in info.metadata if isinstance(item, FieldSpec)), None)


def section_types(annotation: Any) -> list[type[Section]]:  # noqa: ANN401 -- annotations have no narrower type
    """Return the sections a field may hold: one, or several where it has kinds."""
    union = get_origin(annotation) in {UnionType, Union}
    options = get_args(annotation) if union else (annotation,)
    return [kind for kind in options if isinstance(kind, type) and issubclass(kind, Section)]
