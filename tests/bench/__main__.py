"""`make bench`: every figure the project speaks of, measured here and now."""

import sys

from studio.hardware import detect
from tests.bench import (
    compare,
    crowd,
    estimate,
    form,
    large,
    launch,
    load,
    pages,
    startup,
    table,
    training,
)

PARTS = (pages, form, table, large, load, crowd, compare, startup, launch, training, estimate)


def main() -> None:
    sys.stdout.write(f"{detect().title}\n")
    for part in PARTS:
        for figure in part.measure():
            sys.stdout.write(f"{figure}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
