"""Write the content of the starter: `make starter`, or `--rows` for the rows alone.

Training the model takes minutes. Its weights differ from machine to machine in their last bits.
"""

import argparse
import hashlib
import json
import logging
import lzma
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from studio import starter
from tests.tools.starter import instruction_rows

SPLITS: tuple[instruction_rows.Split, ...] = ("train", "validation")
FINGERPRINT = Path(__file__).with_name("base_model.sha256")
"""What the shipped weights were made from, and their own checksum."""


def content() -> dict[str, bytes]:
    """Generate the row files by name, as they are before compression."""
    return {f"{split}.jsonl": _lines(instruction_rows.generate_rows(split)) for split in SPLITS}


def write_rows() -> None:
    for name, data in content().items():
        starter.data_path(name).write_bytes(lzma.compress(data, preset=9))


def write_model() -> None:
    from tests.tools.starter import base_model  # noqa: PLC0415 -- heavy import

    with TemporaryDirectory(dir=starter.MODEL.parent) as scratch:
        base_model.write(Path(scratch))
        shutil.rmtree(starter.MODEL, ignore_errors=True)
        starter.MODEL.mkdir()
        for path in Path(scratch).iterdir():
            (starter.MODEL / path.name).write_bytes(path.read_bytes())
    FINGERPRINT.write_text(fingerprints(base_model.fingerprint()), encoding="utf-8")


def fingerprints(source: str) -> str:
    """Return the checksums of the shipped weights and of what they were made from."""
    weights = hashlib.sha256((starter.MODEL / starter.WEIGHTS).read_bytes()).hexdigest()
    return f"{source}  source\n{weights}  {starter.WEIGHTS}\n"


def _lines(values: Iterable[object]) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.starter.build")
    parser.add_argument("--rows", action="store_true", help="do not train the model")
    arguments = parser.parse_args()
    write_rows()
    if not arguments.rows:
        write_model()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
