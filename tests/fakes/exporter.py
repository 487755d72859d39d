"""An exporter that plays a part: `python tests/fakes/exporter.py PART EXPORT_DIR`.

It writes real events to a real folder, so worker, database and pages see what they always see.
"""

import os
import signal
import sys
import time
from pathlib import Path

from studio.protocols.events import Failed, Finished, PhaseChanged
from studio.protocols.run_dir import ExportDir

MEASURED = {
    "weights": 100.0,
    "changed_weights": 99.0,
    "overflowed_weights": 1.0,
    "underflowed_weights": 2.0,
    "kept_weights": 0.0,
    "max_relative_change": 1.0,
    "mean_relative_change": 0.0014,
    "perplexity_before": 12.3456,
    "perplexity_after": float("nan"),
    "validation_tokens": 49.0,
    "bytes": 200.0,
}


def main(part: str, folder: ExportDir) -> int:
    log = folder.events
    log.append(PhaseChanged(name="converting", share=0.5))
    if part == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if part == "fail":
        log.append(Failed(code="disk_full", message="The disk is full.", hint="Free some space."))
        return 1
    while part == "wait" and not (folder.root / "go").exists():
        time.sleep(0.01)
    folder.files.mkdir()
    (folder.files / "README.md").write_text("# A card\n", encoding="utf-8")
    log.append(Finished(metrics=MEASURED))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], ExportDir(Path(sys.argv[2]))))
