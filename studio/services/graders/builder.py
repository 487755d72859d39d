"""The form of a grader and its JSON: one is made from the other, whichever was changed last.

Several graders become a `multi` with the formula of their weighted mean, or one that was written by
hand. A score with a range of its own is scaled to 0 to 1 in the formula.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from studio.errors import InvalidError
from studio.graders.items import GradedRow
from studio.graders.schema import (
    MAX_GRADERS,
    Grader,
    MultiGrader,
    ScoreModelGrader,
    SingleGrader,
    parse_grader,
)
from studio.services.graders import columns, purposes
from studio.services.graders.purposes import PURPOSES, Purpose

NAME = "total"
"""Of a grader that combines others."""

MAX_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that answers are rewarded for."""

    purpose: str
    name: str
    """Of its grader, in formulas."""
    weight: str = "1"
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def definition(self) -> Purpose:
        return PURPOSES[self.purpose]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderForm:
    parts: Sequence[Part]
    name: str = NAME
    formula: str = ""
    """Written by hand; empty for the weighted mean."""


class FormProblemsError(InvalidError):
    """Fields of the form are wrong."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(next(iter(problems.values())))
        self.problems = problems
        """Sentences by the path of the field, such as `parts.0.reference`."""


def build(form: GraderForm) -> Grader:
    """Return the grader of a form.

    Raises:
        FormProblemsError: fields are wrong.

    """
    problems: dict[str, str] = {}
    built: dict[str, SingleGrader] = {}
    for place, part in enumerate(form.parts):
        try:
            built[part.name] = part.definition.build(part.name, part.values)
        except InvalidError as error:
            problems[f"parts.{place}.{error.param}"] = f"{error.message} {error.hint}".strip()
    weights = _read_weights(form, problems) if len(form.parts) > 1 else []
    if problems:
        raise FormProblemsError(problems)
    if len(form.parts) == 1 and not form.formula:
        return next(iter(built.values()))
    return _combine(form, built, weights)


def _read_weights(form: GraderForm, problems: dict[str, str]) -> list[float]:
    weights = []
    for place, part in enumerate(form.parts):
        try:
            weight = float(part.weight)
        except ValueError:
            weight = 0.0
        weights.append(weight)
        if not 0 < weight <= MAX_WEIGHT and not form.formula:
            message = f"Enter a number above 0, up to {MAX_WEIGHT:g}."
            problems[f"parts.{place}.weight"] = message
    return weights


def _combine(
    form: GraderForm, built: Mapping[str, SingleGrader], weights: Sequence[float]
) -> MultiGrader:
    fields = {
        "name": form.name,
        "type": "multi",
        "graders": {name: to_json(grader) for name, grader in built.items()},
        "calculate_output": form.formula or write_formula(built, weights),
    }
    try:
        grader = parse_grader(fields)
    except InvalidError as error:
        reason = error.message.removeprefix(f"{error.param}: ")
        raise FormProblemsError({"formula": reason}) from error
    assert isinstance(grader, MultiGrader)  # noqa: S101 -- its type says so
    return grader


def write_formula(graders: Mapping[str, SingleGrader], weights: Sequence[float]) -> str:
    """Return the weighted mean of graders, each from 0 to 1."""
    terms = [
        _scale(name, grader) if weight == 1 else f"{weight:g} * {_scale(name, grader)}"
        for (name, grader), weight in zip(graders.items(), weights, strict=True)
    ]
    total = round(sum(weights), 9)
    joined = " + ".join(terms)
    return joined if total == 1 else f"({joined}) / {total:g}"


def _scale(name: str, grader: SingleGrader) -> str:
    """Return a score from 0 to 1."""
    if not isinstance(grader, ScoreModelGrader) or grader.range in (None, [0, 1]):
        return name
    low, high = grader.range
    return f"(({name} - {_signed(low)}) / {high - low:g})"


def _signed(number: float) -> str:
    return f"({number:g})" if number < 0 else f"{number:g}"


def read(grader: Grader) -> GraderForm:
    """Return the form of a grader; a formula that is no weighted mean is kept as it is."""
    if not isinstance(grader, MultiGrader):
        return GraderForm(parts=[_to_part(grader.name, grader)])
    parts = [
        replace(
            _to_part(name, one), weight=_find_weight(grader.calculate_output, _scale(name, one))
        )
        for name, one in grader.graders.items()
    ]
    weights = [float(part.weight) for part in parts]
    is_mean = grader.calculate_output == write_formula(grader.graders, weights)
    formula = "" if is_mean and len(parts) > 1 else grader.calculate_output
    return GraderForm(parts=parts, name=grader.name, formula=formula)


def _to_part(name: str, grader: SingleGrader) -> Part:
    purpose, values = purposes.find(grader)
    return Part(purpose=purpose.name, name=name, values=values)


def _find_weight(formula: str, term: str) -> str:
    match = re.search(rf"(?<![\w.])(\d{{1,4}}(?:\.\d{{1,6}})?) \* {re.escape(term)}(?!\w)", formula)
    return match[1] if match else "1"


def add(form: GraderForm, purpose: str, known: Sequence[str]) -> GraderForm:
    """Return a form with one more purpose, with defaults that suit the columns of the rows.

    Raises:
        InvalidError: there is no such purpose, or there are too many.

    """
    if len(form.parts) >= MAX_GRADERS:
        raise InvalidError(f"A grader combines at most {MAX_GRADERS} others.")
    parts = [
        part if part.name.isidentifier() else replace(part, name=free_name(part.purpose, set()))
        for part in form.parts
    ]
    name = free_name(purpose, {part.name for part in parts})
    parts.append(Part(purpose=purpose, name=name, values=default_values(purpose, known)))
    return replace(form, parts=parts)


def suggest(rows: Sequence[GradedRow]) -> GraderForm:
    """Return a form that suits what the expected answers of rows look like."""
    purpose = columns.guess_purpose(rows) if rows else "exact"
    return add(GraderForm(parts=[]), purpose, columns.list_columns(rows))


def default_values(purpose: str, known: Sequence[str]) -> dict[str, str]:
    """Return the fields of a purpose before anything is entered.

    Raises:
        InvalidError: there is no such purpose.

    """
    if purpose not in PURPOSES:
        raise InvalidError(f"There is no purpose {purpose[:40]}.", param="purpose")
    values = PURPOSES[purpose].defaults
    if "reference" in values:
        values["reference"] = columns.template(columns.guess_answer(known))
    return values


def free_name(purpose: str, taken: set[str]) -> str:
    """Return a name for the grader of a purpose that no other one has."""
    numbered = (f"{purpose}_{number}" for number in range(2, MAX_GRADERS + 2))
    return next(name for name in (purpose, *numbered) if name not in taken)


def remove(form: GraderForm, place: int) -> GraderForm:
    """Return a form without a part; the last one stays."""
    if len(form.parts) < 2:  # noqa: PLR2004 -- the last one
        return form
    left = [part for index, part in enumerate(form.parts) if index != place]
    return replace(form, parts=left, formula="")


def adapt(form: GraderForm, known: Sequence[str]) -> GraderForm:
    """Return a form whose expected answers are columns that the rows have."""
    if not known:
        return form
    return replace(form, parts=[_adapt_part(part, known) for part in form.parts])


def _adapt_part(part: Part, known: Sequence[str]) -> Part:
    reference = part.values.get("reference", "")
    named = columns.read_template(reference)
    if named is None or named in known:
        return part
    better = columns.template(columns.guess_answer(known))
    return replace(part, values={**part.values, "reference": better})


def find_column(grader: Grader, known: Sequence[str]) -> str:
    """Return the column with the expected answer: the one that a grader compares with, if any."""
    references = (part.values.get("reference", "") for part in read(grader).parts)
    named = (columns.read_template(reference) for reference in references)
    return next((name for name in named if name and name in known), columns.guess_answer(known))


def to_json(grader: Grader) -> dict[str, object]:
    """Return a grader as OpenAI's JSON."""
    fields: dict[str, object] = grader.model_dump(mode="json", exclude_none=True)
    return fields


def write_json(grader: Grader) -> str:
    return json.dumps(to_json(grader), ensure_ascii=False, indent=2)


def read_json(text: str) -> Grader:
    """Return the grader in a JSON text.

    Raises:
        InvalidError: it is none; the message says where it is wrong.

    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidError(
            f"This is not valid JSON: {error}.",
            hint="Check its quotation marks, commas and brackets.",
            param="json",
        ) from error
    return parse_grader(fields)
