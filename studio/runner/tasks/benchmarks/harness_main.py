"""lm-eval's command line in a process that ends together with the one that started it."""

import os
import runpy

from studio.processes.parent_death import kill_on_parent_death
from studio.runner.optional_packages import block_packages_except

PARENT = "BENCHMARK_PARENT"
"""The variable that names the process that started this one."""


def main() -> None:
    parent = int(os.environ[PARENT])
    kill_on_parent_death(lambda: os.getppid() != parent)
    # Models are plain by now, and other packages take seconds to load.
    block_packages_except(("scipy", "sklearn"))
    runpy.run_module("lm_eval", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
