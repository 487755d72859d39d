"""Whatever a file of another tool holds: no key is lost, and the recipe is valid."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studio.methods import RECIPE_ADAPTER
from studio.services.recipe_imports import reading
from studio.services.recipe_imports.importing import import_text
from studio.services.recipe_imports.table import Tool
from studio.services.recipe_imports.tools import TOOLS

PLAIN: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-10, 5000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | st.sampled_from(["auto", "lora", "all", "cosine", "sigmoid", "dpo", "kto", "int4", "1e-4"])
)
VALUES = (
    PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=5), PLAIN, max_size=3)
)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as groups; a key that is a value and a group stays a value."""
    made: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, leaf = key.split(".")
        place = made
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    return made


def files(tool: Tool) -> st.SearchStrategy[dict[str, Any]]:
    """Return files with some of a tool's keys, and some that no tool knows."""
    known = st.dictionaries(st.sampled_from(sorted(tool.table)), VALUES, max_size=12)
    other = st.dictionaries(st.from_regex("[a-z]{1,8}_{2}", fullmatch=True), VALUES, max_size=3)
    mark = st.sampled_from(sorted(tool.marks & tool.table.keys()))
    return st.builds(lambda a, b, c: {**nested({**a, c: "x"}), **b}, known, other, mark)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@given(data=st.data())
def test_each_key_is_in_one_list_and_recipe_is_valid(tool: Tool, data: st.DataObject) -> None:
    values = data.draw(files(tool))

    imported = import_text(json.dumps(values))

    lists = (imported.mapped, imported.different, imported.absent)
    keys = sorted(one.key for each in lists for one in each)
    assert keys == sorted(key for key, _value in reading.iter_keys(values, imported.tool))
    assert {key.split(".")[0] for key in keys} == {str(key) for key in values}
    assert all(one.note for one in (*imported.different, *imported.absent))
    chosen = {"base_model": "any", "dataset": "any", **imported.values}
    assert RECIPE_ADAPTER.validate_python(chosen).method == imported.method.name
