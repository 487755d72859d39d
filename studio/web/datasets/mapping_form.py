"""Convert a mapping to a form, and a posted form to a mapping.

Browsers normalise line endings in what they post, so texts in which they matter are sent as JSON.
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
from studio.web.forms.recipe_form import nested_values

MAX_COLUMNS = 60
"""Columns that the page can map; use REST for a file with more."""
MAX_FILTERS = 20

JOINERS: dict[str, str] = {
    json.dumps("\n\n"): "an empty line",
    json.dumps("\n"): "a line break",
    json.dumps(" "): "a space",
    json.dumps(", "): "a comma",
    json.dumps(""): "nothing",
}
_CLASS_ROLES = frozenset({"label", "number"})
"""Roles whose values can be replaced by other words."""
_SIMILAR_ROLES: tuple[frozenset[str], ...] = (
    frozenset({"instruction", "prompt", "text"}),
    frozenset({"output", "completion", "answer", "label", "number", "chosen"}),
    frozenset({"messages", "conversations"}),
    frozenset({"input", "context"}),
    frozenset({"input", "context", "prompt"}),
)
"""Roles with nearly the same meaning in different shapes, the most similar ones first."""

_FIELD_TITLES = {
    "sample": "Sample size",
    "exclude": "Rows to exclude",
    "system": "System prompt",
    "values": "Replacement values",
    "media": "Images, audio and video",
    "split": "Validation rows",
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
    """A mapping as its form controls show it: all text, exactly as typed."""

    shape: str = ""
    roles: dict[str, str] = field(default_factory=dict)
    """Role of each column; empty if the column is not used."""
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
    """How the file itself is read; empty options are detected."""

    @property
    def role_choices(self) -> tuple[ColumnRole, ...]:
        """Roles that a column can have in the chosen shape."""
        return next((roles_for_shape(shape) for shape in KIND_BY_SHAPE if shape == self.shape), ())

    @property
    def joiners(self) -> dict[str, str]:
        custom = {self.joiner: f"“{json.loads(self.joiner)}”"} if self.joiner not in JOINERS else {}
        return JOINERS | custom

    @property
    def class_columns(self) -> list[str]:
        """Return the columns whose values can be replaced by other words."""
        chosen = [column for column, role in self.roles.items() if role in _CLASS_ROLES]
        return list(dict.fromkeys([*chosen, *self.values]))

    def to_mapping(self) -> Mapping:
        """Return the mapping that the form describes.

        Raises:
            ValidationError: a field is invalid; see `field_problems`.

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
                "values": _changed_values(self.values),
                "keep": [
                    asdict(row_filter)
                    for row_filter in self.keep
                    if row_filter.column or row_filter.value
                ],
                "sample": self.sample or None,
                "media": self.media,
                "deduplicate": self.deduplicate,
                "split": _parse_split(self.split),
                "exclude": _parse_list(self.exclude),
                "seed": self.seed,
                "file": {name: value for name, value in self.file.items() if value},
            }
        )


def form_from_mapping(mapping: Mapping, seen: FilePreview) -> MappingForm:
    """Return the form of a mapping, with every column of the file."""
    columns = dict.fromkeys(
        [*mapping.columns, *seen.columns][: max(MAX_COLUMNS, len(mapping.columns))]
    )
    role_of = {
        column: role for role, role_columns in mapping.roles.items() for column in role_columns
    }
    form = MappingForm(
        shape=mapping.shape,
        roles={column: role_of.get(column, "") for column in _sort_columns(columns, seen.columns)},
        joiner=json.dumps(mapping.joiner),
        system=mapping.system,
        values={column: dict(replacements) for column, replacements in mapping.values.items()},
        keep=[Filter(**row_filter.model_dump()) for row_filter in mapping.keep],
        sample=str(mapping.sample or ""),
        media=mapping.media,
        deduplicate=mapping.deduplicate,
        split=_split_fields(mapping),
        exclude=", ".join(map(str, mapping.exclude)),
        seed=str(mapping.seed),
        file=file_fields(mapping.file),
    )
    return add_class_values(form, seen)


def file_fields(options: FileOptions) -> dict[str, str]:
    """Return the file options as form fields, without those left to detection."""
    return {name: str(value) for name, value in options.model_dump(exclude_defaults=True).items()}


def empty_form(seen: FilePreview, options: FileOptions) -> MappingForm:
    """Return the form of a file for which no mapping was detected."""
    return MappingForm(
        shape="prompt_completion",
        roles=dict.fromkeys(seen.columns[:MAX_COLUMNS], ""),
        split=_split_fields(None),
        file=file_fields(options),
    )


def parse_form(sent: Values[str, Any]) -> MappingForm:
    """Return the form as it was posted."""
    columns, roles = nested_values(sent, "column"), nested_values(sent, "role")
    return MappingForm(
        shape=_text_value(sent, "shape"),
        roles={str(name): str(roles.get(key, "")) for key, name in columns.items()},
        joiner=_json_string(_text_value(sent, "joiner")) or json.dumps("\n\n"),
        system=_text_value(sent, "system").replace("\r\n", "\n"),
        values=dict(_parse_values(nested_values(sent, "value"))),
        keep=[
            Filter(**{name: _text_value(row_filter, name) for name in ("column", "op", "value")})
            for row_filter in nested_values(sent, "keep").values()
            if isinstance(row_filter, dict)
        ][:MAX_FILTERS],
        sample=_text_value(sent, "sample").strip(),
        media=_text_value(sent, "media") or "refuse",
        deduplicate=_text_value(sent, "deduplicate") or "none",
        split={name: str(value) for name, value in nested_values(sent, "split").items()},
        exclude=_text_value(sent, "exclude"),
        seed=_text_value(sent, "seed").strip() or "42",
        file={name: str(value) for name, value in nested_values(sent, "file").items()},
    )


def convert_roles(form: MappingForm) -> MappingForm:
    """Keep each column's role if the chosen shape has it, else use a similar one.

    Graders of tasks may read all columns that are not part of the prompt.
    """
    role_names = [role.name for role in form.role_choices]
    others = "item" if "item" in role_names else ""
    return replace(
        form,
        roles={
            column: _similar_role(role, role_names) or others for column, role in form.roles.items()
        },
    )


def apply_action(form: MappingForm, sent: Values[str, Any]) -> MappingForm:
    """Return the form after one of its buttons was pressed or its shape was changed."""
    if "add" in sent and len(form.keep) < MAX_FILTERS:
        return replace(form, keep=[*form.keep, Filter(column=next(iter(form.roles), ""))])
    if removed := _text_value(sent, "remove"):
        remaining = [row_filter for i, row_filter in enumerate(form.keep) if str(i) != removed]
        return replace(form, keep=remaining)
    role_names = {role.name for role in form.role_choices}
    fits = all(role in role_names for role in form.roles.values() if role)
    is_same = _text_value(sent, "shown_shape") == form.shape
    return form if fits and is_same else convert_roles(form)


def add_class_values(form: MappingForm, seen: FilePreview) -> MappingForm:
    """Add every value of the class columns, so that each can be replaced by other words."""
    values = {
        column: {raw: raw for raw in seen.values.get(column, {})} | form.values.get(column, {})
        for column in form.class_columns
    }
    return replace(
        form,
        values={column: replacements for column, replacements in values.items() if replacements},
    )


def field_problems(error: ValidationError) -> dict[str, str]:
    """Map each invalid field to its problem."""
    return {field.param: field.message for field in field_errors(error.errors(), Mapping)}


def field_title(name: str) -> str:
    """Return the label of a field."""
    first, _, rest = name.partition(".")
    if first == "keep":
        return f"Filter {int(rest.partition('.')[0]) + 1}"
    return _FIELD_TITLES.get(name) or _FIELD_TITLES.get(first) or first.capitalize()


def _similar_role(role: str, role_names: Sequence[str]) -> str:
    if role in role_names:
        return role
    similar = [roles for roles in _SIMILAR_ROLES if role in roles]
    return next((name for roles in similar for name in role_names if name in roles), "")


def _sort_columns(columns: Values[str, None], order: Sequence[str]) -> list[str]:
    return [
        *(column for column in order if column in columns),
        *(column for column in columns if column not in order),
    ]


def _split_fields(mapping: Mapping | None) -> dict[str, str]:
    split = mapping.split if mapping else Split()
    return {
        "kind": split.kind,
        "share": f"{100 * split.share:g}",
        "column": split.column,
        "train": ", ".join(split.train),
        "validation": ", ".join(split.validation),
        "dataset": split.dataset,
    }


def _parse_split(posted: Values[str, str]) -> dict[str, Any]:
    """Return only what the chosen kind of split needs: hidden fields must not cause errors."""
    kind = posted.get("kind", "none")
    match kind:
        case "share":
            return {"kind": kind, "share": _parse_share(posted.get("share", ""))}
        case "column":
            parts = {name: _parse_list(posted.get(name, "")) for name in ("train", "validation")}
            return {"kind": kind, "column": posted.get("column", ""), **parts}
        case "dataset":
            return {"kind": kind, "dataset": posted.get("dataset", "")}
    return {"kind": kind}


def _parse_share(percent: str) -> float | str:
    try:
        return float(percent.strip().removesuffix("%")) / 100
    except ValueError:
        return percent


def _parse_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _changed_values(values: Values[str, Values[str, str]]) -> dict[str, dict[str, str]]:
    changed = {
        column: {raw: word for raw, word in words.items() if word != raw}
        for column, words in values.items()
    }
    return {column: words for column, words in changed.items() if words}


def _parse_values(posted: Values[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    for entry in posted.values():
        if isinstance(entry, dict):
            pairs = (pair for pair in entry.values() if isinstance(pair, dict))
            words = {str(pair.get("raw", "")): str(pair.get("shown", "")) for pair in pairs}
            yield str(entry.get("column", "")), words


def _text_value(posted: Values[str, Any], name: str) -> str:
    value = posted.get(name, "")
    return value if isinstance(value, str) else ""


def _json_string(text: str) -> str:
    """Return the text if it is a JSON string, else an empty string."""
    try:
        return text if isinstance(json.loads(text), str) else ""
    except ValueError:
        return ""
