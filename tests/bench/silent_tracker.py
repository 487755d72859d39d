"""A run that is sent to a server that never answers, beside one that is sent nowhere.

Runs alternate on one studio, so that other work on the machine disturbs both alike. A step's own
processor time is what a tracker must not change; the clock also counts the tracker's process, which
takes its share of the cores. `pip install "mantissa-studio[mlflow]"` first.
"""

import os
import socket
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.bench.run_start import our_pace
from tests.support.live_studio import Studio, free_port, prepare, stop_everything

ROUNDS = 12
CLOCKS = ("the clock", "processor time")


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as silent:
        # Connections wait in the server's queue: it takes none, and answers none.
        os.environ["STUDIO_MLFLOW_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = Settings(home=Path(folder))
        prepare(settings)
        studio = Studio(settings.home, free_port())
        try:
            studio.start()
            yield from _compare(studio)
        finally:
            stop_everything(studio)
            del os.environ["STUDIO_MLFLOW_URL"]


def _compare(studio: Studio) -> Iterator[Measurement]:
    rounds = [_round(studio, number) for number in range(ROUNDS)]
    for i, clock in enumerate(CLOCKS):
        for name, index in (("sent nowhere", 0), ("silent tracker", 1)):
            middle = statistics.median(pair[index][i] for pair in rounds)
            yield Measurement(f"a step by {clock}, {name}", middle * 1000, "ms")
        ratios = sorted(sent[i] / alone[i] for alone, sent in rounds)
        yield Measurement(f"  by {clock}, with over without", statistics.median(ratios), "x")
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        yield Measurement(f"  by {clock}, spread of half the rounds", high - low, "")


def _round(studio: Studio, number: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the paces without and with the tracker; which comes first alternates."""
    if number % 2:
        sent = our_pace(studio, "mlflow")
        return our_pace(studio), sent
    return our_pace(studio), our_pace(studio, "mlflow")
