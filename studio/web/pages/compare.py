"""Runs side by side. Everything that is chosen stands in the address."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel
from sqlmodel import Session

from studio.db.tables import Run, Sample
from studio.services import compare, metrics, progress, runs
from studio.web import words
from studio.web.deps import DB, RunIds
from studio.web.render import go, page

router = APIRouter(include_in_schema=False)

RECENT = 50
HUES, DASHES = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What each run wrote to one prompt in the end."""

    prompt: str
    reference: str
    by_run: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How a run's curves are drawn."""

    id: int
    label: str
    hue: int
    """Bound to the run's number, never to its place in a list: a run keeps its colour."""
    dash: int
    """Tells apart runs of one colour."""


class View(BaseModel):
    """What the address says besides the runs."""

    run: list[int] = []
    """Runs ticked in a list, to be added."""
    base: int | None = None
    x: metrics.Axis = "step"
    all: bool = False
    choose: bool = False


@router.get("/compare")
def show(request: Request, db: DB, runs: RunIds, view: Annotated[View, Query()]) -> Response:
    if view.run:
        return go(request, f"/compare?runs={_joined([*runs, *view.run])}")
    if view.choose or len(set(runs)) < 2:  # noqa: PLR2004 -- one run compares to nothing
        return _chooser(request, db, runs)
    made = compare.compare(db, runs, view.base if view.base in runs else None)
    ids = [one.id or 0 for one in made.runs]
    lines = _lines(made.runs)
    differing = {key: made.settings[key] for key in made.differing}
    return page(
        request,
        "compare/show.html",
        made=made,
        finals={name: made.metrics[name] for name in sorted(made.metrics, key=_rank)},
        ids=_joined(ids),
        without=_without(ids, made.base.id, view),
        keys=sorted(metrics.keys(db, ids), key=_rank),
        lines=lines,
        charted=json.dumps([asdict(lines[run_id]) for run_id in ids]),
        settings=made.settings if view.all else differing,
        base_place=made.runs.index(made.base),
        answers=_answers(compare.samples(db, ids)),
        axes=get_args(metrics.Axis),
        view=view,
    )


def _chooser(request: Request, db: Session, chosen: Sequence[int]) -> Response:
    recent = runs.newest(db, runs.Filter(), limit=RECENT)
    shown = {run.id for run in recent}
    missing: list[Run] = [runs.get(db, run_id) for run_id in chosen if run_id not in shown]
    return page(
        request,
        "compare/choose.html",
        runs=[*missing, *recent],
        chosen=set(chosen),
        progress_of=progress.of,
    )


def _joined(ids: Sequence[int]) -> str:
    return ",".join(map(str, dict.fromkeys(ids)))


def _lines(chosen: Sequence[Run]) -> dict[int, Line]:
    seen: Counter[int] = Counter()
    lines: dict[int, Line] = {}
    for number, name in sorted((run.id or 0, run.name) for run in chosen):
        hue = number % HUES
        lines[number] = Line(id=number, label=name, hue=hue, dash=seen[hue] % DASHES)
        seen[hue] += 1
    return lines


def _without(ids: Sequence[int], base: int | None, view: View) -> dict[int, str]:
    """Return for each run the address of the page that leaves it out."""
    kept = view.model_dump(include={"x", "all"}, exclude_defaults=True)
    return {left: _address([one for one in ids if one != left], base, kept) for left in ids}


def _address(ids: Sequence[int], base: int | None, kept: Mapping[str, object]) -> str:
    based = {"base": base} if base in ids else {}
    return "/compare?" + urlencode({"runs": _joined(ids), **based, **kept}, safe=",")


def _rank(key: str) -> tuple[int, str]:
    """Order metrics as the words list them, unknown ones last."""
    known = list(words.METRICS)
    return (known.index(key) if key in known else len(known), key)


def _answers(samples: Sequence[Sample]) -> list[Answer]:
    """Lay the last answers of each run beside each other, by prompt."""
    answers: dict[str, Answer] = {}
    for sample in samples:
        blank = Answer(prompt=sample.prompt, reference=sample.reference)
        answers.setdefault(sample.prompt, blank).by_run[sample.run_id] = sample.answer
    return list(answers.values())
