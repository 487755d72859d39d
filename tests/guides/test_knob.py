"""The how-to on adding a setting."""

from importlib import import_module
from pathlib import Path
from textwrap import indent

import pytest
from pydantic import ValidationError

from studio.schemas.field_docs import field_descriptions
from tests.guides.reader import blocks

BEFORE = """
from typing import Annotated
from annotated_types import Ge, Le
from studio.recipe.fields import FieldSpec, Section

class Mine(Section):
"""


def test_add_a_knob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (field,) = blocks("add-a-knob")
    (tmp_path / "recipe_with_a_knob.py").write_text(BEFORE + indent(field, "    "))
    monkeypatch.syspath_prepend(tmp_path)
    section = import_module("recipe_with_a_knob").Mine

    assert field_descriptions(section)["weight_decay"].startswith("Pulls weights towards zero.")
    assert section().weight_decay == 0
    with pytest.raises(ValidationError):
        section(weight_decay=2.0)
