"""Vision: the model learns to write the answers to questions about images."""

from collections.abc import Iterator
from typing import Annotated, Literal

from studio import metrics
from studio.methods.base import Method, full_preset, lora_preset, without_base
from studio.recipe.adapters import Adapter
from studio.recipe.base import Conflict, Recipe
from studio.recipe.fields import FieldSpec
from studio.recipe.images import ImageOptions
from studio.recipe.sections import Data, LearningRate, MaxLength, Optimisation


class VisionOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 1e-4
    """Step size. Halve it if the loss jumps around; double it if the loss barely moves."""


class VisionData(Data):
    """Only answers are trained on. Images are read as tokens, which count as length."""

    max_length: MaxLength = 2048
    """Longer conversations are left out: an image cannot be truncated. Memory use grows with this
    length."""

    packing: Literal[False] = False
    chat_template: Annotated[Literal["model"], FieldSpec("Chat template", advanced=True)] = "model"
    """The model's own: it says where images stand."""


class VisionRecipe(Recipe):
    """Train by example on images: the model learns the answers to questions about them."""

    method: Literal["vision"] = "vision"
    optimisation: VisionOptimisation = VisionOptimisation()
    data: VisionData = VisionData()
    vision: ImageOptions = ImageOptions()

    @property
    def images(self) -> ImageOptions:
        return self.vision

    @property
    def _trains_last_layers(self) -> bool:
        adapter = self.adapter
        part = adapter.targets if isinstance(adapter, Adapter) else adapter.trained
        return part.last_layers is not None

    def own_conflicts(self) -> Iterator[Conflict]:
        frozen = self.vision.freeze_tower and self.vision.freeze_projector
        if isinstance(self.adapter, Adapter) and self.adapter.trained.has_norms:
            yield Conflict(
                message="Norms next to an adapter look the same as those that read images.",
                hint="Train the embeddings or the output layer next to the adapter, or nothing.",
                param="adapter.extra_modules",
            )
        variant = self.adapter.lora_variant
        if variant is not None and variant.reads_data and not frozen:
            yield Conflict(
                message=f"{variant.title} starts from what the language model reads, so the parts "
                "that read images stay frozen.",
                hint="Freeze the vision tower and the projector, or choose plain LoRA.",
                param="adapter.variant",
            )
        if self._trains_last_layers and not frozen:
            yield Conflict(
                message="The last layers are those of the language model, so the parts that read "
                "images stay frozen.",
                hint="Freeze the vision tower and the projector, or train all layers.",
                param="vision.freeze_tower",
            )


METHOD = Method(
    name="vision",
    title="Vision",
    purpose="Learn from images",
    summary="Train by example on images and text: provide questions about images with the "
    "answers you want.",
    recipe=VisionRecipe,
    metrics=metrics.NEXT_TOKEN,
    trainable_kinds=frozenset({"image_text"}),
    trains_on={
        "images": "Vision trains on the assistant's turns; images and the other turns are "
        "only context.",
    },
    presets=tuple(without_base(preset) for preset in (lora_preset(), full_preset(1e-5))),
)
