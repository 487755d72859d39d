"""Which settings are the studio's own, so that no upstream config is given them."""

import pytest

from studio.methods import METHODS
from studio.recipe.fields import own_fields
from studio.recipe.sections import Evaluation


@pytest.mark.parametrize("method", METHODS)
def test_fixed_value_of_own_field_stays_own(method: str) -> None:
    section = METHODS[method].recipe.model_fields["evaluation"].default

    assert own_fields(type(section)) >= own_fields(Evaluation) == {"after_training"}
