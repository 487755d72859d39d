"""Write rows of a dataset as a task of lm-eval: a YAML file that runs no code, and the rows.

The rows are Parquet: of JSON, the library that reads them would take texts that look like dates for
dates. A prompt is the text that the studio asks, with the chat template applied; lm-eval adds
nothing to it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyarrow import parquet

from studio.errors import InvalidError
from studio.evaluation import metrics
from studio.evaluation.benchmarks import RowTask
from studio.intake.row_formats.tasks import reference_text
from studio.protocols.benchmarks import RowsSource
from studio.recipe.base import BeamSearch
from studio.runner.tasks.evaluate import draw_rows
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import Message, TrainingRow, is_trained_on, read_rows

TASK = "studio_rows"
"""What lm-eval calls the task."""

GREEDY: Mapping[str, Any] = {"do_sample": False, **BeamSearch().arguments}
"""How answers are written, whatever the model's own configuration says."""

Document = dict[str, str]
"""A row as lm-eval reads it: `prompt` and `target`."""

_STRIP = r"(?s)\A\s*(.*?)\s*\Z"
"""Takes an answer without the spaces around it."""


def write(source: RowsSource, template: ChatTemplate | None, folder: Path) -> RowTask:
    """Write the task, and return what it makes the model do.

    Raises:
        InvalidError: no row has an answer or a text, answers are long, or they need a template.

    """
    rows = draw_rows(read_rows(source.file), source.rows)
    documents = [made for row in rows if (made := _document(row, template))]
    if not documents:
        raise InvalidError(
            "No row of this dataset has an answer or a text.", hint="Choose another dataset."
        )
    kind = _choose_task([one["target"] for one in documents], is_text=rows[0].text is not None)
    folder.mkdir()
    file = folder / "rows.parquet"
    schema = pa.schema([("prompt", pa.string()), ("target", pa.string())])
    parquet.write_table(pa.Table.from_pylist(documents, schema), file)
    task = build_task(kind, file, source.max_new_tokens, template)
    (folder / f"{TASK}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return kind


def build_task(
    kind: RowTask, file: Path, max_new_tokens: int, template: ChatTemplate | None
) -> dict[str, Any]:
    """Return the configuration of a task."""
    task = {
        "task": TASK,
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": "target",
        "num_fewshot": 0,
    }
    match kind:
        case "texts":
            return task | {
                "output_type": "loglikelihood_rolling",
                "doc_to_text": "",
                "metric_list": [{"metric": "bits_per_byte"}],
            }
        case "answers":
            strip = {"function": "regex", "regex_pattern": _STRIP, "fallback": ""}
            return task | {
                "output_type": "generate_until",
                "generation_kwargs": {
                    **GREEDY,
                    "until": [],
                    "max_gen_toks": max_new_tokens,
                    "eos_token_id": template.stop_tokens if template else None,
                },
                "filter_list": [{"name": "strip", "filter": [strip, {"function": "take_first"}]}],
                "metric_list": [{"metric": "exact_match"}],
            }


def _choose_task(targets: Sequence[str], *, is_text: bool) -> RowTask:
    if is_text:
        return "texts"
    if not metrics.are_short(targets):
        raise InvalidError(
            "The answers of this dataset are too long for a model to write them word for word.",
            hint="Evaluate the run on it: losses and similarities compare long answers.",
        )
    return "answers"


def _document(row: TrainingRow, template: ChatTemplate | None) -> Document | None:
    """Return a row with what is asked and expected; None if it expects no text."""
    if row.text is not None:
        return {"prompt": "", "target": row.text} if row.text.strip() else None
    asked, target = _split_answer(row)
    if not target:
        return None
    if template is None:
        raise InvalidError(
            "This model has no chat template, so it cannot be asked conversations.",
            hint="Choose a dataset of texts.",
        )
    return {"prompt": template.render_prompt(asked, row.tools), "target": target}


def _split_answer(row: TrainingRow) -> tuple[Sequence[Message], str]:
    """Return the turns before the last answer, and what it says; empty if there is none.

    The answer of a task is the one that graders may read.
    """
    if row.is_task:
        return row.messages, reference_text(row.item).strip()
    answers = [place for place, turn in enumerate(row.messages) if is_trained_on(turn)]
    if not answers:
        return (), ""
    return row.messages[: answers[-1]], str(row.messages[answers[-1]]["content"]).strip()
