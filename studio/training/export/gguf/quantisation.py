"""Quantise a GGUF file by llama.cpp's program, which alone writes the formats below 8 bits.

Beside `llama-quantize`, a build of llama.cpp has `llama-imatrix`, which measures on training rows
which weights matter most.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from studio.training.export.gguf import refusals

_IMATRIX = "llama-imatrix"
_CHUNKS = "64"
"""How many pieces of 512 tokens are measured."""


def quantise(
    source: Path, target: Path, title: str, program: Path, texts: Sequence[str]
) -> list[str]:
    """Write a file in another format. Return notes on how, as sentences.

    Raises:
        InvalidError: the program fails; the message has the last line that it wrote.

    """
    matrix, notes = _measure_importance(source, program, texts)
    options = ["--imatrix", str(matrix)] if matrix else []
    code, last = _run([str(program), *options, str(source), str(target), title])
    if code or not target.is_file():
        raise refusals.failed_quantiser(title, last)
    return notes


def _measure_importance(
    source: Path, program: Path, texts: Sequence[str]
) -> tuple[Path | None, list[str]]:
    """Measure which weights matter. Return the file, or none and why."""
    tool = program.with_name(_IMATRIX)
    if not tool.is_file():
        return None, [f"Quantised without an importance matrix: {_IMATRIX} is not beside it."]
    if not texts:
        return None, ["Quantised without an importance matrix: the dataset is gone."]
    rows, matrix = source.with_name("rows.txt"), source.with_name("importance.gguf")
    rows.write_text("\n".join(texts), encoding="utf-8")
    inputs = ["-m", str(source), "-f", str(rows), "-o", str(matrix)]
    code, last = _run([str(tool), *inputs, "--chunks", _CHUNKS, "--parse-special"])
    if code or not matrix.is_file():
        return None, [f"Quantised without an importance matrix: {_IMATRIX} failed ({last})."]
    return matrix, ["Quantised with an importance matrix of the training rows."]


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a program. Return its exit code, and the last line that it wrote."""
    done = subprocess.run(  # noqa: S603 -- the operator's own program  # nosec B603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace").strip()
    print(text[-4000:], flush=True)  # noqa: T201 -- the export's own log
    return done.returncode, text.rpartition("\n")[2].rstrip(".") or "it wrote nothing"
