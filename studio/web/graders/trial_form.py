"""The fields of the graders page that say which answers are graded."""

from collections.abc import Mapping
from typing import Any, get_args

from studio.errors import InvalidError
from studio.protocols.tokenizer_service import TemplateSource
from studio.services.graders import trials
from studio.services.graders.trials import Source, TrialRequest

MAX_TEXT = 1_000_000
"""Characters of an answer."""


def bench_context() -> dict[str, Any]:
    """Return what `graders/_bench.html` needs on the page of an experiment: its model answers."""
    return {"asked": TrialRequest(dataset="", source="model"), "limits": trials}


def read(posted: Mapping[str, Any]) -> TrialRequest:
    """Return which answers are graded; the form of an experiment says which model gives them.

    Raises:
        InvalidError: a field is wrong.

    """
    fields = _group(posted, "trial")
    template = fields.get("chat_template") or _group(posted, "data").get("chat_template")
    return TrialRequest(
        dataset=_text(posted, "dataset")[:1000],
        rows=_number(fields, "rows", "Rows", trials.DEFAULT_ROWS, trials.MAX_ROWS),
        source=_choice(fields.get("source"), get_args(Source)),
        text=_text(fields, "text")[:MAX_TEXT],
        model=(_text(fields, "model") or _text(posted, "base_model"))[:1000],
        answers=_number(
            fields, "answers", "Answers a row", trials.DEFAULT_ANSWERS, trials.MAX_ANSWERS
        ),
        max_new_tokens=_number(
            fields,
            "max_new_tokens",
            "Longest answer",
            trials.DEFAULT_NEW_TOKENS,
            trials.MAX_NEW_TOKENS,
        ),
        chat_template=_choice(template, get_args(TemplateSource)),
    )


def _group(posted: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = posted.get(name, {})
    return group if isinstance(group, Mapping) else {}


def _text(posted: Mapping[str, Any], name: str) -> str:
    return str(posted.get(name, "")).replace("\r\n", "\n")


def _choice(chosen: object, choices: tuple[Any, ...]) -> Any:  # noqa: ANN401 -- a Literal
    if chosen and chosen not in choices:
        raise InvalidError(f"Choose one of {', '.join(choices)}.")
    return chosen or choices[0]


def _number(posted: Mapping[str, Any], name: str, label: str, default: int, most: int) -> int:
    text = str(posted.get(name) or default)
    if not (text.isdecimal() and text.isascii() and len(text) < 10 and 1 <= int(text) <= most):  # noqa: PLR2004 -- digits
        raise InvalidError(f"{label}: enter a whole number from 1 to {most:,}.", param=name)
    return int(text)
