"""How a program on this page's machine reaches the API: the code that shows its token."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from studio.settings import Settings


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the studio is, and what opens it."""

    address: str
    token: Path | str = ""
    """A file that holds the API token, an environment variable that does, or empty."""

    @property
    def root(self) -> str:
        """The URL of the studio without a slash at its end."""
        return self.address.rstrip("/")

    @property
    def curl_lines(self) -> str:
        """Lines of a curl command that send the token."""
        if not self.token:
            return ""
        is_file = isinstance(self.token, Path)
        token_text = f"$(cat {shlex.quote(str(self.token))})" if is_file else f"${self.token}"
        return f'  --header "Authorization: Bearer {token_text}" \\\n'

    @property
    def python_imports(self) -> str:
        """The import lines that `python_token` needs."""
        if not self.token:
            return ""
        return "from pathlib import Path\n" if isinstance(self.token, Path) else "import os\n"

    @property
    def python_token(self) -> str:
        """An expression for the token; OpenAI's client needs one also where there is none."""
        if not self.token:
            return "'local'"
        read = f"Path({str(self.token)!r}).read_text().strip()"
        return read if isinstance(self.token, Path) else f"os.environ[{self.token!r}]"


def access_for(settings: Settings, address: str) -> ApiAccess:
    """Return how to reach the studio. Programs on the same machine read the token from the home."""
    token_variable = "STUDIO_TOKEN" if settings.sign_in == "accounts" else ""
    token = settings.api_token if settings.sign_in == "link" else token_variable
    return ApiAccess(address, token)
