"""The desk: `python -m studio.runner.tokenizer.main LISTENER LIFELINE`, two numbers of open files.

It keeps tokenizers loaded and lets a forked child answer each request, for what it is asked to run
may be hostile: a chat template is a program of whoever wrote the model. A child has two seconds of
a processor, little memory, no input and no files to write; whatever becomes of it, the desk lives
on. When the worker is gone the lifeline ends, and so does the desk; so it does when nobody has
asked for a while, and the worker starts another as soon as somebody connects.
"""

import gc
import os
import socket
import sys

from studio.processes import parent_death
from studio.processes.unix_sockets import is_hung_up

BLOCKED_PACKAGES = ("torch", "torchao", "bitsandbytes", "peft", "accelerate", "datasets", "pandas")
"""Packages that tokenizers can do without, and which would cost seconds and a lot of memory."""

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""What keeps libraries from asking the hub, from starting threads, and from talking."""


def main(listener: int, lifeline: int) -> int:
    parent_death.kill_on_parent_death(lambda: is_hung_up(lifeline))
    for name in BLOCKED_PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment] # Python's word for absent
    os.environ.update(_ENVIRONMENT)

    from studio.runner.tokenizer.server import TokenizerServer  # noqa: PLC0415 -- heavy import

    gc.collect()
    gc.freeze()
    TokenizerServer(socket.socket(fileno=listener), lifeline).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
