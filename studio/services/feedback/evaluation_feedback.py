"""Feedback on rows of an evaluation: keep the expected answer, or leave a row out of training."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.feedback import Feedback
from studio.db.owners import current_owner_id
from studio.db.session import read_session
from studio.db.tables import Dataset, DatasetVersion, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping as RowMapping
from studio.intake.quality import finding_rows
from studio.intake.row_formats.schema import Turn, make_turn
from studio.intake.rows.deduplication import question_key
from studio.services.accounts import owners
from studio.services.datasets import data_quality, datasets, pending_datasets, versions
from studio.services.datasets.versions import Part, RowQuery
from studio.services.evaluations import evaluation_results, evaluations
from studio.services.evaluations.evaluation_results import RowPair
from studio.services.feedback import feedback
from studio.services.feedback.feedback import FeedbackKind, NewFeedback

Choice = Literal["conversation", "preference"]
"""What becomes of the expected answer: a good answer, or a preference over the run's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows that a new version of a dataset leaves out."""

    dataset_id: int
    name: str
    rows: int
    before: int
    """The version that was in use before."""
    version: int | None
    """None while a task reads the file."""


def add_expected(
    db: Session, folder: Path, evaluation: Evaluation, position: int, choice: Choice
) -> Feedback:
    """Keep the expected answer of a row, alone or as better than what the run's model answered.

    Raises:
        ConflictError: the models have not answered yet, or write no text.
        InvalidError: the row has no answer that can be trained on.
        NotFoundError: the row does not exist, or its dataset was deleted.

    """
    evaluations.require_texts(db, evaluation)
    pair = find_pair(db, evaluation, position)
    prompt, tools = _read_prompt(db, folder, evaluation, pair)
    is_preference = choice == "preference"
    new = NewFeedback(
        prompt=prompt,
        answer=pair.reference,
        rejected=pair.tuned.answer if is_preference else None,
        tools=tools,
        said_in="evaluation",
        run_id=evaluation.run_id,
        evaluation_id=evaluation.id,
        position=position,
        other_model=db.get_one(AnswerSet, evaluation.tuned_id).model if is_preference else "",
        temperature=0.0,
    )
    return feedback.add(db, new)


def remove(db: Session, evaluation: Evaluation, position: int, choice: Choice) -> None:
    """Take back what the current user said about a row."""
    for said in db.exec(_own(evaluation).where(Feedback.position == position)).all():
        if said.kind == choice:
            feedback.delete(db, said.id or 0)


def said_about(db: Session, evaluation: Evaluation) -> Mapping[int, set[FeedbackKind]]:
    """Return what the current user said about each row, by its position."""
    said: dict[int, set[FeedbackKind]] = {}
    for one in db.exec(_own(evaluation)).all():
        kind = next(kind for kind in feedback.MAPPINGS if kind == one.kind)
        said.setdefault(one.position or 0, set()).add(kind)
    return said


def find_pair(db: Session, evaluation: Evaluation, position: int) -> RowPair:
    """Return a row of an evaluation with both answers."""
    results = evaluation_results.load(db, evaluation)
    if results is None:
        raise ConflictError(
            "The models have not answered all rows yet.", hint="Try again when they have."
        )
    for pair in results.rows:
        if pair.tuned.position == position:
            return pair
    raise NotFoundError(f"Evaluation {evaluation.id} has no row {position}.")


def find_training_data(db: Session, folder: Path, run: Run) -> Dataset | None:
    """Return the dataset of a run if the current user can leave rows of it out."""
    version = versions.find_for_run(db, run)
    dataset = datasets.get(db, version.dataset_id) if version else None
    if dataset is None or dataset.version is None or not owners.may_change(dataset.owner_id):
        return None
    try:
        pending_datasets.original_source(folder, dataset)
    except InvalidError:  # It is built in.
        return None
    return dataset


def leave_out(
    engine: Engine, folder: Path, run: Run, evaluation: Evaluation, position: int, limits: Limits
) -> LeftOut:
    """Make a version of the run's dataset without the rows that ask what a row asks.

    Raises:
        ConflictError: no row of the version in use asks it, or the file is being read.
        InvalidError: no rows would be left.
        NotFoundError: the dataset was deleted, or rows of it cannot be left out.

    """
    with read_session(engine) as db:
        pair = find_pair(db, evaluation, position)
        row = _find_row(db, folder, evaluation, pair)
        dataset = find_training_data(db, folder, run)
        version = versions.current(db, dataset) if dataset else None
    if dataset is None or version is None:
        raise NotFoundError(
            "No rows can be left out of the dataset of this run.",
            hint="It is built in, was deleted, or belongs to somebody else.",
        )
    if row is None:
        row = {"messages": [make_turn("user", pair.prompt)]}
    numbers = list(_numbers_asking(folder, version, row))
    if not numbers:
        raise ConflictError(
            f"No row of {dataset.name}, version {version.number}, asks this.",
            hint="It may have been left out already, or be in a separate validation file.",
        )
    result = data_quality.exclude_rows(engine, folder, dataset.id or 0, numbers, limits)
    return LeftOut(
        dataset_id=dataset.id or 0,
        name=dataset.name,
        rows=len(numbers),
        before=version.number,
        version=result.version.number if result.version else None,
    )


def _own(evaluation: Evaluation) -> Any:  # noqa: ANN401 -- a query
    return select(Feedback).where(
        Feedback.evaluation_id == evaluation.id,
        Feedback.owner_id == current_owner_id(),
        col(Feedback.position).is_not(None),
    )


def _read_prompt(
    db: Session, folder: Path, evaluation: Evaluation, pair: RowPair
) -> tuple[list[Turn], list[dict[str, Any]]]:
    """Return the turns before the expected answer of a row, and its tools."""
    row = _find_row(db, folder, evaluation, pair)
    if row is not None and "text" in row:
        raise InvalidError(
            "This row is a text: it has no prompt and no answer.",
            hint="Add texts as a file on the Datasets page.",
        )
    if row is not None and "item" in row:
        return row["messages"], row.get("tools", [])
    if row is not None:
        turns, last = _split_answer(row)
        if turns[last]["content"].strip() == pair.reference.strip():
            return turns[:last], row.get("tools", [])
    if not pair.is_one_message:
        raise NotFoundError(
            "The conversation of this row cannot be read any more.",
            hint="Its dataset was deleted, or its answer calls tools.",
        )
    return [make_turn("user", pair.prompt)], []


def _split_answer(row: Mapping[str, Any]) -> tuple[list[Turn], int]:
    """Return the turns of a row, and which of them is the expected answer."""
    turns: list[Turn] = [*row["messages"], *row.get("chosen", [])]
    return turns, max(
        (
            place
            for place, turn in enumerate(turns)
            if turn["role"] == "assistant" and turn.get("weight") != 0
        ),
        default=len(turns) - 1,
    )


def _find_row(
    db: Session, folder: Path, evaluation: Evaluation, pair: RowPair
) -> dict[str, Any] | None:
    """Return the row that was asked, from the dataset that it is of; None if that was deleted."""
    asked = db.get_one(AnswerSet, evaluation.tuned_id).made_by.get("rows", {})
    query = select(DatasetVersion).where(DatasetVersion.sha256 == asked.get("sha256", ""))
    version = db.exec(query.order_by(col(DatasetVersion.id).desc())).first()
    if version is None:
        return None
    is_apart = asked.get("part") == "validation" and "share" not in asked
    part: Part = "validation" if is_apart else "train"
    found = versions.load_rows(
        folder, version, RowQuery(part=part, numbers=frozenset({pair.number})), limit=1
    )
    return found.rows[0].row if found.rows else None


def _numbers_asking(folder: Path, version: DatasetVersion, row: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers in the file of the rows that ask the same as a row."""
    train, validation = versions.row_files(folder, version)
    paths: dict[Part, Path | None] = {"train": train, "validation": validation}
    if RowMapping.model_validate(version.mapping).split.kind == "dataset":
        del paths["validation"]  # Its rows are from another file.
    for part, path in paths.items():
        if path is not None:
            places = _places_asking(path, row)
            yield from finding_rows.original_row_numbers(train.parent, part, places)


def _places_asking(path: Path, row: Mapping[str, Any]) -> Collection[int]:
    """Return the places of the rows in a file that ask the same as a row."""
    asked: Any = row
    key = question_key(asked)
    texts = [turn["content"] for turn in row.get("messages", []) if turn["role"] == "user"]
    # Most lines need not be parsed.
    needle = json.dumps([row.get("text"), *texts][-1].strip(), ensure_ascii=False)[1:-1].encode()
    with path.open("rb") as lines:
        return [
            place
            for place, line in enumerate(lines, 1)
            if needle in line and question_key(json.loads(line)) == key
        ]
