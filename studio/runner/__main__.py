"""Train one run: `python -m studio.runner RUN_DIR`. It reports its progress as events."""

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
"""Environment variables with this prefix would override a recipe's precision and device."""

_KERNEL_CACHE_SIZE = "64"
"""Kernels that each of two CPU caches keeps; both default to 1024.

oneDNN compiles its 16-bit matrix products again for every shape, so for every batch length, and
caches them; so does torch's cache in front of it. A step has 17 kinds of product, 26 with an
adapter. With batches of varying lengths, 85 steps of the starter in bf16 on one thread held 450 MB
with 1024 entries and 150 to 158 MB with 64. The losses were bit-identical and it was no slower: 4.7
s of CPU time once, and 4.1 to 4.2 s in three runs. Reducing only one of the two caches saves a
third of that at most.
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
    """Train the run in a folder, in its own process. Return the exit code."""
    # Imports load thousands of modules, none of them garbage: collecting would take a second.
    gc.disable()
    # Readers of a run's log cannot act on upstream's deprecation warnings.
    warnings.simplefilter("ignore", FutureWarning)
    clean_environment()
    stop = StopHandler()
    stop.install(RunDir(root).command)
    # SIGUSR1 writes the stack of every thread to the run's log, to debug a run that hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    from studio.runner.optional_packages import block_unused_packages  # noqa: PLC0415 -- heavy import

    block_unused_packages(RunDir(root))

    from studio.runner.execution import execute_run  # noqa: PLC0415 -- heavy import

    return execute_run(root, stop)


def clean_environment() -> None:
    """Let only the recipe decide, and disable telemetry. Upstream reads these on import."""
    for name in [name for name in os.environ if name.startswith(_CLEARED_PREFIX)]:
        del os.environ[name]
    os.environ.update(_ENVIRONMENT)
    # Use one GPU per process: the trainer would use every visible GPU.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")


def redact_output() -> None:
    """Redact the configured secrets in everything this process prints."""
    settings = Settings()
    redaction.register_secrets(settings.secret_value(name) for name in SECRETS)
    sys.stdout, sys.stderr = (
        redaction.RedactingStream(sys.stdout),
        redaction.RedactingStream(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
