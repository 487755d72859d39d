"""What an evaluation takes: 64 rows of a model and of its base, and scoring 1,000 answers again.

Answers of one at a time and of eight together are compared, too: padding changes how sums are
rounded, and with that may change a token.
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studio import starter
from studio.evaluation import metrics, statistics
from studio.evaluation.rows import AnsweredRow
from studio.protocols.evaluation import EvaluationJob
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.evaluate import evaluate
from studio.training.evaluation import sample_answers
from tests.bench.measurement import Measurement

ROWS, TOKENS, SCORED = 64, 64, 1000


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "model").mkdir()
        starter.write_model(folder / "model")
        starter.write_rows(folder)
        job = _job(folder)
        _answer(folder, job.model_copy(update={"rows": 1}))  # Loads what is imported late.
        seconds, together = _timed(lambda: _answer(folder, job))
        yield Measurement(f"{ROWS} rows of up to {TOKENS} tokens, one model", seconds, "s")
        sample_answers._BATCH_SIZE = 1
        alone_seconds, alone = _timed(lambda: _answer(folder, job))
        yield Measurement("the same, one row at a time", alone_seconds, "s")
        same = sum(one == other for one, other in zip(together, alone, strict=True))
        yield Measurement("equal answers alone and together", 100 * same / len(alone), "%")
        answered = list(islice(_rows(folder), SCORED))
    for key in ("exact", "chrf", "bleu"):
        metric = metrics.EVALUATION_METRICS[key]
        seconds, _figure = _timed(partial(statistics.measure, metric, answered))
        yield Measurement(f"{key} of {SCORED:,} answers with its interval", seconds, "s")


def _job(folder: Path) -> EvaluationJob:
    return EvaluationJob(
        about="starter",
        answer_set=1,
        model=GenerationRequest(model=str(folder / "model"), ids=[], stops=[]),
        train=folder / starter.SPLITS[0],
        validation=folder / starter.SPLITS[1],
        validation_share=0.1,
        seed=1,
        with_bad=False,
        rows=ROWS,
        chat_template="model",
        has_chat_template=True,
        has_expected=True,
        max_length=1024,
        max_new_tokens=TOKENS,
    )


def _answer(folder: Path, job: EvaluationJob) -> list[str]:
    with TemporaryDirectory(dir=folder) as task:
        made = TaskDir(Path(task))
        made.files.mkdir()
        result = evaluate(made, job.model_dump(mode="json"), lambda _phase, _share: None)
    return [row["answer"] for row in result["rows"]]


def _rows(folder: Path) -> Iterator[AnsweredRow]:
    """Yield the answers of the data, each as the answer to the row before it."""
    with (folder / starter.SPLITS[0]).open(encoding="utf-8") as lines:
        answers = [json.loads(line)["messages"][-1]["content"] for line in lines]
    for position, (one, other) in enumerate(pairwise(answers)):
        yield AnsweredRow(
            position=position, prompt="", reference=one, answer=other, reason="stop", tokens=1
        )


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = act()
    return time.perf_counter() - start, result


def main() -> None:
    for figure in measure():
        print(figure)  # noqa: T201 -- a bench


if __name__ == "__main__":
    main()
