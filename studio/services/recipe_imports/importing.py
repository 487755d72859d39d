"""Make a recipe of another tool's file, and say what became of each of its keys."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from studio.errors import InvalidError
from studio.methods import METHODS, AnyRecipe, get_method
from studio.methods.base import Method
from studio.recipe.base import Conflict, find_conflict, unusable_values
from studio.recipe.dotted_keys import flatten, nest
from studio.recipe.fields import FieldReference, Section, field_references, section_types
from studio.schemas.validation_errors import field_errors
from studio.services.recipe_imports import reading
from studio.services.recipe_imports.table import (
    NAME,
    KnownNames,
    NoCounterpartError,
    NoNames,
    Row,
    SourceFile,
    Tool,
    Use,
)

NOTHING_LOST = "It is off or empty there, or always so here: nothing is lost."
UNKNOWN = "This key is not known here. Look up what it does, and set it in the form if you need it."
_USED_ELSEWHERE = "Another key of the file sets the same, and is used."
_REQUIRED = ("base_model", "dataset")
_PLACEHOLDER = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedKey:
    """What became of one key."""

    key: str
    value: str
    """As the file has it, in one line."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings that it became, by their dotted names, with their values here."""
    note: str = ""
    """What is different here, or what to do, in a sentence or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRecipe:
    tool: Tool
    method: Method
    name: str
    """What the experiment is called in the file; empty if it has no name."""
    values: Mapping[str, Any]
    """The recipe as nested values, without the model or the dataset if these are to be chosen."""
    mapped: Sequence[ImportedKey]
    """Keys that mean the same here."""
    different: Sequence[ImportedKey]
    """Keys that mean something else here, or are done in another way."""
    absent: Sequence[ImportedKey]
    """Keys that do not exist here, with what to do."""
    assumed: Sequence[ImportedKey]
    """What the tool does about keys that the file does not have, as far as it matters."""
    remarks: Sequence[str]
    """What to know, or to change before it can start."""


@dataclass(slots=True)
class _Answer:
    """What a key became, before the recipe is checked."""

    key: str
    value: Any
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    is_absent: bool = False

    def drop(self, name: str, why: str) -> None:
        """Take a setting back that the recipe cannot have."""
        self.settings.pop(name, None)
        self.note = f"{self.note} {why}".strip()
        self.is_absent = self.is_absent or not self.settings


def import_text(text: str, known: KnownNames | None = None, method: str = "") -> ImportedRecipe:
    """Return the recipe that another tool's file describes, with a report of each key.

    `known` has the names of the studio's datasets and models; `method` is used instead of the one
    that the file is for.

    Raises:
        InvalidError: The text cannot be read, or is for no tool that is known here.
        NotFoundError: There is no such method.

    """
    values = reading.parse(text)
    tool = reading.detect(values)
    keys = list(reading.iter_keys(values, tool))
    written = {key: value for key, value in keys if value is not None}
    file = SourceFile(written=written, defaults=tool.defaults, known=known or NoNames())
    chosen = get_method(method or tool.find_method(file))
    file = replace(file, method=chosen.name)
    answers = [_answer(key, value, tool, file) for key, value in keys]
    assumed = [_assume(key, tool, file) for key in tool.defaults if key not in written]
    recipe, problems = _build(chosen, answers, assumed)
    shown = flatten(recipe.model_dump())
    report = [(_describe(one, shown), one) for one in answers]
    return ImportedRecipe(
        tool=tool,
        method=chosen,
        name=_name(answers),
        values=_chosen_values(recipe),
        mapped=[one for one, answer in report if not answer.is_absent and not answer.note],
        different=[one for one, answer in report if not answer.is_absent and answer.note],
        absent=[one for one, answer in report if answer.is_absent],
        assumed=[_describe(one, shown) for one in assumed if one.settings or one.note],
        remarks=[*tool.remarks(file), *problems],
    )


def _answer(key: str, value: Any, tool: Tool, file: SourceFile) -> _Answer:  # noqa: ANN401 -- whatever a file holds
    """Return what the tool's table says of a key."""
    row = tool.table.get(key)
    if value is None:
        return _Answer(key, value)
    if row is None:
        return _Answer(key, value, note=UNKNOWN, is_absent=True)
    try:
        return _converted(row, value, file)
    except NoCounterpartError as error:
        return _Answer(key, value, note=str(error), is_absent=True)


def _assume(key: str, tool: Tool, file: SourceFile) -> _Answer:
    """Return what the tool's default for a key becomes; it may depend on a value that is wrong."""
    try:
        answer = _answer(key, file.get(key), tool, file)
    except NoCounterpartError:
        return _Answer(key, None)
    return _Answer(key, None) if answer.is_absent else answer


def _converted(row: Row, value: Any, file: SourceFile) -> _Answer:  # noqa: ANN401 -- whatever a file holds
    used = row.convert(value, file)
    if not isinstance(used, Use):
        used = Use({_field_for(row, file.method): used}, row.note)
    return _Answer(row.key, value, dict(used.settings), used.note)


def _field_for(row: Row, method: str) -> str:
    """Return the first of a row's fields that recipes of a method have."""
    names = {reference.name for reference in _references(METHODS[method])}
    return next((name for name in row.fields if name in names or name == NAME), row.fields[0])


def _references(method: Method) -> tuple[FieldReference, ...]:
    return _references_by_name(method.name)


@cache
def _references_by_name(method: str) -> tuple[FieldReference, ...]:
    return tuple(field_references(METHODS[method].recipe))


def _build(
    method: Method, answers: Sequence[_Answer], assumed: Sequence[_Answer]
) -> tuple[AnyRecipe, list[str]]:
    """Return a recipe that is valid, and what keeps it from starting.

    Settings that the recipe cannot have are taken back from the answers, which then say so.
    """
    _keep_last(answers)
    written = {name for one in answers for name in one.settings}
    for one in assumed:
        kept = {name: it for name, it in one.settings.items() if name not in written}
        if one.settings and not kept:
            one.note = ""
        one.settings = kept
    everything = [*assumed, *answers]
    _drop_foreign(method, answers, assumed)
    recipe = _validated(method, everything)
    while conflict := _conflict(recipe):
        if not _take_back(everything, conflict.param, f"{conflict.message} The default is used."):
            return recipe, [f"{conflict.message} {conflict.hint}".strip()]
        recipe = _validated(method, everything)
    return recipe, []


def _conflict(recipe: AnyRecipe) -> Conflict | None:
    return next(unusable_values(recipe), None) or find_conflict(recipe)


def _keep_last(answers: Sequence[_Answer]) -> None:
    """Let each setting come from one key: if two disagree, from the one further down."""
    last: dict[str, _Answer] = {}
    for one in answers:
        for name, value in [*one.settings.items()]:
            before = last.get(name)
            if before is not None and before.settings.get(name) != value:
                before.drop(name, _USED_ELSEWHERE)
            last[name] = one


def _drop_foreign(method: Method, answers: Sequence[_Answer], assumed: Sequence[_Answer]) -> None:
    """Take back settings that recipes of the method do not have, or with another adapter."""
    kind = _chosen_kind([*assumed, *answers])
    names = {NAME, "method", *_setting_names(method.recipe, kind)}
    for one in assumed:
        one.settings = {name: it for name, it in one.settings.items() if name in names}
    for one in answers:
        for name in [name for name in one.settings if name not in names]:
            one.drop(name, _foreign(name, method))


def _foreign(name: str, method: Method) -> str:
    """Say why a recipe does not have a setting."""
    if name.startswith("adapter."):
        return "What this recipe trains has no such setting."
    having = [other.title for other in METHODS.values() if _has(other, name)]
    if not having:
        return UNKNOWN
    return f"{method.title} has no such setting. These have it: {', '.join(having)}."


def _has(method: Method, name: str) -> bool:
    return any(reference.name == name for reference in _references(method))


def _chosen_kind(answers: Iterable[_Answer]) -> str:
    kinds = [str(one.settings["adapter.kind"]) for one in answers if "adapter.kind" in one.settings]
    return kinds[-1] if kinds else "lora"


def _setting_names(section: type[Section], kind: str, prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, info in section.model_fields.items():
        inner = section_types(info.annotation)
        if len(inner) > 1:
            inner = [one for one in inner if one.model_fields["kind"].default == kind]
        for one in inner:
            names += _setting_names(one, kind, f"{prefix}{name}.")
        if not inner:
            names.append(prefix + name)
    return names


def _validated(method: Method, answers: Sequence[_Answer]) -> AnyRecipe:
    """Return a recipe of all settings that are valid; the others are taken back."""
    while True:
        settings = {name: it for one in answers for name, it in one.settings.items()}
        settings.pop(NAME, None)
        required = {**dict.fromkeys(_REQUIRED, _PLACEHOLDER), "adapter.kind": _chosen_kind(answers)}
        values = nest({**required, **settings, "method": method.name}.items())
        try:
            _refuse_switches(method, settings)
            # Not as one of all methods: errors would name the method before the field.
            return method.recipe.model_validate(values, strict=False)
        except ValidationError as error:
            problems = {
                one.param: one.message for one in field_errors(error.errors(), method.recipe)
            }
        except _SwitchError as error:
            problems = error.problems
        before = len(settings)
        for param, message in problems.items():
            _take_back(answers, param, f"{message} The default is used.")
        if len({name for one in answers for name in one.settings} - {NAME}) == before:
            raise InvalidError("No recipe can be made of this file.", param="text")


class _SwitchError(Exception):
    """Some settings are on or off, where a recipe has numbers or names."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__()
        self.problems = problems


def _refuse_switches(method: Method, settings: Mapping[str, Any]) -> None:
    """Refuse `true` for a number: validation would read it as 1."""
    wanted = {one.name: one.allowed_values for one in _references(method)}
    problems = {
        name: "It is on or off there, but not here."
        for name, value in settings.items()
        if isinstance(value, bool) and not wanted.get(name, "yes or no").startswith("yes or no")
    }
    if problems:
        raise _SwitchError(problems)


def _take_back(answers: Sequence[_Answer], param: str, why: str) -> bool:
    """Take a setting back from its key, or a group of settings. Return whether there was one."""
    is_found = False
    for one in answers:
        for name in [*one.settings]:
            if name == param or name.startswith(f"{param}."):
                one.drop(name, why)
                is_found = True
    return is_found


def _describe(answer: _Answer, values: Mapping[str, Any]) -> ImportedKey:
    """Return what a report says of a key; `values` are those of the recipe, by dotted name."""
    return ImportedKey(
        key=answer.key,
        value=reading.short_text(answer.value),
        settings={
            name: reading.short_text(values.get(name, value))
            for name, value in answer.settings.items()
        },
        note=answer.note,
    )


def _name(answers: Iterable[_Answer]) -> str:
    return next((str(one.settings[NAME]) for one in answers if NAME in one.settings), "")


def _chosen_values(recipe: AnyRecipe) -> dict[str, Any]:
    values = recipe.model_dump()
    return {name: it for name, it in values.items() if name not in _REQUIRED or it != _PLACEHOLDER}
