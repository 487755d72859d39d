"""The form of the graders page: what was entered, or the JSON if that was edited.

Everything is in the form, and nothing is stored. The form remembers which JSON it was shown with:
if the JSON is another one now, it was edited, and the fields follow it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from studio.errors import InvalidError
from studio.graders.items import GradedRow
from studio.graders.schema import MAX_GRADERS, Grader, MultiGrader
from studio.services.graders import builder
from studio.services.graders.builder import FormProblemsError, GraderForm, Part
from studio.services.graders.purposes import PURPOSES, PurposeField

MAX_CHARS = 300_000
"""Characters of a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderDraft:
    """A grader that is being built."""

    form: GraderForm
    grader: Grader | None
    """None while something is wrong."""
    json: str
    """As the page shows it."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Sentences by the name of the field; `json` is the JSON that was edited."""
    experiment: str = ""
    """The form of the experiment that it is built for, as one text; empty if there is none."""

    @property
    def weighted_mean(self) -> str:
        """The formula that the weights make; empty for one that was written by hand."""
        if self.form.formula or not isinstance(self.grader, MultiGrader):
            return ""
        return self.grader.calculate_output

    @property
    def mark(self) -> str:
        """What the form remembers of the JSON; nothing for one that could not be read."""
        return "" if "json" in self.problems else json_mark(self.json)

    def require(self) -> Grader:
        """Return the grader.

        Raises:
            InvalidError: something is wrong.

        """
        if self.grader is None:
            problem = next(iter(self.problems.values()), "The grader is not complete.")
            raise InvalidError(problem, hint="Correct the grader first.")
        return self.grader


def json_mark(text: str) -> str:
    return hashlib.sha256(_normalise(text).encode()).hexdigest()[:16]


def start(rows: Sequence[GradedRow]) -> GraderDraft:
    """Return a first draft, for what the expected answers of rows look like."""
    return _draft(builder.suggest(rows))


def open_json(text: str, rows: Sequence[GradedRow]) -> GraderDraft:
    """Return a draft of a grader's JSON, with a first draft's fields if it cannot be read."""
    try:
        return from_grader(builder.read_json(text))
    except InvalidError as error:
        problem = f"{error.message} {error.hint}".strip()
        form = builder.suggest(rows)
        return GraderDraft(form=form, grader=None, json=text, problems={"json": problem})


def from_grader(grader: Grader) -> GraderDraft:
    return _draft(builder.read(grader))


def read(
    posted: Mapping[str, Any], known: Sequence[str], *, are_rows_new: bool = False
) -> GraderDraft:
    """Return the draft that was posted, after the action that was pressed.

    `known` are the columns of the chosen rows. If these are new, expected answers are looked for
    in them.

    Raises:
        InvalidError: it is not the form of the page.

    """
    text = _normalise(str(posted.get("json", "")))
    form = _read_fields(posted, known)
    if not form.parts or json_mark(text) != posted.get("json_was"):
        try:
            form = builder.read(builder.read_json(text))
        except InvalidError as error:
            if not form.parts:
                raise
            problem = f"{error.message} {error.hint}".strip()
            return GraderDraft(form=form, grader=None, json=text, problems={"json": problem})
    form = _apply(str(posted.get("do", "")), form, posted, known)
    return _draft(builder.adapt(form, known) if are_rows_new else form, text)


def read_grader(posted: Mapping[str, Any]) -> Grader:
    """Return the grader that was posted: by the form of the page, or by that of an experiment.

    Raises:
        InvalidError: something is wrong with it.

    """
    reward = posted.get("reward")
    if isinstance(reward, Mapping) and "grader" in reward:
        return builder.read_json(str(reward["grader"]))
    return read(posted, []).require()


def _draft(form: GraderForm, shown: str = "") -> GraderDraft:
    """Return the draft of a form; its JSON stays as it was shown while something is wrong."""
    try:
        grader = builder.build(form)
    except FormProblemsError as error:
        return GraderDraft(form=form, grader=None, json=shown, problems=error.problems)
    return GraderDraft(form=form, grader=grader, json=builder.write_json(grader))


def _read_fields(posted: Mapping[str, Any], known: Sequence[str]) -> GraderForm:
    groups = posted.get("parts", {})
    if not isinstance(groups, Mapping) or len(groups) > MAX_GRADERS:
        raise InvalidError("The form is not complete.", hint="Reload the page.")
    parts: list[Part] = []
    for group in groups.values():
        parts.append(_read_part(group, {part.name for part in parts}, known))
    formula = str(posted.get("formula", "")).strip()
    return GraderForm(
        parts=parts,
        name=str(posted.get("name") or builder.NAME)[:200],
        formula="" if formula == posted.get("formula_was") else formula,
    )


def _read_part(group: object, taken: set[str], known: Sequence[str]) -> Part:
    if not isinstance(group, Mapping) or group.get("purpose") not in PURPOSES:
        raise InvalidError("The form is not complete.", hint="Reload the page.")
    purpose = str(group["purpose"])
    definition, texts = PURPOSES[purpose], {name: str(text) for name, text in group.items()}
    if purpose == texts.get("was"):
        values = {one.name: _read_value(one, texts) for one in definition.fields}
        name = texts.get("name") or purpose
    else:  # It was just chosen.
        values = builder.default_values(purpose, known)
        if "reference" in values and texts.get("reference"):
            values["reference"] = texts["reference"]
        name = builder.free_name(purpose, taken)
    return Part(purpose=purpose, name=name, weight=texts.get("weight", "1"), values=values)


def _read_value(one: PurposeField, texts: Mapping[str, str]) -> str:
    text = _normalise(texts.get(one.name, ""))
    if len(text) > MAX_CHARS:
        raise InvalidError(f"{one.label} is too long.", hint="Shorten it.", param=one.name)
    return text


def _apply(
    action: str, form: GraderForm, posted: Mapping[str, Any], known: Sequence[str]
) -> GraderForm:
    if action == "add":
        return builder.add(form, str(posted.get("added", "")), known)
    verb, _, place = action.partition(":")
    if verb == "remove" and place.isdecimal():
        return builder.remove(form, int(place))
    return form


def _normalise(text: str) -> str:
    """Return a text with the line breaks of JSON and of programs; forms send others."""
    return text.replace("\r\n", "\n")
