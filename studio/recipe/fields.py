"""Settings: the fields a user can change. Types define allowed values, docstrings the help."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from studio.schemas.field_docs import FieldDocs


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """How a field is displayed. Bounds, default and help are on the field itself."""

    label: str
    unit: str = ""
    advanced: bool = False
    choice_titles: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Display titles of choices whose names are not clear enough."""
    is_studio_own: bool = False
    """Whether upstream does not have it, in a section that otherwise uses upstream names."""
    usable_range: tuple[float, float] | None = None
    """The lowest and highest value that a run can use, if the type allows others."""
    related: tuple[str, ...] = ()
    """Dotted names of related settings in other sections."""


class Section(FieldDocs, BaseModel):
    """A titled group of settings. One section is one fieldset, one YAML block, one JSON object.

    Strict: "1e-4" or true instead of a number is a validation error. Forms and YAML, which contain
    only text, are validated with `validate_python(values, strict=False)`.
    """

    upstream: ClassVar[str] = ""
    """The upstream config that takes these settings under the same names; empty if none."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )


def field_spec(info: FieldInfo) -> FieldSpec | None:
    """Return the field's `FieldSpec`, or None for a field that users do not set."""
    return next((item for item in info.metadata if isinstance(item, FieldSpec)), None)


def own_fields(section: type[Section]) -> set[str]:
    """Return the fields of a section that its upstream config does not have."""
    specs = {name: field_spec(info) for name, info in section.model_fields.items()}
    return {name for name, spec in specs.items() if spec and spec.is_studio_own}


def section_types(annotation: Any) -> list[type[Section]]:  # noqa: ANN401 -- annotations have no narrower type
    """Return the section types a field may hold: several for a union of variants."""
    union = get_origin(annotation) in {UnionType, Union}
    options = get_args(annotation) if union else (annotation,)
    return [kind for kind in options if isinstance(kind, type) and issubclass(kind, Section)]
