"""A form's recipe as code that starts the same run: YAML, curl, Python, OpenAI's client."""

import json
import re
import shlex
from dataclasses import dataclass
from pprint import pformat
from typing import Any

from studio.methods import AnyRecipe
from studio.recipe import yaml
from studio.web.http.api_access import ApiAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The run that a form would submit, and to which studio."""

    access: ApiAccess
    name: str
    notes: str
    parent: str
    """Its parent, as `run:12`, or empty."""
    recipe: AnyRecipe
    dataset_id: int

    @property
    def yaml(self) -> str:
        """The recipe as `studio train` reads it."""
        command = f"studio train recipe.yaml --name {shlex.quote(self.name)}"
        return f"# {command}\n{yaml.dump(self.recipe)}"

    @property
    def curl(self) -> str:
        # JSON strings do not span lines, so no line can be the heredoc's bare delimiter.
        return (
            f"curl --fail-with-body {shlex.quote(self._runs)} \\\n{self.access.curl_lines}"
            "  --header 'Content-Type: application/json' --data @- <<'JSON'\n"
            f"{json.dumps(self._body, indent=2)}\nJSON\n"
        )

    @property
    def python(self) -> str:
        return (
            f"import json\n{self.access.python_imports}"
            "from urllib.request import Request, urlopen\n\n"
            f"run = {pformat(self._body, sort_dicts=False, width=88)}\n"
            f"request = Request(\n    {self._runs!r},\n    json.dumps(run).encode(),\n"
            f'    {{"Content-Type": "application/json"{self._python_shows}}},\n)\n'
            "with urlopen(request) as answer:\n"
            '    print("Run", json.load(answer)["id"])\n'
        )

    @property
    def openai(self) -> str:
        """Code for OpenAI's own client. Its suffix must not contain some characters of a name."""
        suffix = re.sub(r"[:/\s]+", " ", self.name).strip()[:64].strip()
        suffix_line = f"    suffix={suffix!r},\n" if suffix else ""
        standard_fields = {"base_model", "dataset", "version", "method"}
        extra_body = {"x_studio": self.recipe.model_dump(mode="json", exclude=standard_fields)}
        extra = pformat(extra_body, sort_dicts=False, width=84).replace("\n", "\n    ")
        return (
            f"{self.access.python_imports}from openai import OpenAI\n\n"
            f"client = OpenAI(base_url={self.access.root + '/v1'!r}, "
            f"api_key={self.access.python_token})\n"
            "job = client.fine_tuning.jobs.create(\n"
            f"    model={self.recipe.base_model!r},\n"
            f"    training_file='file-{self.dataset_id}',\n"
            f"{suffix_line}    extra_body={extra},\n)\n"
            "print(job.id, job.status)\n"
        )

    @property
    def _python_shows(self) -> str:
        if not self.access.token:
            return ""
        return f', "Authorization": "Bearer " + {self.access.python_token}'

    @property
    def _runs(self) -> str:
        return f"{self.access.root}/api/v1/runs"

    @property
    def _body(self) -> dict[str, Any]:
        optional_fields = {"notes": self.notes, "parent": self.parent}
        return {
            "name": self.name,
            **{key: value for key, value in optional_fields.items() if value},
            "recipe": self.recipe.model_dump(mode="json"),
        }
