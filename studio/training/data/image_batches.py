"""Tokenise rows with images, and make batches of them: images are opened only then."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset, Features, List, Value
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.image_messages import RowImage, images_of, open_image
from studio.training.data.labels import IGNORE_INDEX, cut_after_last_answer, label_rows
from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Collator, Examples
from studio.training.models.processors import ImageReader

IMAGES = "row_images"
"""The column with the images of a row: six numbers each. TRL reads a column `images`."""
COLUMNS = ("input_ids", "labels", IMAGES)
_FEATURES = Features({name: List(Value("int64")) for name in COLUMNS})
_WORD_BYTES = 8
_WORDS = 4
"""A checksum is four numbers of eight bytes."""
_NUMBERS = _WORDS + 2
"""With the width and the height."""


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise and label the rows; leave out those that are too long, as images are never cut."""
    columns: dict[str, list[list[int]]] = {name: [] for name in _FEATURES}
    kept_rows: list[TrainingRow] = []
    too_long = longest_row = 0
    for row, labelled in zip(rows, label_rows(rows, template, tokenizer), strict=True):
        longest_row = max(longest_row, len(labelled.ids))
        if not any(label != IGNORE_INDEX for label in labelled.labels[1:]):
            continue
        if len(labelled.ids) > max_length:
            too_long += 1
            continue
        columns["input_ids"].append(labelled.ids)
        columns["labels"].append(labelled.labels)
        columns[IMAGES].append(_encode(row))
        kept_rows.append(row)
    if too_long:
        message = f"{too_long:,} of {len(rows):,} rows are longer than {max_length:,} tokens"
        print(f"{message}, and are not trained on", flush=True)  # noqa: T201 -- the run's own log
    sizes = list(map(len, columns["input_ids"]))
    answers = (len(labels) - labels.count(IGNORE_INDEX) for labels in columns["labels"])
    return Examples(
        Dataset.from_dict(columns, features=_FEATURES),
        kept_rows,
        dropped=len(rows) - len(kept_rows),
        truncated=0,
        tokens=sum(sizes),
        longest=max(sizes, default=0),
        longest_answer=max(answers, default=0),
        longest_row=longest_row,
        too_long=too_long,
    )


@dataclass(frozen=True, slots=True)
class ImageCollator(Collator):
    """Makes a batch of rows with their images, which are opened one at a time."""

    reader: ImageReader
    folder: Path
    """Where the images lie."""

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        # A dataclass with slots has no `super()` without arguments.
        batch = Collator.__call__(self, rows)
        images = [image for row in rows for image in _decode(row[IMAGES])]
        opened = [open_image(self.folder, image) for image in images]
        inputs = self.reader.read(opened)
        self._refuse_other_sizes(batch, inputs)
        return batch | inputs | self.reader.read_types(batch["input_ids"])

    def dummy_images(self, images: Sequence[RowImage], ids: Tensor) -> dict[str, Tensor]:
        """Return images without content for a batch, each row with these."""
        sizes = [(image["width"], image["height"]) for image in images]
        with unset_fake_temporarily():
            real = self.reader.read([Image.new("RGB", size) for size in sizes * len(ids)])
        ids = ids.clone()
        ids[:, : sum(self.reader.tokens.count(*size) for size in sizes)] = (
            self.reader.tokens.token_id
        )
        made = {name: value.to(ids.device) for name, value in real.items()}
        if "pixel_values" in made:
            made["pixel_values"] = torch.zeros_like(made["pixel_values"])
        return made | {"input_ids": ids} | self.reader.read_types(ids)

    def _refuse_other_sizes(self, batch: dict[str, Tensor], inputs: dict[str, Tensor]) -> None:
        """Refuse images that became another number of tokens than rows have for them."""
        places = int((batch["input_ids"] == self.reader.tokens.token_id).sum())
        if places != self.reader.count_tokens(inputs):
            raise TrainingError(
                "bad_row",
                "The image processor of this model makes another number of tokens of images "
                "than its settings say.",
                hint="Choose another model, or report its name.",
            )


def _encode(row: TrainingRow) -> list[int]:
    """Return the images of a row as numbers."""
    return [
        number
        for image in images_of(cut_after_last_answer(row).messages)
        for number in (*_checksum_words(image), image["width"], image["height"])
    ]


def _checksum_words(image: RowImage) -> list[int]:
    digest = bytes.fromhex(str(image["sha256"]))
    starts = range(0, _WORDS * _WORD_BYTES, _WORD_BYTES)
    return [int.from_bytes(digest[i : i + _WORD_BYTES], "big", signed=True) for i in starts]


def _decode(numbers: Tensor) -> list[RowImage]:
    """Return the images that numbers stand for."""
    return [
        {
            "sha256": b"".join(
                word.to_bytes(_WORD_BYTES, "big", signed=True) for word in words[:_WORDS]
            ).hex(),
            "width": words[_WORDS],
            "height": words[_WORDS + 1],
        }
        for words in numbers.view(-1, _NUMBERS).tolist()
    ]
