"""Run lm-eval in a process of its own: `python -m studio.runner.tasks.benchmarks.harness_main`.

Its output is this process's log, and tells how far it is. What goes wrong there is put into words.
"""

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import yaml

from studio.errors import StudioError, UnavailableError
from studio.runner.execution import ReportProgress
from studio.runner.tasks.benchmarks import harness_errors
from studio.runner.tasks.benchmarks.harness_main import PARENT
from studio.settings import Settings, without_secrets

_MAIN = "studio.runner.tasks.benchmarks.harness_main"
OUTPUT = "output"
"""The folder of its results."""

_PROGRESS = re.compile(r"Running \w+ requests:\s+(\d+)%")
_BAR = re.compile(r"\d+%\|")
_LINE_END = re.compile(rb"[\r\n]+")
_KEPT_LINES = 200
"""Lines of its output that are searched for what went wrong."""

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def require_installed() -> None:
    """Refuse to start without lm-eval.

    Raises:
        UnavailableError: it is not installed.

    """
    if find_spec("lm_eval") is None:
        raise harness_errors.not_installed()


def environment(work: Path, settings: Settings | None) -> dict[str, str]:
    """Return its environment: the hub of these settings, or offline without settings."""
    public = without_secrets(os.environ)
    if settings is None:
        return public | _OFFLINE | {"HF_DATASETS_CACHE": str(work / "cache")}
    cache = settings.cache / "benchmarks"
    # NLTK downloads only into a folder that exists.
    (cache / "nltk").mkdir(parents=True, exist_ok=True)
    token = settings.hub_token.get_secret_value()
    return (
        public
        | {"HF_ENDPOINT": settings.hub_endpoint.rstrip("/"), "HF_HOME": str(cache)}
        | {"HF_HUB_CACHE": str(cache / "hub"), "HF_DATASETS_CACHE": str(cache / "datasets")}
        | {"NLTK_DATA": str(cache / "nltk")}
        | ({"HF_TOKEN": token} if token else {})
    )


def run(
    work: Path, config: Mapping[str, Any], variables: Mapping[str, str], report: ReportProgress
) -> None:
    """Run lm-eval as a configuration says, and wait for it. It ends together with this process.

    Raises:
        StudioError: it failed.

    """
    file = work / "run.yaml"
    output = {"output_path": str(work / OUTPUT), "log_samples": True}
    file.write_text(yaml.safe_dump({**config, **output}), encoding="utf-8")
    follow([sys.executable, "-m", _MAIN, "run", "--config", str(file)], variables, report)


def follow(command: Sequence[str], variables: Mapping[str, str], report: ReportProgress) -> None:
    """Run a command, log what it prints, and report its progress bars.

    Raises:
        StudioError: it failed.

    """
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own path
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**variables, PARENT: str(os.getpid())},
    )
    assert child.stdout is not None  # noqa: S101 -- it is a pipe
    try:
        with child.stdout as pipe:
            for line in _read_lines(pipe):
                if found := _PROGRESS.search(line):
                    report("answering", int(found[1]) / 100)
                elif not _BAR.search(line):
                    print(line, flush=True)  # noqa: T201 -- the task's own log
                    lines.append(line)
        code = child.wait()
    finally:
        child.kill()
        child.wait()
    if code:
        raise _explain(code, lines, variables)


def _explain(code: int, lines: deque[str], variables: Mapping[str, str]) -> StudioError:
    if code < 0:
        return UnavailableError(
            "lm-eval was killed, most likely because memory ran out.",
            hint="Try again when nothing else runs, or with a smaller model.",
        )
    return harness_errors.explain("\n".join(lines), variables.get("HF_ENDPOINT", ""))


def _read_lines(pipe: IO[bytes]) -> Iterator[str]:
    """Yield lines as they come; a progress bar ends its own with a carriage return."""
    rest = b""
    while content := os.read(pipe.fileno(), 2**16):
        *whole, rest = _LINE_END.split(rest + content)
        yield from (line.decode(errors="replace") for line in whole if line)
    if rest:
        yield rest.decode(errors="replace")
