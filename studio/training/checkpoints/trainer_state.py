"""Write the state a run needs to resume exactly, and read it back.

    weights.safetensors  what is trained, under the model's own names, in its own formats
    optimizer.pt         its states and copies, each in its own format
    scheduler.pt  scaler.pt  rng_state.pth  trainer_state.json     as upstream writes them
    counters.pt          what upstream forgets: the RNG state that shuffled the epoch, sums since
                         the last logging step, and the studio's own counters

Upstream's own weight files are not enough: it loads whatever names match and ignores the others.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerState

from studio.errors import TrainingError
from studio.protocols.run_dir import RunDir
from studio.training.models import lora_variants

WEIGHTS = "weights.safetensors"
STATE = "trainer_state.json"
COUNTERS = "counters.pt"


@runtime_checkable
class Stateful(Protocol):
    """A part of a run whose attributes, named here, must survive a resume.

    Checkpoints store them under `SAVED_AS` and the attributes' names, so neither may change.
    """

    SAVED_AS: ClassVar[str]
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]]


def write_state(trainer: Trainer, counters: Mapping[str, Any], folder: Path) -> None:
    """Write the complete state of a trainer between two steps, without casting anything."""
    weights = trained_weights(trainer.model)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    # The manifest has a stronger hash, and the CRC takes most of a save's time.
    torch.serialization.set_crc32_options(compute_crc32=False)
    trainer._save_optimizer_and_scheduler(str(folder))  # noqa: SLF001 -- no public name
    trainer._save_scaler(str(folder))  # noqa: SLF001 -- the same
    trainer._save_rng_state(str(folder))  # noqa: SLF001 -- the same
    # The log history would grow with every step, and the studio does not use it.
    replace(trainer.state, log_history=[]).save_to_json(str(folder / STATE))
    torch.save(counters, folder / COUNTERS)


def state_bytes(trainer: Trainer) -> int:
    """Return the bytes a checkpoint will take, to within a few thousand."""
    states = (value for state in trainer.optimizer.state.values() for value in state.values())
    tensors = [
        *trained_weights(trainer.model).values(),
        *(s for s in states if isinstance(s, Tensor)),
    ]
    return sum(value.nbytes for value in tensors)


def read_counters(folder: Path, device: torch.device) -> dict[str, Any]:
    counters: dict[str, Any] = torch.load(folder / COUNTERS, weights_only=True, map_location=device)
    return counters


def read_max_steps(folder: Path) -> int:
    """Return the number of steps of the run that wrote the checkpoint."""
    steps: int = TrainerState.load_from_json(str(folder / STATE)).max_steps
    return steps


def read_step(folder: Path) -> int:
    """Return the number of steps before the checkpoint."""
    step: int = TrainerState.load_from_json(str(folder / STATE)).global_step
    return step


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return what training changes: the trained weights, and the model's persistent buffers."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    persistent = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return trained | buffers


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load all weights of a checkpoint into a model, in their own formats.

    Raises:
        TrainingError: the checkpoint belongs to another model.

    """
    saved, current = load_file(folder / WEIGHTS), trained_weights(model)
    if _shapes(saved) != _shapes(current):
        raise _wrong_model_error(folder)
    for name, weight in current.items():
        weight.copy_(saved[name])


def apply_weights(model: nn.Module, folder: Path, adapter: str = "") -> None:
    """Load a checkpoint's weights into a model that was saved at the end of its run.

    Each weight is cast to the model's format. For an adapter, given by its name in peft, only the
    adapter's weights are set.

    Raises:
        TrainingError: the checkpoint belongs to another model.

    """
    current = dict(model.named_parameters()) | dict(model.named_buffers())
    start = RunDir(folder.parents[1]).adapter_start
    starts = load_file(start) if start.is_file() else {}
    with safe_open(folder / WEIGHTS, framework="pt") as saved, torch.no_grad():
        for name in saved.keys():  # noqa: SIM118 -- upstream's own, and no mapping
            target_name = _adapter_weight_name(name, adapter) if adapter else name
            if target_name is None:
                continue
            tensor = lora_variants.plain_weight(name, saved.get_tensor(name), starts)
            if target_name not in current or current[target_name].shape != tensor.shape:
                raise _wrong_model_error(folder)
            current[target_name].copy_(tensor)


def get_state(part: Stateful) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.STATE_ATTRIBUTES}


def restore_state(part: Stateful, saved: Mapping[str, Any]) -> None:
    """Restore a part's state. Attributes an older checkpoint lacks keep their defaults."""
    for name in saved.keys() & set(part.STATE_ATTRIBUTES):
        setattr(part, name, saved[name])


def _adapter_weight_name(name: str, adapter: str) -> str | None:
    """Return a trained weight's name under another adapter name; None if it is not an adapter's."""
    parts = name.split(".")
    if "default" not in parts:  # peft's name for the trained adapter
        return None
    return ".".join(adapter if name_part == "default" else name_part for name_part in parts)


def _wrong_model_error(folder: Path) -> TrainingError:
    return TrainingError(
        "incompatible_checkpoint",
        f"{folder.name} holds the weights of a different model than this run trains.",
        hint="Was the base model replaced? Restart the run.",
    )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
