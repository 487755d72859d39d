"""Whatever JSON a row holds, it becomes a whole row or is refused with a reason: never a crash."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studio.errors import InvalidError
from studio.intake.column_roles import roles_for_shape
from studio.intake.conversion.converter import SourceFile, convert_file
from studio.intake.conversion.file_preview import preview_rows
from studio.intake.detection.row_shapes import detect_mapping
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping, ShapeName
from studio.intake.row_formats.row_builder import build_row, encode_row
from studio.intake.row_formats.schema import (
    MESSAGE_ROLES,
    TrainingExample,
    UnusableRowError,
    to_training_example,
)

KEYS = (
    "role", "content", "from", "value", "weight", "tool_calls", "function_call", "name", "id",
    "arguments", "function", "text", "score", "rank", "messages", "tools", "parent_id", "type",
)  # fmt: skip
WORDS = (
    *MESSAGE_ROLES,
    "",
    "0",
    "1",
    "true",
    "{}",
    "[]",
    '[{"role": "user"}]',
    '{"name": "a"}',
    "é\ud800",
)
COLUMNS = (
    "prompt", "completion", "question", "answer", "messages", "conversations", "instruction",
    "input", "output", "history", "chosen", "rejected", "label", "text", "id", "parent_id",
    "answers", "scores", "split", "system", "tools", "role",
)  # fmt: skip

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=12,
)
rows = st.dictionaries(st.sampled_from(COLUMNS) | st.text(max_size=3), values, max_size=6)
shapes = [shape for shape in get_args(ShapeName) if shape != "thread"]


@given(data=st.data())
@pytest.mark.parametrize("shape", shapes)
def test_any_values_build_encodable_row_or_are_rejected(
    shape: ShapeName, data: st.DataObject
) -> None:
    names = [role.name for role in roles_for_shape(shape)]
    row = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(names, values)))
    mapping = Mapping(shape=shape, roles={name: [name] for name in row})

    with suppress(UnusableRowError):
        made = build_row(mapping, row)
        assert json.loads(encode_row(made)) == made
        assert isinstance(to_training_example(made), TrainingExample | None)


@given(st.lists(rows, min_size=1, max_size=6))
def test_any_rows_are_imported_or_rejected_without_crash(found: list[Any]) -> None:
    with TemporaryDirectory() as folder, suppress(InvalidError):
        path = Path(folder, "rows.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
        source = SourceFile(path=path, filename=path.name)
        assert detect_mapping(found).evidence

        converted = convert_file(source, None, Path(folder), Limits())
        seen = preview_rows(source, converted.mapping, Limits())

        usable = sum(one.row is not None for one in seen)
        assert usable == converted.rows + converted.validation_rows
