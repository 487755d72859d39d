"""Find the studio's URL and token: from arguments, the environment, or this machine."""

from pathlib import Path

import httpx2
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

TOKEN_FILE = "api_token"  # noqa: S105 -- a file's name
"""The token file in the home of a studio on this machine, for programs of its owner."""

_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class ClientSettings(BaseSettings):
    """Read from `STUDIO_URL`, `STUDIO_TOKEN` and `STUDIO_HOME`."""

    model_config = SettingsConfigDict(env_prefix="STUDIO_", frozen=True, extra="ignore")

    url: str = "http://127.0.0.1:8000"
    token: SecretStr = SecretStr("")
    home: Path = Field(default_factory=lambda: Path.home() / ".mantissa-studio")

    @property
    def base_url(self) -> str:
        return f"{self.url.rstrip('/')}/api/v1"

    @property
    def is_local(self) -> bool:
        """Whether the studio is on this machine, so that proxies are ignored."""
        return httpx2.URL(self.url).host in _LOOPBACK_HOSTS

    @property
    def headers(self) -> dict[str, str]:
        token = self.token.get_secret_value() or self._local_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _local_token(self) -> str:
        # Never send the token of this machine to another studio.
        path = self.home / TOKEN_FILE
        if not self.is_local or not path.is_file():
            return ""
        return path.read_text(encoding="utf-8").strip()


def resolve_settings(url: str | None, token: str | None) -> ClientSettings:
    """Return the URL and token of the studio; None is replaced by the environment's value."""
    overrides = {"url": url, "token": token}
    return ClientSettings.model_validate(
        ClientSettings().model_dump()
        | {name: value for name, value in overrides.items() if value is not None}
    )
