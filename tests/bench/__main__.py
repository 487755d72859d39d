"""`make bench`: every figure the project speaks of, measured here and now, as one table.

`python -m tests.bench PART ...` measures some parts. The figures are kept by commit in `bench/`,
and `docs/benchmarks.md` shows them.
"""

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from studio.hardware import detect
from tests.bench import (
    cluster,
    compare,
    concurrent_clients,
    estimate_accuracy,
    evaluation,
    form_latency,
    idle,
    journeys,
    large_file,
    load,
    page,
    page_weight,
    peers,
    postgres,
    record,
    run_start,
    run_table,
    several_askers,
    silent_tracker,
    startup,
    training,
)
from tests.bench.measurement import Measurement

PARTS = (
    page_weight,
    form_latency,
    idle,
    run_table,
    large_file,
    load,
    postgres,
    cluster,
    concurrent_clients,
    compare,
    startup,
    run_start,
    journeys,
    several_askers,
    silent_tracker,
    evaluation,
    training,
    estimate_accuracy,
)

ASKED = (peers,)
"""Parts that run only when they are named: they install other tools first."""


def main(arguments: Sequence[str] | None = None) -> None:
    known = {_name(part): part for part in (*PARTS, *ASKED)}
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(known))
    names = parser.parse_args(arguments).parts or [_name(part) for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no part {unknown[0]}. Choose from {', '.join(known)}.")
    commit = record.current_commit()
    machine = detect().title
    sys.stdout.write(f"{machine}\n")
    for name in names:
        figures = _measure(name, known[name])
        if commit:
            kept = record.load(commit)
            kept.add(name, machine, figures)
            record.save(kept)
    if commit:
        page.main()
    else:
        sys.stdout.write("Not kept: the working tree has changes that no commit holds.\n")


def _measure(name: str, part: ModuleType) -> list[Measurement]:
    sys.stdout.write(f"\n{name}\n")
    figures: list[Measurement] = []
    for figure in part.measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
        figures.append(figure)
    return figures


def _name(part: ModuleType) -> str:
    return part.__name__.rpartition(".")[2]


if __name__ == "__main__":
    main()
