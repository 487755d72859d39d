"""A Ray cluster, by its Jobs API: plain HTTP, so that Ray is not in the studio's environment."""

import json
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx2

from studio.errors import InvalidError
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.worker.launchers.jobs.engine import (
    EngineAwayError,
    EngineJob,
    JobRefusedError,
    JobRequest,
    JobState,
    decode_exit,
)

OLDEST = (2, 60)
"""The oldest version of Ray that is supported."""

_SECONDS = 20.0
"""How long a request may take."""

_STATES = {"PENDING": JobState.WAITING, "RUNNING": JobState.RUNNING}
"""All other states are ends."""

_REASON_LENGTH = 300
"""A failed job's message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    address: str
    """Of the dashboard, such as http://ray-head:8265."""
    token: str = field(default="", repr=False)
    gpus: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """The operator's own fields of a job."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of jobs, which everyone who can reach Ray can read."""
    title: str = "Ray"

    def check(self) -> None:
        """Check the address, the token and Ray's version.

        Raises:
            StudioError: one of them is wrong; the message says which.

        """
        if not self.address:
            raise InvalidError(
                "Runs are to train on Ray, but no address is set.",
                hint="Set STUDIO_RAY_ADDRESS to its dashboard, such as http://ray-head:8265.",
            )
        try:
            with self._connect() as client:
                version = str(self._ask(client, "GET", "/api/version").json()["ray_version"])
        except (KeyError, TypeError, ValueError):
            raise InvalidError(
                f"{self.address} is not the dashboard of a Ray cluster.",
                hint="Correct STUDIO_RAY_ADDRESS.",
            ) from None
        if parse_version(version) < OLDEST:
            raise InvalidError(
                f"The cluster runs Ray {version}.", hint="Update it to Ray 2.60 or later."
            )

    def find(self, names: Collection[str]) -> Mapping[str, EngineJob]:
        with self._connect() as client:
            answers = {name: self._ask(client, "GET", f"/api/jobs/{name}") for name in names}
        return {
            name: parse_job(answer.json())
            for name, answer in answers.items()
            if answer.status_code != HTTPStatus.NOT_FOUND
        }

    def submit(self, request: JobRequest) -> None:
        body: dict[str, Any] = {"entrypoint_num_gpus": self.gpus} if self.gpus else {}
        body |= self.options
        body |= {
            "entrypoint": f"exec {shlex.join(request.command)}",
            "submission_id": request.name,
            "runtime_env": _merge_environment(self.options, self.environment),
        }
        with self._connect() as client:
            answer = self._ask(client, "POST", "/api/jobs/", body)
        if answer.is_success or "already exists" in answer.text:
            return
        raise JobRefusedError(
            f"Ray refuses the job: {_last_line(answer.text)}",
            hint="Ask your operator to check STUDIO_RAY_OPTIONS.",
        )

    def cancel(self, name: str, *, only_waiting: bool = False) -> None:  # noqa: ARG002 -- Ray asks first
        with self._connect() as client:
            self._ask(client, "POST", f"/api/jobs/{name}/stop")

    def _connect(self) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx2.Client(headers=headers, timeout=_SECONDS, trust_env=False)

    def _ask(
        self, client: httpx2.Client, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx2.Response:
        """Send a request, and return an answer of Ray's own: done, unknown or refused.

        Raises:
            InvalidError: the address is not one.
            EngineAwayError: there is no such answer.

        """
        try:
            answer = client.request(method, self.address.rstrip("/") + path, json=body)
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise EngineAwayError(
                f"Ray does not answer at {self.address}: {reason}.",
                hint="Check that the cluster runs, and STUDIO_RAY_ADDRESS.",
            ) from error
        except httpx2.InvalidURL as error:
            raise InvalidError(f"STUDIO_RAY_ADDRESS is no address: {error}.") from error
        if answer.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise EngineAwayError(
                "Ray refuses the studio's token.", hint="Correct STUDIO_RAY_TOKEN."
            )
        # What the dashboard's agent refuses looks like an error of the dashboard.
        is_refused = "already exists" in answer.text or "status code 400" in answer.text
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR and not is_refused:
            raise EngineAwayError(f"Ray answered with an error: {_last_line(answer.text)}")
        return answer


def parse_version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version; zeros if it has none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parse_job(told: Mapping[str, Any]) -> EngineJob:
    """Return what Ray's answer says of a job."""
    status = str(told.get("status"))
    message = str(told.get("message") or "")
    if state := _STATES.get(status):
        return EngineJob(state, message[:_REASON_LENGTH] if state is JobState.WAITING else "")
    code = told.get("driver_exit_code")
    exit_code = decode_exit(code) if isinstance(code, int) and status != "STOPPED" else None
    return EngineJob(
        JobState.ENDED, f"{status}, {_last_line(message)}", ProcessExit(exit_code=exit_code)
    )


def parse_options(text: str) -> Mapping[str, Any]:
    """Return the operator's own fields of a job.

    Raises:
        InvalidError: they are not a JSON object.

    """
    try:
        options: Mapping[str, Any] = json.loads(text or "{}")
    except ValueError:
        options = []  # type: ignore[assignment] # refused below
    if not isinstance(options, dict):
        raise InvalidError(
            "STUDIO_RAY_OPTIONS is not a JSON object.",
            hint='Write it like {"entrypoint_resources": {"H100": 1}}.',
        )
    return options


def _merge_environment(
    options: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    runtime = dict(options.get("runtime_env") or {})
    return runtime | {"env_vars": dict(runtime.get("env_vars") or {}) | dict(environment)}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    return lines[-1][:_REASON_LENGTH].rstrip(".") + "."
