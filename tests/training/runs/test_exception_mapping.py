"""Whatever goes wrong, the user reads a sentence and what to do."""

import errno

import httpx2
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors import SafetensorError

from studio.errors import TrainingError
from studio.training.exception_mapping import explain

ANSWER = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.example/model"))


def wrapped(cause: Exception) -> OSError:
    """Wrap an error as upstream does: what happened is only in the cause."""
    error = OSError("Can't load the configuration of 'x'.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "disk_full"),
        (wrapped(GatedRepoError("gated", response=ANSWER)), "gated_model"),
        (wrapped(RepositoryNotFoundError("missing", response=ANSWER)), "model_not_found"),
        (wrapped(LocalEntryNotFoundError("offline")), "no_connection"),
        (httpx2.ConnectTimeout("slow"), "no_connection"),
        (SafetensorError("Error while deserializing header"), "corrupt_weights"),
        (ValueError("set the option `trust_remote_code=True`"), "needs_remote_code"),
        (
            ValueError("Transformers does not recognize this architecture."),
            "unsupported_architecture",
        ),
        (ValueError("Attempting to unscale FP16 gradients."), "dtype_mismatch"),
        (RuntimeError("expected m1 and m2 to have the same dtype"), "dtype_mismatch"),
        (RuntimeError("mixed dtype (CPU): all inputs must share same datatype."), "dtype_mismatch"),
        (ImportError("requires the protobuf library"), "dependency_missing"),
        (TrainingError("non_finite", "No number."), "non_finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_known_exception_gets_code_and_message(error: Exception, code: str) -> None:
    failed = explain(error)

    assert failed.code == code
    assert failed.message.endswith(".")


FULL_GPU = (
    "CUDA out of memory. Tried to allocate 104.00 MiB. GPU 0 has a total capacity of 79.18 GiB of "
    "which 47.81 MiB is free. {others}Including non-PyTorch memory, this process has {own} memory "
    "in use. Of the allocated memory 1.69 GiB is allocated by PyTorch, and 20.79 MiB is reserved."
)


def test_gpu_that_other_processes_fill_is_told_from_one_that_the_run_fills() -> None:
    beside = FULL_GPU.format(others="Process 549 has 76.80 GiB memory in use. ", own="2.38 GiB")
    alone = FULL_GPU.format(others="", own="79.13 GiB")
    shared, own, short = (
        explain(torch.OutOfMemoryError(text)) for text in (beside, alone, "CUDA out of memory.")
    )

    assert shared.message == ("The GPU ran out of memory: other processes use 82.4 of its 85.0 GB.")
    assert shared.hint == "End what else uses the GPU, then resume the run."
    assert own.message == short.message == "The GPU ran out of memory."
    assert "batch size" in own.hint


def test_unknown_exception_is_reported_by_its_last_line() -> None:
    failed = explain(ValueError("Traceback of a kind\n  much noise\nthe reason"))

    assert (failed.code, failed.message) == ("crashed", "ValueError: the reason.")
    assert failed.hint == "The run's log has the details."
