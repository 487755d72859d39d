"""A model sharded over several GPUs (FSDP): the formats in which they exchange its parts."""

import torch
from transformers import TrainingArguments

from studio.recipe.precision import Precision


def set_mixed_precision(mode: Precision, args: TrainingArguments) -> None:
    """Give FSDP, where it is on, the mode's formats.

    Upstream drops a policy named in `fsdp_config`, and would sum gradients in 16 bits by itself.
    """
    if args.fsdp:
        args.fsdp_plugin_args["mixed_precision_policy"] = {
            "param_dtype": getattr(torch, mode.param_dtype),
            "reduce_dtype": getattr(torch, mode.reduce_dtype),
            # What leaves the model is widened, as it is where products are cast on the fly.
            "output_dtype": torch.float32,
        }
