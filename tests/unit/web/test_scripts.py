"""Texts that start a run where a token has to be shown: run as they stand, up to the sending."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.web.experiments.code_snippets import Submission
from studio.web.http.api_access import ApiAccess
from tests.support.factories import make_recipe

SECRET = "sft_1_secret"  # noqa: S105 -- opens nothing
SHOWN = f"Authorization: Bearer {SECRET}"


@pytest.fixture(params=["file", "variable"])
def submission(request: pytest.FixtureRequest, tmp_path: Path) -> Submission:
    file = tmp_path / "it's a token"
    file.write_text(SECRET + "\n")
    return Submission(
        access=ApiAccess("http://studio", file if request.param == "file" else "STUDIO_TOKEN"),
        name="x",
        notes="",
        parent="",
        recipe=make_recipe(),
        dataset_id=1,
    )


def test_curl_command_sends_token(submission: Submission, tmp_path: Path) -> None:
    curl = tmp_path / "curl"
    curl.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    curl.chmod(0o755)
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "STUDIO_TOKEN": SECRET}

    ran = subprocess.run(
        ["/bin/sh", "-c", submission.curl], env=paths, capture_output=True, text=True, check=True
    )

    assert SHOWN in ran.stdout.splitlines()


def test_python_script_sends_token(submission: Submission) -> None:
    program = submission.python.partition("with urlopen")[0] + (
        "print(json.dumps(dict(request.header_items())))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"STUDIO_TOKEN": SECRET},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(ran.stdout)["Authorization"] == f"Bearer {SECRET}"


def test_openai_script_uses_token(submission: Submission) -> None:
    program = submission.openai.partition("job = ")[0] + "print(client.api_key)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"STUDIO_TOKEN": SECRET},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == SECRET
