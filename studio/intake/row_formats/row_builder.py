"""Build and encode a canonical row of any kind."""

import json
from collections.abc import Callable
from collections.abc import Mapping as Values
from typing import Any, cast

from studio.intake.mapping import Mapping, ShapeName
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.image_parts import place_row_images
from studio.intake.row_formats.message_formats import (
    MappedRow,
    holds_turns,
    is_number,
    parse_json_cell,
    parse_tools,
    parse_transcript,
    parse_turns,
    parse_turns_or_text,
    require_text,
    to_text,
)
from studio.intake.row_formats.schema import (
    CanonicalRow,
    ConversationRow,
    JudgedRow,
    PreferenceRow,
    StepsRow,
    TaskRow,
    TextRow,
    Turn,
    UnusableRowError,
    make_turn,
    validate_answers,
    validate_conversation,
    validate_prompt,
    validate_task,
)
from studio.intake.row_formats.tagged_words import (
    build_spans,
    build_tagged_lines,
    build_tagged_words,
)
from studio.intake.row_formats.tasks import REFERENCE, answer_text, build_item, split_answer
from studio.intake.row_formats.text_pairs import build_pair


def build_alpaca(cells: MappedRow, system: str) -> ConversationRow:
    question = cells.join(cells.text("instruction"), cells.text("input"))
    answer = make_turn("assistant", cells.text("output"))
    past = _history_turns(cells.value("history"))
    return {
        "messages": validate_conversation(
            with_images(
                cells, [*system_turns(cells, system), *past, make_turn("user", question), answer]
            )
        )
    }


def with_images(cells: MappedRow, turns: list[Turn]) -> list[Turn]:
    """Return the turns with all images of the row, if they are used."""
    if not cells.uses_images:
        return turns
    return place_row_images(turns, cells.image_refs(), needs_markers=cells.needs_markers)


def _history_turns(value: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    past = parse_json_cell(value) or []
    if not isinstance(past, list) or not all(map(_is_pair, past)):
        raise UnusableRowError(ProblemCode.NOT_TEXT)
    return [
        turn
        for question, answer in past
        for turn in (
            make_turn("user", require_text(question)),
            make_turn("assistant", require_text(answer)),
        )
    ]


def _is_pair(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    return isinstance(value, list) and len(value) == 2  # noqa: PLR2004 -- a pair


def build_prompt_completion(cells: MappedRow, system: str) -> ConversationRow:
    turns = with_images(cells, [*prompt_turns(cells, system), *completion_turns(cells)])
    return with_tools(cells, validate_conversation(turns))


def prompt_turns(cells: MappedRow, system: str) -> list[Turn]:
    """Return the turns of a prompt: a list of them, or the joined text of its columns."""
    raw = cells.value("prompt")
    if holds_turns(raw):
        turns = parse_turns_or_text(raw, "user", with_images=cells.uses_images)
        return add_system_turn(cells, system, turns)
    question = cells.join(cells.text("context"), cells.text("prompt"))
    return [*system_turns(cells, system), make_turn("user", question)]


def completion_turns(cells: MappedRow) -> list[Turn]:
    raw = cells.value("completion")
    if holds_turns(raw):
        return parse_turns_or_text(raw, "assistant", with_images=cells.uses_images)
    return [make_turn("assistant", cells.text("completion"))]


def build_messages(cells: MappedRow, system: str) -> ConversationRow:
    raw = cells.value("messages")
    turns = parse_turns(
        cells.value("conversations") if raw is None else raw, with_images=cells.uses_images
    )
    turns = with_images(cells, add_system_turn(cells, system, turns))
    return with_tools(cells, validate_conversation(turns))


NO_LABEL = "none"
"""The answer of a text whose list of labels is empty."""


def build_classification(cells: MappedRow, system: str) -> ConversationRow:
    """Return a text with its label, or its list of labels, as the answer.

    Several columns hold whether a text has the label that each is named for.
    """
    listed = cells.items("label")
    by_column = cells.by_column("label")
    if len(by_column) > 1:
        listed = [column for column, value in by_column.items() if _parse_indicator(value)]
    if listed is None:
        return _build_answered(cells, system, to_text(cells.value("label")))
    labels = list(dict.fromkeys(label for item in listed if (label := to_text(item).strip())))
    row = _build_answered(cells, system, ", ".join(labels) or NO_LABEL)
    return {**row, "labels": labels}


def _parse_indicator(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    verdict = _LABEL_VALUES.get(to_text(value).strip().lower())
    if verdict is None:
        raise UnusableRowError(ProblemCode.NOT_AN_INDICATOR)
    return verdict


def build_regression(cells: MappedRow, system: str) -> ConversationRow:
    """Return a text with its number, or its numbers by column, as the answer."""
    texts = {column: to_text(value).strip() for column, value in cells.by_column("number").items()}
    if not all(texts.values()):
        raise UnusableRowError(ProblemCode.MISSING_ANSWER)
    if not all(map(is_number, texts.values())):
        raise UnusableRowError(ProblemCode.NOT_A_NUMBER)
    answer = ", ".join(f"{column}: {text}" for column, text in texts.items())
    row = _build_answered(cells, system, answer if len(texts) > 1 else "".join(texts.values()))
    return {**row, "numbers": {column: float(text) for column, text in texts.items()}}


def _build_answered(cells: MappedRow, system: str, answer: str) -> ConversationRow:
    prompt = [*system_turns(cells, system), make_turn("user", cells.text("text"))]
    return {"messages": validate_conversation([*prompt, make_turn("assistant", answer)])}


def thread_turns(cells: MappedRow) -> list[Turn]:
    """Return the turns that a row adds to its thread: one turn, or a question and its answer."""
    speaker = cells.value("speaker")
    if speaker is not None:
        return parse_turns([{"role": speaker, "content": cells.text("text")}])
    return [make_turn("user", cells.text("prompt")), make_turn("assistant", cells.text("answer"))]


def system_turns(cells: MappedRow, system: str) -> list[Turn]:
    """Return the system turn: the row's own prompt, or else the mapping's."""
    content = cells.text("system")
    content = content if content.strip() else system
    return [make_turn("system", content)] if content.strip() else []


def add_system_turn(cells: MappedRow, system: str, turns: list[Turn]) -> list[Turn]:
    """Add the system turn to turns without one."""
    has_system = any(turn["role"] == "system" and turn["content"].strip() for turn in turns)
    return [*system_turns(cells, "" if has_system else system), *turns]


def with_tools(cells: MappedRow, messages: list[Turn]) -> ConversationRow:
    """Return a conversation with the row's tools, if any."""
    tools = parse_tools(cells.value("tools"))
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}


_LABEL_VALUES = {
    **dict.fromkeys(("true", "1", "1.0", "yes", "good", "desirable", "👍", "thumbs_up"), True),
    **dict.fromkeys(("false", "0", "0.0", "no", "bad", "undesirable", "👎", "thumbs_down"), False),
}
_STEP_VALUES = _LABEL_VALUES | {
    **dict.fromkeys(("+", "correct", "right"), True),
    **dict.fromkeys(("-", "-1", "-1.0", "incorrect", "wrong"), False),
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
    return cast("JudgedRow", {**whole_row(cells, system), "label": verdict})


def build_steps(cells: MappedRow, system: str) -> StepsRow:
    """Return a prompt with the steps of its solution, and which of them are right."""
    prompt, _tools = _parse_prompt(cells)
    steps, verdicts = (parse_json_cell(cells.value(role)) for role in ("steps", "verdicts"))
    if not isinstance(steps, list) or not steps or not all(map(_is_filled, steps)):
        raise UnusableRowError(ProblemCode.NO_STEPS)
    listed = verdicts if isinstance(verdicts, list) else []
    correct = [verdict for one in listed if (verdict := parse_step_verdict(one)) is not None]
    if not len(steps) == len(listed) == len(correct):
        raise UnusableRowError(ProblemCode.BAD_VERDICTS)
    messages = validate_prompt(add_system_turn(cells, system, prompt))
    return {"messages": messages, "steps": [one.strip() for one in steps], "correct": correct}


def _is_filled(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    return isinstance(value, str) and bool(value.strip())


def parse_step_verdict(value: Any) -> bool | None:  # noqa: ANN401 -- from a user's file
    """Return whether a step is right; None if that is not what a value says."""
    return _STEP_VALUES.get(to_text(value).strip().lower())


def build_task(cells: MappedRow, system: str) -> TaskRow:
    """Return a prompt, and what graders may read; they may read an answer after the prompt, too."""
    raw = cells.value("messages")
    turns = (
        prompt_turns(cells, system)
        if raw is None
        else add_system_turn(cells, system, parse_turns(raw))
    )
    prompt, answer = split_answer(turns)
    item = build_item(cells.present("item"))
    if answer and item.get(REFERENCE) is None:
        item[REFERENCE] = answer_text(answer)
    row: TaskRow = {"messages": validate_task(prompt), "item": item}
    tools = parse_tools(cells.value("tools"))
    return {**row, "tools": tools} if tools else row


_BUILDERS: dict[ShapeName, Callable[[MappedRow, str], CanonicalRow]] = {
    "alpaca": build_alpaca,
    "prompt_completion": build_prompt_completion,
    "messages": build_messages,
    "sharegpt": build_messages,
    "classification": build_classification,
    "regression": build_regression,
    "preference": build_preference,
    "ranked": build_ranked,
    "judged": build_judged,
    "steps": build_steps,
    "words": build_tagged_words,
    "spans": build_spans,
    "lines": build_tagged_lines,
    "task": build_task,
    "pairs": build_pair,
}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def build_row(mapping: Mapping, values: Values[str, Any]) -> CanonicalRow:
    """Return a canonical row. Rows of threads are joined in `threads`, not here.

    Raises:
        UnusableRowError: a value is missing or has the wrong type.

    """
    cells = MappedRow(mapping, values)
    if mapping.shape == "text":
        return _build_text_row(cells)
    return _BUILDERS[mapping.shape](cells, mapping.system)


def encode_row(row: CanonicalRow) -> bytes:
    """Return the line of JSON to store: the same row always gives the same line.

    Raises:
        UnusableRowError: a value cannot be represented in JSON or UTF-8.

    """
    try:
        return _ENCODER.encode(row).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise UnusableRowError(ProblemCode.BROKEN_CHARACTER) from error
    except RecursionError as error:
        raise UnusableRowError(ProblemCode.TOO_DEEP) from error
    except ValueError as error:
        raise UnusableRowError(ProblemCode.NOT_FINITE) from error
    except TypeError as error:
        raise UnusableRowError(ProblemCode.NOT_TEXT) from error


def _build_text_row(cells: MappedRow) -> TextRow:
    text = cells.text("text")
    if not text.strip():
        raise UnusableRowError(ProblemCode.NO_TEXT)
    return {"text": text}
