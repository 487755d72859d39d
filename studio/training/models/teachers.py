"""Load the teacher of a distillation: a frozen model that is only read."""

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.protocols.run_dir import JobSpec
from studio.recipe.base import Teacher
from studio.training.models import loader, tokenizers, weight_formats
from studio.weights import vocabularies
from studio.weights.vocabularies import Vocabulary


def load(
    teacher: Teacher,
    spec: JobSpec,
    tokenizer: PreTrainedTokenizerBase,
    load_model: Callable[..., PreTrainedModel],
) -> PreTrainedModel:
    """Load a teacher in its own number format or the recipe's; `tokenizer` is the student's.

    Raises:
        TrainingError: it cannot be loaded, or has another vocabulary.

    """
    name, code = spec.teacher, spec.teacher_code
    if not name or (Path(name).is_absolute() and not Path(name).is_dir()):
        raise TrainingError(
            "conflict", "The teacher's folder no longer exists.", hint="Choose another teacher."
        )
    try:
        config = loader.load_config(name, code)
        own_tokenizer = tokenizers.load(name, code)
        own = weight_formats.main_format(name, config)
        dtype = own if teacher.dtype == "native" else teacher.dtype
        model = load_model(name, config, dtype, None, code)
    except TrainingError as error:
        message = error.message
        # Other codes would offer to change the base model.
        raise TrainingError(
            "conflict", f"Choose another teacher. {message}", hint=error.hint
        ) from error
    refuse_other_vocabulary(tokenizer, own_tokenizer)
    model.requires_grad_(False)  # noqa: FBT003 -- upstream's signature
    return model.eval()


def refuse_other_vocabulary(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase
) -> None:
    """Refuse a teacher with other tokens than its student's.

    Raises:
        TrainingError: with what differs.

    """
    problem = vocabularies.find_problem(_vocabulary(student), _vocabulary(teacher))
    if problem is not None:
        raise TrainingError("conflict", problem.message, hint=problem.hint)


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    names = ("bos_token", "eos_token")
    special = {name: str(getattr(tokenizer, name) or "") for name in names}
    return Vocabulary(tokenizer.get_vocab(), special)
