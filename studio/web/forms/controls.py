"""What a form is drawn from: controls, and the sections they stand in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from studio.recipe.fields import FieldSpec

Widget = Literal["text", "number", "checkbox", "select"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One control on the page."""

    name: str
    widget: Widget
    knob: FieldSpec
    help: str
    value: str
    """As it stands in the control; what a person typed is kept as it was."""
    problem: str
    base: str
    """As it stands where the form began."""
    default: str
    """As it stands where nobody says anything; empty where somebody must."""
    choices: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.name.replace(".", "-")

    @property
    def is_changed(self) -> bool:
        return not is_same_value(self.value, self.base)

    @property
    def is_default(self) -> bool:
        return is_same_value(self.value, self.default)

    def titled(self, value: str) -> str:
        """Return a value as a person reads it."""
        if self.widget == "checkbox":
            return "on" if value == "true" else "off"
        return self.knob.titles.get(value, value) or "empty"


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
    base_kind: str = ""
    """The alternative that was in force where the form began."""

    @property
    def is_advanced(self) -> bool:
        """Whether there is nothing in it that everyone should look at."""
        return not self.kinds and all(item.knob.advanced for item in self.inputs)

    def all_inputs(self) -> Iterator[Input]:
        yield from self.inputs
        for part in (*self.inner, *self.kinds):
            yield from part.all_inputs()

    def active_inputs(self) -> Iterator[Input]:
        """Yield the inputs that count: of alternatives those of the chosen one."""
        yield from self.inputs
        for part in (*self.inner, *(one for one in self.kinds if one.kind == self.kind)):
            yield from part.active_inputs()

    def all_sections(self) -> Iterator["Fieldset"]:
        """Yield it, and all sections inside."""
        yield self
        for part in self.inner:
            yield from part.all_sections()

    def input(self, name: str) -> Input:
        return next(item for item in self.inputs if item.name == name)


def is_same_value(one: str, other: str) -> bool:
    """Whether two texts of a control mean the same: 2e-4 is 0.0002."""
    one, other = one.strip(), other.strip()
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False
