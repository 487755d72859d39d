"""What the person who runs the studio may set, each by `STUDIO_<NAME>` in the environment."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names by which a machine reaches itself."""


class Settings(BaseSettings):
    """Read once at a process's door and handed down; no module reads the environment."""

    model_config = SettingsConfigDict(env_prefix="STUDIO_", frozen=True, populate_by_name=True)

    home: Path = Path.home() / ".mantissa-studio"
    """Where the database, data sets, models and runs are kept."""

    slots: int | None = None
    """How many runs may train at once; by default one for each GPU, or one. A run trains on one GPU
    however many slots it takes, and runs beyond the number of GPUs share the first."""

    stop_grace_seconds: float = 60
    """How long a cancelled run may take to save and leave before it is killed."""

    save_grace_seconds: float = 600
    """How long a run that is to pause or to keep what it learnt may take to save it."""

    hang_seconds: float = 1800
    """How long a run may say nothing before it is taken for hung: longer than any step of yours."""

    run_memory_bytes: int | None = None
    """The memory of this machine that one run may have; by default no less than there is. A control
    group of its own holds it to that where the worker may make one, else RLIMIT_DATA."""

    on_stop: Literal["leave", "drain"] = "leave"
    """What a worker does with its runs when it is told to end: leave them training for the next
    worker to find, or have each write a checkpoint and wait in the queue."""

    answer_idle_seconds: float = 300
    """How long a model that was asked something stays loaded for the next question."""

    warm_launcher: bool = True
    """Whether to keep the training packages loaded, so that runs start at once. Linux only."""

    upload_limit_bytes: int = 4 * 2**30
    """The largest file that may be uploaded."""

    import_folders: Annotated[tuple[Path, ...], NoDecode] = ()
    """Folders of this machine from which people may take data, parted by colons; none by default.
    Whoever can open the studio can read them."""

    s3_endpoint: str = ""
    """Where S3 or what is compatible is, as in https://minio.example.org; empty is Amazon's own."""

    s3_key: SecretStr = SecretStr("")
    """The access key that data is read from S3 with. Read rights are enough."""

    s3_secret: SecretStr = SecretStr("")
    """The secret that belongs to the key."""

    line_limit_bytes: int = 10 * 2**20
    """The longest line of a data set; a longer one is a broken file."""

    allowed_hosts: str = "localhost,127.0.0.1,[::1]"
    """Names this studio answers to, parted by commas. Others are refused (DNS rebinding)."""

    sign_in: Literal["link", "accounts", "none"] = "link"
    """Who is let in: whoever opens a link that the studio prints when it starts; people with an
    account; or everybody, which is only for a machine of one's own."""

    trusted_proxies: str = ""
    """Addresses and networks of proxies, parted by commas, that are believed where a request came
    from; whatever anybody else says of that is not heard."""

    proxy_user_header: str = ""
    """The header in which such a proxy names who has signed in there, as X-Forwarded-User. It must
    take away what visitors send under this name. Only with accounts."""

    new_people: Literal["", "viewer", "member"] = ""
    """What somebody may do whom a proxy names for the first time; by default, nothing: only people
    with an account get in."""

    audit_days: int = Field(default=90, ge=1)
    """How long it is kept who changed what."""

    public_url: str = ""
    """Where people reach this studio, as in https://studio.example.org: messages link to it."""

    webhook_url: SecretStr = SecretStr("")
    """Where to post what became of a run. Kept secret: many services put a password into it."""

    webhook_secret: SecretStr = SecretStr("")
    """Signs what is posted, in the way of Standard Webhooks: 24 to 64 bytes in base64, which may
    begin with whsec_."""

    smtp_url: SecretStr = SecretStr("")
    """The mail server, as in smtp://name:password@mail.example.org:587; smtps:// for port 465."""

    notify_email: str = ""
    """Who gets a mail about what became of a run; several addresses are parted by commas."""

    hub_endpoint: str = Field(
        default="https://huggingface.co",
        validation_alias=AliasChoices("STUDIO_HUB_ENDPOINT", "HF_ENDPOINT"),
    )
    """Where models are searched and downloaded: the Hugging Face hub, or a mirror of it."""

    hub_token: SecretStr = Field(
        default=SecretStr(""), validation_alias=AliasChoices("STUDIO_HUB_TOKEN", "HF_TOKEN")
    )
    """Says who you are to the hub, for gated and private models. Read rights are enough."""

    secret_key: SecretStr = SecretStr("")
    """Locks the secrets that were given on a page, in place of the file secret_key: 32 characters
    or more, as from openssl rand -base64 32."""

    oidc_issuer: str = ""
    """Who signs people in besides, by OpenID Connect, as in https://login.example.org/realms/us.
    Only with accounts."""

    oidc_client_id: str = ""
    """By what name the studio is known there."""

    oidc_client_secret: SecretStr = SecretStr("")
    """The secret that belongs to it; none for a public client."""

    oidc_groups: str = ""
    """What members of groups there may do here, as in ml-admins=administrator,ml=member. Whoever is
    in one gets an account, and the highest role of all that fit at each visit."""

    development: bool = False
    """Whether to show /style, the page of everything that pages are made of."""

    allow_internal_addresses: bool = False
    """Whether webhooks and downloads may go to this machine and its network, which is refused
    otherwise."""

    @field_validator("import_folders", mode="before")
    @classmethod
    def _split_folders(cls, folders: object) -> object:
        return folders.split(os.pathsep) if isinstance(folders, str) and folders else folders or ()

    @field_validator("home")
    @classmethod
    def _make_absolute(cls, home: Path) -> Path:
        # Other processes, with other working folders, are told of paths in it.
        return home.expanduser().absolute()

    @property
    def database(self) -> Path:
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
    def uploads(self) -> Path:
        """Where large files arrive, in as many parts as it takes."""
        return self.home / "uploads"

    @property
    def cache(self) -> Path:
        """What may be deleted at any time: it only saves making it again."""
        return self.home / "cache"

    @property
    def api_token(self) -> Path:
        """What programs of the same user show when they ask for something."""
        return self.home / "api_token"

    @property
    def secret_file(self) -> Path:
        """What locks the secrets in the database, unless `secret_key` does."""
        return self.home / "secret_key"

    @property
    def environment(self) -> dict[str, str]:
        """What another process has to find in its environment to read the same settings.

        Secrets are not among them: see `revealed`.
        """
        hidden = {*SECRETS, "secret_key"}
        told = self.model_dump(exclude_defaults=True, exclude=hidden) | {"home": self.home}
        return {_variable_name(name): _to_environment_text(value) for name, value in told.items()}

    def secret_environment(self, names: Iterable[str]) -> dict[str, str]:
        """Return some secrets as a process that needs them finds them in its environment."""
        found = {name: self.secret_value(name) for name in names}
        return {_variable_name(name): value for name, value in found.items() if value}

    def secret_value(self, name: str) -> str:
        """Return what a secret is; nothing where it is not set."""
        secret: SecretStr = getattr(self, name)
        return secret.get_secret_value()


def _to_environment_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return os.pathsep.join(str(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _variable_name(name: str) -> str:
    return f"STUDIO_{name.upper()}"


SECRETS = tuple(
    name
    for name, field in Settings.model_fields.items()
    if field.annotation is SecretStr and name != "secret_key"
)
"""The settings that are secret, and may be given on a page, too."""

_SECRET_VARIABLES = frozenset(
    {
        *map(_variable_name, SECRETS),
        _variable_name("secret_key"),
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    }
)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that needs none of the studio's secrets."""
    # Settings are read without regard to small and large letters.
    return {
        name: value for name, value in environment.items() if name.upper() not in _SECRET_VARIABLES
    }
