"""What `make audit` says: holes fail it, silence is no proof, and ours is the code without any."""

import json

import pytest

from tests.tools.audit import ROOT, audit_code, report, sbom

SOUND = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "It could not be asked."}
HOLE = {"name": "c", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}


def test_vulnerable_package_is_reported_and_fails_audit() -> None:
    assert report([SOUND, HOLE]) == (
        "2 of 2 pinned packages were looked up, 1 holes.\nc 1: CVE-1, mended in 2",
        1,
    )


def test_skipped_packages_are_not_reported_as_safe() -> None:
    words, code = report([SKIPPED])

    assert (words.startswith("0 of 1"), "nothing was proved" in words, code) == (True, True, 0)


@pytest.mark.slow
def test_static_analysis_finds_no_vulnerability_in_our_code() -> None:
    pytest.importorskip("bandit")

    assert audit_code() == ("No holes were found in our code.", 0)


def test_sbom_lists_every_pinned_package() -> None:
    pytest.importorskip("cyclonedx_py")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()

    made_of = json.loads(sbom(is_held_to_schema=False))["components"]

    named = {f"{one['name'].lower()}=={one['version']}" for one in made_of}
    assert named == {pin for pin in pins if "==" in pin}
