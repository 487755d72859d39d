"""Activations kept in the host's memory until the backward pass: what that needs."""

from dataclasses import dataclass

from studio.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Offloading:
    title: str

    def unsupported_reason(self, hardware: Hardware) -> str:
        """Return why this machine cannot do it; empty if it can."""
        if hardware.device == "cpu":
            return "needs an NVIDIA GPU; on this machine, runs train on the CPU"
        return ""


OFFLOADING = Offloading("Activation offloading")
