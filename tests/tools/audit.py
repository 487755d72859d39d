"""What could be wrong with the code and with what it stands on: `python -m tests.tools.audit`.

Looks for holes in our code (bandit) and in the versions we pin (pip-audit), and writes what the
studio is made of to test-results/sbom.json (CycloneDX); with the word `sbom`, does only the last.
Fails on a finding, and not where the service that knows cannot be reached: then it says so.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SBOM = ROOT / "test-results" / "sbom.json"

IN_CODE = (*("-m", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", "studio"),)
IN_PINS = (
    *("-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip"),
    *("--format", "json", "--progress-spinner", "off", "--timeout", "10"),
)
MADE_OF = (
    *("-W", "ignore", "-m", "cyclonedx_py", "requirements", "constraints.txt"),
    *("--pyproject", "pyproject.toml", "--output-reproducible", "--output-format", "JSON"),
)


def run_command(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, *command]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)


def audit_code() -> tuple[str, int]:
    """Return what bandit says of our code, and the exit code."""
    done = run_command(IN_CODE)
    found = (done.stdout + done.stderr).strip()
    return (found, 1) if done.returncode else ("No holes were found in our code.", 0)


def audit_pins() -> tuple[str, int]:
    """Return what is known of the versions we pin, and the exit code."""
    done = run_command(IN_PINS)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"The pinned packages were not looked up: {last[:300]}", 0
    return report(found)


def report(found: list[dict[str, Any]]) -> tuple[str, int]:
    """Return what to say of what was found, and the exit code."""
    looked = [one for one in found if "vulns" in one]
    holes = [
        f"{one['name']} {one['version']}: {hole['id']}, mended in "
        f"{', '.join(hole['fix_versions']) or 'no version yet'}"
        for one in looked
        for hole in one["vulns"]
    ]
    words = f"{len(looked)} of {len(found)} pinned packages were looked up, {len(holes)} holes."
    if not looked:
        words += " The service that knows of holes could not be reached: nothing was proved."
    return "\n".join([words, *holes]), int(bool(holes))


def sbom(*, is_held_to_schema: bool) -> str:
    """Return what the studio is made of, as JSON; to hold it to CycloneDX's schema takes seconds.

    Raises:
        CalledProcessError: the pins cannot be read.

    """
    done = run_command(MADE_OF if is_held_to_schema else (*MADE_OF, "--no-validate"))
    done.check_returncode()
    return done.stdout


def main(*, only_sbom: bool) -> int:
    said = [] if only_sbom else [audit_code(), audit_pins()]
    SBOM.parent.mkdir(exist_ok=True)
    SBOM.write_text(sbom(is_held_to_schema=True), encoding="utf-8")
    where = SBOM.relative_to(ROOT).as_posix()
    words = [*(words for words, _code in said), f"What the studio is made of: {where}"]
    sys.stdout.write("\n".join([*words, ""]))
    return max((code for _words, code in said), default=0)


if __name__ == "__main__":
    sys.exit(main(only_sbom="sbom" in sys.argv[1:]))
