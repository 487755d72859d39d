"""The images of a dataset as a model reads them, for rows that it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from studio.training.data.image_batches import ImageCollator
from studio.training.data.image_messages import RowImage, open_image
from studio.training.models.processors import ImageReader


@dataclass(frozen=True, slots=True)
class ImageFiles:
    folder: Path
    """The folder of the files, which are named by their checksums."""
    reader: ImageReader

    def read(
        self, images: Sequence[RowImage], ids: Tensor, model: PreTrainedModel
    ) -> dict[str, Tensor]:
        """Return the inputs for the images of a batch, beside its tokens.

        Raises:
            TrainingError: a file is missing or broken.

        """
        opened = [open_image(self.folder, image) for image in images]
        values = {name: value.to(model.device) for name, value in self.reader.read(opened).items()}
        return values | self.reader.read_types(ids)

    def make_collator(self, padding: int) -> ImageCollator:
        """Return what makes batches of examples as in training."""
        return ImageCollator(padding, self.reader, self.folder)
