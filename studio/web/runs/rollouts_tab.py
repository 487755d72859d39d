"""The Scored answers tab of a run: the answers that it learns from, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from studio.db.tables import Run
from studio.graders.group_scores import GroupSummary, summarise
from studio.protocols.rollouts import AnswerRecord, Stage
from studio.protocols.run_dir import RunDir
from studio.services.runs import rollouts, runs
from studio.services.runs.rollouts import Group, Order, Step
from studio.settings import Settings
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)

SHOWN_ANSWERS = 64
"""About how many answers a page shows at first, and how many more each time."""
MAX_TEXT = 4000
"""Characters of a prompt or an answer that a page shows; the file has them all."""


class RolloutView(BaseModel):
    """The query parameters of the tab."""

    stage: str = ""
    """Training by default."""
    step: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The newest one by default, also when there is a newer one later."""
    at: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """The place of the step among all, as the slider gives it; used instead of `step`."""
    sort: str = "row"
    shown: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """How many prompts; 0 chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPage:
    """What the tab shows: prompts of one step with their answers."""

    path: str
    """The address of the tab."""
    part: str
    """The address of what changes."""
    stages: list[Stage] = field(default_factory=list)
    """Those that there are answers of."""
    stage: Stage = "training"
    steps: Sequence[Step] = ()
    place: int = 0
    """Which of the steps is shown."""
    sort: Order = "row"
    groups: Sequence[Group] = ()
    shown: int = 0
    """How many of the prompts are shown."""

    @property
    def step(self) -> Step:
        return self.steps[self.place]

    @property
    def is_newest(self) -> bool:
        return self.place == len(self.steps) - 1

    @property
    def pinned(self) -> int | None:
        """The step, if the page does not follow to newer ones."""
        return None if self.is_newest else self.step.number

    @property
    def more(self) -> int:
        """How many prompts the next click adds."""
        return min(len(self.groups) - self.shown, _default_count(self.groups))

    @property
    def answers(self) -> list[AnswerRecord]:
        return [answer for group in self.groups for answer in group.answers]

    @property
    def summary(self) -> GroupSummary:
        return summarise([[answer.reward for answer in group.answers] for group in self.groups])

    @property
    def flat_count(self) -> int:
        """How many prompts have answers that all score alike."""
        return sum(group.is_flat for group in self.groups)

    @property
    def cut_off_count(self) -> int:
        return sum(answer.is_cut_off for answer in self.answers)

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the bars of all scores; most graders give 0 to 1."""
        scores = [score for group in self.groups for score in group.scores]
        return min([0.0, *scores]), max([1.0, *scores])

    def bar(self, score: float) -> float:
        """Return the length of the bar of a score, in percent."""
        low, high = self.range
        return 100 * (score - low) / (high - low)

    def query(self, **changes: object) -> str:
        """Return the query of a link to what the page shows, with some of it changed."""
        values = {"stage": self.stage, "step": self.pinned, "sort": self.sort} | changes
        return "?" + urlencode({name: one for name, one in values.items() if one is not None})

    def query_at(self, place: int) -> str:
        """Return the query of a link to another step."""
        is_newest = place >= len(self.steps) - 1
        return self.query(step=None if is_newest else self.steps[place].number)


@router.get("/runs/{run_id}/rollouts")
def show_rollouts(
    request: Request, run_id: int, db: DB, config: Config, view: Annotated[RolloutView, Query()]
) -> Response:
    run = runs.get(db, run_id)
    return tab_page(request, db, run, "rollouts", **_context(config, run, view))


@router.get("/runs/{run_id}/parts/rollouts")
def rollouts_block(
    request: Request, run_id: int, db: DB, config: Config, view: Annotated[RolloutView, Query()]
) -> Response:
    """Return the part of the tab that changes: with the step, the order, and while a run trains."""
    run = runs.get(db, run_id)
    context = _context(config, run, view)
    response = block(request, "runs/rollouts.html", "rollouts", run=run, **context)
    if context["scored"].steps:
        response.headers["HX-Replace-Url"] = context["scored"].path + context["scored"].query()
    return response


def _context(settings: Settings, run: Run, view: RolloutView) -> dict[str, Any]:
    rollouts.require(run)
    file = RunDir(settings.runs / str(run.id)).rollouts
    return {
        "scored": _load(run, rollouts.open_index(file), view),
        "orders": rollouts.ORDERS,
        "most": MAX_TEXT,
    }


def _load(run: Run, index: rollouts.RolloutIndex, view: RolloutView) -> RolloutPage:
    steps = {stage: index.list_steps(stage) for stage in get_args(Stage)}
    stages: list[Stage] = [stage for stage in get_args(Stage) if steps[stage]]
    path, part = f"/runs/{run.id}/rollouts", f"/runs/{run.id}/parts/rollouts"
    if not stages:
        return RolloutPage(path=path, part=part)
    stage = next((one for one in stages if one == view.stage), stages[0])
    newest = len(steps[stage]) - 1
    place = rollouts.nearest(steps[stage], view.step) if view.at is None else min(view.at, newest)
    order: Order = next((one for one in get_args(Order) if one == view.sort), "row")
    groups = rollouts.sort_groups(rollouts.read_groups(index.path, steps[stage][place]), order)
    return RolloutPage(
        path=path,
        part=part,
        stages=stages,
        stage=stage,
        steps=steps[stage],
        place=place,
        sort=order,
        groups=groups,
        shown=min(view.shown or _default_count(groups), len(groups)),
    )


def _default_count(groups: Sequence[Group]) -> int:
    """Return how many prompts are shown at first."""
    most = max((len(group.answers) for group in groups), default=1)
    return max(1, SHOWN_ANSWERS // max(1, most))
