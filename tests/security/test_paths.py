"""Names and paths that lead elsewhere: no file is read, written or removed by what it is called."""

from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.db.session import read_session
from studio.errors import NotFoundError
from studio.recipe.base import Recipe
from studio.services.datasets import datasets
from studio.services.runs import artifacts, runs
from tests.security.raw_requests import Target, send_raw

pytestmark = pytest.mark.smoke

STEPS = st.sampled_from(
    ["..", ".", "", "....", "%2e%2e", "%252e%252e", "..%2f..", "..%5c..", "..\\..", "..;", "a"]
) | st.sampled_from(
    ["..\x00", "\u2025", "\uff0e\uff0e", "..%c0%af..", "C:", "C:\\Windows", "#", "?"]
)
GOALS = st.sampled_from(
    [
        "etc/passwd",
        "studio.db",
        "settings.py",
        "pyproject.toml",
        "recipe.yaml",
        "job.json",
        "log.txt",
    ]
)
PATHS = st.builds(
    lambda first, steps, joint, goal: first + joint.join([*steps, goal]),
    st.sampled_from(["", "/", "//", "\\", "adapter.json/", "file:///"]),
    st.lists(STEPS, min_size=1, max_size=8),
    st.sampled_from(["/", "\\", "%2f", "//", "/./"]),
    GOALS,
)
ROOTS = st.sampled_from(
    ["/api/v1/runs/1/artifacts/", "/api/v1/runs/1/exports/1/files/", "/static/", "/static/css/"]
) | st.sampled_from(["/v1/files/", "/help/knobs/", "/datasets/1/versions/1/"])


@settings(max_examples=20, deadline=None)
@given(root=ROOTS, path=PATHS)
def test_path_traversal_in_url_is_rejected(place: Target, root: str, path: str) -> None:
    for one in (path, unquote(path), unquote(unquote(path))):
        answer = send_raw(place, root + one)

        assert (answer.status // 100, b"root:" in answer.body) == (4, False)


@pytest.mark.parametrize("path", ["model#/../../etc/passwd", "a;/../b", "a\x00b", "/p"])
def test_artifact_path_with_truncating_characters_is_not_found(place: Target, path: str) -> None:
    assert send_raw(place, f"/api/v1/runs/1/artifacts/{path}").status == 404


def test_run_artifact_can_be_downloaded(place: Target) -> None:
    assert send_raw(place, "/api/v1/runs/1/artifacts/adapter.json").body == b"{}"


def test_symlinks_in_run_files_are_not_followed(tmp_path: Path) -> None:
    outside, files = tmp_path / "outside", tmp_path / "artifacts"
    outside.mkdir()
    files.mkdir()
    (outside / "secret").write_text("hush")
    (files / "file").symlink_to(outside / "secret")
    (files / "folder").symlink_to(outside, target_is_directory=True)

    assert artifacts.list_files(files) == []
    for name in ("file", "folder/secret"):
        with pytest.raises(NotFoundError):
            artifacts.find_file(files, name)


@settings(max_examples=40, deadline=None)
@given(
    noun=st.sampled_from(["runs", "datasets", "models", "experiments", "sweeps"]),
    number=st.sampled_from(["..", ".", "*", "%", "0", "-1", "1e0", "0x1", "\u0661", "1 or 1=1"])
    | st.text(min_size=1, max_size=20).filter(lambda text: not text.isdecimal()),
)
def test_delete_with_invalid_id_removes_nothing(place: Target, noun: str, number: str) -> None:
    kept = sorted(place.settings.home.rglob("*.json*"))
    path = f"/api/v1/{noun}/{number}".encode("utf-8", "replace").decode()

    # Only a question mark is redirected: to a list, which nothing removes either.
    assert send_raw(place, path, method="DELETE").status // 100 in {3, 4}
    assert sorted(place.settings.home.rglob("*.json*")) == kept


NAMES = (
    st.sampled_from(
        ["x; touch p", "$(id)", "`id`", "--output_dir=/etc", "--upload-pack=x", "..", ".", "CON"]
    )
    | st.sampled_from(
        [
            "../../x",
            "/etc/x",
            "C:\\x",
            "abc\n",
            "a\x00b",
            "\u202egnp.exe",
            "a\u200bb",
            "é",
            "e\u0301",
        ]
    )
) | st.text(min_size=1, max_size=300)


@settings(max_examples=40, deadline=None)
@given(name=NAMES)
def test_run_name_never_becomes_path(place: Target, name: str) -> None:
    """What is stored of a run is found by its number; its recipe travels in a file."""
    body = {"name": name, "recipe": {"base_model": "starter", "dataset": "starter"}}
    try:
        answer = place.client.post("/api/v1/runs", json=body)
    except UnicodeEncodeError:
        return  # No client can say it.

    assert answer.status_code in {201, 422}
    assert [one.name for one in place.settings.runs.iterdir()] == ["1"]
    if answer.status_code == 201:
        with read_session(place.engine) as db:
            assert runs.get(db, answer.json()["id"]).name == answer.json()["name"]


@pytest.mark.parametrize("field", ["base_model", "dataset"])
@pytest.mark.parametrize("value", ["--upload-pack=x", "x; touch p", "../../etc", "$(id)"])
def test_unknown_model_or_dataset_name_is_rejected(place: Target, field: str, value: str) -> None:
    recipe = {"base_model": "starter", "dataset": "starter"} | {field: value}
    answer = place.client.post("/api/v1/runs", json={"name": "x", "recipe": recipe})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, field)


@settings(max_examples=50, deadline=None)
@given(
    filename=st.text(max_size=400)
    | st.builds("{}{}".format, PATHS, st.sampled_from(["", "\x00", "\n.csv", "\u202e"]))
    | st.just("a" * 5000)
)
def test_uploaded_file_name_is_sanitised(filename: str) -> None:
    shown = datasets.clean_filename(filename)

    assert len(shown) <= 255
    assert not {"/", "\\", "\x00", "\n", "\u202e"} & set(shown)
    assert shown.encode().decode() == shown


@pytest.mark.parametrize("asked", ["path", "output_dir", "target", "trust_remote_code"])
def test_export_rejects_target_path_in_request(place: Target, asked: str) -> None:
    body = {"dtype": "bfloat16", asked: "/root/.ssh/authorized_keys"}
    answer = place.client.post("/api/v1/runs/1/exports", json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, asked)


def test_recipe_has_no_output_path_fields() -> None:
    sections = [field.annotation for field in Recipe.model_fields.values()]
    names = {*Recipe.model_fields}
    names |= {one for each in sections for one in getattr(each, "model_fields", {})}

    assert names & {"output_dir", "logging_dir", "trust_remote_code", "push_to_hub"} == set()
