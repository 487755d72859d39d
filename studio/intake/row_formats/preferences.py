"""Rows that say which answer is better, or whether one is good."""

from typing import Any

from studio.intake.problems import Code
from studio.intake.row_formats.cell_text import Cells, is_number, parsed, plain
from studio.intake.row_formats.conversations import listed, opened, pair, prompt
from studio.intake.row_formats.message_formats import holds_turns, spoken, transcript, turns
from studio.intake.row_formats.schema import (
    JudgedRow,
    PreferenceRow,
    Turn,
    UnusableRowError,
    answered,
    asked,
    said,
)
from studio.intake.row_formats.tool_calls import tools

_VERDICTS = {
    **dict.fromkeys(("true", "1", "1.0", "yes", "good", "desirable", "👍", "thumbs_up"), True),
    **dict.fromkeys(("false", "0", "0.0", "no", "bad", "undesirable", "👎", "thumbs_down"), False),
}
_TEXT_KEYS = ("text", "content", "value", "answer", "response", "completion", "output")
_SCORE_KEYS = ("score", "rating", "reward", "overall_score")
_PAIR = 2


def preference(cells: Cells, system: str) -> PreferenceRow:
    asking, offered = _prompt(cells)
    chosen = transcript(cells.raw("chosen")) or spoken(cells.raw("chosen"), "assistant")
    rejected = transcript(cells.raw("rejected")) or spoken(cells.raw("rejected"), "assistant")
    if chosen[0]["role"] != "assistant" or rejected[0]["role"] != "assistant":
        # The prompt stands inside both: what they share, up to where the answers begin.
        shared = _shared(chosen, rejected)
        asking, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    row = _compared(opened(cells, system, asking), chosen, rejected)
    given = tools(cells.raw("tools")) or offered
    return {**row, "tools": given} if given else row


def _prompt(cells: Cells) -> tuple[list[Turn], list[dict[str, Any]]]:
    """Return the prompt, and the tools that OpenAI keeps beside its turns."""
    raw = cells.raw("prompt")
    match parsed(raw):
        case {"messages": [*messages], **rest}:
            return turns(messages), tools(rest.get("tools"))
    if holds_turns(raw):
        return spoken(raw, "user"), []
    return [said("user", cells.text("prompt"))], []


def _shared(chosen: list[Turn], rejected: list[Turn]) -> int:
    most = min(len(chosen), len(rejected)) - 1
    return next((i for i in range(most) if chosen[i] != rejected[i]), most)


def _compared(asking: list[Turn], chosen: list[Turn], rejected: list[Turn]) -> PreferenceRow:
    messages = asked(asking)
    if answered(chosen) == answered(rejected):
        raise UnusableRowError(Code.EQUAL_ANSWERS)
    return {"messages": messages, "chosen": chosen, "rejected": rejected}


def ranked(cells: Cells, system: str) -> PreferenceRow:
    """Return the best and the worst of a list of answers, which is best first where unscored."""
    answers = parsed(cells.raw("answers"))
    if not isinstance(answers, list) or len(answers) < _PAIR:
        raise UnusableRowError(Code.FEW_ANSWERS)
    merits = _merits(cells, answers)
    best, worst = max(merits), min(merits)
    if best == worst:
        raise UnusableRowError(Code.EQUAL_ANSWERS)
    chosen, rejected = (_spoken(answers[merits.index(merit)]) for merit in (best, worst))
    return _compared(prompt(cells, system), chosen, rejected)


def _spoken(answer: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    if isinstance(answer, dict):
        answer = next((answer[key] for key in _TEXT_KEYS if answer.get(key) is not None), None)
    return spoken(answer, "assistant")


def _merits(cells: Cells, answers: list[Any]) -> list[float]:
    """Return how good each answer is; more is better."""
    scores, ranks = parsed(cells.raw("scores")), parsed(cells.raw("ranks"))
    if scores is None and ranks is None:
        scores, ranks = _inside(answers, _SCORE_KEYS), _inside(answers, ("rank",))
    if scores is None and ranks is None:
        return [float(-place) for place in range(len(answers))]
    merits = [_number(value) for value in _listed(ranks if scores is None else scores)]
    if len(merits) != len(answers):
        raise UnusableRowError(Code.BAD_SCORES)
    return merits if scores is not None else [-merit for merit in merits]


def _inside(answers: list[Any], keys: tuple[str, ...]) -> list[Any] | None:
    """Return the scores that stand in the answers themselves."""
    for key in keys:
        if all(isinstance(answer, dict) and answer.get(key) is not None for answer in answers):
            return [answer[key] for answer in answers]
    return None


def _listed(value: Any) -> list[Any]:  # noqa: ANN401 -- from a user's file
    if not isinstance(value, list):
        raise UnusableRowError(Code.BAD_SCORES)
    return value


def _number(value: Any) -> float:  # noqa: ANN401 -- from a user's file
    written = plain(value)
    if not is_number(written):
        raise UnusableRowError(Code.BAD_SCORES)
    return float(written)


def judged(cells: Cells, system: str) -> JudgedRow:
    verdict = _VERDICTS.get(plain(cells.raw("label")).strip().lower())
    if verdict is None:
        raise UnusableRowError(Code.BAD_LABEL)
    whole_row = pair if cells.raw("messages") is None else listed
    return {**whole_row(cells, system), "label": verdict}
