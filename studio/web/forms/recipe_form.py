"""Build forms from recipe sections, and parse posted forms.

No setting is named here. The control of a field follows from its type: a union of sections,
discriminated by a field such as `kind`, becomes variants of which one is chosen.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from studio.recipe.fields import (
    FieldSpec,
    choices_of,
    field_references,
    field_spec,
    section_intro,
    section_types,
    title_from_name,
)
from studio.schemas.field_docs import field_descriptions
from studio.schemas.validation_errors import field_errors

Widget = Literal["text", "number", "checkbox", "select", "json"]
_SHORT = 60
"""Characters of JSON that are shown where only its beginning fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One form control."""

    name: str
    """The dotted name of the setting."""
    posted: str = ""
    """The name it is posted by, if several variants have the setting: `adapter.oft.base_dtype`."""
    widget: Widget
    knob: FieldSpec
    help: str
    value: str
    """The text in the control; typed text is kept as it is."""
    problem: str
    initial: str
    """The text the form started with."""
    default: str
    """The text of the default; empty if a value is required."""
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name of its control: no two have the same."""
        return self.posted or self.name

    @property
    def id(self) -> str:
        return self.field.replace(".", "-")

    @property
    def leaf(self) -> str:
        """The name of the setting in its section."""
        return self.name.rpartition(".")[2]

    @property
    def is_changed(self) -> bool:
        return not self._is_same(self.initial)

    @property
    def is_default(self) -> bool:
        return self._is_same(self.default)

    def _is_same(self, value: str) -> bool:
        is_same = is_same_json if self.widget == "json" else is_same_value
        return is_same(self.value, value)

    def display_text(self, value: str) -> str:
        """Return the label of a value."""
        if self.widget == "checkbox":
            return "on" if value == "true" else "off"
        if self.widget == "json":
            value = " ".join(value.split())
            value = value if len(value) <= _SHORT else f"{value[:_SHORT]}…"
        return self.knob.choice_titles.get(value, value) or "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fieldset:
    """One section of a form: its inputs, then the sections inside it."""

    name: str
    title: str
    intro: str
    inputs: tuple[Input, ...] = ()
    sections: tuple["Fieldset", ...] = ()
    variant: str = ""
    """The chosen variant; in a variant, its own name."""
    variants: tuple["Fieldset", ...] = ()
    """The variants, if there are any; then `inputs` and `inner` are empty."""
    initial_variant: str = ""
    """The variant the form started with."""

    def all_inputs(self) -> Iterator[Input]:
        yield from self.inputs
        for section in (*self.sections, *self.variants):
            yield from section.all_inputs()

    def active_inputs(self) -> Iterator[Input]:
        """Yield the inputs that count: of variants only those of the chosen one."""
        yield from self.inputs
        for section in (
            *self.sections,
            *(variant for variant in self.variants if variant.variant == self.variant),
        ):
            yield from section.active_inputs()

    def all_sections(self) -> Iterator["Fieldset"]:
        """Yield this section and all sections inside it."""
        yield self
        for section in self.sections:
            yield from section.all_sections()

    def input(self, name: str) -> Input:
        return next(item for item in self.inputs if item.name == name)


def is_same_value(one: str, other: str) -> bool:
    """Whether two texts of a control mean the same: 2e-4 equals 0.0002."""
    one, other = one.strip(), other.strip()
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def is_same_json(one: str, other: str) -> bool:
    """Whether two texts hold the same JSON, or are equal."""
    try:
        return one.strip() == other.strip() or bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False


def indent_json(text: str) -> str:
    """Return JSON with a line for each value; a text that is no JSON stays as it is."""
    try:
        indented = json.dumps(json.loads(text), ensure_ascii=False, indent=2)
        indented.encode()  # Half of a surrogate pair cannot be shown.
    except (ValueError, RecursionError):
        return text
    return indented


Problems = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FormState:
    """The values and problems to show in a section."""

    values: Mapping[str, Any]
    initial: Mapping[str, Any]
    problems: Problems

    def nested(self, name: str) -> "_FormState":
        values, base = nested_values(self.values, name), nested_values(self.initial, name)
        return _FormState(values=values, initial=base, problems=self.problems)


def fieldset(
    section: type[BaseModel],
    values: Mapping[str, Any],
    problems: Problems | None = None,
    base: Mapping[str, Any] | None = None,
) -> Fieldset:
    """Build the form of a section, with its values or the typed ones.

    `base` has the values the form started with, to mark changes; without it nothing is changed.
    """
    state = _FormState(
        values=values, initial=values if base is None else base, problems=problems or {}
    )
    return _fieldset(section, state, "")


def _fieldset(section: type[BaseModel], state: _FormState, prefix: str) -> Fieldset:
    return Fieldset(
        name=prefix.rstrip("."),
        title=section.model_config.get("title") or title_from_name(prefix.rstrip(".")),
        intro=section_intro(section),
        inputs=tuple(_inputs(section, state, prefix)),
        sections=tuple(
            _subsection(
                info,
                field_descriptions(section).get(name, ""),
                state.nested(name),
                f"{prefix}{name}.",
            )
            for name, info in section.model_fields.items()
            if _has_settings(info)
        ),
    )


def _has_settings(info: FieldInfo) -> bool:
    """Whether a field holds a section in which users set something."""
    kinds = section_types(info.annotation)
    return any(next(field_references(kind), None) for kind in kinds)


def parse_posted(section: type[BaseModel], posted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a posted form.

    An empty optional field becomes None; fields of variants that are not chosen are dropped. A
    setting that several variants have is posted once for each, in a group with the variant's name.
    """
    return {
        name: _parse_value(section.model_fields.get(name), value) for name, value in posted.items()
    }


def field_problems(error: ValidationError, section: type[BaseModel]) -> dict[str, str]:
    """Map each invalid field's dotted name to its problem."""
    # The control that chooses a section's `kind` has the name of the section.
    return {
        field.param.removesuffix(".kind"): field.message
        for field in field_errors(error.errors(), section)
    }


def _parse_value(info: FieldInfo | None, value: object) -> object:
    if info is None:
        return value
    if value == "" and NoneType in get_args(info.annotation):
        return None
    sections = section_types(info.annotation)
    if not sections or not isinstance(value, Mapping):
        return value
    chosen = _chosen_variant(sections, info, value)
    all_names = {name for section in sections for name in section.model_fields}
    groups = {_variant_name(section, info) for section in sections} if info.discriminator else set()
    foreign_names = (all_names | groups) - chosen.model_fields.keys()
    common = {name: text for name, text in value.items() if name not in foreign_names}
    own = nested_values(value, _variant_name(chosen, info))
    return parse_posted(chosen, {**common, **own})


def _subsection(info: FieldInfo, intro: str, state: _FormState, prefix: str) -> Fieldset:
    sections = section_types(info.annotation)
    if len(sections) == 1:
        return _fieldset(sections[0], state, prefix)
    return Fieldset(
        name=prefix.rstrip("."),
        title=title_from_name(prefix.rstrip(".")),
        intro=intro,
        variant=_variant_name(_chosen_variant(sections, info, state.values), info),
        variants=tuple(_variant(section, info, state, prefix) for section in sections),
        initial_variant=_variant_name(_chosen_variant(sections, info, state.initial), info),
    )


def _variant(section: type[BaseModel], info: FieldInfo, state: _FormState, prefix: str) -> Fieldset:
    kind, sections = _variant_name(section, info), section_types(info.annotation)
    is_chosen = _chosen_variant(sections, info, state.values) is section
    typed = {**state.values, **nested_values(state.values, kind)}
    own_state = _FormState(
        values=typed, initial=state.initial, problems=state.problems if is_chosen else {}
    )
    counts = Counter(name for one in sections for name in one.model_fields)
    return Fieldset(
        name=prefix.rstrip("."),
        title=section.model_config.get("title") or title_from_name(kind),
        intro=section_intro(section),
        inputs=tuple(
            replace(item, posted=f"{prefix}{kind}.{item.leaf}") if counts[item.leaf] > 1 else item
            for item in _inputs(section, own_state, prefix)
        ),
        variant=kind,
        initial_variant=kind,
    )


def _chosen_variant(
    sections: Sequence[type[BaseModel]], info: FieldInfo, values: Mapping[str, Any]
) -> type[BaseModel]:
    """Return the variant that the values name, or the first."""
    variant = values.get(str(info.discriminator))
    return next(
        (section for section in sections if _variant_name(section, info) == variant), sections[0]
    )


def _variant_name(section: type[BaseModel], info: FieldInfo) -> str:
    tag = section.model_fields.get(str(info.discriminator))
    return str(tag.default) if tag else ""


def _inputs(section: type[BaseModel], state: _FormState, prefix: str) -> Iterator[Input]:
    for name, info in section.model_fields.items():
        knob = field_spec(info)
        if knob is None:
            continue
        default = "" if info.is_required() else info.get_default()
        as_text = _format_json if knob.is_json else format_value
        yield Input(
            name=prefix + name,
            widget="json" if knob.is_json else _widget(info.annotation),
            knob=knob,
            help=field_descriptions(section).get(name, ""),
            value=as_text(state.values.get(name, default)),
            problem=state.problems.get(prefix + name, ""),
            initial=as_text(state.initial.get(name, default)),
            default=as_text(default),
            choices=choices_of(info.annotation),
        )


def _widget(annotation: object) -> Widget:
    if annotation is bool:
        return "checkbox"
    if choices_of(annotation):
        return "select"
    return "number" if {int, float} & {annotation, *get_args(annotation)} else "text"


def format_value(value: object) -> str:
    """Format a value so that parsing it gives the same value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _format_json(value: object) -> str:
    return indent_json(format_value(value))


def nested_values(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the values in a group of fields; none if something else was posted."""
    group = values.get(name)
    return group if isinstance(group, Mapping) else {}
