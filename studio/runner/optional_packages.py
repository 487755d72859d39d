"""Optional packages that a run does not need, kept from loading with those that it does.

Transformers, peft and accelerate load torchao and bitsandbytes wherever they are installed. A name
that stands for None in `sys.modules` is not found, says Python's import system, and all three ask
just that. Of a small run with both installed, the first step began after 3.6 s instead of 4.5.
"""

import logging
import sys
from collections.abc import Collection

from studio.errors import StudioError
from studio.hardware import OPTIONAL_PACKAGES
from studio.methods import RECIPES
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml

_NOISY = ("torchao", "torch.utils._pytree")
"""Who warns while torchao loads: of kernels no run here uses, and of names it gives to torch."""


def spare(run: RunDir) -> None:
    """Keep from loading what the run's recipe does not need. Call it before heavy imports."""
    try:
        values = yaml.load(run.recipe.read_text(encoding="utf-8"))
        hide_all_but(RECIPES.validate_python(values, strict=False).packages)
    except (OSError, ValueError, StudioError):
        return  # The run will fail of it, and tell.


def hide_all_but(wanted: Collection[str]) -> None:
    """Let optional packages but the wanted ones seem absent, and those load quietly."""
    for package in OPTIONAL_PACKAGES:
        if package not in wanted:
            sys.modules[package] = None  # type: ignore[assignment] # Python's word for absent
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
