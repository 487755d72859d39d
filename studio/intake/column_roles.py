"""The roles that columns can play in each shape, and the check that a mapping is complete.

`studio.intake.mapping.Mapping.roles` is checked against these tables before any row is read.
"""

from collections.abc import Collection
from dataclasses import dataclass

from studio.errors import InvalidError
from studio.intake.mapping import IMAGE_SHAPES, Mapping, ShapeName


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRole:
    """A role that a column can play."""

    name: str
    label: str
    required: bool
    """Whether the rows are unusable without it."""
    allows_several: bool
    """Whether several columns can play it; their texts are joined."""


_ROLE_LABELS = {
    "system": "System prompt",
    "instruction": "Instruction",
    "input": "Input",
    "output": "Answer",
    "history": "Conversation history",
    "context": "Context",
    "prompt": "Prompt",
    "completion": "Answer",
    "messages": "Turns",
    "conversations": "Turns",
    "tools": "Tools",
    "chosen": "Preferred answer",
    "rejected": "Rejected answer",
    "answers": "List of answers",
    "scores": "Scores (highest is best)",
    "ranks": "Ranks (lowest is best)",
    "label": "Label",
    "id": "Row id",
    "parent": "Parent row id",
    "answer": "Answer",
    "speaker": "Speaker",
    "text": "Text",
    "number": "Number",
    "steps": "List of steps",
    "verdicts": "Which steps are right",
    "words": "List of words",
    "tags": "List of tags",
    "spans": "List of entities",
    "lines": "Lines of words with tags",
    "item": "For graders",
    "anchor": "Query or first text",
    "positive": "Matching or second text",
    "negatives": "Texts that do not match",
    "score": "How alike they are",
    "images": "Images",
}
_MULTI_COLUMN_ROLES = frozenset(
    {
        *("system", "instruction", "input", "output", "context", "completion", "answer"),
        *("text", "number", "item", "anchor", "negatives", "images"),
    }
)
_MULTI_COLUMN_PROMPTS = frozenset(
    {"prompt_completion", "preference", "ranked", "judged", "thread", "steps", "task"}
)
"""Shapes whose prompt may consist of several columns."""

_SHAPE_ROLES: dict[ShapeName, tuple[str, ...]] = {
    "alpaca": ("instruction", "input", "output", "history", "images", "system"),
    "prompt_completion": ("prompt", "completion", "context", "images", "system", "tools"),
    "messages": ("messages", "images", "tools", "system"),
    "sharegpt": ("conversations", "images", "tools", "system"),
    "preference": ("prompt", "chosen", "rejected", "tools", "system"),
    "ranked": ("prompt", "answers", "scores", "ranks", "system"),
    "judged": ("messages", "prompt", "completion", "label", "tools", "system"),
    "thread": ("id", "parent", "prompt", "answer", "text", "speaker", "system"),
    "classification": ("text", "label", "system"),
    "regression": ("text", "number", "system"),
    "steps": ("prompt", "steps", "verdicts", "system"),
    "words": ("words", "tags"),
    "spans": ("text", "spans"),
    "lines": ("lines",),
    "task": ("prompt", "messages", "item", "tools", "system"),
    "pairs": ("anchor", "positive", "negatives", "score"),
    "text": ("text",),
}
_REQUIRED_ROLES: dict[ShapeName, tuple[frozenset[str], ...]] = {
    "alpaca": (frozenset({"instruction", "output"}),),
    "prompt_completion": (
        frozenset({"prompt", "completion"}),
        frozenset({"images", "completion"}),
    ),
    "messages": (frozenset({"messages"}),),
    "sharegpt": (frozenset({"conversations"}),),
    "preference": (frozenset({"chosen", "rejected"}),),
    "ranked": (frozenset({"prompt", "answers"}),),
    "judged": (frozenset({"label", "messages"}), frozenset({"label", "prompt", "completion"})),
    "thread": (
        frozenset({"id", "parent", "prompt", "answer"}),
        frozenset({"id", "parent", "text", "speaker"}),
    ),
    "classification": (frozenset({"text", "label"}),),
    "regression": (frozenset({"text", "number"}),),
    "steps": (frozenset({"prompt", "steps", "verdicts"}),),
    "words": (frozenset({"words", "tags"}),),
    "spans": (frozenset({"text", "spans"}),),
    "lines": (frozenset({"lines"}),),
    "task": (frozenset({"prompt"}), frozenset({"messages"})),
    "pairs": (frozenset({"anchor", "positive"}),),
    "text": (frozenset({"text"}),),
}
"""Sets of required roles; any one set is enough."""


def roles_for_shape(shape: ShapeName) -> tuple[ColumnRole, ...]:
    """Return the roles of a shape, in display order."""
    needed = _REQUIRED_ROLES[shape]
    return tuple(
        ColumnRole(
            name=name,
            label=_ROLE_LABELS[name],
            required=all(name in roles for roles in needed),
            allows_several=name in _MULTI_COLUMN_ROLES
            or (name == "prompt" and shape in _MULTI_COLUMN_PROMPTS)
            or (name == "label" and shape == "classification"),
        )
        for name in _SHAPE_ROLES[shape]
    )


def check_mapping(mapping: Mapping, columns: Collection[str]) -> None:
    """Check a mapping against the columns of a file.

    Raises:
        InvalidError: the mapping cannot be applied; `param` is the dotted name of the wrong field.

    """
    _check_roles(mapping)
    _check_media(mapping)
    for role, role_columns in mapping.roles.items():
        for column in role_columns:
            _check_column(column, columns, f"roles.{role}")
    for i, condition in enumerate(mapping.keep):
        _check_column(condition.column, columns, f"keep.{i}.column")
    for column in mapping.values:
        _check_column(column, columns, f"values.{column}")
    if mapping.split.kind == "column":
        _check_column(mapping.split.column, columns, "split.column")


def _check_roles(mapping: Mapping) -> None:
    roles_by_name = {role.name: role for role in roles_for_shape(mapping.shape)}
    for name, columns in mapping.roles.items():
        if name not in roles_by_name:
            raise InvalidError(
                f"The format {mapping.shape} has no role named {name}.",
                hint=f"Available roles: {', '.join(roles_by_name)}.",
                param=f"roles.{name}",
            )
        if len(columns) > 1 and not roles_by_name[name].allows_several:
            raise InvalidError(
                f"Choose only one column for: {roles_by_name[name].label.lower()}.",
                hint="Remove the other columns.",
                param=f"roles.{name}",
            )
    if mapping.roles.get("score") and mapping.roles.get("negatives"):
        raise InvalidError(
            "Pairs have either scores or texts that do not match, not both.",
            hint="Choose no column for one of them.",
            param="roles.score",
        )
    _check_required(mapping)


def _check_media(mapping: Mapping) -> None:
    if mapping.media == "use" and mapping.shape not in IMAGE_SHAPES:
        raise InvalidError(
            "Images can be used in conversations only.",
            hint="Choose another format, or use only the text of these rows.",
            param="media",
        )


def is_complete(mapping: Mapping) -> bool:
    """Tell whether every required role has a column."""
    return not _missing_roles(mapping)


def _missing_roles(mapping: Mapping) -> list[str]:
    filled = {name for name, columns in mapping.roles.items() if columns}
    alternatives = _REQUIRED_ROLES[mapping.shape]
    nearest = min(alternatives, key=lambda needed: (len(needed - filled), -len(needed & filled)))
    return [name for name in _SHAPE_ROLES[mapping.shape] if name in nearest - filled]


def _check_required(mapping: Mapping) -> None:
    missing = next(iter(_missing_roles(mapping)), None)
    if missing is None:
        return
    raise InvalidError(
        f"No column selected for: {_ROLE_LABELS[missing].lower()}.",
        hint="Select a column for it, or choose another format.",
        param=f"roles.{missing}",
    )


def _check_column(column: str, columns: Collection[str], param: str) -> None:
    if column not in columns:
        shown = ", ".join(name[:60] for name in list(columns)[:12])
        raise InvalidError(
            f"Column not found: {column[:100]}." if column else "No column selected.",
            hint=f"Available columns: {shown}.",
            param=param,
        )
