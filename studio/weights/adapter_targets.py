"""Which linear layers of a model an adapter covers: by part, by name and by layer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TargetGroup = Literal["all-linear", "attention", "mlp"]

_ATTENTION = ("attn", "attention")
"""Occurs in the name of the module that holds a family's attention layers."""
_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer that can get an adapter."""

    path: str
    """Its module's name, such as `model.layers.0.self_attn.q_proj`."""
    outputs: int = 0
    inputs: int = 0

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def is_attention(self) -> bool:
        parent = self.path.rpartition(".")[0].casefold()
        return any(word in parent for word in _ATTENTION)

    @property
    def narrows(self) -> bool:
        """Whether it is an MLP's layer back to the model's own width, as it has fewer outputs."""
        return not self.is_attention and self.inputs > self.outputs

    @property
    def number(self) -> int | None:
        """The number of the decoder layer it is in; None if it is in none."""
        found = _NUMBER.search(self.path)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTargets:
    group: TargetGroup = "all-linear"
    names: tuple[str, ...] = ()
    """Names of modules; empty for all of the group."""
    last_layers: int | None = None
    """How many decoder layers, counted from the end; None for all."""

    @property
    def is_everything(self) -> bool:
        return self == AdapterTargets()

    def covers(self, layer: LinearLayer) -> bool:
        """Whether a linear layer is one of the group and has one of the names."""
        is_in_group = self.group == "all-linear" or layer.is_attention == (
            self.group == "attention"
        )
        return is_in_group and (not self.names or layer.name in self.names)

    def select(self, layers: Sequence[LinearLayer]) -> list[LinearLayer]:
        """Return the linear layers of a model that get an adapter."""
        first = count_layers(layers) - (self.last_layers or 0)
        return [
            layer
            for layer in layers
            if self.covers(layer)
            and (self.last_layers is None or (layer.number is not None and layer.number >= first))
        ]

    def find_problem(self, layers: Sequence[LinearLayer]) -> str:
        """Return what the model lacks, in a sentence with what it has; empty if nothing."""
        group = [layer for layer in layers if AdapterTargets(group=self.group).covers(layer)]
        existing = list(dict.fromkeys(layer.name for layer in group))
        part = _PART_NAMES[self.group]
        if not existing:
            return f"This model has no {part} layers that can get an adapter."
        if unknown := [name for name in self.names if name not in existing]:
            named = " or ".join(unknown)
            rest = ", ".join(existing)
            return f"None of the {part} layers of this model is named {named}. It has {rest}."
        count = count_layers(layers)
        if self.last_layers is not None and self.last_layers > count:
            return f"This model has {count} layers, so its last {self.last_layers} do not exist."
        return ""


_PART_NAMES: dict[TargetGroup, str] = {
    "all-linear": "linear",
    "attention": "attention",
    "mlp": "MLP",
}


def count_layers(layers: Sequence[LinearLayer]) -> int:
    """Return the number of decoder layers that the linear layers are in."""
    return max((layer.number + 1 for layer in layers if layer.number is not None), default=0)


def find_unrotatable(layers: Sequence[LinearLayer], block_size: int) -> str:
    """Return why inputs cannot be rotated in blocks of this size, in a sentence; empty if so."""
    unfit = [layer for layer in layers if layer.inputs % block_size]
    if not unfit:
        return ""
    layer = unfit[0]
    return f"Blocks of {block_size} do not divide the {layer.inputs} inputs of {layer.name}."


def parse_names(text: str | None) -> tuple[str, ...]:
    """Return the names in a text that separates them by commas, each once."""
    names = (name.strip() for name in (text or "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))
