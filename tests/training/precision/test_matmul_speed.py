"""The chore that measures this machine leaves seconds for each number format."""

from pathlib import Path

import pytest

from studio.protocols.events import Event
from studio.protocols.tasks import TaskDir
from studio.runner import execution

pytestmark = pytest.mark.slow


def test_matmul_speed_is_measured_for_each_format(tmp_path: Path) -> None:
    folder, said = TaskDir(tmp_path), list[Event]()

    told = execution.load_function("probe")(
        folder, {}, execution.ProgressReporter(said.append).report
    )

    assert told["seconds"].keys() == {"float32", "bfloat16", "float16"}
    assert min(told["seconds"].values()) > 0
