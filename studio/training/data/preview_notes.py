"""Notes and warnings on a previewed row: what of it is trained on, left out or truncated."""

from collections.abc import Iterator

from studio.protocols.tokenizer_service import RowLengths, TokenizerRequest
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, cut_after_last_answer
from studio.training.data.rows import TrainingRow


def count_trained(labelled: LabelledRow, start: int, end: int | None) -> int:
    """Return how many tokens between two positions are trained on."""
    labels = labelled.labels[start:end]
    return len(labels) - labels.count(IGNORE_INDEX)


def pair_warnings(chosen: LabelledRow, rejected: LabelledRow, max_length: int) -> Iterator[str]:
    """Yield why a run leaves the pair out, or what it does not read of it."""
    answers = (chosen, rejected)
    cut = [max(0, len(answer.ids) - max_length) for answer in answers]
    if not all(count_trained(answer, 1, max_length) for answer in answers):
        yield (
            f"The prompt fills the limit of {max_length:,} tokens, so an answer is cut off "
            "completely. Training leaves this pair out."
        )
    elif chosen.ids[:max_length] == rejected.ids[:max_length]:
        yield (
            f"Both answers are equal up to the limit of {max_length:,} tokens. Training leaves "
            "this pair out."
            if any(cut)
            else "Both answers are equal. Training leaves this pair out."
        )
    elif any(cut):
        yield (
            f"{cut[0]:,} tokens of the better answer and {cut[1]:,} of the worse one are truncated."
        )


def held_out_note(request: TokenizerRequest, sizes: RowLengths) -> str:
    """Return why a row shares no example, or ""."""
    if request.number not in sizes.held:
        return ""
    return "This row is held out for validation and does not share an example."


def row_notes(request: TokenizerRequest, row: TrainingRow) -> Iterator[str]:
    """Yield what is special about the row."""
    if row.text is not None and not row.pair:
        yield "Text without turns: every token is trained on, and no chat template is used."
    if row.is_task:
        yield "A task: the model writes its own answers to this prompt, and graders score them."
    if row.is_good is False:
        yield "This answer is rated bad: supervised training leaves it out."
    if "chosen" in request.row:
        yield "Only the chosen answer of this pair is trained on."
    left_out = len(row.messages) - len(cut_after_last_answer(row).messages)
    if left_out and left_out < len(row.messages):
        subject = "The last turn is" if left_out == 1 else f"The last {left_out} turns are"
        yield f"{subject} not used for training, because no answer follows."


def row_warnings(row: TrainingRow, labelled: LabelledRow, max_length: int) -> Iterator[str]:
    """Yield why training leaves the row out, or what it does not read of it."""
    if row.is_task:
        if len(labelled.ids) > max_length:
            yield f"The prompt is longer than the limit of {max_length:,} tokens."
        return
    trained_after = count_trained(labelled, max_length, None)
    if not count_trained(labelled, 1, max_length):
        reason = (
            f"the part to train on begins after the limit of {max_length:,} tokens"
            if trained_after
            else "it has no answer to train on"
        )
        yield f"Nothing in this row is trained on: {reason}. Training leaves it out."
    elif trained_after:
        truncated = len(labelled.ids) - max_length
        share = "all" if trained_after == truncated else f"{trained_after:,}"
        if truncated == 1:
            yield "The last token is truncated; it would have been trained on."
            return
        yield f"{truncated:,} tokens are truncated, {share} of which would have been trained on."
