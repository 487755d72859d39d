"""A question of the playground as code that asks the same: curl, and OpenAI's client."""

import json
import shlex
from dataclasses import dataclass
from pprint import pformat
from typing import Any

from studio.web.chat.answer_stream import PromptRequest
from studio.web.http.api_access import ApiAccess


@dataclass(frozen=True, slots=True)
class QuestionCode:
    """What a model is asked, by its name in the API."""

    access: ApiAccess
    model: str
    asked: PromptRequest

    @property
    def curl(self) -> str:
        # JSON strings do not span lines, so no line can be the heredoc's bare delimiter.
        body = json.dumps(self._body, indent=2, ensure_ascii=False)
        return (
            f"curl --fail-with-body {shlex.quote(self._url)} \\\n{self.access.curl_lines}"
            "  --header 'Content-Type: application/json' --data @- <<'JSON'\n"
            f"{body}\nJSON\n"
        )

    @property
    def openai(self) -> str:
        arguments = "".join(
            f"    {name}={self._indented(value)},\n" for name, value in self._body.items()
        )
        method = "completions.create" if self.asked.is_text else "chat.completions.create"
        answer = "text" if self.asked.is_text else "message.content"
        return (
            f"{self.access.python_imports}from openai import OpenAI\n\n"
            f"client = OpenAI(base_url={self.access.root + '/v1'!r}, "
            f"api_key={self.access.python_token})\n"
            f"answer = client.{method}(\n{arguments})\n"
            f"print(answer.choices[0].{answer})\n"
        )

    @staticmethod
    def _indented(value: Any) -> str:  # noqa: ANN401 -- any JSON
        return pformat(value, sort_dicts=False, width=84).replace("\n", "\n    ")

    @property
    def _url(self) -> str:
        path = "completions" if self.asked.is_text else "chat/completions"
        return f"{self.access.root}/v1/{path}"

    @property
    def _body(self) -> dict[str, Any]:
        asked = self.asked
        prompt = {"prompt": asked.messages[-1].content}
        messages = {"messages": [message.model_dump() for message in asked.messages]}
        optional = {"stop": asked.stop, "seed": asked.seed}
        return {
            "model": self.model,
            **(prompt if asked.is_text else messages),
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "max_tokens": asked.max_tokens,
            **{name: value for name, value in optional.items() if value not in (None, [])},
        }
