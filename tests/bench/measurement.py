"""A number with its name and unit, as every bench prints it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name:<48} {self.value:>12,.3f} {self.unit}"
