"""How the inference service loads a base model, the result of a run, or a checkpoint."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from studio.db.tables import Run
from studio.errors import NotFoundError
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import JobSpec, RunDir
from studio.protocols.tokenizer_service import PromptTokens
from studio.recipe.model_options import ModelOptions
from studio.weights import model_facts

UNCHANGED_FORMATS = frozenset({"", "native", "float32"})
"""The formats in which a base model is loaded as it was saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What is needed to load a model."""

    model: str
    adapter: str = ""
    weights: str = ""
    """Folder of a checkpoint to load instead of the final weights."""
    lora: dict[str, Any] = field(default_factory=dict)
    """The recipe's adapter section, if the run has not saved its adapter."""
    code: str = ""
    precision: str = ""
    base_dtype: str = ""
    """For an adapter: the number format of its base weights."""
    options: dict[str, Any] = field(default_factory=dict)
    """The recipe's model section, for an adapter or a model that has not been saved."""
    image_options: dict[str, Any] = field(default_factory=dict)
    """The recipe's section on images, of the run that it belongs to, if its model reads them."""
    tokenizer: str = ""
    """The folder of the run's own tokenizer, if it added tokens and has not saved its model."""

    @property
    def folder(self) -> str:
        """The folder with its tokenizer."""
        return self.tokenizer or self.adapter or self.model

    @property
    def has_adapter(self) -> bool:
        return bool(self.adapter or self.lora)

    @property
    def rounded_to(self) -> str:
        """The format that the base model is rounded or quantised to; empty if it is not."""
        return "" if self.base_dtype in UNCHANGED_FORMATS else self.base_dtype

    @property
    def sees_images(self) -> bool:
        """Whether it reads images as well as text."""
        return model_facts.from_config(Path(self.model)).kind == "image_text"

    @property
    def max_pixels(self) -> int | None:
        """The size to which larger images are scaled; None if nothing says that."""
        size: int | None = self.image_options.get("max_pixels")
        return size

    @property
    def memory_key(self) -> str:
        """Equal for models that share a base in memory: changing between them loads little."""
        options = ModelOptions.model_validate(self.options).model_dump(exclude={"attention"})
        weights = "" if self.has_adapter else self.weights
        precision = self.precision if self.rounded_to else ""
        loaded = [self.model, weights, self.rounded_to, precision, options]
        return hashlib.sha256(json.dumps(loaded).encode()).hexdigest()[:12]

    def fill_in(
        self, options: GenerationRequest, name: str, prompt: PromptTokens
    ) -> GenerationRequest:
        """Return a request with sampling options for this model and a prompt."""
        return options.model_copy(
            update={
                "model": self.model,
                "name": name,
                "adapter": self.adapter,
                "weights": self.weights,
                "lora": self.lora,
                "code": self.code,
                "precision": self.precision,
                "base_dtype": self.base_dtype,
                "options": self.options,
                "image_options": self.image_options,
                "tokenizer": self.tokenizer,
                "ids": prompt.ids,
                "stops": prompt.stops,
                "spoken": prompt.spoken,
            }
        )


def for_result(run: Run, folder: RunDir, weights: str = "") -> ServedModel:
    """Return the model that a run has saved, or a checkpoint of it at the folder `weights`."""
    spec = read_job_spec(run, folder)
    if run.recipe.adapter.kind == "full":
        return ServedModel(
            model=str(folder.artifacts),
            weights=weights,
            code=spec.code,
            image_options=_image_options(run),
        )
    return ServedModel(
        model=spec.model,
        adapter=str(folder.artifacts),
        weights=weights,
        code=spec.code,
        precision=run.recipe.precision,
        base_dtype=run.recipe.adapter.base_dtype,
        options=run.recipe.model.model_dump(),
        image_options=_image_options(run),
    )


def for_checkpoint(run: Run, folder: RunDir, weights: str) -> ServedModel:
    """Return the checkpoint of a run that has not saved its model."""
    spec, adapter = read_job_spec(run, folder), run.recipe.adapter
    model = ServedModel(
        model=spec.model,
        weights=weights,
        code=spec.code,
        options=run.recipe.model.model_dump(),
        image_options=_image_options(run),
        tokenizer=str(folder.tokenizer) if run.recipe.model.new_tokens else "",
    )
    if adapter.kind == "full":
        return model
    return replace(
        model,
        lora=adapter.model_dump(),
        precision=run.recipe.precision,
        base_dtype=adapter.base_dtype,
    )


def for_base(run: Run, folder: RunDir) -> ServedModel:
    """Return the base model of a run, in the format that the run trained its adapter on.

    Raises:
        NotFoundError: Its files are gone.

    """
    spec, adapter = read_job_spec(run, folder), run.recipe.adapter
    if Path(spec.model).is_absolute() and not Path(spec.model).is_dir():
        raise NotFoundError(
            f"The base model's files are missing: {run.recipe.base_model}.",
            hint="Add the model again under the same name, then try again.",
        )
    if adapter.kind == "full":
        return ServedModel(model=spec.model, code=spec.code, image_options=_image_options(run))
    return ServedModel(
        model=spec.model,
        code=spec.code,
        image_options=_image_options(run),
        precision=run.recipe.precision,
        base_dtype=adapter.base_dtype,
    )


def _image_options(run: Run) -> dict[str, Any]:
    """Return how the models of a run read images; empty if they read text alone."""
    return run.recipe.images.model_dump() if run.recipe.images else {}


def read_job_spec(run: Run, folder: RunDir) -> JobSpec:
    """Return how a run was launched.

    Raises:
        NotFoundError: Its folder has been deleted.

    """
    try:
        return JobSpec.read(folder)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"The files of run {run.id} have been deleted.", hint="Run it again."
        ) from error
