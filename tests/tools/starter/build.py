"""Write the data of the starter: `python -m tests.tools.starter.build`."""

import json
import lzma
from collections.abc import Iterable
from itertools import islice

from studio import starter
from tests.tools.starter import instruction_rows, pretraining_text

SPLITS: tuple[instruction_rows.Split, ...] = ("train", "validation")


def content() -> dict[str, bytes]:
    """Generate the files of the starter by name, as they are before compression."""
    return {
        **{f"{split}.jsonl": _lines(instruction_rows.generate_rows(split)) for split in SPLITS},
        starter.PRETRAINING_TEXT: _lines(
            islice(pretraining_text.documents(), pretraining_text.DOCUMENTS)
        ),
    }


def _lines(values: Iterable[object]) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


if __name__ == "__main__":
    for name, data in content().items():
        starter.data_path(name).write_bytes(lzma.compress(data, preset=9))
