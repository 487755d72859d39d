"""Run one task: `python -m studio.runner.task_main FOLDER`. It reports progress as events."""

import sys
import warnings
from pathlib import Path

from studio.runner.__main__ import clean_environment, redact_output
from studio.runner.execution import execute_task
from studio.training.stop_handler import StopHandler

if __name__ == "__main__":
    # Readers of a log cannot act on upstream's deprecation warnings.
    warnings.simplefilter("ignore", FutureWarning)
    clean_environment()
    redact_output()
    stop = StopHandler()
    folder = Path(sys.argv[1])
    stop.install(folder / "ask")
    sys.exit(execute_task(folder, stop))
