"""The address of the playground: its models, its settings and a prompt. Opening it runs nothing.

`/playground?model=model:1&model=run:7&format.2=nf4&temperature=0.7&temperature.2=0&prompt=Why%3F`
lets the second column have a format and a temperature of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Len
from pydantic import ValidationError

from studio.errors import InvalidError
from studio.services.playground import model_choices
from studio.services.playground.model_choices import ModelReference
from studio.web.chat.prompt_requests import AnswerFormat, SamplingOptions

MAX_COLUMNS = 4
MAX_ADDRESS_CHARS = 4096
"""The longest address that the page offers to share; proxies and chats cut longer ones."""

MAX_KEPT_CHARS = 32_000
"""The longest address that the page gives itself, to survive a reload; servers take 64 KiB."""

Fields = Mapping[str, Sequence[str]]


class PageOptions(SamplingOptions, AnswerFormat):
    """The settings of all columns, or of one."""

    system: Annotated[str, Len(0, MAX_KEPT_CHARS)] = ""

    @property
    def stop_lines(self) -> str:
        """The stop sequences, one a line, as the page shows them."""
        return "\n".join(text.replace("\n", "\\n").replace("\t", "\\t") for text in self.stop)


class _Prompt(PageOptions):
    prompt: Annotated[str, Len(0, MAX_KEPT_CHARS)] = ""
    mode: Literal["chat", "text"] = "chat"


T = TypeVar("T", bound=PageOptions)


@dataclass(frozen=True, slots=True)
class Column:
    reference: ModelReference
    format: str = ""
    own: PageOptions | None = None
    """The settings that only this column has; None if it has those of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    columns: list[Column] = field(default_factory=list)
    options: PageOptions
    prompt: str = ""
    mode: Literal["chat", "text", ""] = ""
    """Empty if the address does not say it."""


def parse(pairs: Sequence[tuple[str, str]]) -> Address:
    """Return what an address says.

    Raises:
        InvalidError: It names no model, too many, or a setting has an invalid value.

    """
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    names = fields.get("model", [])
    if len(names) > MAX_COLUMNS:
        raise InvalidError(
            f"This address has {len(names)} models.", hint=f"Leave at most {MAX_COLUMNS}."
        )
    options = _read_options(fields, _Prompt)
    return Address(
        columns=[_column(fields, name, number) for number, name in enumerate(names, 1)],
        options=options,
        prompt=options.prompt,
        mode=options.mode if "mode" in fields else "",
    )


def _column(fields: Fields, name: str, number: int) -> Column:
    own = dict(_fields_of(fields, number))
    return Column(
        model_choices.parse_reference(name),
        format=fields.get(f"format.{number}", [""])[0],
        own=_read_options(own, PageOptions, f".{number}") if own else None,
    )


def _fields_of(fields: Fields, number: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the settings of a column; those that it does not name are those of all."""
    if not any(f"{name}.{number}" in fields for name in PageOptions.model_fields):
        return
    for name in PageOptions.model_fields:
        value = fields.get(f"{name}.{number}", fields.get(name))
        if value is not None:
            yield name, value


def _read_options(fields: Fields, kind: type[T], ending: str = "") -> T:
    given: dict[str, Any] = {
        name: [*filter(None, fields[name])] if name == "stop" else fields[name][0]
        for name in kind.model_fields
        if any(fields.get(name, ()))
    }
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        name = f"{error.errors()[0]['loc'][0]}{ending}"
        raise InvalidError(
            f"{name} in this address has an invalid value.",
            hint="Correct it, or open the playground without it.",
            param=name,
        ) from error
