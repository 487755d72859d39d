"""Large files: read by a chore, and their rows taken when it ends."""

import json
import shutil
from typing import Any

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import DatasetStatus, TaskStatus
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, TooLargeError
from studio.intake.files.limits import MAX_REQUEST_BYTES, Limits
from studio.intake.mapping import Mapping
from studio.protocols.events import Failed
from studio.runner.tasks.build_dataset import build
from studio.services.datasets import dataset_builds, datasets, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.queue import task_results
from studio.services.tasks import tasks
from studio.settings import Settings

BLANK = (b" " * 2**20 + b"\n") * (MAX_REQUEST_BYTES // 2**20)
"""Lines without a row: they make a file large, and cost nothing to read."""


@pytest.fixture
def large(engine: Engine, settings: Settings) -> int:
    """Add a dataset too large to be read at once. Return its id."""
    path = settings.datasets / ".arrived"
    rows = "".join(json.dumps({"prompt": f"{i}?", "completion": f"{i}."}) + "\n" for i in range(9))
    path.write_bytes(rows.encode() + BLANK)
    with unit_of_work(engine) as db:
        made = dataset_builds.import_file(
            db, settings.datasets, Upload(path=path, filename="large.jsonl")
        )
        return made.id or 0


def asked(engine: Engine, dataset_id: int) -> Task:
    with read_session(engine) as db:
        chore = dataset_builds.latest_task(db, dataset_id)
    assert chore is not None
    return chore


def finish(engine: Engine, settings: Settings, dataset_id: int) -> list[float | None]:
    """Do a chore as its process would, and take what it came to. Return what it told."""
    shares: list[float | None] = []
    chore = asked(engine, dataset_id)
    folder = tasks.task_dir(settings.tasks, chore)
    folder.files.mkdir(parents=True)
    result = build(folder, chore.params, lambda _phase, share: shares.append(share))
    with unit_of_work(engine) as db:
        found = tasks.get(db, chore.id or 0)
        with task_results.notify_on_end(db, found):
            found.result = json.loads(json.dumps(result))
            tasks.close_work(found, TaskStatus.SUCCEEDED)
    return shares


def test_large_file_is_imported_by_task(engine: Engine, settings: Settings, large: int) -> None:
    with read_session(engine) as db:
        before = datasets.get(db, large)
    shares = finish(engine, settings, large)

    with read_session(engine) as db:
        after, version = datasets.get(db, large), versions.get(db, large, 1)
    assert (before.status, before.version) == (DatasetStatus.BUILDING, None)
    assert (after.status, after.version) == (DatasetStatus.READY, 1)
    assert (version.train_rows, version.kind, shares[-1]) == (9, "conversation", 1)
    train, _validation = versions.row_files(settings.datasets, version)
    assert len(train.read_bytes().splitlines()) == 9


def test_rebuild_is_rejected_while_dataset_is_being_read(
    engine: Engine, settings: Settings, large: int
) -> None:
    roles = {"prompt": ["prompt"], "completion": ["completion"]}
    mapping = Mapping(shape="prompt_completion", roles=roles, exclude=[1])

    with pytest.raises(ConflictError) as refused:
        dataset_builds.rebuild(engine, settings.datasets, large, mapping, Limits())

    assert refused.value.message == "large is already being read."


def test_dataset_fails_when_large_import_fails(engine: Engine, large: int) -> None:
    chore = asked(engine, large)
    with unit_of_work(engine) as db:
        found = tasks.get(db, chore.id or 0)
        with task_results.notify_on_end(db, found):
            tasks.fail_work(found, Failed(code="invalid", message="No row can be used.", hint=""))

    with read_session(engine) as db:
        assert datasets.get(db, large).status is DatasetStatus.FAILED


def test_cancelled_rebuild_keeps_dataset_ready(
    engine: Engine, settings: Settings, large: int
) -> None:
    finish(engine, settings, large)
    roles = {"prompt": ["prompt"], "completion": ["completion"]}
    mapping = Mapping(shape="prompt_completion", roles=roles, exclude=[1])
    dataset_builds.rebuild(engine, settings.datasets, large, mapping, Limits())
    with unit_of_work(engine) as db:
        task_results.cancel(db, asked(engine, large).id or 0)

    with read_session(engine) as db:
        found = datasets.get(db, large)
    assert (found.status, found.version) == (DatasetStatus.READY, 1)


def test_invalid_mapping_is_rejected_before_reading_large_file(
    engine: Engine, settings: Settings, large: int
) -> None:
    finish(engine, settings, large)
    mapping = Mapping(shape="text", roles={"text": ["gone"]})

    with pytest.raises(InvalidError) as refused:
        dataset_builds.rebuild(engine, settings.datasets, large, mapping, Limits())

    assert refused.value.param == "roles.text"


@pytest.mark.parametrize(
    ("size", "name", "is_large"),
    [
        (MAX_REQUEST_BYTES, "a.jsonl", False),
        (MAX_REQUEST_BYTES + 1, "a.jsonl", True),
        (MAX_REQUEST_BYTES // 4, "a.jsonl.gz", True),
        (1000, "a.zip", False),
    ],
)
def test_compressed_file_counts_as_larger(size: int, name: str, is_large: bool) -> None:  # noqa: FBT001 -- a case
    assert dataset_builds.is_large(size, name) is is_large


ROWS = b"".join(b'{"prompt": "%d?", "completion": "%d."}\n' % (i, i) for i in range(9))
NO_TIME = Limits(at_once_seconds=0)


def bring_slow(engine: Engine, settings: Settings, content: bytes = ROWS, **more: Any) -> int:  # noqa: ANN401 -- of `Upload`
    """Bring a small file that takes longer than an answer may. Return the data set's id."""
    path = settings.datasets / ".arrived"
    path.write_bytes(content)
    upload = Upload(path=path, filename="slow.jsonl", limits=NO_TIME, **more)
    with unit_of_work(engine) as db:
        return dataset_builds.import_file(db, settings.datasets, upload).id or 0


def test_slow_file_is_imported_by_task(engine: Engine, settings: Settings) -> None:
    slow = bring_slow(engine, settings)
    with read_session(engine) as db:
        before = datasets.get(db, slow)
    finish(engine, settings, slow)

    with read_session(engine) as db:
        after, version = datasets.get(db, slow), versions.get(db, slow, 1)
    assert (before.status, before.format, before.detected) == ("building", "jsonl", {})
    assert (after.status, after.version, version.train_rows) == ("ready", 1, 9)
    assert after.detected["mapping"]["shape"] == "prompt_completion"


def test_slow_draft_stays_draft_after_inspection_task(engine: Engine, settings: Settings) -> None:
    slow = bring_slow(engine, settings, is_draft=True)
    finish(engine, settings, slow)

    with read_session(engine) as db:
        draft = datasets.get(db, slow)
    assert (draft.status, draft.version) == (DatasetStatus.DRAFT, None)
    assert draft.detected["mapping"]["shape"] == "prompt_completion"


def test_draft_without_usable_columns_stays_draft(engine: Engine, settings: Settings) -> None:
    slow = bring_slow(engine, settings, b'{"a": 1}\n', is_draft=True)
    finish(engine, settings, slow)

    with read_session(engine) as db:
        draft = datasets.get(db, slow)
    assert (draft.status, draft.detected) == (DatasetStatus.DRAFT, {})


def test_slow_rebuild_is_done_by_task(engine: Engine, settings: Settings) -> None:
    slow = bring_slow(engine, settings)
    finish(engine, settings, slow)
    roles = {"prompt": ["prompt"], "completion": ["completion"]}
    mapping = Mapping(shape="prompt_completion", roles=roles, exclude=[1])

    made = dataset_builds.rebuild(engine, settings.datasets, slow, mapping, NO_TIME)
    shutil.rmtree(tasks.task_dir(settings.tasks, asked(engine, slow)).root, ignore_errors=True)
    finish(engine, settings, slow)

    assert (made.version, made.chore is not None) == (None, True)
    with read_session(engine) as db:
        assert versions.get(db, slow, 2).train_rows == 8


def test_import_task_rejects_file_with_too_many_columns(engine: Engine, settings: Settings) -> None:
    wide = json.dumps(dict.fromkeys(map(str, range(2000)), 1))
    slow = bring_slow(engine, settings, wide.encode())

    with pytest.raises(TooLargeError, match="The file has 2,000 columns; the limit is 1,000"):
        finish(engine, settings, slow)


def test_large_validation_file_is_imported_by_task(engine: Engine, settings: Settings) -> None:
    path, held = settings.datasets / ".arrived", settings.datasets / ".held"
    path.write_bytes(ROWS)
    held.write_bytes(ROWS + BLANK)
    upload = Upload(path=path, filename="a.jsonl", validation=held, validation_filename="b.jsonl")
    with unit_of_work(engine) as db:
        made = dataset_builds.import_file(db, settings.datasets, upload)

    assert made.status is DatasetStatus.BUILDING
    finish(engine, settings, made.id or 0)
    with read_session(engine) as db:
        version = versions.get(db, made.id or 0, 1)
    assert (version.train_rows, version.validation_rows) == (9, 9)
