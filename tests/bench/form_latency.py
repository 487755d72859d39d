"""How soon the form follows a change: the row as tokens (300 ms), and the estimate (50 ms).

Both are asked of a living studio, as a browser does it; the panel waits 50 ms more for whoever is
still typing. The closed form alone is what an answer takes that is worked out in this process.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from studio.db.session import read_session
from studio.methods import RECIPE_ADAPTER
from studio.recipe.dotted_keys import merge
from studio.services.estimates import estimates, fit_suggestions
from studio.services.operations import home
from studio.services.precision import recommendation
from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.support.live_studio import Studio, free_port, prepare, stop_everything
from tests.support.waiting import wait_until

TIMES = 60
RECIPE = {"base_model": "starter", "dataset": "starter", "precision": "bf16"}


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        prepare(settings)
        studio = Studio(settings.home, free_port())
        studio.start()
        try:
            yield from _followed(studio)
        finally:
            stop_everything(studio)
        yield from _closed(settings)


def _followed(studio: Studio) -> Iterator[Measurement]:
    with httpx2.Client(base_url=studio.url, timeout=60, trust_env=False) as client:

        def see(number: int) -> None:
            """Ask for another row, and another cut."""
            asked = {"model": "starter", "row": str(number + 1), "max_length": str(40 + number)}
            headers = {"HX-Request": "true", "HX-Request-Type": "partial"}
            page = client.get("/datasets/1/sight", params=asked, headers=headers)
            assert "<mark>" in page.raise_for_status().text

        def plan(number: int) -> None:
            recipe = _recipe(number)
            client.post("/api/v1/estimate", json={"recipe": recipe}).raise_for_status()

        wait_until(lambda: client.get("/api/v1/health").is_success)
        see(0)  # The desk comes with whoever asks first.
        yield from _figures("a row as tokens, after a change", _times(see))
        plan(0)
        yield from _figures("an estimate over REST, after a change", _times(plan))


def _closed(settings: Settings) -> Iterator[Measurement]:
    """Work out what the form shows of memory and time, and what would make it fit."""
    engine = home.open_home(settings)
    with read_session(engine) as db:

        def work(number: int) -> None:
            recipe = RECIPE_ADAPTER.validate_python(_recipe(number))
            known = estimates.load_inputs(db)
            assert estimates.estimate_recipe(db, recipe, known).memory is not None
            fit_suggestions.suggest(db, recipe, known)

        recommendation.load_model_facts(db, "starter")
        yield from _figures("the closed form, and what makes it fit", _times(work))
    engine.dispose()


def _recipe(number: int) -> dict[str, object]:
    return merge(RECIPE, {"optimisation": {"per_device_train_batch_size": 1 + number}})


def _times(ask: Callable[[int], None]) -> list[float]:
    """Ask again and again, each time for something else. Return the milliseconds of each."""
    took = []
    for number in range(1, TIMES + 1):
        began = time.perf_counter()
        ask(number)
        took.append((time.perf_counter() - began) * 1000)
    return took


def _figures(what: str, took: Sequence[float]) -> Iterator[Measurement]:
    yield Measurement(f"{what}, p50", statistics.median(took), "ms")
    yield Measurement(f"{what}, p95", statistics.quantiles(took, n=20)[-1], "ms")


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
