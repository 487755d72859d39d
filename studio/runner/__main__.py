"""Train one run: `python -m studio.runner RUN_DIR`. What it has to say, it says as events."""

import faulthandler
import gc
import os
import signal
import sys
import warnings
from pathlib import Path

from studio import redaction
from studio.protocols.run_dir import RunDir
from studio.settings import SECRETS, Settings
from studio.training.stop_handler import StopHandler

_CLEARED_PREFIX = "ACCELERATE_"
"""Variables that would turn a recipe's precision and device into something else."""

_KERNEL_CACHE_SIZE = "64"
"""How many kernels each of two caches keeps on a processor, where both would keep 1024.

oneDNN compiles its products of 16 bits anew for every shape, so for every length of a batch, and
keeps them; so does what torch puts before it. A step has 17 kinds of product, with an adapter 26.
Of lengths that differ, 85 steps of the starter in bf16 on one thread held 450 MB with 1024, and
150 to 158 with 64, with the same losses to the bit, and no slower: 4.7 s of processor time, once,
and 4.1 to 4.2 in three runs. Cut down alone, either takes away a third of it at most.
"""

_ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LRU_CACHE_CAPACITY": _KERNEL_CACHE_SIZE,
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": _KERNEL_CACHE_SIZE,
    "TOKENIZERS_PARALLELISM": "true",
    "TRANSFORMERS_VERBOSITY": "warning",
}


def main(root: Path) -> int:
    """Train the run in a folder, in a process of its own. Return the exit code."""
    # Thousands of modules are loaded now, and none of them is garbage: looking costs a second.
    gc.disable()
    # What upstream will change one day is nothing the reader of a run's log can mend.
    warnings.simplefilter("ignore", FutureWarning)
    clean_environment()
    stop = StopHandler()
    stop.install(RunDir(root).command)
    # A run that hangs can be asked where: every thread's stack goes to its log.
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    from studio.runner.optional_packages import block_unused_packages  # noqa: PLC0415 -- heavy import

    block_unused_packages(RunDir(root))

    from studio.runner.execution import execute_run  # noqa: PLC0415 -- heavy import

    return execute_run(root, stop)


def clean_environment() -> None:
    """Let nothing but the recipe decide, and nobody be told; upstream reads these on import."""
    for name in [name for name in os.environ if name.startswith(_CLEARED_PREFIX)]:
        del os.environ[name]
    os.environ.update(_ENVIRONMENT)
    # One process, one GPU: with several in sight the trainer would spread over all of them.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")


def redact_output() -> None:
    """Let nothing that this process was told in confidence stand in what it prints."""
    settings = Settings()
    redaction.register_secrets(settings.secret_value(name) for name in SECRETS)
    sys.stdout, sys.stderr = (
        redaction.RedactingStream(sys.stdout),
        redaction.RedactingStream(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
