"""Text without turns: every token is learnt, and no chat template is wanted."""

import json
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.protocols.events import Finished, Sampled
from studio.protocols.run_dir import JobSpec
from studio.runner.execution import execute_run
from studio.training.data import tokenisation
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow, read_rows
from studio.training.stop_handler import StopHandler
from tests.training import tiny


def with_bos() -> PreTrainedTokenizerBase:
    """Create a tokenizer that begins every text with a mark, as llama's does."""
    reader = tiny.tokenizer("")
    start = reader.convert_tokens_to_ids("<|im_start|>")
    reader.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    reader.add_special_tokens({"bos_token": "<|im_start|>"})
    return reader


def row(text: str) -> TrainingRow:
    return TrainingRow(text=text, number=1)


def test_every_text_token_after_first_is_trained_on() -> None:
    reader = with_bos()

    (only,) = tokenisation.row_tensors(
        tokenisation.tokenise([row("1 plus 2")], None, reader, 100).data
    )

    assert reader.decode(only["input_ids"]) == "<|im_start|>1 plus 2<|im_end|>"
    assert only["labels"].tolist() == [IGNORE_INDEX, *only["input_ids"].tolist()[1:]]


def test_end_token_is_not_added_twice() -> None:
    reader = tiny.tokenizer("")

    (only,) = tokenisation.row_tensors(
        tokenisation.tokenise([row("plus<|im_end|>")], None, reader, 100).data
    )

    assert reader.decode(only["input_ids"]) == "plus<|im_end|>"


def test_long_text_is_truncated_at_exact_token() -> None:
    reader = tiny.tokenizer("")
    (whole,) = tokenisation.row_tensors(
        tokenisation.tokenise([row("plus is " * 9)], None, reader, 1000).data
    )

    cut = tokenisation.tokenise([row("plus is " * 9)], None, reader, 7)

    assert (cut.truncated, cut.longest_row) == (1, len(whole["labels"]))
    assert tokenisation.row_tensors(cut.data)[0]["labels"].tolist() == whole["labels"].tolist()[:7]


def test_bad_and_rejected_answers_are_not_trained_on(tmp_path: Path) -> None:
    asked, good = {"role": "user", "content": "1?"}, {"role": "assistant", "content": "One."}
    bad = {"role": "assistant", "content": "Two."}
    path = tiny.write_rows(
        tmp_path / "rows.jsonl",
        [
            {"messages": [asked, good], "label": True},
            {"messages": [asked, bad], "label": False},
            {"messages": [asked], "chosen": [good], "rejected": [bad]},
            {"text": "One."},
        ],
    )

    found = [(one.number, list(one.messages), one.text) for one in read_rows(path)]

    assert found == [(1, [asked, good], None), (3, [asked, good], None), (4, [], "One.")]


@pytest.mark.parametrize(
    ("row", "flaw"),
    [
        ({"messages": [], "tools": "add"}, "its tools are not a list of functions"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}]},
            "turn 1 has a tool call without a function name",
        ),
        ({"messages": [], "chosen": "Yes."}, '"chosen" is not a list of turns'),
        (["text"], "it has no list of turns called messages"),
    ],
)
def test_invalid_row_error_gives_reason(tmp_path: Path, row: object, flaw: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")

    with pytest.raises(TrainingError) as caught:
        read_rows(path)

    assert caught.value.message == (
        f"Row 1 of the training data (line 1 of its file) is not a conversation: {flaw}."
    )


@pytest.mark.slow
def test_base_model_without_template_trains_on_text(tmp_path: Path, model: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for file in model.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    tiny.tokenizer("").save_pretrained(base)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    run = tiny.write_run(tmp_path / "run", base, samples__prompts=1)
    texts = [{"text": f"Here {i} plus 1 is {i + 1}, and it is so."} for i in range(20)]
    spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
    tiny.write_rows(spec.train, texts)

    assert execute_run(run.root, StopHandler()) == 0
    samples = tiny.events_of(run, Sampled)
    assert isinstance(tiny.last_event(run), Finished)
    assert [one.stage for one in samples] == ["before", "during", "during", "after"]
    assert f"{samples[0].prompt} {samples[0].reference}" in [one["text"] for one in texts]
