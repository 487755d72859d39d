"""Graders from the fields of a form, and fields from graders: a pair of functions a purpose.

`build_…` raises InvalidError, whose `param` is a field. `read_…` returns what may have been
entered, or None if the grader is of another purpose; building it again shows whether it was that.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from studio.errors import InvalidError
from studio.evaluation import judge_prompts
from studio.graders import presets, programs
from studio.graders.schema import (
    PythonGrader,
    ScoreModelGrader,
    SingleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    parse_grader,
)
from studio.protocols.grader_judges import reward_run

Values = Mapping[str, str]
"""What was entered, by the name of the field; a checkbox is `true` or empty."""

OUTPUT = "{{ sample.output_text }}"
QUESTION = "{{ item.messages[-1].content }}"


def _check(values: Values, name: str) -> bool:
    return values.get(name) == "true"


def _mark(*, is_on: bool) -> str:
    return "true" if is_on else ""


def _number(values: Values, name: str, label: str) -> float:
    try:
        return float(values.get(name, ""))
    except ValueError as error:
        raise InvalidError(f"{label}: enter a number.", param=name) from error


def _whole(values: Values, name: str, label: str) -> int:
    try:
        return int(values.get(name, ""))
    except ValueError as error:
        raise InvalidError(f"{label}: enter a whole number.", param=name) from error


def _require(values: Values, name: str, message: str) -> str:
    if not values.get(name, "").strip():
        raise InvalidError(message, param=name)
    return values[name]


def _reference(values: Values) -> str:
    return _require(values, "reference", "Enter the expected answer.")


def _column(values: Values) -> str:
    """Return the path of a column, without its braces."""
    text = _reference(values).strip()
    match = re.fullmatch(r"\{\{([^{}]*)\}\}", text)
    if match is None:
        raise InvalidError(
            "Name one column of the row in braces, such as {{ item.answer }}.", param="reference"
        )
    return match[1].strip()


def _parse(fields: Mapping[str, Any], param: str) -> Any:  # noqa: ANN401 -- a grader of any type
    """Return a grader.

    Raises:
        InvalidError: what was entered in the field `param` is wrong.

    """
    try:
        return parse_grader(fields)
    except InvalidError as error:
        reason = error.message.removeprefix(f"{error.param}: ")
        raise InvalidError(reason, param=param) from error


def _read_program(grader: SingleGrader, program: str) -> dict[str, Any] | None:
    if not isinstance(grader, PythonGrader):
        return None
    return programs.read_values(program, grader.source)


def _write_path(path: list[str | int]) -> str:
    """Return the template that stands for a column."""
    steps = (
        f"[{step}]"
        if isinstance(step, int)
        else f".{step}"
        if re.fullmatch(r"[^\W\d][\w-]*", step)
        else f"[{json.dumps(step, ensure_ascii=False)}]"
        for step in path
    )
    return f"{{{{ item{''.join(steps)} }}}}"


def build_exact(name: str, values: Values) -> SingleGrader:
    ignored = {
        option: _check(values, option) for option in ("ignore_case", "ignore_spaces", "ignore_stop")
    }
    if any(ignored.values()):
        return presets.text_equals(name, _column(values), **ignored)
    return _string_check(name, values, "eq")


def _string_check(name: str, values: Values, operation: str) -> SingleGrader:
    fields = {"name": name, "type": "string_check", "input": OUTPUT, "operation": operation}
    grader: StringCheckGrader = _parse(fields | {"reference": _reference(values)}, "reference")
    return grader


def read_exact(grader: SingleGrader) -> Values | None:
    if isinstance(grader, StringCheckGrader):
        return {"reference": grader.reference}
    if found := _read_program(grader, "equal"):
        ignored = {
            f"ignore_{name}": _mark(is_on=found[name]) for name in ("case", "spaces", "stop")
        }
        return {"reference": _write_path(found["path"])} | ignored
    return None


def build_contains(name: str, values: Values) -> SingleGrader:
    return _string_check(name, values, "ilike" if _check(values, "ignore_case") else "like")


def read_contains(grader: SingleGrader) -> Values | None:
    if not isinstance(grader, StringCheckGrader):
        return None
    return {
        "reference": grader.reference,
        "ignore_case": _mark(is_on=grader.operation == "ilike"),
    }


def build_similar(name: str, values: Values) -> SingleGrader:
    metric = {"evaluation_metric": values.get("metric") or "fuzzy_match"}
    fields = {"name": name, "type": "text_similarity", "input": OUTPUT} | metric
    grader: TextSimilarityGrader = _parse(fields | {"reference": _reference(values)}, "reference")
    return grader


def read_similar(grader: SingleGrader) -> Values | None:
    if not isinstance(grader, TextSimilarityGrader):
        return None
    return {"reference": grader.reference, "metric": grader.evaluation_metric}


def build_number(name: str, values: Values) -> SingleGrader:
    tolerance = _number(values, "tolerance", "Tolerance")
    if not 0 <= tolerance < float("inf"):
        raise InvalidError("The tolerance must be 0 or more.", param="tolerance")
    return presets.number_equals(name, _column(values), tolerance=tolerance)


def read_number(grader: SingleGrader) -> Values | None:
    found = _read_program(grader, "number")
    return found and {
        "reference": _write_path(found["path"]),
        "tolerance": found["tolerance"].removesuffix(".0"),
    }


def build_json(name: str, values: Values) -> SingleGrader:
    keys = [key.strip() for key in values.get("keys", "").split(",")]
    return presets.json_valid(name, [key for key in keys if key])


def read_json(grader: SingleGrader) -> Values | None:
    found = _read_program(grader, "json")
    return found and {"keys": ", ".join(found["keys"])}


def build_schema(name: str, values: Values) -> SingleGrader:
    try:
        schema = json.loads(_require(values, "schema", "Enter a JSON schema."))
    except (ValueError, RecursionError) as error:
        raise InvalidError("This is not valid JSON.", param="schema") from error
    try:
        return presets.json_schema(name, schema)
    except InvalidError as error:
        raise InvalidError(error.message, hint=error.hint, param="schema") from error


def read_schema(grader: SingleGrader) -> Values | None:
    found = _read_program(grader, "schema")
    return found and {"schema": json.dumps(found["schema"], ensure_ascii=False, indent=2)}


def build_pattern(name: str, values: Values) -> SingleGrader:
    return presets.match_pattern(
        name,
        _require(values, "pattern", "Enter a regular expression."),
        is_whole=_check(values, "is_whole"),
        ignore_case=_check(values, "ignore_case"),
    )


def read_pattern(grader: SingleGrader) -> Values | None:
    found = _read_program(grader, "match")
    return found and {
        "pattern": found["pattern"],
        "is_whole": _mark(is_on=found["method"] == "fullmatch"),
        "ignore_case": _mark(is_on="IGNORECASE" in found["flags"]),
    }


def build_length(name: str, values: Values) -> SingleGrader:
    return presets.length_between(
        name,
        _whole(values, "low", "Shortest"),
        _whole(values, "high", "Longest"),
        unit="characters" if values.get("unit") == "characters" else "words",
        margin=_whole(values, "margin", "Margin"),
    )


def read_length(grader: SingleGrader) -> Values | None:
    found = _read_program(grader, "length")
    return found and {
        **{name: str(found[name]) for name in ("low", "high", "margin")},
        "unit": "characters" if found["unit"] == "." else "words",
    }


def build_format(name: str, _values: Values) -> SingleGrader:
    return presets.think_format(name)


def read_format(_grader: SingleGrader) -> Values:
    return {}


def build_judge(name: str, values: Values) -> SingleGrader:
    texts = {"question": QUESTION, "reference": values.get("reference", ""), "answer": OUTPUT}
    tagged = [f"<{tag}>\n{text}\n</{tag}>" for tag, text in texts.items() if text.strip()]
    criteria = _require(values, "criteria", "Say what makes an answer good.")
    fields = {
        "name": name,
        "type": "score_model",
        "model": _require(values, "model", "Choose a model that judges."),
        "input": [
            {"role": "system", "content": judge_prompts.GRADING_RULES},
            {"role": "user", "content": "\n\n".join([criteria, *tagged])},
        ],
        "sampling_params": {"temperature": 0},
    }
    grader: ScoreModelGrader = _parse(fields, "criteria")
    return grader


def read_judge(grader: SingleGrader) -> Values | None:
    if not isinstance(grader, ScoreModelGrader):
        return None
    criteria, _, rest = grader.input[-1].template.partition("\n\n<question>\n")
    _, _, reference = rest.partition("\n\n<reference>\n")
    return {
        "model": grader.model,
        "criteria": criteria,
        "reference": reference.partition("\n</reference>\n")[0],
    }


def build_reward(name: str, values: Values) -> SingleGrader:
    # Without limits, scores are squashed.
    is_clipped = any(values.get(name, "").strip() for name in ("low", "high"))
    limits = is_clipped and [
        _number(values, "low", "Lowest"),
        _number(values, "high", "Highest"),
    ]
    fields = {
        "name": name,
        "type": "score_model",
        "model": _require(values, "model", "Choose a reward model."),
        "input": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": OUTPUT}],
        **({"range": limits} if limits else {}),
    }
    grader: ScoreModelGrader = _parse(fields, "low")
    return grader


def read_reward(grader: SingleGrader) -> Values | None:
    if not isinstance(grader, ScoreModelGrader) or reward_run(grader.model) is None:
        return None
    low, high = (f"{limit:g}" for limit in grader.range) if grader.range else ("", "")
    return {"model": grader.model, "low": low, "high": high}


def build_python(name: str, values: Values) -> SingleGrader:
    source = _require(values, "source", "Enter a program.")
    grader: PythonGrader = _parse({"name": name, "type": "python", "source": source}, "source")
    return grader


def read_python(grader: SingleGrader) -> Values | None:
    return {"source": grader.source} if isinstance(grader, PythonGrader) else None


def build_other(name: str, values: Values) -> SingleGrader:
    try:
        fields = json.loads(_require(values, "json", "Enter the JSON of a grader."))
    except (ValueError, RecursionError) as error:
        raise InvalidError("This is not valid JSON.", param="json") from error
    if not isinstance(fields, dict) or fields.get("type") == "multi":
        raise InvalidError("Enter one grader, of any type but multi.", param="json")
    grader: SingleGrader = _parse({**fields, "name": name}, "json")
    return grader


def read_other(grader: SingleGrader) -> Values | None:
    fields = grader.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    return {"json": json.dumps(fields, ensure_ascii=False, indent=2)}
