"""An evaluation of rows with images: the answers and the losses of plain transformers."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer

from studio.intake.row_formats.image_marks import find_marks
from studio.protocols.evaluation import EvaluationJob
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.evaluate import evaluate
from tests.support.vision_models import (
    VISION_FAMILIES,
    VisionFamily,
    colour_rows,
    draw_square,
    save_image,
    write_vision_model,
)
from tests.worker.test_image_answers import Question, plain_answer, plain_inputs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MOST = 12


def write_rows(folder: Path) -> list[dict[str, Any]]:
    """Write rows with one image, with two, and with none."""
    images, chance = folder / "images", random.Random(3)  # noqa: S311 -- no secret
    two = [save_image(images, draw_square(name, chance, (40, 24))) for name in ("red", "blue")]
    answer = {"role": "assistant", "content": "blue"}
    rows = [
        *colour_rows(images, 3),
        {"messages": [{"role": "user", "content": "Which is it?", "images": two}, answer]},
        {"messages": [{"role": "user", "content": "Say blue."}, answer]},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(lines, encoding="utf-8")
    return rows


def evaluated(root: Path, model: Path, trained_on: Path | None = None) -> list[dict[str, Any]]:
    job = EvaluationJob(
        about="base",
        answer_set=1,
        model=GenerationRequest(model=str(model), ids=[], stops=[]),
        train=root / "train.jsonl",
        validation=None,
        is_whole=True,
        validation_share=0,
        seed=0,
        with_bad=False,
        rows=100,
        chat_template="model",
        has_chat_template=True,
        has_expected=True,
        max_length=400,
        max_new_tokens=MOST,
        trained_on=trained_on or root / "train.jsonl",
        has_own_validation=True,
    )
    folder = TaskDir(root / "task")
    folder.files.mkdir(parents=True)
    done = evaluate(folder, job.model_dump(mode="json"), lambda _phase, _share: None)
    results: list[dict[str, Any]] = done["rows"]
    return results


def question_of(root: Path, row: dict[str, Any]) -> Question:
    turn = row["messages"][0]
    paths = [root / "images" / image["sha256"] for image in turn.get("images", ())]
    return Question(turn["content"], [Image.open(path).convert("RGB") for path in paths])


def plain_loss(model: Any, folder: Path, question: Question, answer: str) -> float:  # noqa: ANN401 -- upstream's
    inputs = plain_inputs(folder, question)
    written = AutoTokenizer.from_pretrained(folder)(
        f"{answer}<|im_end|>", add_special_tokens=False, return_tensors="pt"
    )["input_ids"]
    start = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], written], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        types = inputs["mm_token_type_ids"]
        inputs["mm_token_type_ids"] = torch.cat([types, torch.zeros_like(written).int()], dim=1)
    with torch.inference_mode():
        logits = model(**inputs).logits[0, start - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, written[0], reduction="sum").item()


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_rows_are_answered_with_their_images(tmp_path: Path, family: VisionFamily) -> None:
    folder = write_vision_model(tmp_path / family, family)
    rows = write_rows(tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    results = evaluated(tmp_path, folder)

    assert len(results) == len(rows)
    for row, result in zip(rows, results, strict=True):
        question = question_of(tmp_path, row)
        answer = row["messages"][-1]["content"]
        assert result["answer"] == plain_answer(model, folder, question).strip()
        assert result["nll"] == pytest.approx(plain_loss(model, folder, question, answer), rel=1e-4)
        shown = find_marks(result["prompt"])
        assert shown.text == question.text
        names = [image["sha256"] for image in row["messages"][0].get("images", ())]
        assert list(shown.images) == names
        assert (result["overlap"], result["computed_in"]) == ("exact", "float32")


def test_same_question_about_another_image_is_no_overlap(tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path / "llava", "llava")
    rows = write_rows(tmp_path)
    asked = tmp_path / "asked"
    asked.mkdir()
    (asked / "images").symlink_to(tmp_path / "images")
    new = save_image(tmp_path / "images", Image.effect_noise((32, 32), 50).convert("RGB"))
    row = {"messages": [{**rows[0]["messages"][0], "images": [new]}, rows[0]["messages"][1]]}
    (asked / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")

    (result,) = evaluated(asked, folder, trained_on=tmp_path / "train.jsonl")
    assert result["overlap"] == ""
