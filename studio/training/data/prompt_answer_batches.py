"""Make examples and batches of prompts and answers, for encoder-decoder models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.prompt_answer import cut, split_row, tokenise_texts
from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Collator, Examples


def tokenise(
    rows: Sequence[TrainingRow],
    _template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise prompts and answers, and truncate each; drop rows that lack one of them.

    The column `input_ids` has the prompts, and `labels` the answers.
    """
    texts = [split_row(row) for row in rows]
    kept = [i for i, (prompt, answer) in enumerate(texts) if prompt and answer]
    prompts = tokenise_texts([texts[i][0] for i in kept], tokenizer)
    answers = tokenise_texts([texts[i][1] for i in kept], tokenizer, is_answer=True)
    pairs = list(zip(prompts, answers, strict=True))
    cut_prompts = [cut(ids, max_length, tokenizer) for ids in prompts]
    cut_answers = [cut(ids, max_length, tokenizer) for ids in answers]
    return Examples(
        Dataset.from_dict({"input_ids": cut_prompts, "labels": cut_answers}),
        [rows[i] for i in kept],
        dropped=len(rows) - len(kept),
        truncated=sum(max(map(len, pair)) > max_length for pair in pairs),
        tokens=sum(map(len, cut_prompts)) + sum(map(len, cut_answers)),
        longest=max(map(len, cut_prompts), default=0),
        longest_answer=max(map(len, cut_answers), default=0),
        longest_row=max((max(map(len, pair)) for pair in pairs), default=0),
    )


@dataclass(frozen=True, slots=True)
class PromptAnswerCollator(Collator):
    """Makes a batch of prompts and answers; both are padded on the right."""

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        prompts = [row["input_ids"] for row in rows]
        lengths = torch.tensor([len(ids) for ids in prompts])
        ids = pad_sequence(prompts, batch_first=True, padding_value=self.pad_token_id)
        answers = [row["labels"] for row in rows]
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
            "labels": pad_sequence(answers, batch_first=True, padding_value=IGNORE_INDEX),
        }


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:  # noqa: ANN401 -- maybe with an adapter
    """Return what the writing half reads: the answer, one token later, behind its start token.

    Answers of mBART start with the code of their language, which labels end with.

    Raises:
        TrainingError: the model's config names no start token.

    """
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    config = base.config
    start = getattr(config, "decoder_start_token_id", None)
    if start is None and config.model_type != "mbart":
        raise TrainingError(
            "unsupported_architecture",
            "The config of this model does not say with which token an answer starts.",
            hint="Set decoder_start_token_id in the model's config.json.",
        )
    shifted: Tensor
    if hasattr(base, "prepare_decoder_input_ids_from_labels"):
        shifted = base.prepare_decoder_input_ids_from_labels(labels)
    else:
        # M2M100 does so inside its forward pass alone, with this very function.
        shifted = shift_tokens_right(labels, config.pad_token_id, start)
    return shifted
