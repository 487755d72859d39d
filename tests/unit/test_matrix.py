"""When tests of the matrix are due: a changed line of code counts, a changed docstring does not."""

from pathlib import Path

import pytest

from tests.tools import matrix
from tests.tools.matrix import CODE, Fingerprints

MODULE = '"""A module."""\n\nLIMIT = 3\n"""How many."""\n\n\ndef get() -> int:\n    return LIMIT\n'
TEST = 'import pytest\n\n@pytest.mark.matrix("README.md")\ndef test_it() -> None: ...\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with one module in each place, whose whole matrix has passed."""
    for name in CODE:
        path = tmp_path / name if name.endswith((".py", ".txt")) else tmp_path / name / "module.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE if path.suffix == ".py" else "torch==2.13.0\n", "utf-8")
    (tmp_path / "README.md").write_text("# A project\n", "utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TEST, "utf-8")
    Fingerprints(tmp_path).write()
    return tmp_path


def changed(project: Path) -> set[str]:
    return Fingerprints(project).changed(matrix.dependencies(project))


def test_nothing_is_due_after_it_passed(project: Path) -> None:
    assert changed(project) == set()


def test_everything_is_due_before_it_ever_passed(project: Path) -> None:
    (project / matrix.RECORD).unlink()

    assert changed(project) == {*CODE, "README.md", "tests/test_it.py"}


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
def test_words_and_layout_do_not_count(project: Path, old: str, new: str) -> None:
    path = project / "studio" / "training" / "module.py"
    path.write_text(MODULE.replace(old, new), "utf-8")

    assert path.read_text("utf-8") != MODULE
    assert changed(project) == set()


@pytest.mark.parametrize(("old", "new"), [("3", "4"), ("return LIMIT", "return -LIMIT")])
def test_code_counts(project: Path, old: str, new: str) -> None:
    path = project / "studio" / "training" / "module.py"
    path.write_text(MODULE.replace(old, new), "utf-8")

    assert changed(project) == {"studio/training"}


def test_a_new_file_a_name_and_a_pin_count(project: Path) -> None:
    (project / "studio" / "methods" / "new.py").write_text("", "utf-8")
    old = project / "studio" / "runner" / "module.py"
    old.rename(old.with_name("renamed.py"))
    (project / "constraints.txt").write_text("torch==2.14.0\n", "utf-8")

    assert changed(project) == {"studio/methods", "studio/runner", "constraints.txt"}


def test_the_test_and_what_it_names_count(project: Path) -> None:
    (project / "tests" / "test_it.py").write_text(TEST.replace("...", "assert True"), "utf-8")
    (project / "README.md").write_text("# Another\n", "utf-8")

    assert changed(project) == {"README.md", "tests/test_it.py"}


def test_what_was_never_recorded_is_due(project: Path) -> None:
    (project / "LICENSE").write_text("Yours.\n", "utf-8")

    assert Fingerprints(project).changed(["LICENSE", "README.md"]) == {"LICENSE"}


def test_what_has_gone_is_an_error(project: Path) -> None:
    (project / "README.md").unlink()

    with pytest.raises(FileNotFoundError):
        changed(project)


def test_all_that_the_matrix_depends_on_is_there() -> None:
    found = Fingerprints()

    assert {name: found.get(name) for name in matrix.CODE} == found.known
