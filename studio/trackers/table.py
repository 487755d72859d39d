"""The table of trackers: what each is called, what it needs, and where it writes."""

from dataclasses import dataclass
from importlib import metadata

from studio.errors import UnavailableError
from studio.settings import TrackerName


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    title: str
    distributions: tuple[str, ...] = ()
    """The packages of which one must be installed; empty if the studio needs none."""
    install: str = ""
    """The command that installs it; by default the studio's extra of its name."""
    about: str
    """Where it writes, for display."""
    secret: str = ""
    """The secret setting with its key, if it has one."""

    @property
    def is_installed(self) -> bool:
        return not self.distributions or any(map(_is_installed, self.distributions))


TRACKERS: dict[TrackerName, Tracker] = {
    "csv": Tracker(
        title="CSV files",
        about="One table of metrics that grows while the run trains, in the studio's folder.",
    ),
    "tensorboard": Tracker(
        title="TensorBoard",
        distributions=("tensorboard",),
        about="Event files in the studio's folder.",
    ),
    "mlflow": Tracker(
        title="MLflow",
        distributions=("mlflow-skinny", "mlflow"),
        about="The server at STUDIO_MLFLOW_URL, or else a database in the studio's folder.",
        secret="mlflow_key",  # noqa: S106 -- the name of a setting  # nosec B106
    ),
    "wandb": Tracker(
        title="Weights & Biases",
        distributions=("wandb",),
        about="The server, if the secret wandb_key is set. Otherwise files in the studio's folder "
        "that you can upload later.",
        secret="wandb_key",  # noqa: S106 -- the name of a setting  # nosec B106
    ),
    "trackio": Tracker(
        title="Trackio",
        distributions=("trackio",),
        # It needs an older pillow than the studio, but works with ours.
        install="pip install brotli gradio-client httpx orjson && pip install --no-deps trackio",
        about="A database in the studio's folder.",
    ),
}
"""All trackers. The module of the same name in `studio.trackers` writes to each."""

SECRETS = tuple(tracker.secret for tracker in TRACKERS.values() if tracker.secret)
"""The secret settings that trackers need."""


def install_command(name: TrackerName) -> str:
    """Return the command that installs what a tracker needs."""
    return TRACKERS[name].install or f'pip install "mantissa-studio[{name}]"'


def require_installed(name: TrackerName) -> None:
    """Check that a tracker can be used.

    Raises:
        UnavailableError: Its package is not installed.

    """
    tracker = TRACKERS[name]
    if not tracker.is_installed:
        raise UnavailableError(
            f"{tracker.title} needs a package that is not installed: {tracker.distributions[0]}.",
            hint=f"Install it: {install_command(name)}",
        )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
