"""Convert rows that compare or rate answers."""

from typing import Any

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.cell_text import MappedRow, is_number, parse_json_cell, to_text
from studio.intake.row_formats.conversations import (
    add_system_turn,
    build_messages,
    build_prompt_completion,
    prompt_turns,
)
from studio.intake.row_formats.message_formats import (
    holds_turns,
    parse_transcript,
    parse_turns,
    parse_turns_or_text,
)
from studio.intake.row_formats.schema import (
    JudgedRow,
    PreferenceRow,
    Turn,
    UnusableRowError,
    make_turn,
    validate_answers,
    validate_prompt,
)
from studio.intake.row_formats.tool_calls import parse_tools

_LABEL_VALUES = {
    **dict.fromkeys(("true", "1", "1.0", "yes", "good", "desirable", "👍", "thumbs_up"), True),
    **dict.fromkeys(("false", "0", "0.0", "no", "bad", "undesirable", "👎", "thumbs_down"), False),
}
_TEXT_KEYS = ("text", "content", "value", "answer", "response", "completion", "output")
_SCORE_KEYS = ("score", "rating", "reward", "overall_score")
_MIN_ANSWERS = 2


def build_preference(cells: MappedRow, system: str) -> PreferenceRow:
    prompt, prompt_tools = _parse_prompt(cells)
    chosen = parse_transcript(cells.value("chosen")) or parse_turns_or_text(
        cells.value("chosen"), "assistant"
    )
    rejected = parse_transcript(cells.value("rejected")) or parse_turns_or_text(
        cells.value("rejected"), "assistant"
    )
    if chosen[0]["role"] != "assistant" or rejected[0]["role"] != "assistant":
        # Both contain the prompt: their common prefix, up to where the answers start.
        shared = _shared_prefix_length(chosen, rejected)
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    row = _build_pair(add_system_turn(cells, system, prompt), chosen, rejected)
    tools = parse_tools(cells.value("tools")) or prompt_tools
    return {**row, "tools": tools} if tools else row


def _parse_prompt(cells: MappedRow) -> tuple[list[Turn], list[dict[str, Any]]]:
    """Return the prompt, and the tools that OpenAI stores with its turns."""
    raw = cells.value("prompt")
    match parse_json_cell(raw):
        case {"messages": [*messages], **rest}:
            return parse_turns(messages), parse_tools(rest.get("tools"))
    if holds_turns(raw):
        return parse_turns_or_text(raw, "user"), []
    return [make_turn("user", cells.text("prompt"))], []


def _shared_prefix_length(chosen: list[Turn], rejected: list[Turn]) -> int:
    limit = min(len(chosen), len(rejected)) - 1
    return next((i for i in range(limit) if chosen[i] != rejected[i]), limit)


def _build_pair(prompt: list[Turn], chosen: list[Turn], rejected: list[Turn]) -> PreferenceRow:
    messages = validate_prompt(prompt)
    if validate_answers(chosen) == validate_answers(rejected):
        raise UnusableRowError(ProblemCode.EQUAL_ANSWERS)
    return {"messages": messages, "chosen": chosen, "rejected": rejected}


def build_ranked(cells: MappedRow, system: str) -> PreferenceRow:
    """Return the best and worst of several answers; unscored lists are sorted best first."""
    answers = parse_json_cell(cells.value("answers"))
    if not isinstance(answers, list) or len(answers) < _MIN_ANSWERS:
        raise UnusableRowError(ProblemCode.FEW_ANSWERS)
    scores = _score_answers(cells, answers)
    best, worst = max(scores), min(scores)
    if best == worst:
        raise UnusableRowError(ProblemCode.EQUAL_ANSWERS)
    chosen, rejected = (_parse_answer(answers[scores.index(score)]) for score in (best, worst))
    return _build_pair(prompt_turns(cells, system), chosen, rejected)


def _parse_answer(answer: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    if isinstance(answer, dict):
        answer = next((answer[key] for key in _TEXT_KEYS if answer.get(key) is not None), None)
    return parse_turns_or_text(answer, "assistant")


def _score_answers(cells: MappedRow, answers: list[Any]) -> list[float]:
    """Return the score of each answer; higher is better."""
    scores, ranks = parse_json_cell(cells.value("scores")), parse_json_cell(cells.value("ranks"))
    if scores is None and ranks is None:
        scores, ranks = (
            _scores_in_answers(answers, _SCORE_KEYS),
            _scores_in_answers(answers, ("rank",)),
        )
    if scores is None and ranks is None:
        return [float(-place) for place in range(len(answers))]
    merits = [_parse_number(value) for value in _require_list(ranks if scores is None else scores)]
    if len(merits) != len(answers):
        raise UnusableRowError(ProblemCode.BAD_SCORES)
    return merits if scores is not None else [-merit for merit in merits]


def _scores_in_answers(answers: list[Any], keys: tuple[str, ...]) -> list[Any] | None:
    """Return the scores inside the answers themselves."""
    for key in keys:
        if all(isinstance(answer, dict) and answer.get(key) is not None for answer in answers):
            return [answer[key] for answer in answers]
    return None


def _require_list(value: Any) -> list[Any]:  # noqa: ANN401 -- from a user's file
    if not isinstance(value, list):
        raise UnusableRowError(ProblemCode.BAD_SCORES)
    return value


def _parse_number(value: Any) -> float:  # noqa: ANN401 -- from a user's file
    text = to_text(value)
    if not is_number(text):
        raise UnusableRowError(ProblemCode.BAD_SCORES)
    return float(text)


def build_judged(cells: MappedRow, system: str) -> JudgedRow:
    verdict = _LABEL_VALUES.get(to_text(cells.value("label")).strip().lower())
    if verdict is None:
        raise UnusableRowError(ProblemCode.BAD_LABEL)
    whole_row = build_prompt_completion if cells.value("messages") is None else build_messages
    return {**whole_row(cells, system), "label": verdict}
