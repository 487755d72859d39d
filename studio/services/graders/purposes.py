"""What people reward answers for: the purposes of the form, with their fields.

Each is built into OpenAI's grader JSON and read back from it, so that only the JSON has to be kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from studio.errors import InvalidError
from studio.graders.schema import SingleGrader
from studio.graders.text_similarity import METRICS
from studio.services.graders import purpose_graders as graders
from studio.services.graders.purpose_graders import Values

Widget = Literal["text", "area", "code", "number", "check", "choice", "judge", "reward"]
"""`judge` and `reward` are choices among the models of the studio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurposeField:
    name: str
    label: str
    help: str = ""
    widget: Widget = "text"
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Values with their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    name: str
    """Also the name of its grader in formulas."""
    title: str
    summary: str
    fields: tuple[PurposeField, ...]
    build: Callable[[str, Values], SingleGrader]
    read: Callable[[SingleGrader], Values | None]

    @property
    def defaults(self) -> dict[str, str]:
        return {field.name: field.default for field in self.fields}


def find(grader: SingleGrader) -> tuple[Purpose, dict[str, str]]:
    """Return the purpose of a grader with its fields. What no form has is shown as JSON."""
    for purpose in PURPOSES.values():
        values = purpose.read(grader)
        if values is not None and _builds(purpose, values, grader):
            return purpose, {**dict.fromkeys(purpose.defaults, ""), **values}
    return (other := PURPOSES[OTHER]), dict(other.read(grader) or {})


def _builds(purpose: Purpose, values: Values, grader: SingleGrader) -> bool:
    try:
        return purpose.build(grader.name, values) == grader
    except InvalidError:
        return False


_REFERENCE = PurposeField(
    name="reference",
    label="Expected answer",
    help="A column of the row in braces, such as {{ item.answer }}.",
)
_IGNORE_CASE = PurposeField(name="ignore_case", label="Ignore case", widget="check")
_EXAMPLE = """def grade(sample, item):
    answer = sample["output_text"]
    return 1.0 if answer.endswith("!") else 0.0
"""

OTHER = "other"
"""The purpose of graders that no other purpose builds."""

PURPOSES: Mapping[str, Purpose] = MappingProxyType(
    {
        purpose.name: purpose
        for purpose in (
            Purpose(
                name="exact",
                title="The expected answer, exactly",
                summary="1 if the whole answer equals the expected one, else 0.",
                fields=(
                    _REFERENCE,
                    _IGNORE_CASE,
                    PurposeField(name="ignore_spaces", label="Ignore extra spaces", widget="check"),
                    PurposeField(
                        name="ignore_stop", label="Ignore a final full stop", widget="check"
                    ),
                ),
                build=graders.build_exact,
                read=graders.read_exact,
            ),
            Purpose(
                name="contains",
                title="Contains a text",
                summary="1 if the expected text is anywhere in the answer, else 0.",
                fields=(_REFERENCE, replace(_IGNORE_CASE, default="true")),
                build=graders.build_contains,
                read=graders.read_contains,
            ),
            Purpose(
                name="similar",
                title="Similar to the expected answer",
                summary="From 0 to 1, by how much of the expected answer is in it.",
                fields=(
                    _REFERENCE,
                    PurposeField(
                        name="metric",
                        label="Measure",
                        widget="choice",
                        default="fuzzy_match",
                        choices=tuple((metric, metric) for metric in METRICS),
                        help="fuzzy_match compares characters; the others compare words.",
                    ),
                ),
                build=graders.build_similar,
                read=graders.read_similar,
            ),
            Purpose(
                name="number",
                title="The right number",
                summary="1 if the last number of the answer is the expected one, else 0. After "
                "####, as in GSM8K, only what follows counts.",
                fields=(
                    _REFERENCE,
                    PurposeField(
                        name="tolerance",
                        label="Tolerance",
                        widget="number",
                        default="0",
                        help="How far the number may be off.",
                    ),
                ),
                build=graders.build_number,
                read=graders.read_number,
            ),
            Purpose(
                name="json",
                title="Valid JSON",
                summary="1 if the answer is a JSON object or list, with the keys you name.",
                fields=(
                    PurposeField(
                        name="keys",
                        label="Required keys",
                        help="Separated by commas; may be empty.",
                    ),
                ),
                build=graders.build_json,
                read=graders.read_json,
            ),
            Purpose(
                name="json_schema",
                title="JSON by a schema",
                summary="1 if the answer is JSON that fits a schema, else 0.",
                fields=(
                    PurposeField(
                        name="schema",
                        label="JSON schema",
                        widget="code",
                        default='{\n  "type": "object",\n  "required": ["answer"]\n}',
                    ),
                ),
                build=graders.build_schema,
                read=graders.read_schema,
            ),
            Purpose(
                name="thinking",
                title="Thinks before it answers",
                summary="Begins with <think>, ends it once with </think>, and goes on: 1, else 0.",
                fields=(),
                build=graders.build_format,
                read=graders.read_format,
            ),
            Purpose(
                name="pattern",
                title="Matches a regular expression",
                summary="1 if the expression is found in the answer, else 0.",
                fields=(
                    PurposeField(
                        name="pattern", label="Regular expression", help="In Python's syntax."
                    ),
                    PurposeField(
                        name="is_whole", label="It must match the whole answer", widget="check"
                    ),
                    _IGNORE_CASE,
                ),
                build=graders.build_pattern,
                read=graders.read_pattern,
            ),
            Purpose(
                name="length",
                title="Length",
                summary="1 if the answer is as long as you want; less, the further it is outside.",
                fields=(
                    PurposeField(name="low", label="Shortest", widget="number", default="1"),
                    PurposeField(name="high", label="Longest", widget="number", default="200"),
                    PurposeField(
                        name="unit",
                        label="Counted in",
                        widget="choice",
                        default="words",
                        choices=(("words", "words"), ("characters", "characters")),
                    ),
                    PurposeField(
                        name="margin",
                        label="Margin",
                        widget="number",
                        default="0",
                        help="How far outside the score falls to 0.",
                    ),
                ),
                build=graders.build_length,
                read=graders.read_length,
            ),
            Purpose(
                name="judge",
                title="A judge: another model reads the answer",
                summary="From 0 to 1, as a chat model says. It is slow, and as good as that model.",
                fields=(
                    PurposeField(name="model", label="Judge", widget="judge"),
                    PurposeField(
                        name="criteria",
                        label="What makes an answer good",
                        widget="area",
                        default="Is the answer correct, complete and clear?",
                    ),
                    replace(
                        _REFERENCE,
                        help="Shown to the judge; may be empty. A column of the row in braces, "
                        "such as {{ item.answer }}.",
                    ),
                ),
                build=graders.build_judge,
                read=graders.read_judge,
            ),
            Purpose(
                name="reward",
                title="A reward model of mine",
                summary="The score of a model that a run of this studio trained on comparisons.",
                fields=(
                    PurposeField(name="model", label="Reward model", widget="reward"),
                    PurposeField(
                        name="low",
                        label="Lowest score",
                        widget="number",
                        help="Scores below it count as this one. If both are empty, a score s "
                        "counts as 1 / (1 + e^-s), which is between 0 and 1.",
                    ),
                    PurposeField(name="high", label="Highest score", widget="number"),
                ),
                build=graders.build_reward,
                read=graders.read_reward,
            ),
            Purpose(
                name="python",
                title="A Python program",
                summary="What the function grade(sample, item) returns, from 0 to 1.",
                fields=(
                    PurposeField(
                        name="source",
                        label="Program",
                        widget="code",
                        default=_EXAMPLE,
                        help="It runs without files and network, and has 2 seconds an answer.",
                    ),
                ),
                build=graders.build_python,
                read=graders.read_python,
            ),
            Purpose(
                name="other",
                title="Grader JSON, written by hand",
                summary="What the other fields cannot say.",
                fields=(PurposeField(name="json", label="Grader JSON", widget="code"),),
                build=graders.build_other,
                read=graders.read_other,
            ),
        )
    }
)
"""By name, in the order of the form."""
