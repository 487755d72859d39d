"""Why a run failed, from its database rows and its log."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, select

from studio import failure_codes
from studio.db.states import RunStatus
from studio.db.tables import Attempt, Run, RunEvent
from studio.failure_codes import FailureCode
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.services.runs import artifacts, fixes
from studio.services.runs.fixes import Fix
from studio.services.tasks import exit_diagnosis

TAIL_LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    kind: FailureCode
    message: str
    """The cause in one sentence."""
    hint: str
    phase: str
    """What the run was doing: loading, training, saving."""
    step: int
    attempt: int
    """The failed attempt, counted from 1; 0 if there was none."""
    exit_code: int | None
    """None if it could not be observed; negative for a signal."""
    signal: str
    """The signal that ended the process; empty if none did."""
    facts: dict[str, int]

    @property
    def ending(self) -> str:
        """How the process ended, as text."""
        if self.signal:
            return f"signal {self.signal}"
        return "not known" if self.exit_code is None else f"exit code {self.exit_code}"


def explain(db: Session, run: Run) -> FailureReport | None:
    """Return why a run failed, or None if it has not failed."""
    if not run.error_code:
        return None
    query = select(RunEvent).where(
        RunEvent.run_id == run.id, RunEvent.kind == RunStatus.FAILED.value
    )
    newest = db.exec(query.order_by(col(RunEvent.id).desc()).limit(1)).first()
    details = newest.data if newest else {}
    attempt = details.get("attempt", run.attempt)
    attempt_query = select(Attempt).where(Attempt.run_id == run.id, Attempt.number == attempt)
    attempt_row = db.exec(attempt_query).first()
    code = attempt_row.exit_code if attempt_row else None
    return FailureReport(
        kind=failure_codes.failure_code(run.error_code),
        message=run.error_message,
        hint=run.error_hint,
        phase=details.get("phase", ""),
        step=details.get("step", run.step),
        attempt=attempt,
        exit_code=code,
        signal=exit_diagnosis.signal_name(code),
        facts=details.get("facts", {}),
    )


def log_tail(folder: RunDir) -> list[str]:
    return artifacts.read_log(folder.log, None, TAIL_LINES).lines


def list_fixes(db: Session, run: Run, report: FailureReport) -> list[Fix]:
    """Return recipe changes that may fix a failed run."""
    return fixes.list_fixes(db, report.kind.code, run.recipe, report.facts)


def render_markdown(run: Run, report: FailureReport, lines: Sequence[str]) -> str:
    """Return a bug report as Markdown: the cause, versions, recipe and end of the log."""
    versions = run.resolved.get("versions", {})
    package_versions = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(
        [
            f"## {report.message}",
            "",
            f"- Code: `{report.kind.code}`",
            f"- Run: {run.name} #{run.id}, attempt {report.attempt}",
            f"- Phase: {report.phase or 'not known'}, step {report.step}",
            f"- Process: {report.ending}",
            f"- Versions: {package_versions or 'unknown: it ended before its trainer was built'}",
            "",
            _fence("yaml", yaml.dump(run.recipe)),
            "",
            _fence("text", "\n".join(lines)),
            "",
        ]
    )


def _fence(language: str, text: str) -> str:
    """Fence a text with more backticks than any run of them it contains."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
