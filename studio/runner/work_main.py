"""Make one export or run one task: `python -m studio.runner.work_main export|task FOLDER`.

It reports its progress as events.
"""

import sys
import warnings
from pathlib import Path

from studio.runner.__main__ import clean_environment, redact_output
from studio.training.stop_handler import StopHandler


def main(kind: str, folder: Path) -> int:
    # Readers of a log cannot act on upstream's deprecation warnings.
    warnings.simplefilter("ignore", FutureWarning)
    clean_environment()
    redact_output()
    stop = StopHandler()
    stop.install(folder / "ask")

    from studio.runner.execution import execute_export, execute_task  # noqa: PLC0415 -- heavy import

    return (execute_export if kind == "export" else execute_task)(folder, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
