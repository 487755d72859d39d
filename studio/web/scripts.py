"""A form's recipe as text that starts the very same run: YAML, curl and Python."""

import json
import shlex
from dataclasses import dataclass
from pprint import pformat
from typing import Any

from studio.methods import AnyRecipe
from studio.recipe import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a form would start, and where."""

    address: str
    """Of the studio."""
    name: str
    notes: str
    parent: str
    """What it was made from, as `run:12`; or nothing."""
    recipe: AnyRecipe

    @property
    def yaml(self) -> str:
        """What `studio train` reads."""
        command = f"studio train recipe.yaml --name {shlex.quote(self.name)}"
        return f"# {command}\n{yaml.dump(self.recipe)}"

    @property
    def curl(self) -> str:
        # No line of JSON is the bare word that ends the document: strings keep to one line.
        return (
            f"curl --fail-with-body {shlex.quote(self._runs)} \\\n"
            "  --header 'Content-Type: application/json' --data @- <<'JSON'\n"
            f"{json.dumps(self._body, indent=2)}\nJSON\n"
        )

    @property
    def python(self) -> str:
        return (
            "import json\nfrom urllib.request import Request, urlopen\n\n"
            f"run = {pformat(self._body, sort_dicts=False, width=88)}\n"
            f"request = Request(\n    {self._runs!r},\n    json.dumps(run).encode(),\n"
            '    {"Content-Type": "application/json"},\n)\n'
            "with urlopen(request) as answer:\n"
            '    print("Run", json.load(answer)["id"])\n'
        )

    @property
    def _runs(self) -> str:
        return f"{self.address.rstrip('/')}/api/v1/runs"

    @property
    def _body(self) -> dict[str, Any]:
        about = {"notes": self.notes, "parent": self.parent}
        return {
            "name": self.name,
            **{key: value for key, value in about.items() if value},
            "recipe": self.recipe.model_dump(mode="json"),
        }
