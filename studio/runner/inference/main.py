"""The inference service: `python -m studio.runner.inference.main LISTENER LIFELINE IDLE BUDGET`.

LISTENER and LIFELINE are file descriptors, IDLE is in seconds. BUDGET is in bytes: models with more
weights are refused, because something else trains; 0 sets no limit.

It answers requests for one model at a time, several of them together; other clients wait. When the
lifeline closes, it finishes the current answers and exits. It also exits after IDLE seconds without
a request; the worker starts it again when a client connects. It ends at once with the worker.
"""

import os
import socket
import sys

from studio.processes import parent_death
from studio.processes.unix_sockets import is_hung_up

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""Keeps libraries offline and quiet."""


def main(listener: int, lifeline: int, idle_seconds: float, budget: int) -> int:
    parent_death.kill_on_parent_death(lambda: is_hung_up(lifeline))
    os.environ.update(_ENVIRONMENT)

    from studio.runner.inference.model_cache import ModelCache  # noqa: PLC0415 -- heavy import
    from studio.runner.inference.server import InferenceServer  # noqa: PLC0415 -- heavy import

    models = ModelCache(budget)
    InferenceServer(socket.socket(fileno=listener), lifeline, idle_seconds, models).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
