"""Sections that bear upstream's names must go on doing so: an upgrade breaks here, not in a run."""

import inspect
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from studio.recipe.adapters import Lora
from studio.recipe.fields import Section, field_spec
from studio.recipe.optimizers import OPTIMIZERS
from studio.recipe.sections import Checkpoints, EarlyStopping, Evaluation, Optimisation

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def upstream_types(section: type[Section]) -> dict[str, Any]:
    """Return the names and types of what a section is handed to."""
    from peft import LoraConfig  # noqa: PLC0415 -- heavy import
    from transformers import EarlyStoppingCallback  # noqa: PLC0415 -- heavy import
    from trl import SFTConfig  # noqa: PLC0415 -- heavy import

    target: dict[type[Section], Any] = {
        Optimisation: SFTConfig,
        Evaluation: SFTConfig,
        Checkpoints: SFTConfig,
        Lora: LoraConfig,
        EarlyStopping: EarlyStoppingCallback.__init__,
    }
    return get_type_hints(target[section])


SECTIONS = (Optimisation, Evaluation, Checkpoints, EarlyStopping, Lora)
FIELDS = [
    (section, name)
    for section in SECTIONS
    for name, info in section.model_fields.items()
    if (knob := field_spec(info)) and not knob.is_studio_own
]


@pytest.mark.parametrize(
    ("section", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value)
)
def test_knob_matches_upstream_name_and_type(section: type[Section], name: str) -> None:
    types = upstream_types(section)
    value = getattr(section(), name)

    assert name in types
    assert value is None or accepts(types[name], value)


@pytest.mark.parametrize("name", ["lr_scheduler_type", "optim", "train_sampling_strategy"])
def test_every_choice_is_accepted_by_upstream(name: str) -> None:
    from trl import SFTConfig  # noqa: PLC0415 -- heavy import

    choices = Optimisation.model_fields[name].annotation.__args__  # type: ignore[union-attr] # a Literal
    given = [getattr(OPTIMIZERS.get(choice), "upstream", "") or choice for choice in choices]
    made = [SFTConfig(use_cpu=True, bf16=False, **{name: choice}) for choice in given]

    assert [str(getattr(getattr(args, name), "value", getattr(args, name))) for args in made] == (
        given
    )


def test_upstream_still_calls_use_triton_for_answer_scoring() -> None:
    """`methods/sft/trainer.py` answers this question for it, there and nowhere else."""
    from trl.trainer import utils  # noqa: PLC0415 -- heavy import

    source = inspect.getsource(utils)

    assert source.count("_use_triton(") == 1
    assert "compact = _use_triton(hidden_states.device)" in source


def accepts(kind: Any, value: object) -> bool:  # noqa: ANN401 -- any type at all
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True
