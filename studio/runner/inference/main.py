"""The speaker: `python -m studio.runner.inference.main LISTENER LIFELINE IDLE`.

LISTENER and LIFELINE are numbers of open files, IDLE is seconds.

It has models answer, one question after the other; who else comes waits in the socket's own queue.
When the lifeline ends it finishes the answer at hand and leaves; so it does when nobody has asked
for so many seconds, and the worker starts another as soon as somebody connects. It ends at once
with the worker.
"""

import os
import socket
import sys

from studio.processes import parent_death
from studio.processes.unix_sockets import is_hung_up

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""What keeps libraries from asking the hub, and from talking."""


def main(listener: int, lifeline: int, idle_seconds: float) -> int:
    parent_death.kill_on_parent_death(lambda: is_hung_up(lifeline))
    os.environ.update(_ENVIRONMENT)

    from studio.runner.inference.server import InferenceServer  # noqa: PLC0415 -- heavy import

    InferenceServer(socket.socket(fileno=listener), lifeline, idle_seconds).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
