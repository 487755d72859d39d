"""The tokenizer service: `python -m studio.runner.tokenizer.main LISTENER LIFELINE`.

LISTENER and LIFELINE are file descriptors. The service keeps tokenizers loaded and forks a child
for each request, because a request may be hostile: a chat template is a program written by the
model's author. A child has two seconds of CPU time and little memory, and seals itself before the
template runs: it then reaches no path, no network and no other process. So the service survives
whatever a child does. It exits when the lifeline closes, because the worker
is gone, or after some time without requests; the worker starts it again when a client connects.
"""

import gc
import os
import socket
import sys
from collections.abc import Collection

from studio.processes import parent_death
from studio.processes.seal import WALLS
from studio.processes.unix_sockets import is_hung_up
from studio.training.data import template_child, template_process

BLOCKED_PACKAGES = ("torch", "torchao", "bitsandbytes", "peft", "accelerate", "datasets", "pandas")
"""Packages that tokenizers do not need and that would cost seconds and a lot of memory."""

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Keeps libraries offline, single-threaded and quiet."""


def main(listener: int, lifeline: int, walls: Collection[str] = WALLS) -> int:
    """Serve until the worker is gone. Only tests of the seal do without one of its walls."""
    parent_death.kill_on_parent_death(lambda: is_hung_up(lifeline))
    for name in BLOCKED_PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment] # marks a module as absent
    os.environ.update(_ENVIRONMENT)

    from studio.runner.tokenizer.server import TokenizerServer  # noqa: PLC0415 -- heavy import

    template_child.prepare()
    template_process.render_in_this_process()
    gc.collect()
    gc.freeze()
    TokenizerServer(socket.socket(fileno=listener), lifeline, walls=walls).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
