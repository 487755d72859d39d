"""The operator's settings, each set by `STUDIO_<NAME>` in the environment."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

TrackerName = Literal["csv", "tensorboard", "mlflow", "wandb", "trackio"]
"""What runs can be sent to: see `studio.trackers.table`."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
"""Host names of the loopback interface."""


class Settings(BaseSettings):
    """Read once when a process starts and passed down; no other module reads the environment."""

    model_config = SettingsConfigDict(env_prefix="STUDIO_", frozen=True, populate_by_name=True)

    home: Path = Path.home() / ".mantissa-studio"
    """Folder of the database, datasets, models and runs."""

    database: SecretStr = SecretStr("")
    """A PostgreSQL database for everything but files, such as postgresql://user:password@host/name;
    by default, an SQLite file in the home. A secret, because it holds a password."""

    slots: int | None = None
    """How many runs may train at once; by default one per GPU, or one. A run trains on one GPU
    however many slots it takes; runs beyond the number of GPUs share the first GPU."""

    launcher: Literal["local", "slurm", "ray"] = "local"
    """Where runs train: on the worker's machine (`local`), or as jobs of a Slurm or Ray cluster
    whose machines see the home under the same path. There, `slots` is how many runs are given to
    the cluster at once, 4 by default."""

    job_gpus: int = Field(default=1, ge=0)
    """How many GPUs the cluster is asked for with each run; 0 for runs on processors."""

    job_python: str = ""
    """The Python of the cluster's machines, with the studio installed; by default, the path of the
    worker's own."""

    slurm_options: str = ""
    """More options for sbatch, such as --partition=gpu --time=2-0 --cpus-per-task=8."""

    ray_address: str = ""
    """The dashboard of the Ray cluster, such as http://ray-head:8265."""

    ray_token: SecretStr = SecretStr("")
    """The token of the Ray cluster, which lets its owner run any code there."""

    ray_options: str = ""
    """More fields for jobs of Ray as JSON, such as {"entrypoint_resources": {"H100": 1}}."""

    stop_grace_seconds: float = 60
    """How long a cancelled run may take to save and exit before it is killed."""

    save_grace_seconds: float = 600
    """How long a run may take to save when you pause it or keep its model."""

    hang_seconds: float = 1800
    """How long a run may report nothing before it counts as hung: longer than your longest step."""

    run_memory_bytes: int | None = None
    """Memory limit of one run; by default, all memory of this machine. Enforced by a cgroup if the
    worker may create one, otherwise by RLIMIT_DATA."""

    on_stop: Literal["leave", "drain"] = "leave"
    """What happens to runs when a worker stops: `leave` lets them train until the next worker takes
    over; `drain` has each save a checkpoint and return to the queue."""

    answer_idle_seconds: float = 300
    """How long a model stays loaded after its last answer."""

    llama_server: str = "llama-server"
    """llama.cpp's server, which serves GGUF files: a path, or a name to look up in PATH."""

    vllm: str = "vllm"
    """vLLM's command, which serves models on a GPU: a path, or a name to look up in PATH."""

    endpoint_wait_seconds: float = Field(default=300, gt=0)
    """How long a request to an endpoint waits until the endpoint has started."""

    evaluate_runs: bool = True
    """Whether finished models are evaluated as their recipes say. `false` leaves it to people."""

    warm_launcher: bool = True
    """Whether to keep the training packages loaded so that runs start immediately. Linux only."""

    warm_launcher_idle_seconds: float = Field(default=600, gt=0)
    """How long they stay loaded after the last run, and after the process that shows tokens, which
    the form of a new experiment starts, has ended. They come back with the next of either."""

    llama_quantize: Path | None = None
    """llama.cpp's program `llama-quantize`, which exports to GGUF in less than 8 bits need; by
    default, the one on PATH."""

    upload_limit_bytes: int = 4 * 2**30
    """The maximum size of an uploaded file."""

    import_folders: Annotated[tuple[Path, ...], NoDecode] = ()
    """Folders on this machine that users may import data from, separated by colons; none by
    default. Everyone who can open the studio can read them."""

    s3_endpoint: str = ""
    """URL of an S3-compatible service, such as https://minio.example.org; empty means Amazon S3."""

    s3_key: SecretStr = SecretStr("")
    """The access key for reading data from S3. Read permission is enough."""

    s3_secret: SecretStr = SecretStr("")
    """The secret access key that belongs to `s3_key`."""

    line_limit_bytes: int = 10 * 2**20
    """The longest line allowed in a dataset; files with longer lines are rejected."""

    image_limit_bytes: int = 20 * 2**20
    """The maximum size of an image in a dataset; rows with larger images are left out."""

    image_limit_pixels: int = Field(default=50_000_000, ge=1, le=89_000_000)
    """The maximum number of pixels of an image in a dataset or in a question to a model: width
    times height."""

    images_limit_bytes: int = 20 * 2**30
    """The maximum size of all images of a dataset."""

    images_per_question: int = Field(default=20, ge=0)
    """How many images a question to a model may have, with those of earlier messages."""

    image_bytes_per_question: int = Field(default=20 * 2**20, ge=0, le=64 * 2**20)
    """The maximum size of all images of a question to a model."""

    allowed_hosts: str = "localhost,127.0.0.1,[::1]"
    """Host names of this studio, separated by commas. Other names are rejected, to prevent DNS
    rebinding."""

    sign_in: Literal["link", "accounts", "none"] = "link"
    """Who may sign in: anyone with the link that the studio prints at startup (`link`), users with
    an account (`accounts`), or everyone (`none`; only on a machine that you alone use)."""

    trusted_proxies: str = ""
    """Addresses and networks of trusted proxies, separated by commas. Only their forwarding headers
    are used to determine where a request came from."""

    proxy_user_header: str = ""
    """The header in which a trusted proxy names the signed-in user, such as X-Forwarded-User. The
    proxy must remove this header from incoming requests. Only with accounts."""

    new_people: Literal["", "viewer", "member"] = ""
    """The role of a new user named by a proxy or by OpenID Connect; by default none: only users
    with an account can sign in."""

    audit_days: int = Field(default=90, ge=1)
    """How many days to keep the audit log."""

    public_url: str = ""
    """The URL where users reach this studio, such as https://studio.example.org. Used for links in
    notifications."""

    webhook_url: SecretStr = SecretStr("")
    """Where to post the outcome of runs. A secret, because many services put a password in it."""

    webhook_secret: SecretStr = SecretStr("")
    """Signs webhooks as defined by Standard Webhooks: 24 to 64 bytes in base64, optionally with the
    prefix whsec_."""

    smtp_url: SecretStr = SecretStr("")
    """The mail server, such as smtp://name:password@mail.example.org:587; smtps:// for port 465."""

    notify_email: str = ""
    """Who gets an email about the outcome of runs; separate several addresses with commas."""

    hub_endpoint: str = Field(
        default="https://huggingface.co",
        validation_alias=AliasChoices("STUDIO_HUB_ENDPOINT", "HF_ENDPOINT"),
    )
    """Where to search and download models: the Hugging Face hub or a mirror."""

    hub_token: SecretStr = Field(
        default=SecretStr(""), validation_alias=AliasChoices("STUDIO_HUB_TOKEN", "HF_TOKEN")
    )
    """Your access token for gated and private models on the hub. Read permission is enough."""

    judge_url: str = ""
    """Where a judge of answers can be asked: an address that speaks OpenAI's API, such as
    https://api.openai.com/v1. Prompts and answers of evaluations are sent there on request."""

    judge_model: str = ""
    """The name of the judge's model at that address."""

    judge_key: SecretStr = SecretStr("")
    """The judge's API key; empty if it needs none."""

    endpoints: SecretStr = SecretStr("")
    """Models behind addresses that speak OpenAI's API, which people can ask in the playground: a
    JSON list such as [{"name": "large", "url": "https://api.openai.com/v1", "model": "gpt-5",
    "key": "…"}]. A secret, because it holds keys."""

    trackers: Annotated[tuple[TrackerName, ...], NoDecode] = ()
    """Where every new run sends its metrics, separated by commas: csv, tensorboard, mlflow, wandb,
    trackio. By default nowhere; a run's page offers all of them at any time."""

    mlflow_url: str = ""
    """The MLflow server, such as https://mlflow.example.org. By default, a database in the studio's
    folder."""

    mlflow_key: SecretStr = SecretStr("")
    """What the MLflow server asks for: an access token, or a name and password as name:password."""

    wandb_url: str = ""
    """Your own Weights & Biases server; by default the public one."""

    wandb_key: SecretStr = SecretStr("")
    """Your API key at Weights & Biases. Without it, runs are written to the studio's folder, and
    `wandb sync` uploads them."""

    wandb_entity: str = ""
    """The team that owns runs at Weights & Biases; by default your own."""

    python_graders: Literal["sealed", "trusted", "off"] = "sealed"
    """Whether programs that grade answers run: only where the kernel can seal them (`sealed`), also
    where it cannot (`trusted`; only on a machine that you alone use), or never (`off`)."""

    secret_key: SecretStr = SecretStr("")
    """Encrypts the secrets set on the Settings page, instead of the file secret_key: 32 characters
    or more, for example from openssl rand -base64 32."""

    oidc_issuer: str = ""
    """The OpenID Connect issuer for single sign-on, such as https://login.example.org/realms/us.
    Only with accounts."""

    oidc_client_id: str = ""
    """The client ID of the studio at the issuer."""

    oidc_client_secret: SecretStr = SecretStr("")
    """The client secret; empty for a public client."""

    oidc_groups: str = ""
    """Roles for groups of the issuer, such as ml-admins=administrator,ml=member. A user in a listed
    group gets an account and, at each sign-in, the highest role that matches."""

    development: bool = False
    """Whether to show /style, the page with all design elements."""

    allow_internal_addresses: bool = False
    """Whether webhooks and downloads may connect to this machine and its network."""

    @field_validator("import_folders", mode="before")
    @classmethod
    def _split_folders(cls, folders: object) -> object:
        return folders.split(os.pathsep) if isinstance(folders, str) and folders else folders or ()

    @field_validator("trackers", mode="before")
    @classmethod
    def _split_trackers(cls, names: object) -> object:
        # Other processes get them with colons between them, as all lists.
        return re.findall(r"[^,:\s]+", names) if isinstance(names, str) else names

    @field_validator("home")
    @classmethod
    def _make_absolute(cls, home: Path) -> Path:
        # Other processes with other working directories get paths inside it.
        return home.expanduser().absolute()

    @property
    def database_file(self) -> Path:
        """The SQLite file, unless `database` is set."""
        return self.home / "studio.db"

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def datasets(self) -> Path:
        return self.home / "datasets"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def tasks(self) -> Path:
        return self.home / "chores"

    @property
    def endpoint_logs(self) -> Path:
        """The output of the programs that serve models."""
        return self.home / "endpoints"

    @property
    def uploads(self) -> Path:
        """Where large files are stored while their parts arrive."""
        return self.home / "uploads"

    @property
    def trackers_folder(self) -> Path:
        """Where trackers keep runs that they do not send to a server."""
        return self.home / "trackers"

    def tracker_url(self, name: str) -> str:
        """Return the address of a tracker's server; empty if it has none."""
        return {"mlflow": self.mlflow_url, "wandb": self.wandb_url}.get(name, "")

    @property
    def cache(self) -> Path:
        """Files that can be rebuilt, so you may delete them at any time."""
        return self.home / "cache"

    @property
    def api_token(self) -> Path:
        """The file with the API token for programs of the same user."""
        return self.home / "api_token"

    @property
    def secret_file(self) -> Path:
        """The key that encrypts the secrets in the database, unless `secret_key` is set."""
        return self.home / "secret_key"

    @property
    def id_file(self) -> Path:
        """Where the home keeps its ID, if its database is on a server."""
        return self.home / "home_id"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that give another process the same settings.

        Secrets are excluded: see `secret_environment`.
        """
        hidden = {*SECRETS, *_OPERATORS_SECRETS}
        values = self.model_dump(exclude_defaults=True, exclude=hidden) | {"home": self.home}
        return {_variable_name(name): _to_environment_text(value) for name, value in values.items()}

    def secret_environment(self, names: Iterable[str]) -> dict[str, str]:
        """Return the named secrets as environment variables, without those that are not set."""
        values = {name: self.secret_value(name) for name in names}
        return {_variable_name(name): value for name, value in values.items() if value}

    def secret_value(self, name: str) -> str:
        """Return the value of a secret; empty if it is not set."""
        secret: SecretStr = getattr(self, name)
        return secret.get_secret_value()


def _to_environment_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return os.pathsep.join(str(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _variable_name(name: str) -> str:
    return f"STUDIO_{name.upper()}"


_OPERATORS_SECRETS = ("database", "secret_key", "ray_token")
"""What gives access to the other secrets, and so is not stored among them."""

SECRETS = tuple(
    name
    for name, field in Settings.model_fields.items()
    if field.annotation is SecretStr and name not in _OPERATORS_SECRETS
)
"""The secret settings, which can also be set on a page."""

_SECRET_VARIABLES = frozenset(
    {
        *map(_variable_name, (*SECRETS, *_OPERATORS_SECRETS)),
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    }
)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the studio's secrets."""
    # Settings are case-insensitive.
    return {
        name: value for name, value in environment.items() if name.upper() not in _SECRET_VARIABLES
    }
