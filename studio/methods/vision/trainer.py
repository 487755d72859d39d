"""The torch side of supervised fine-tuning on images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from studio.methods.vision import METHOD, VisionRecipe
from studio.training.data.image_batches import COLUMNS, ImageCollator, tokenise
from studio.training.data.image_messages import RowImage, folder_of, images_of
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.monitoring import early_stopping
from studio.training.next_token import NextTokenTrainer
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]


def build(recipe: VisionRecipe, job: TrainingJob) -> "VisionTrainer":
    """Build the trainer of a run."""
    args = build_arguments(recipe, job, METHOD.objective)
    return VisionTrainer(job, args, early_stopping.callbacks(recipe))


class VisionTrainer(NextTokenTrainer):
    """Predicts the next token of rows with images, which are opened when a batch is made."""

    data_collator: ImageCollator
    first_images: Sequence[RowImage]
    """Those of the first row, as dry runs make them."""

    def make_collator(self, job: TrainingJob) -> ImageCollator:
        self.first_images = images_of(job.train.rows[0].messages)
        assert job.images is not None  # noqa: S101 -- the recipe says how they are read
        return ImageCollator(self.pad_token_id, job.images, folder_of(job.spec.train))

    def make_text_collator(self) -> ImageCollator:
        return self.data_collator

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> dict[str, Tensor]:
        batch = shape.tensors(device)
        return batch | self.data_collator.dummy_images(self.first_images, batch["input_ids"])

    def _set_signature_columns_if_needed(self) -> None:
        """Keep all columns: the model does not take the numbers of images by name."""
        self._signature_columns = list(COLUMNS)
