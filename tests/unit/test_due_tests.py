"""When tests are due: a changed line of code counts, a changed docstring does not."""

from itertools import chain
from pathlib import Path

import pytest

from tests.tools import due_tests
from tests.tools.due_tests import (
    ANYTHING,
    APART,
    BESIDE,
    COMMON,
    LANGUAGES,
    ROOT,
    SHARED,
    SUITES,
    Fingerprints,
)

MODULE = '"""A module."""\n\nLIMIT = 3\n"""How many."""\n\n\ndef get() -> int:\n    return LIMIT\n'
TEST = "def test_it() -> None: ...\n"
TEST_FILE = "tests/openai/test_it.py"
ANSWERS = "studio/runner/inference"
EVERYTHING = {
    *COMMON,
    *BESIDE,
    *LANGUAGES,
    *ANYTHING,
    *chain(*SUITES.values()),
    "tests/conftest.py",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with one module in each place and one slow test; all tests have passed."""
    for name in {*EVERYTHING, *SHARED}:
        is_file = name.endswith((".py", ".txt", ".md"))
        path = tmp_path / name if is_file else tmp_path / name / "module.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE if path.suffix == ".py" else "torch==2.13.0\n", "utf-8")
    (tmp_path / TEST_FILE).parent.mkdir(parents=True)
    (tmp_path / TEST_FILE).write_text(TEST, "utf-8")
    Fingerprints(tmp_path).write()
    return tmp_path


def changed(project: Path) -> set[str]:
    return Fingerprints(project).changed(due_tests.dependencies(project))


def test_nothing_is_due_after_passing(project: Path) -> None:
    assert changed(project) == set()


def test_everything_is_due_without_record(project: Path) -> None:
    (project / due_tests.RECORD).unlink()

    shared = {f"{folder}/module.py" for folder in SHARED}
    assert changed(project) == {*EVERYTHING, *shared, TEST_FILE}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A module.", "Another sentence."),
        ("How many.", "At most so many."),
        ("LIMIT = 3", "LIMIT = 3  # enough"),
        ("LIMIT = 3", "\nLIMIT=(3)"),
        ("-> int:\n", '-> int:\n    """Return it."""\n'),
    ],
)
def test_comment_and_layout_changes_are_ignored(project: Path, old: str, new: str) -> None:
    path = project / "studio" / "training" / "module.py"
    path.write_text(MODULE.replace(old, new), "utf-8")

    assert path.read_text("utf-8") != MODULE
    assert changed(project) == set()


@pytest.mark.parametrize(("old", "new"), [("3", "4"), ("return LIMIT", "return -LIMIT")])
def test_code_change_counts_as_changed(project: Path, old: str, new: str) -> None:
    path = project / "studio" / "training" / "module.py"
    path.write_text(MODULE.replace(old, new), "utf-8")

    assert changed(project) == {"studio", "studio/training"}


def test_new_renamed_and_pinned_files_count_as_changed(project: Path) -> None:
    (project / "studio" / "methods" / "new.py").write_text("", "utf-8")
    old = project / "studio" / "runner" / "module.py"
    old.rename(old.with_name("renamed.py"))
    (project / "constraints.txt").write_text("torch==2.14.0\n", "utf-8")

    assert changed(project) == {"studio", "studio/methods", "studio/runner", "constraints.txt"}


def test_pins_of_benchmarks_are_apart(project: Path) -> None:
    pins = project / "constraints.txt"
    pins.write_text(f"{pins.read_text('utf-8')}{APART}\nlm_eval==0.4.13\n", "utf-8")

    assert changed(project) == set()


def test_changed_test_file_counts_as_changed(project: Path) -> None:
    (project / TEST_FILE).write_text(TEST.replace("...", "assert True"), "utf-8")

    assert changed(project) == {TEST_FILE}


def test_unrecorded_file_counts_as_changed(project: Path) -> None:
    (project / "LICENSE").write_text("Yours.\n", "utf-8")

    assert Fingerprints(project).changed(["LICENSE", "constraints.txt"]) == {"LICENSE"}


def test_tests_of_training_depend_on_answers_only_if_they_name_them(
    project: Path, request: pytest.FixtureRequest
) -> None:
    (project / ANSWERS / "module.py").write_text("LIMIT = 4\n", "utf-8")
    needs = {
        name: due_tests.depends_on(slow_test(request, f"tests/{name}.py"))
        for name in (
            "training/runs/test_classification",
            "training/runs/test_runs",
            "worker/test_loop",
        )
    }

    assert changed(project) == {ANSWERS}
    assert {name: ANSWERS in found for name, found in needs.items()} == {
        "training/runs/test_classification": True,
        "training/runs/test_runs": False,
        "worker/test_loop": True,
    }


def test_code_of_exports_is_no_part_of_the_code_of_training(
    project: Path, request: pytest.FixtureRequest
) -> None:
    exports = "studio/training/export"
    (project / exports / "module.py").write_text("LIMIT = 4\n", "utf-8")
    found = {
        name: exports in due_tests.depends_on(slow_test(request, f"tests/training/{name}.py"))
        for name in ("export/test_export", "models/test_loftq", "memory/test_memory")
    }

    assert changed(project) == {exports}
    assert found == {
        "export/test_export": True,
        "models/test_loftq": True,
        "memory/test_memory": False,
    }


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("studio/web/settings", {"site/test_navigation", "site/test_pages"}),
        ("studio/training/export", {"runs/test_report"}),
        ("studio/runner/judges", {"site/test_navigation", "site/test_pages", "runs/test_report"}),
    ],
)
def test_tests_in_a_browser_depend_on_what_they_name(
    code: str, expected: set[str], request: pytest.FixtureRequest
) -> None:
    found = {
        name
        for name in ("site/test_navigation", "site/test_pages", "runs/test_report")
        if code in due_tests.depends_on(slow_test(request, f"tests/e2e/{name}.py"))
    }

    assert found == expected


def test_tests_in_a_browser_do_not_depend_on_how_models_are_trained(
    request: pytest.FixtureRequest,
) -> None:
    needs = due_tests.depends_on(slow_test(request, "tests/e2e/runs/test_run_page.py"))

    assert needs & {*COMMON} == {*COMMON} - {"studio/training", "studio/runner"}


def test_tests_of_training_depend_on_no_page(request: pytest.FixtureRequest) -> None:
    needs = due_tests.depends_on(slow_test(request, "tests/training/memory/test_memory.py"))

    assert not any(name.startswith("studio/web") for name in needs)


@pytest.mark.parametrize(("name", "expected"), [("navigation", True), ("connection", False)])
def test_tests_in_a_browser_depend_on_translations_only_if_they_name_a_language(
    name: str,
    expected: bool,  # noqa: FBT001 -- a case
    request: pytest.FixtureRequest,
) -> None:
    needs = due_tests.depends_on(slow_test(request, f"tests/e2e/site/test_{name}.py"))

    assert (LANGUAGES[0] in needs) == expected


def test_modules_that_a_test_imports_count(request: pytest.FixtureRequest) -> None:
    needs = due_tests.depends_on(slow_test(request, "tests/training/runs/test_token_models.py"))

    own = {name for name in needs if name.startswith("tests/training/")}
    assert own >= {
        "tests/training/conftest.py",
        "tests/training/tiny.py",
        "tests/training/checkpoints/resumed_runs.py",
        "tests/training/runs/test_encoders.py",
        "tests/training/runs/test_token_models.py",
    }
    assert "tests/training/models/mixed_answers.py" not in own


@pytest.mark.parametrize(
    ("test", "named", "unnamed"),
    [
        ("worker/test_tasks", {"fakes/runner", "fakes/task", "support/waiting"}, "fakes/exporter"),
        ("worker/test_loop", {"fakes/inference_service", "fakes/runner"}, "support/presses"),
        ("e2e/site/test_pages", {"support/pages", "fakes/hub_server"}, "fakes/s3_signature"),
    ],
    ids=["started", "served", "in a browser"],
)
def test_shared_modules_count_where_they_are_named(
    test: str, named: set[str], unnamed: str, request: pytest.FixtureRequest
) -> None:
    needs = due_tests.depends_on(slow_test(request, f"tests/{test}.py"))

    assert needs >= {f"tests/{name}.py" for name in named}
    assert f"tests/{unnamed}.py" not in needs


def slow_test(request: pytest.FixtureRequest, path: str) -> pytest.Item:
    return make_test(request, path, "slow")


def test_missing_file_raises_error(project: Path) -> None:
    (project / "constraints.txt").unlink()

    with pytest.raises(FileNotFoundError):
        changed(project)


def test_all_suite_dependencies_exist() -> None:
    found = Fingerprints()

    assert all(found.get(name) for name in due_tests.dependencies(ROOT))


def make_test(request: pytest.FixtureRequest, path: str, *marks: str) -> pytest.Item:
    module = pytest.Module.from_parent(request.session, path=ROOT / path)
    item = pytest.Function.from_parent(module, name="test", callobj=lambda: None)
    for mark in marks:
        item.add_marker(mark)
    return item


def test_slow_tests_depend_on_code_but_smoke_tests_always_run(
    request: pytest.FixtureRequest,
) -> None:
    path = "tests/openai/test_clients.py"
    items = {mark: make_test(request, path, mark) for mark in ("slow", "faults")}
    items["smoke"] = make_test(request, path, "slow", "smoke")

    needs = due_tests.depends_on(items["slow"])
    beside = {name for name, one in BESIDE.items() if "tests/openai" not in one.suites}
    assert needs >= {*COMMON, *beside, *SUITES["tests/openai"], "tests/conftest.py"}
    assert {name for name in needs if name.startswith("tests/openai/")} == {
        f"tests/openai/{name}.py"
        for name in ("__init__", "client", "images", "test_clients", "vectors")
    }
    assert due_tests.depends_on(items["faults"]) == due_tests.depends_on(items["slow"])
    assert due_tests.depends_on(items["smoke"]) == set()


@pytest.mark.parametrize("suite", sorted({*SUITES} - {"tests/contract"}))
def test_quick_tests_of_suites_depend_on_the_whole_studio(
    suite: str, request: pytest.FixtureRequest
) -> None:
    path = min((ROOT / suite).rglob("test_*.py")).relative_to(ROOT).as_posix()

    assert due_tests.depends_on(make_test(request, path)) >= {*COMMON, *ANYTHING, path}


@pytest.mark.parametrize("path", ["contract/test_code_rules.py", "unit/test_due_tests.py"])
def test_quick_tests_of_code_always_run(path: str, request: pytest.FixtureRequest) -> None:
    assert due_tests.depends_on(make_test(request, f"tests/{path}")) == set()
