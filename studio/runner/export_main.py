"""Make one export: `python -m studio.runner.export_main FOLDER`. It reports progress as events."""

import sys
import warnings
from pathlib import Path

from studio.runner.__main__ import clean_environment
from studio.training.stop_handler import StopHandler

if __name__ == "__main__":
    # Readers of a log cannot act on upstream's deprecation warnings.
    warnings.simplefilter("ignore", FutureWarning)
    clean_environment()
    stop = StopHandler()
    folder = Path(sys.argv[1])
    stop.install(folder / "ask")

    from studio.runner.execution import execute_export  # heavy import

    sys.exit(execute_export(folder, stop))
