"""Do one chore: `python -m studio.runner.task_main FOLDER`. It tells of it as events."""

import sys
import warnings
from pathlib import Path

from studio.runner.__main__ import clean_environment, redact_output
from studio.runner.execution import execute_task
from studio.training.stop_handler import StopHandler

if __name__ == "__main__":
    # What upstream will change one day is nothing the reader of a log can mend.
    warnings.simplefilter("ignore", FutureWarning)
    clean_environment()
    redact_output()
    stop = StopHandler()
    folder = Path(sys.argv[1])
    stop.install(folder / "ask")
    sys.exit(execute_task(folder, stop))
