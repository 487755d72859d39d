"""What went wrong, in words: one table from exceptions to codes, messages and hints."""

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import torch
from huggingface_hub import errors as hub
from safetensors import SafetensorError

from studio.errors import StudioError, TrainingError
from studio.protocols.events import DISK_FULL, Failed

_LOG_HINT = "The run's log has the details."


@dataclass(frozen=True, slots=True)
class _Rule:
    code: str
    exceptions: tuple[type[BaseException], ...]
    pattern: str
    """A pattern its words must match."""
    message: str
    hint: str


def _rule(code: str, *kinds: type[BaseException], says: str = "", message: str, hint: str) -> _Rule:
    return _Rule(code, kinds, says, message, hint)


# The first row that fits is told, so the exact ones stand above the vague ones.
_RULES = (
    _rule(
        "out_of_memory",
        torch.OutOfMemoryError,
        message="The GPU ran out of memory.",
        hint="Lower the batch size and raise gradient accumulation, shorten the longest example, "
        "or turn on activation checkpointing.",
    ),
    _rule(
        "out_of_memory",
        MemoryError,
        message="This machine ran out of memory.",
        hint="Lower the batch size, shorten the longest example, or choose a smaller model.",
    ),
    _rule(
        "out_of_memory",
        RuntimeError,
        says=r"DefaultCPUAllocator|can't allocate memory|not enough memory",
        message="This machine ran out of memory.",
        hint="Lower the batch size, shorten the longest example, or choose a smaller model.",
    ),
    _rule(
        DISK_FULL.code,
        OSError,
        SafetensorError,
        RuntimeError,
        says=r"No space left on device|os error 28|Errno 28",
        message=DISK_FULL.message,
        hint=DISK_FULL.hint,
    ),
    _rule(
        "gated_model",
        hub.GatedRepoError,
        message="This model is gated: its owner asks for your consent first.",
        hint="Accept its licence on the hub, and set HF_TOKEN where the studio runs.",
    ),
    _rule(
        "model_not_found",
        hub.RepositoryNotFoundError,
        hub.RevisionNotFoundError,
        hub.HFValidationError,
        message="There is no such model on the hub, or it is private.",
        hint="Look for a spelling mistake in its name; for a private model, set HF_TOKEN.",
    ),
    _rule(
        "no_connection",
        httpx2.TransportError,
        ConnectionError,
        TimeoutError,
        hub.LocalEntryNotFoundError,
        hub.OfflineModeIsEnabled,
        message="The hub could not be reached.",
        hint="Look to the network, or choose a model that is on this machine.",
    ),
    _rule(
        "no_safetensors",
        OSError,
        says=r"safetensors",
        message="This model has no weights in the safetensors format; others may hide code.",
        hint="Choose a version of the model with safetensors.",
    ),
    _rule(
        "model_not_found",
        OSError,
        says=r"not a local folder|does not appear to have a file|Can't load|"
        r"is not a valid model identifier",
        message="The base model is incomplete, or is no model.",
        hint="Choose another base model, or fetch this one again.",
    ),
    _rule(
        "corrupt_weights",
        SafetensorError,
        message="A file of the model's weights is damaged.",
        hint="Delete the model and fetch it again.",
    ),
    _rule(
        "incompatible_checkpoint",
        RuntimeError,
        ValueError,
        KeyError,
        says=r"loading state_dict|size mismatch|ignore_mismatched_sizes|parameter group|"
        r"valid checkpoint|loaded state dict",
        message="Saved weights have other shapes or names than this model.",
        hint="Run again from the start; for a base model, fetch it again with its config.json.",
    ),
    _rule(
        "needs_remote_code",
        ValueError,
        says=r"trust_remote_code",
        message="This model comes with code of its own, which is not allowed to run.",
        hint="Allow it on the model's page, or choose one of a family that transformers knows.",
    ),
    _rule(
        "unsupported_architecture",
        ValueError,
        KeyError,
        says=r"does not recognize this architecture|Unrecognized model|model type",
        message="The installed transformers does not know this kind of model.",
        hint="Choose another model, or update the studio.",
    ),
    _rule(
        "no_adapter_layers",
        ValueError,
        says=r"[Tt]arget modules|No modules were targeted",
        message="This model has no layers that the adapter could be attached to.",
        hint="Choose full fine-tuning.",
    ),
    _rule(
        "dtype_mismatch",
        ValueError,
        says=r"Attempting to unscale FP16 gradients",
        message="Weights that are trained were loaded in float16, which cannot be scaled.",
        hint="Choose bfloat16 or float32.",
    ),
    _rule(
        "dtype_mismatch",
        RuntimeError,
        # The same mistake, as a linear layer, a normalisation, attention and older kernels word it.
        says=r"same dtype|mixed dtype|expected scalar type|must match the other|to have dtype",
        message="Two number formats met where this model allows but one.",
        hint="Choose another precision for this model.",
    ),
    _rule(
        "gpu_failed",
        RuntimeError,
        says=r"CUDA error|cuDNN|NCCL",
        message="The GPU reported an error.",
        hint=f"Start the run again; if it fails again, look to the driver. {_LOG_HINT}",
    ),
    _rule(
        "dependency_missing",
        ImportError,
        message="A Python package that this run needs is not installed, or does not load.",
        hint="See the last line of the log for its name; studio doctor lists what is missing.",
    ),
)


def explain(error: BaseException) -> Failed:
    """Tell a failure in words a person can act on; the traceback belongs in the log."""
    chain = list(_causes(error))
    for link in chain:
        if isinstance(link, StudioError):
            told = link.facts if isinstance(link, TrainingError) else {}
            return Failed(code=link.code, message=link.message, hint=link.hint, facts=told)
    fits = (row for row in _RULES for link in chain if _matches(row, link))
    row = next(fits, None)
    if row is not None:
        return Failed(code=row.code, message=row.message, hint=row.hint)
    return Failed(code="crashed", message=_summary(error), hint=_LOG_HINT)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and what led to it: upstream wraps causes in vaguer errors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _matches(row: _Rule, error: BaseException) -> bool:
    if not isinstance(error, row.exceptions):
        return False
    words = f"{error} [Errno {errno.ENOSPC}]" if _is_disk_full(error) else str(error)
    return re.search(row.pattern, words) is not None


def _is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _summary(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    last = lines[-1].strip() if lines else ""
    return f"{type(error).__name__}: {last}".rstrip(": .") + "."
