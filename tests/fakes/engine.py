"""An engine of a cluster that plays Slurm or Ray with processes of this machine."""

import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.worker.launchers.jobs.engine import (
    EngineAwayError,
    EngineJob,
    JobRefusedError,
    JobRequest,
    JobState,
)


@dataclass(slots=True)
class PlayedEngine:
    title: str = "Engine"
    is_away: bool = False
    is_full: bool = False
    """Whether jobs wait for others."""
    refusal: str = ""
    is_blind: bool = False
    """Whether it calls jobs running that have ended, as after a machine's death."""
    has_forgotten: bool = False
    """Whether it knows no job any more."""
    questions: int = 0
    """How often it was asked for jobs."""
    waiting: dict[str, JobRequest] = field(default_factory=dict)
    jobs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    requests: dict[str, JobRequest] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)

    def check(self) -> None:
        self._answer()

    def find(self, names: Collection[str]) -> Mapping[str, EngineJob]:
        self._answer()
        self.questions += 1
        if not self.is_full:
            for name in list(self.waiting):
                self.start(self.waiting.pop(name))
        if self.has_forgotten:
            return {}
        waiting = {name: EngineJob(JobState.WAITING, "Resources") for name in self.waiting}
        found = {name: self._look(job) for name, job in self.jobs.items()}
        return {name: job for name, job in (waiting | found).items() if name in names}

    def submit(self, request: JobRequest) -> None:
        self._answer()
        if self.refusal:
            raise JobRefusedError(self.refusal)
        self.submitted.append(request.name)
        self.requests[request.name] = request
        if self.is_full:
            self.waiting[request.name] = request
        else:
            self.start(request)

    def cancel(self, name: str, *, only_waiting: bool = False) -> None:
        self._answer()
        self.waiting.pop(name, None)
        if not only_waiting and name in self.jobs:
            self.jobs[name].kill()

    def end(self) -> None:
        for job in self.started:
            job.kill()
            job.wait()

    def start(self, request: JobRequest) -> None:
        with request.log.open("ab") as log:
            job = subprocess.Popen(request.command, stdout=log, stderr=log, start_new_session=True)
        self.jobs[request.name] = job
        self.started.append(job)

    def _look(self, job: subprocess.Popen[bytes]) -> EngineJob:
        code = job.poll()
        if code is None or self.is_blind:
            return EngineJob(JobState.RUNNING)
        return EngineJob(JobState.ENDED, "it ended", ProcessExit(exit_code=code))

    def _answer(self) -> None:
        if self.is_away:
            raise EngineAwayError("The engine does not answer.")
