"""What GPUs exchange when they share a model: upstream gets our formats, on the object it uses."""

from pathlib import Path

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy
from trl import SFTConfig

from studio.recipe.precision import PRECISIONS, Precision
from studio.training.precision import fsdp

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

WIDE_SUM = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}


def arguments(folder: Path, mode: Precision, **more: object) -> SFTConfig:
    return SFTConfig(output_dir=str(folder), use_cpu=True, **mode.trainer_flags, **more)


def policy(args: SFTConfig, flag: str) -> MixedPrecisionPolicy:
    """Return what FSDP is told, after all that upstream does to it."""
    plugin = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
    plugin.set_mixed_precision(flag)
    found: MixedPrecisionPolicy = plugin.mixed_precision_policy
    return found


@pytest.mark.parametrize("mode", PRECISIONS.values(), ids=lambda mode: mode.name)
def test_fsdp_policy_matches_precision_mode(mode: Precision, tmp_path: Path) -> None:
    args = arguments(tmp_path, mode, fsdp=True)

    fsdp.set_mixed_precision(mode, args)

    # Whatever upstream would choose by itself, ours stands.
    found = policy(args, "fp16")
    assert found == MixedPrecisionPolicy(
        param_dtype=getattr(torch, mode.compute),
        reduce_dtype=torch.float32,
        output_dtype=torch.float32,
    )


def test_upstream_ignores_requested_float32_reduction(tmp_path: Path) -> None:
    asked = {"mixed_precision_policy": {**WIDE_SUM, "output_dtype": torch.float32}}
    args = arguments(tmp_path, PRECISIONS["bf16"], fsdp=True, fsdp_config=asked)

    assert policy(args, "bf16").reduce_dtype == torch.bfloat16


def test_fsdp_policy_is_not_set_on_single_gpu(tmp_path: Path) -> None:
    args = arguments(tmp_path, PRECISIONS["bf16"])

    fsdp.set_mixed_precision(PRECISIONS["bf16"], args)

    assert args.fsdp_plugin_args is None
