"""How rows become examples, and what is looked at while the model learns from them."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from studio.recipe.fields import FieldSpec, Section


class Data(Section):
    """How rows become examples. Of conversations the answers are learnt, of text everything."""

    max_length: Annotated[
        int,
        Ge(16),
        Le(1_048_576),
        FieldSpec(
            "Longest example", "tokens", related=("optimisation.per_device_train_batch_size",)
        ),
    ] = 1024
    """Longer conversations are cut at the end; memory grows with it."""

    packing: Annotated[
        bool,
        FieldSpec(
            "Pack rows",
            related=("data.max_length", "optimisation.per_device_train_batch_size"),
        ),
    ] = False
    """Short rows fill an example together, each unseen by the others; batches count examples."""

    chat_template: Annotated[
        Literal["model", "chatml", "plain"],
        FieldSpec(
            "Chat template",
            advanced=True,
            titles={"model": "The model's own", "chatml": "ChatML", "plain": "Plain text"},
        ),
    ] = "model"
    """How turns are written for the model. A base model has none of its own: choose one for it."""

    validation_share: Annotated[
        float, Gt(0), Le(0.5), FieldSpec("Validation share", advanced=True)
    ] = 0.05
    """Rows held back to measure progress, when the data set has no validation part of its own."""


class Evaluation(Section):
    """How often progress is measured."""

    upstream: ClassVar[str] = "trl.SFTConfig"

    eval_steps: Annotated[
        float, Gt(0), FieldSpec("Validate every", "steps or share", usable_range=(1e-6, 10_000_000))
    ] = 0.1
    """Below 1 it is a share of the run (0.1 validates ten times), from 1 on a number of steps."""

    per_device_eval_batch_size: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Validation batch size", advanced=True)
    ] = 16
    """Examples per device while validating."""

    logging_steps: Annotated[
        int, Ge(1), Le(10_000), FieldSpec("Log every", "steps", advanced=True)
    ] = 1
    """How often a point is added to the charts."""


class EarlyStopping(Section):
    """End when validation loss stops falling, and keep the best weights."""

    upstream: ClassVar[str] = "transformers.EarlyStoppingCallback"

    early_stopping_patience: Annotated[int | None, Ge(1), Le(1000), FieldSpec("Patience")] = None
    """Validations without improvement before the run ends. Leave empty to train to the end."""

    early_stopping_threshold: Annotated[
        float, Ge(0), FieldSpec("Least improvement", advanced=True, usable_range=(0, 1000))
    ] = 0.0
    """A smaller fall of the validation loss counts as none."""


class Samples(Section):
    """Answers to fixed validation prompts, written before, while and after the model learns."""

    prompts: Annotated[int, Ge(0), Le(64), FieldSpec("Sample prompts", advanced=True)] = 4
    """How many validation prompts the model answers."""

    between: Annotated[int, Ge(0), Le(100), FieldSpec("Answers on the way", advanced=True)] = 4
    """How many times it answers while it learns, at validations spread evenly over the run."""

    max_new_tokens: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Longest answer", "tokens", advanced=True)
    ] = 64
    """Where an answer is cut."""
