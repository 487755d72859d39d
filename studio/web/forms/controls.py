"""Form controls, and the sections that contain them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from studio.recipe.fields import FieldSpec

Widget = Literal["text", "number", "checkbox", "select"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One form control."""

    name: str
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
    def id(self) -> str:
        return self.name.replace(".", "-")

    @property
    def is_changed(self) -> bool:
        return not is_same_value(self.value, self.initial)

    @property
    def is_default(self) -> bool:
        return is_same_value(self.value, self.default)

    def display_text(self, value: str) -> str:
        """Return the label of a value."""
        if self.widget == "checkbox":
            return "on" if value == "true" else "off"
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

    @property
    def is_advanced(self) -> bool:
        """Whether all its settings are advanced."""
        return not self.variants and all(item.knob.advanced for item in self.inputs)

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
