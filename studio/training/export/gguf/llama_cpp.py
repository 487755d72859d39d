"""Ask llama.cpp about a GGUF file, if its bindings (`xllamacpp`) are installed.

llama.cpp is what people will run the file with. It runs in a process of its own, because it ends
the process when it cannot read a file: `python -m studio.training.export.gguf.llama_cpp FILE`.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

JsonObject = dict[str, Any]

_SECONDS = 900
_MAX_NUMBERS = 2**20
"""How many log-probabilities llama.cpp is asked for: each time one for each token it knows."""
MAX_POSITIONS = 32


class Question(BaseModel):
    """What llama.cpp is asked."""

    ids: list[int]
    """Tokens whose loss is measured."""
    vocabulary: int
    texts: list[str]
    """Texts whose tokens are counted."""
    messages: list[dict[str, str]]
    """A conversation that it continues."""
    context: int


class Answer(BaseModel):
    """What llama.cpp says."""

    losses: list[float]
    """Of each token after the first; fewer for a large vocabulary."""
    counts: list[int]
    """How many tokens each text has, with those that are added."""
    answer: str


def is_installed() -> bool:
    return find_spec("xllamacpp") is not None


def ask(file: Path, question: Question) -> Answer | None:
    """Ask about a file. None if llama.cpp cannot read it, or takes too long."""
    command = [sys.executable, "-m", __name__, str(file)]
    try:
        done = subprocess.run(  # noqa: S603 -- our own module  # nosec B603
            command,
            input=question.model_dump_json().encode(),
            stdout=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    _log, marker, last = done.stdout.decode("utf-8", "replace").rpartition(_MARKER)
    return Answer.model_validate_json(last) if marker and done.returncode == 0 else None


_MARKER = "\nanswer of llama.cpp: "


def main(file: Path) -> None:
    """Answer the question on standard input."""
    import xllamacpp  # noqa: PLC0415 -- optional dependency

    question = Question.model_validate_json(sys.stdin.buffer.read())
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.warmup = question.context, 1, False
    params.use_jinja = True
    server = xllamacpp.Server(params)
    most = max(2, min(MAX_POSITIONS, _MAX_NUMBERS // question.vocabulary))
    losses = [
        _loss(server, question.ids[:i], question.ids[i], question.vocabulary)
        for i in range(1, min(len(question.ids), most))
    ]
    answer = Answer(
        losses=losses,
        counts=[_complete(server, text, 0)["usage"]["prompt_tokens"] for text in question.texts],
        answer=_chat(server, question.messages) if question.messages else "",
    )
    print(_MARKER + answer.model_dump_json(), end="", flush=True)  # noqa: T201 -- the protocol


def _loss(server: Any, before: list[int], token: int, vocabulary: int) -> float:  # noqa: ANN401 -- untyped
    told = _complete(server, before, vocabulary)
    likely = told["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return next(-float(one["logprob"]) for one in likely if one["id"] == token)


def _complete(server: Any, prompt: str | list[int], n_probs: int) -> JsonObject:  # noqa: ANN401 -- untyped
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0.0, "n_probs": n_probs}
    return _read(server.handle_completions(body | {"cache_prompt": True}))


def _chat(server: Any, messages: list[dict[str, str]]) -> str:  # noqa: ANN401 -- upstream is untyped
    body = {"messages": messages, "temperature": 0.0, "max_tokens": 64}
    told = _read(server.handle_chat_completions(body))
    return str(told["choices"][0]["message"]["content"])


def _read(answer: str | JsonObject) -> JsonObject:
    read: JsonObject = json.loads(answer) if isinstance(answer, str) else answer
    return read


if __name__ == "__main__":
    main(Path(sys.argv[1]))
