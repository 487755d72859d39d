"""A sweep whose web and worker are killed in its midst: no trial twice, and none lost."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.live_studio import QUICK, Studio
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

SPACE = {"optimisation.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


# Of all strategies this is the one that keeps a memory of its own.
def test_sweep_completes_every_trial_once_after_kills(make_studio: Callable[[], Studio]) -> None:
    studio = make_studio()
    recipe = QUICK | {"optimisation": QUICK["optimisation"] | {"max_steps": 6}}
    studio.api.post("/experiments", json={"name": "swept", "recipe": recipe}).raise_for_status()
    new = {"experiment_id": 1, "space": SPACE, "strategy": "tpe", "count": 4, "parallel": 2}
    studio.api.post("/sweeps", json=new).raise_for_status()

    for begun in (1, 3):
        wait_until(partial(has_begun, studio, begun))
        studio.kill()
        studio.wait()
        studio.start()
    wait_until(lambda: told(studio)["status"] == "finished", seconds=250)

    made = told(studio)["trials"]
    assert [(one["number"], one["state"]) for one in made] == [(n, "done") for n in range(4)]
    assert len({str(one["settings"]) for one in made}) == 4
    assert len(studio.api.get("/runs").json()["data"]) == 4
    assert told(studio)["best"]["value"] == min(one["value"] for one in made)


def told(studio: Studio) -> dict[str, Any]:
    answer: dict[str, Any] = studio.api.get("/sweeps/1").json()
    return answer


def has_begun(studio: Studio, number: int) -> bool:
    """Tell whether so many runs train or have trained."""
    begun = [one for one in told(studio)["trials"] if one["status"] not in ("queued", "starting")]
    return len(begun) >= number
