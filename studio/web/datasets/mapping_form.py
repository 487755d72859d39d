"""A mapping as a form, and a posted form as a mapping.

A browser changes the ends of lines in what it sends, so texts in which they count travel as JSON.
"""

import json
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Values
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from studio.intake.column_roles import ColumnRole, roles_for_shape
from studio.intake.conversion.file_preview import FilePreview
from studio.intake.mapping import KIND_BY_SHAPE, FileOptions, Mapping, Split
from studio.schemas.validation_errors import field_errors

COLUMNS = 60
"""Columns that can be chosen on a page; a file with more is read over REST."""
FILTERS = 20

JOINERS: dict[str, str] = {
    json.dumps("\n\n"): "an empty line",
    json.dumps("\n"): "a new line",
    json.dumps(" "): "a space",
    json.dumps(", "): "a comma",
    json.dumps(""): "nothing",
}
_CLASSES = frozenset({"label", "number"})
"""Roles whose values may be written in other words."""
_ALIKE: tuple[frozenset[str], ...] = (
    frozenset({"instruction", "prompt", "text"}),
    frozenset({"output", "completion", "answer", "label", "number", "chosen"}),
    frozenset({"messages", "conversations"}),
    frozenset({"input", "context"}),
)
"""Roles that say nearly the same in different shapes."""

_TITLES = {
    "sample": "Rows to draw",
    "exclude": "Rows to leave out",
    "system": "System prompt",
    "values": "Words for a value",
    "media": "Images, audio and video",
    "split": "Rows that measure progress",
    "split.share": "Share",
    "roles": "Columns",
}


@dataclass(slots=True, kw_only=True)
class Filter:
    column: str = ""
    op: str = "is"
    value: str = ""


@dataclass(slots=True, kw_only=True)
class MappingForm:
    """A mapping as its controls show it: all text, as a person typed it."""

    shape: str = ""
    roles: dict[str, str] = field(default_factory=dict)
    """What each column is; nothing where it is not read."""
    joiner: str = json.dumps("\n\n")
    system: str = ""
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    keep: list[Filter] = field(default_factory=list)
    sample: str = ""
    media: str = "refuse"
    deduplicate: str = "none"
    split: dict[str, str] = field(default_factory=dict)
    exclude: str = ""
    seed: str = "42"
    file: dict[str, str] = field(default_factory=dict)
    """How the file itself is read; what is empty is detected."""

    @property
    def choices(self) -> tuple[ColumnRole, ...]:
        """What a column can be, in the shape that is chosen."""
        return next((roles_for_shape(shape) for shape in KIND_BY_SHAPE if shape == self.shape), ())

    @property
    def joiners(self) -> dict[str, str]:
        own = {self.joiner: f"“{json.loads(self.joiner)}”"} if self.joiner not in JOINERS else {}
        return JOINERS | own

    @property
    def classes(self) -> list[str]:
        """Return the columns whose values can be written in other words."""
        chosen = [column for column, role in self.roles.items() if role in _CLASSES]
        return list(dict.fromkeys([*chosen, *self.values]))

    def mapping(self) -> Mapping:
        """Return what the form says.

        Raises:
            ValidationError: a field holds what it may not; see `problems_of`.

        """
        roles: dict[str, list[str]] = {}
        for column, role in self.roles.items():
            if role:
                roles.setdefault(role, []).append(column)
        return Mapping.model_validate(
            {
                "shape": self.shape,
                "roles": roles,
                "joiner": json.loads(self.joiner),
                "system": self.system,
                "values": _changed(self.values),
                "keep": [asdict(one) for one in self.keep if one.column or one.value],
                "sample": self.sample or None,
                "media": self.media,
                "deduplicate": self.deduplicate,
                "split": _split(self.split),
                "exclude": _words(self.exclude),
                "seed": self.seed,
                "file": {name: value for name, value in self.file.items() if value},
            }
        )


def shown(mapping: Mapping, seen: FilePreview) -> MappingForm:
    """Return the form of a mapping, with every column of the file."""
    columns = dict.fromkeys([*mapping.columns, *seen.columns][: max(COLUMNS, len(mapping.columns))])
    played = {column: role for role, named in mapping.roles.items() for column in named}
    form = MappingForm(
        shape=mapping.shape,
        roles={column: played.get(column, "") for column in _in_order(columns, seen.columns)},
        joiner=json.dumps(mapping.joiner),
        system=mapping.system,
        values={column: dict(found) for column, found in mapping.values.items()},
        keep=[Filter(**one.model_dump()) for one in mapping.keep],
        sample=str(mapping.sample or ""),
        media=mapping.media,
        deduplicate=mapping.deduplicate,
        split=_split_shown(mapping),
        exclude=", ".join(map(str, mapping.exclude)),
        seed=str(mapping.seed),
        file=file_shown(mapping.file),
    )
    return with_classes(form, seen)


def file_shown(options: FileOptions) -> dict[str, str]:
    """Return how a file is read as the form carries it: only what is not left to be detected."""
    return {name: str(value) for name, value in options.model_dump(exclude_defaults=True).items()}


def empty(seen: FilePreview, options: FileOptions) -> MappingForm:
    """Return the form of a file in which nothing was recognised."""
    return MappingForm(
        shape="prompt_completion",
        roles=dict.fromkeys(seen.columns[:COLUMNS], ""),
        split=_split_shown(None),
        file=file_shown(options),
    )


def posted(sent: Values[str, Any]) -> MappingForm:
    """Return the form as it was sent."""
    columns, roles = _group(sent, "column"), _group(sent, "role")
    return MappingForm(
        shape=_text(sent, "shape"),
        roles={str(name): str(roles.get(key, "")) for key, name in columns.items()},
        joiner=_json(_text(sent, "joiner")) or json.dumps("\n\n"),
        system=_text(sent, "system").replace("\r\n", "\n"),
        values=dict(_values(_group(sent, "value"))),
        keep=[
            Filter(**{name: _text(one, name) for name in ("column", "op", "value")})
            for one in _group(sent, "keep").values()
            if isinstance(one, dict)
        ][:FILTERS],
        sample=_text(sent, "sample").strip(),
        media=_text(sent, "media") or "refuse",
        deduplicate=_text(sent, "deduplicate") or "none",
        split={name: str(value) for name, value in _group(sent, "split").items()},
        exclude=_text(sent, "exclude"),
        seed=_text(sent, "seed").strip() or "42",
        file={name: str(value) for name, value in _group(sent, "file").items()},
    )


def in_shape(form: MappingForm) -> MappingForm:
    """Let each column keep its part in the shape that is chosen, or one like it."""
    known = [role.name for role in form.choices]
    return replace(form, roles={column: _like(role, known) for column, role in form.roles.items()})


def changed(form: MappingForm, sent: Values[str, Any]) -> MappingForm:
    """Return the form after a press of one of its own buttons, or another shape."""
    if "add" in sent and len(form.keep) < FILTERS:
        return replace(form, keep=[*form.keep, Filter(column=next(iter(form.roles), ""))])
    if removed := _text(sent, "remove"):
        kept = [one for i, one in enumerate(form.keep) if str(i) != removed]
        return replace(form, keep=kept)
    known = {role.name for role in form.choices}
    fits = all(role in known for role in form.roles.values() if role)
    return form if fits else in_shape(form)


def with_classes(form: MappingForm, seen: FilePreview) -> MappingForm:
    """Offer every value that a column of classes has to be written in other words."""
    values = {
        column: {raw: raw for raw in seen.values.get(column, {})} | form.values.get(column, {})
        for column in form.classes
    }
    return replace(form, values={column: found for column, found in values.items() if found})


def problems_of(error: ValidationError) -> dict[str, str]:
    """Map each field that holds what it may not to what is wrong with it."""
    return {field.param: field.message for field in field_errors(error.errors(), Mapping)}


def title(name: str) -> str:
    """Return what a person calls a field."""
    first, _, rest = name.partition(".")
    if first == "keep":
        return f"Filter {int(rest.partition('.')[0]) + 1}"
    return _TITLES.get(name) or _TITLES.get(first) or first.capitalize()


def _like(role: str, known: Sequence[str]) -> str:
    if role in known:
        return role
    alike = next((roles for roles in _ALIKE if role in roles), frozenset[str]())
    return next((name for name in known if name in alike), "")


def _in_order(columns: Values[str, None], order: Sequence[str]) -> list[str]:
    return [
        *(one for one in order if one in columns),
        *(one for one in columns if one not in order),
    ]


def _split_shown(mapping: Mapping | None) -> dict[str, str]:
    split = mapping.split if mapping else Split()
    return {
        "kind": split.kind,
        "share": f"{100 * split.share:g}",
        "column": split.column,
        "train": ", ".join(split.train),
        "validation": ", ".join(split.validation),
        "dataset": split.dataset,
    }


def _split(sent: Values[str, str]) -> dict[str, Any]:
    """Return only what the chosen kind of split needs: what is hidden must not be refused."""
    kind = sent.get("kind", "none")
    match kind:
        case "share":
            return {"kind": kind, "share": _share(sent.get("share", ""))}
        case "column":
            parts = {name: _words(sent.get(name, "")) for name in ("train", "validation")}
            return {"kind": kind, "column": sent.get("column", ""), **parts}
        case "dataset":
            return {"kind": kind, "dataset": sent.get("dataset", "")}
    return {"kind": kind}


def _share(percent: str) -> float | str:
    try:
        return float(percent.strip().removesuffix("%")) / 100
    except ValueError:
        return percent


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _changed(values: Values[str, Values[str, str]]) -> dict[str, dict[str, str]]:
    found = {
        column: {raw: word for raw, word in words.items() if word != raw}
        for column, words in values.items()
    }
    return {column: words for column, words in found.items() if words}


def _values(sent: Values[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    for one in sent.values():
        if isinstance(one, dict):
            pairs = (pair for pair in one.values() if isinstance(pair, dict))
            words = {str(pair.get("raw", "")): str(pair.get("shown", "")) for pair in pairs}
            yield str(one.get("column", "")), words


def _group(sent: Values[str, Any], name: str) -> dict[str, Any]:
    found = sent.get(name)
    return found if isinstance(found, dict) else {}


def _text(sent: Values[str, Any], name: str) -> str:
    found = sent.get(name, "")
    return found if isinstance(found, str) else ""


def _json(written: str) -> str:
    """Return a text in JSON as it is, and anything else as nothing."""
    try:
        return written if isinstance(json.loads(written), str) else ""
    except ValueError:
        return ""
