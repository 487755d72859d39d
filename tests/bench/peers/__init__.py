"""Our training beside LLaMA-Factory's and a bare TRL script's: `make bench-peers`.

All train the same model on the same rows with the same batches, seed and learning rate, each in a
process of its own on one thread, turn and turn about. Real tokens (padding does not count) per
second of processor time are what other work on the machine changes least. Each tool goes over the
rows twice, and the second time counts: by then it is warm, and it has seen every row once.

Equal losses of that second time show that they train the same.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.measurement import Measurement
from tests.bench.peers.tools import TOOLS, Pace, install
from tests.bench.peers.workload import CELLS, Cell, Workload

ROUNDS = 3
OURS = "ours"


def measure() -> Iterator[Measurement]:
    """Train in every cell, by turns. Takes about half an hour on two cores, and installs first."""
    install()
    with TemporaryDirectory() as folder:
        workload = Workload.write(Path(folder))
        for cell in CELLS:
            yield from _compare(workload, cell)


def _compare(workload: Workload, cell: Cell) -> Iterator[Measurement]:
    rounds = [
        {name: tool(workload, cell, number) for name, tool in TOOLS.items()}
        for number in range(ROUNDS)
    ]
    for name in TOOLS:
        yield from _figures(f"{cell.name}, {name}", [one[name] for one in rounds])
    for name in TOOLS:
        if name != OURS:
            ratios = [
                one[OURS].tokens_per_cpu_second / one[name].tokens_per_cpu_second for one in rounds
            ]
            yield Measurement(f"{cell.name}, ours over {name}", statistics.median(ratios), "x")


def _figures(name: str, paces: list[Pace]) -> Iterator[Measurement]:
    speeds = [pace.tokens_per_cpu_second for pace in paces]
    yield Measurement(f"{name}: real tokens", statistics.median(speeds), "tokens/s of processor")
    yield Measurement(f"{name}: spread", (max(speeds) - min(speeds)) / min(speeds) * 100, "%")
    first = statistics.median(pace.cpu_seconds_to_first_step for pace in paces)
    yield Measurement(f"{name}: to first step", first, "s of processor")
    yield Measurement(f"{name}: loss", statistics.median(pace.loss for pace in paces), "")
