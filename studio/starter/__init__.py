"""The included sample data and base model, so that a first run needs no network.

The base model writes sentences but does not answer questions; the instruction rows teach it that.
`make starter` writes the files beside this module, from `tests.tools.starter`.
"""

import json
import lzma
import shutil
from pathlib import Path

SPLITS = ("train.jsonl", "validation.jsonl")
MODEL = Path(__file__).with_name("model")
WEIGHTS = "model.safetensors"


def write_rows(folder: Path) -> None:
    """Write the instruction rows of both splits, one conversation a line."""
    for name in SPLITS:
        with lzma.open(data_path(name)) as packed, (folder / name).open("wb") as file:
            shutil.copyfileobj(packed, file)


def write_model(folder: Path) -> None:
    """Write the base model and its tokenizer, with float32 weights."""
    for path in MODEL.iterdir():
        content = path.read_bytes()
        (folder / path.name).write_bytes(widen(content) if path.name == WEIGHTS else content)


def widen(packed: bytes) -> bytes:
    """Convert a safetensors file from bfloat16 to float32, which represents each value exactly."""
    start = 8 + int.from_bytes(packed[:8], "little")
    header = json.loads(packed[8:start])
    for name in header.keys() - {"__metadata__"}:
        offsets = [2 * offset for offset in header[name]["data_offsets"]]
        header[name] |= {"dtype": "F32", "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    narrow = packed[start:]
    wide = bytearray(2 * len(narrow))
    # A bfloat16 is the upper half of a float32; both are stored with the low byte first.
    wide[2::4], wide[3::4] = narrow[::2], narrow[1::2]
    return len(text).to_bytes(8, "little") + text + wide


def data_path(name: str) -> Path:
    """Return where the compressed content of a file is."""
    return Path(__file__).with_name(f"{name}.xz")
