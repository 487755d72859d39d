"""How a model reads images, and which of the parts that read them are trained."""

from typing import Annotated

from annotated_types import Ge, Le

from studio.recipe.fields import FieldSpec, Section


class ImageOptions(Section):
    """Which images the model sees, and what of it they train."""

    max_pixels: Annotated[
        int,
        Ge(1024),
        Le(100_000_000),
        FieldSpec("Max pixels per image", related=("data.max_length",)),
    ] = 589_824
    """Larger images are scaled down: 589,824 is 768 by 768. Fewer pixels take less time and
    memory, and show fewer details. Models that scale all images to one size, such as LLaVA,
    ignore it."""

    freeze_tower: Annotated[bool, FieldSpec("Freeze the vision tower")] = True
    """Leave the part that reads images as it is. Train it if your images look unlike photos and
    screenshots, such as medical scans."""

    freeze_projector: Annotated[bool, FieldSpec("Freeze the projector")] = True
    """Leave the layers between the vision tower and the language model as they are."""
