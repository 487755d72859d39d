"""Find the rows of an evaluation in the data that the model was trained on."""

from collections.abc import Collection, Iterator, Sequence

from studio.evaluation.overlap import overlaps
from studio.evaluation.rows import AnsweredRow
from studio.intake.row_formats.image_marks import find_marks
from studio.protocols.evaluation import EvaluationJob, RowResult
from studio.training.data.image_messages import images_of
from studio.training.data.prompt_answer import prompt_text
from studio.training.data.rows import TrainingRow, is_trained_on, read_rows, split_rows


def mark_overlaps(job: EvaluationJob, results: Sequence[RowResult]) -> list[RowResult]:
    """Return the results with how each row occurs in the training data."""
    if job.trained_on is None or not job.trained_on.is_file():
        return list(results)
    rows = read_rows(job.trained_on, with_bad=job.with_bad)
    if not job.has_own_validation:
        rows, _held_out = split_rows(rows, job.validation_share, job.seed)
    found = overlaps(_texts(rows), [_to_answered_row(result) for result in results])
    images = {one["sha256"] for row in rows for one in images_of([*row.messages, *row.rejected])}
    return [
        result.model_copy(update={"overlap": found.get(result.position, "")})
        if _shares_images(result, images)
        else result
        for result in results
    ]


def _shares_images(result: RowResult, known: Collection[str]) -> bool:
    """Whether a row has an image of the training data, or none: others ask about new ones."""
    own = find_marks(result.prompt).images
    return not own or any(one in known for one in own)


def _texts(rows: Sequence[TrainingRow]) -> Iterator[str]:
    """Yield the prompt of each answer that was trained on, alone and with the answer."""
    for row in rows:
        if row.text is not None:
            yield row.text
        if row.is_task:
            yield prompt_text(row.messages)
        for last, turn in enumerate(row.messages):
            if is_trained_on(turn):
                prompt = prompt_text(row.messages[:last])
                yield prompt
                yield f"{prompt}\n{turn['content']}"


def _to_answered_row(result: RowResult) -> AnsweredRow:
    fields = {"position", "prompt", "reference", "answer", "reason", "tokens"}
    return AnsweredRow(**result.model_dump(include=fields))
