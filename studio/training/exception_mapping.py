"""Explain exceptions: one table maps them to codes, messages and hints."""

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
    """A regular expression that the exception's message must match."""
    message: str
    hint: str


def _rule(code: str, *kinds: type[BaseException], says: str = "", message: str, hint: str) -> _Rule:
    return _Rule(code, kinds, says, message, hint)


# The first matching row wins, so specific rows come before general ones.
_RULES = (
    _rule(
        "out_of_memory",
        torch.OutOfMemoryError,
        message="The GPU ran out of memory.",
        hint="Lower the batch size and raise gradient accumulation, lower the max sequence "
        "length, or turn on activation checkpointing.",
    ),
    _rule(
        "out_of_memory",
        MemoryError,
        message="This machine ran out of memory.",
        hint="Lower the batch size, lower the max sequence length, or choose a smaller model.",
    ),
    _rule(
        "out_of_memory",
        RuntimeError,
        says=r"DefaultCPUAllocator|can't allocate memory|not enough memory",
        message="This machine ran out of memory.",
        hint="Lower the batch size, lower the max sequence length, or choose a smaller model.",
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
        message="This model is gated: you must accept its terms first.",
        hint="Accept its licence on the hub, and set HF_TOKEN where the studio runs.",
    ),
    _rule(
        "model_not_found",
        hub.RepositoryNotFoundError,
        hub.RevisionNotFoundError,
        hub.HFValidationError,
        message="The hub has no such model, or it is private.",
        hint="Check the spelling of its name. For a private model, set HF_TOKEN.",
    ),
    _rule(
        "no_connection",
        httpx2.TransportError,
        ConnectionError,
        TimeoutError,
        hub.LocalEntryNotFoundError,
        hub.OfflineModeIsEnabled,
        message="The hub could not be reached.",
        hint="Check the network connection, or choose a model that is on this machine.",
    ),
    _rule(
        "no_safetensors",
        OSError,
        says=r"safetensors",
        message="This model has no weights in the safetensors format; other formats may "
        "contain code.",
        hint="Choose a version of the model with safetensors weights.",
    ),
    _rule(
        "model_not_found",
        OSError,
        says=r"not a local folder|does not appear to have a file|Can't load|"
        r"is not a valid model identifier",
        message="The base model is incomplete or is not a model.",
        hint="Choose another base model, or download this one again.",
    ),
    _rule(
        "corrupt_weights",
        SafetensorError,
        message="A weight file of the model is damaged.",
        hint="Delete the model and download it again.",
    ),
    _rule(
        "incompatible_checkpoint",
        RuntimeError,
        ValueError,
        KeyError,
        says=r"loading state_dict|size mismatch|ignore_mismatched_sizes|parameter group|"
        r"valid checkpoint|loaded state dict",
        message="The saved weights have different shapes or names than this model.",
        hint="Restart the run. If the base model is affected, download it again with its "
        "config.json.",
    ),
    _rule(
        "needs_remote_code",
        ValueError,
        says=r"trust_remote_code",
        message="This model needs its own code, which is not allowed to run.",
        hint="Allow its code on the model's page, or choose a model that transformers supports.",
    ),
    _rule(
        "unsupported_architecture",
        ValueError,
        KeyError,
        says=r"does not recognize this architecture|Unrecognized model|model type",
        message="The installed version of transformers does not support this model.",
        hint="Choose another model, or update the studio.",
    ),
    _rule(
        "no_adapter_layers",
        ValueError,
        says=r"[Tt]arget modules|No modules were targeted",
        message="This model has no layers that an adapter can be attached to.",
        hint="Choose full fine-tuning.",
    ),
    _rule(
        "dtype_mismatch",
        ValueError,
        says=r"Attempting to unscale FP16 gradients",
        message="The trained weights were loaded in float16, so their gradients cannot be scaled.",
        hint="Choose bfloat16 or float32.",
    ),
    _rule(
        "dtype_mismatch",
        RuntimeError,
        # The same error as worded by linear layers, normalisation, attention and older kernels.
        says=r"same dtype|mixed dtype|expected scalar type|must match the other|to have dtype",
        message="Two number formats were mixed where this model allows only one.",
        hint="Choose another precision for this model.",
    ),
    _rule(
        "gpu_failed",
        RuntimeError,
        says=r"CUDA error|cuDNN|NCCL",
        message="The GPU reported an error.",
        hint=f"Restart the run. If it fails again, check the GPU driver. {_LOG_HINT}",
    ),
    _rule(
        "dependency_missing",
        ImportError,
        message="A Python package that this run needs is not installed or cannot be loaded.",
        hint="The last line of the log names it. Run `studio doctor` to list what is missing.",
    ),
)


def explain(error: BaseException) -> Failed:
    """Explain a failure so that the user can act on it; the traceback belongs in the log."""
    chain = list(_causes(error))
    for link in chain:
        if isinstance(link, StudioError):
            facts = link.facts if isinstance(link, TrainingError) else {}
            return Failed(code=link.code, message=link.message, hint=link.hint, facts=facts)
    if failed := next(filter(None, map(_explain_shared_gpu, chain)), None):
        return failed
    matching = (rule for rule in _RULES for link in chain if _matches(rule, link))
    rule = next(matching, None)
    if rule is not None:
        return Failed(code=rule.code, message=rule.message, hint=rule.hint)
    return Failed(code="crashed", message=_summary(error), hint=_LOG_HINT)


_GPU_SIZES = re.compile(
    r"total capacity of ([\d.]+) (\w+) of which ([\d.]+) (\w+) is free.*"
    r"this process has ([\d.]+) (\w+) memory in use"
)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""What torch counts memory in."""


def _explain_shared_gpu(error: BaseException) -> Failed | None:
    """Explain that a GPU is full because of other processes, which no setting of a run can change.

    Torch says so in its message alone. Seen on an H100 with eight runs.
    """
    if not isinstance(error, torch.OutOfMemoryError):
        return None
    found = _GPU_SIZES.search(str(error).replace("\n", " "))
    if found is None or not _UNITS.keys() >= set(found.groups()[1::2]):
        return None
    numbers = zip(found.groups()[::2], found.groups()[1::2], strict=True)
    whole, free, own = (float(number) * _UNITS[unit] / 1e9 for number, unit in numbers)
    others = whole - free - own
    if others < own:
        return None
    return Failed(
        code="out_of_memory",
        message=f"The GPU ran out of memory: other processes use {others:.1f} of its "
        f"{whole:.1f} GB.",
        hint="End what else uses the GPU, then resume the run.",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes: upstream wraps causes in less specific errors."""
    seen_ids: set[int] = set()
    while error is not None and id(error) not in seen_ids:
        seen_ids.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _matches(rule: _Rule, error: BaseException) -> bool:
    if not isinstance(error, rule.exceptions):
        return False
    is_disk_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    message = f"{error} [Errno {errno.ENOSPC}]" if is_disk_full else str(error)
    return re.search(rule.pattern, message) is not None


def _summary(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    last = lines[-1].strip() if lines else ""
    return f"{type(error).__name__}: {last}".rstrip(": .") + "."
