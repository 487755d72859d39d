"""`make bench`: every figure the project speaks of, measured here and now."""

import sys

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
    page_weight,
    postgres,
    run_start,
    run_table,
    several_askers,
    startup,
    training,
)

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
    evaluation,
    training,
    estimate_accuracy,
)


def main() -> None:
    sys.stdout.write(f"{detect().title}\n")
    for part in PARTS:
        for figure in part.measure():
            sys.stdout.write(f"{figure}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
