"""A chore that plays a part: `python tests/fakes/task.py PART CHORE_DIR`.

It writes real events to a real folder, so worker, database and pages see what they always see.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from studio.protocols.events import Failed, Finished, PhaseChanged
from studio.protocols.tasks import TaskDir

RESULT = {"rows": 3}


def main(part: str, folder: TaskDir) -> int:
    log = folder.events
    folder.files.mkdir(exist_ok=True)
    log.append(PhaseChanged(name=f"found {len(list(folder.files.iterdir()))} files", share=0.5))
    (folder.files / str(os.getpid())).touch()
    if part == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if part == "break":
        sys.stderr.write("RuntimeError: the reader broke\n")
        return 3
    if part == "fail":
        log.append(Failed(code="invalid", message="It cannot be read.", hint="Mend it."))
        return 1
    if part == "parent":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder.root / "child").write_text(str(child.pid))
    while part in {"wait", "parent"} and not (folder.root / "go").exists():
        time.sleep(0.01)
    folder.result.write_text(json.dumps(RESULT), encoding="utf-8")
    log.append(Finished(metrics={}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], TaskDir(Path(sys.argv[2]))))
