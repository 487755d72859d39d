"""Turn a section into a form, and a posted form back into a section.

Nothing here names a knob. What a field looks like follows from its type: a choice between
sections, told apart by a field such as `kind`, becomes alternatives of which one is in force.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from studio.recipe.knobs import Knob, knob_of

Widget = Literal["text", "number", "checkbox", "select"]
Problems = Mapping[str, str]

_SAID = {
    "missing": "A value is needed.",
    "string_too_short": "A value is needed.",
    "int_parsing": "This is not a whole number.",
    "int_from_float": "This is not a whole number.",
    "float_parsing": "This is not a number.",
    "finite_number": "This is not a finite number.",
}
"""Pydantic's messages that a person would not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One control on the page."""

    name: str
    widget: Widget
    knob: Knob
    help: str
    value: str
    """As it stands in the control; what a person typed is kept as it was."""
    problem: str
    choices: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.name.replace(".", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fieldset:
    """One section on the page: its inputs, then the sections inside it."""

    name: str
    title: str
    intro: str
    inputs: tuple[Input, ...] = ()
    inner: tuple["Fieldset", ...] = ()
    kind: str = ""
    """Of alternatives the one in force; of one alternative its own."""
    kinds: tuple["Fieldset", ...] = ()
    """The alternatives, where there are some; `inputs` and `inner` are empty then."""

    @property
    def simple(self) -> tuple[Input, ...]:
        return tuple(item for item in self.inputs if not item.knob.advanced)

    @property
    def advanced(self) -> tuple[Input, ...]:
        return tuple(item for item in self.inputs if item.knob.advanced)

    @property
    def hides_problem(self) -> bool:
        """Whether the advanced part must stand open."""
        return any(item.problem for item in self.advanced)

    def all_inputs(self) -> Iterator[Input]:
        yield from self.inputs
        for part in (*self.inner, *self.kinds):
            yield from part.all_inputs()

    def input(self, name: str) -> Input:
        return next(item for item in self.inputs if item.name == name)


def fieldset(
    section: type[BaseModel],
    values: Mapping[str, Any],
    problems: Problems | None = None,
    prefix: str = "",
) -> Fieldset:
    """Lay out a section with the values it has, or that a person gave it."""
    problems = problems or {}
    return Fieldset(
        name=prefix.rstrip("."),
        title=section.model_config.get("title") or _titled(prefix.rstrip(".")),
        intro=_intro(section),
        inputs=tuple(_inputs(section, values, problems, prefix)),
        inner=tuple(
            _part(info, _group(values, name), problems, f"{prefix}{name}.")
            for name, info in section.model_fields.items()
            if _sections_in(info.annotation)
        ),
    )


def tidy(section: type[BaseModel], posted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a posted form means.

    An empty field that may be empty is None; fields of alternatives not chosen are dropped.
    """
    return {name: _meant(section.model_fields.get(name), value) for name, value in posted.items()}


def problems_in(error: ValidationError, section: type[BaseModel]) -> dict[str, str]:
    """Map each bad field's dotted name to what is wrong with it."""
    return {
        _dotted(item["loc"], section): _SAID["missing"]
        if item["input"] == ""
        else _SAID.get(item["type"], item["msg"])
        for item in error.errors(include_url=False)
    }


def _meant(info: FieldInfo | None, value: object) -> object:
    if info is None:
        return value
    if value == "" and NoneType in get_args(info.annotation):
        return None
    sections = _sections_in(info.annotation)
    if not sections or not isinstance(value, Mapping):
        return value
    chosen = _chosen(sections, info, value)
    known = {name for section in sections for name in section.model_fields}
    foreign = known - chosen.model_fields.keys()
    return tidy(chosen, {name: one for name, one in value.items() if name not in foreign})


def _dotted(loc: tuple[int | str, ...], section: type[BaseModel]) -> str:
    """Name the field at `loc`, without the union branches that pydantic puts on the way."""
    names: list[str] = []
    level = [section]
    for part in map(str, loc):
        owner = next((model for model in level if part in model.model_fields), None)
        if owner is not None:
            names.append(part)
            level = _sections_in(owner.model_fields[part].annotation)
    return ".".join(names)


def _part(info: FieldInfo, values: Mapping[str, Any], problems: Problems, prefix: str) -> Fieldset:
    sections = _sections_in(info.annotation)
    if len(sections) == 1:
        return fieldset(sections[0], values, problems, prefix)
    chosen = _kind(_chosen(sections, info, values), info)
    return Fieldset(
        name=prefix.rstrip("."),
        title=_titled(prefix.rstrip(".")),
        intro=info.description or "",
        kind=chosen,
        kinds=tuple(_alternative(one, info, values, problems, prefix) for one in sections),
    )


def _alternative(
    section: type[BaseModel],
    info: FieldInfo,
    values: Mapping[str, Any],
    problems: Problems,
    prefix: str,
) -> Fieldset:
    kind = _kind(section, info)
    return Fieldset(
        name=prefix.rstrip("."),
        title=section.model_config.get("title") or _titled(kind),
        intro=_intro(section),
        inputs=tuple(_inputs(section, values, problems, prefix)),
        kind=kind,
    )


def _chosen(
    sections: Sequence[type[BaseModel]], info: FieldInfo, values: Mapping[str, Any]
) -> type[BaseModel]:
    """Return the alternative that the values name, or the first."""
    named = values.get(str(info.discriminator))
    return next((one for one in sections if _kind(one, info) == named), sections[0])


def _kind(section: type[BaseModel], info: FieldInfo) -> str:
    tag = section.model_fields.get(str(info.discriminator))
    return str(tag.default) if tag else ""


def _inputs(
    section: type[BaseModel], values: Mapping[str, Any], problems: Problems, prefix: str
) -> Iterator[Input]:
    for name, info in section.model_fields.items():
        knob = knob_of(info)
        if knob is None:
            continue
        default = "" if info.is_required() else info.get_default()
        yield Input(
            name=prefix + name,
            widget=_widget(info.annotation),
            knob=knob,
            help=info.description or "",
            value=_written(values.get(name, default)),
            problem=problems.get(prefix + name, ""),
            choices=_choices(info.annotation),
        )


def _widget(annotation: object) -> Widget:
    if annotation is bool:
        return "checkbox"
    if _choices(annotation):
        return "select"
    return "number" if {int, float} & {annotation, *get_args(annotation)} else "text"


def _choices(annotation: object) -> tuple[str, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _written(value: object) -> str:
    """Write a value so that reading it gives the same value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _group(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = values.get(name)
    return group if isinstance(group, Mapping) else {}


def _intro(section: type[BaseModel]) -> str:
    """Return the docstring's first paragraph; what follows is for those who read the code."""
    return (section.__doc__ or "").partition("\n\n")[0].strip()


def _titled(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ").capitalize()


def _sections_in(annotation: object) -> list[type[BaseModel]]:
    is_union = get_origin(annotation) in (UnionType, Union)
    options = get_args(annotation) if is_union else (annotation,)
    return [item for item in options if isinstance(item, type) and issubclass(item, BaseModel)]
