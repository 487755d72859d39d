"""`studio doctor`: report what this machine supports and what is missing."""

from collections.abc import Iterator

import typer

import studio
from studio import resources
from studio.hardware import Hardware, detect, package_versions
from studio.recipe.precision import PRECISIONS
from studio.services.operations import health_checks
from studio.services.operations.health_checks import CheckResult
from studio.services.workers import workers
from studio.settings import Settings

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "yellow")}


def print_findings(settings: Settings) -> int:
    """Print every finding. Return 0 if this machine can train, else 1."""
    typer.secho(f"Mantissa Studio {studio.__version__}", bold=True)
    findings = list(collect_findings(settings, detect()))
    for finding in findings:
        sign, colour = MARKS[finding.good]
        typer.echo(f"  {typer.style(sign, fg=colour)} {finding.text}")
    return 1 if any(finding.good is False for finding in findings) else 0


def collect_findings(settings: Settings, hardware: Hardware) -> Iterator[CheckResult]:
    memory = hardware.memory_bytes / 10**9
    yield CheckResult(good=True, text=f"{hardware.title}, {memory:.0f} GB memory")
    yield _packages(hardware)
    yield _quick_start(settings)
    if hardware.gpus and hardware.device == "cpu" and hardware.torch:
        yield CheckResult(
            good=False, text="This machine has a GPU, but torch was built without CUDA."
        )
    for mode in PRECISIONS.values():
        refused = mode.unsupported_reason(hardware)
        note = refused or mode.warning(hardware)
        yield CheckResult(
            good=None if refused else True, text=f"{mode.title}{': ' + note if note else ''}"
        )
    yield _scripts()
    yield from health_checks.check_home(settings)


def _packages(hardware: Hardware) -> CheckResult:
    versions = package_versions()
    if not hardware.torch or "trl" not in versions:
        return CheckResult(
            good=False,
            text="The training packages are missing: pip install 'mantissa-studio[train]'",
        )
    return CheckResult(
        good=True, text=", ".join(f"{name} {version}" for name, version in versions.items())
    )


def _quick_start(settings: Settings) -> CheckResult:
    status = workers.read_launcher(settings)
    return CheckResult(good=status.state == "ready" or None, text=f"Quick start: {status.summary}")


def _scripts() -> CheckResult:
    if resources.has_vendored_scripts():
        return CheckResult(good=True, text="The JavaScript of the pages is installed")
    return CheckResult(
        good=False, text="The JavaScript of the pages is missing: python hatch_build.py"
    )
