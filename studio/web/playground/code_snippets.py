"""A question of the playground as code that asks the same: curl, and OpenAI's client."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pprint import pformat
from typing import Any

from studio.web.http.api_access import ApiAccess


@dataclass(frozen=True, slots=True)
class QuestionCode:
    """What a model is asked, by its name in the API, and where the API is."""

    access: ApiAccess
    base_url: str
    """Of the API, up to /v1."""
    body: Mapping[str, Any]
    """As the API takes it. Images are left out of the code: a line of it would be megabytes."""

    @property
    def shown_body(self) -> Mapping[str, Any]:
        """The body with a short text in the place of each image."""
        shown: Mapping[str, Any] = _without_images(self.body)
        return shown

    @property
    def has_images(self) -> bool:
        return self.shown_body != self.body

    @property
    def curl(self) -> str:
        # JSON strings do not span lines, so no line can be the heredoc's bare delimiter.
        body = json.dumps(self.shown_body, indent=2, ensure_ascii=False)
        return (
            f"curl --fail-with-body {shlex.quote(self._url)} \\\n{self.access.curl_lines}"
            "  --header 'Content-Type: application/json' --data @- <<'JSON'\n"
            f"{body}\nJSON\n"
        )

    @property
    def openai(self) -> str:
        arguments = "".join(
            f"    {name}={self._indented(value)},\n" for name, value in self.shown_body.items()
        )
        method = "chat.completions.create" if self._is_chat else "completions.create"
        answer = "message.content" if self._is_chat else "text"
        if "tools" in self.body:
            answer = "message"
        return (
            f"{self.access.python_imports}from openai import OpenAI\n\n"
            f"client = OpenAI(base_url={self.base_url!r}, "
            f"api_key={self.access.python_token})\n"
            f"answer = client.{method}(\n{arguments})\n"
            f"print(answer.choices[0].{answer})\n"
        )

    @staticmethod
    def _indented(value: Any) -> str:  # noqa: ANN401 -- any JSON
        return pformat(value, sort_dicts=False, width=84).replace("\n", "\n    ")

    @property
    def _url(self) -> str:
        path = "chat/completions" if self._is_chat else "completions"
        return f"{self.base_url.rstrip('/')}/{path}"

    @property
    def _is_chat(self) -> bool:
        return "messages" in self.body


def _without_images(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    if isinstance(value, list):
        return [_without_images(one) for one in value]
    if not isinstance(value, dict):
        return value
    if str(value.get("url", "")).startswith("data:"):
        return {**value, "url": str(value["url"]).partition(",")[0] + ",…"}
    return {name: _without_images(one) for name, one in value.items()}
