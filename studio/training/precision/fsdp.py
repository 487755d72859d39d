"""Set the formats that FSDP uses to exchange a sharded model's parts between GPUs."""

import torch
from transformers import TrainingArguments

from studio.recipe.precision import Precision


def set_mixed_precision(mode: Precision, args: TrainingArguments) -> None:
    """Pass the mode's formats to FSDP, if it is on.

    Upstream drops a policy named in `fsdp_config`, and would reduce gradients in 16 bits by
    default.
    """
    if args.fsdp:
        args.fsdp_plugin_args["mixed_precision_policy"] = {
            "param_dtype": getattr(torch, mode.param_dtype),
            "reduce_dtype": getattr(torch, mode.reduce_dtype),
            # The model's output is widened to float32, as it is under autocast.
            "output_dtype": torch.float32,
        }
