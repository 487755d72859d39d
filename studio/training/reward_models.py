"""Frozen reward models beside the model that trains, which score its answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from safetensors import SafetensorError
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import StudioError, TrainingError
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import BATCH_TOKENS, RewardJudge
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.training import served_models
from studio.training.data import token_preview
from studio.training.models import heads
from studio.training.precision import matmul_precision
from studio.weights import encoders

_HINT = "Choose another reward model in the grader."

_PROBE = ({"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"})
"""A conversation that every reward model must be able to read."""


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A reward model in memory, with the tokenizer that it was trained with."""

    judge: RewardJudge
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def tokenise(self, turns: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation as in its training.

        Raises:
            StudioError: it is no conversation, or the chat template cannot format it.

        """
        return tokenise(self.judge, self.model, self.tokenizer, turns)

    def score(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the score of each tokenised conversation.

        The same rows give the same scores, whatever trains beside the model.
        """
        scores = [0.0] * len(rows)
        with torch.inference_mode(), matmul_precision.exact_products(self.model.device):
            for places in _batches([len(row) for row in rows]):
                for place, score in zip(places, self._read([rows[i] for i in places]), strict=True):
                    scores[place] = score
        return scores

    def _read(self, rows: Sequence[Sequence[int]]) -> list[float]:
        ids = [torch.tensor(row) for row in rows]
        pad = self.model.config.get_text_config().pad_token_id
        padded = pad_sequence(ids, batch_first=True, padding_value=pad or 0)
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        inputs = {"input_ids": padded, "attention_mask": mask}
        logits = self.model(**{name: part.to(self.model.device) for name, part in inputs.items()})
        scores: list[float] = logits.logits[:, 0].tolist()
        return scores


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the places of rows that are read together: of similar length, the longest first."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def tokenise(
    judge: RewardJudge,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, str]],
) -> list[int]:
    """Return the tokens of a conversation as a reward model's training reads it.

    Raises:
        StudioError: it is no conversation, or the chat template cannot format it.

    """
    is_encoder = heads.encoder_of(model.config) is not None
    most = encoders.max_tokens(model.config.to_dict()) or judge.max_length
    request = TokenizerRequest(
        kind="reading",
        model=judge.model.model,
        row={"messages": list(turns)},
        max_length=min(judge.max_length, most),
        chat_template="none" if is_encoder else "model",
        is_encoder=is_encoder,
    )
    return token_preview.tokenise_row(request, tokenizer).ids


def load_all(judges: Mapping[str, RewardJudge], names: Sequence[str]) -> dict[str, RewardModel]:
    """Load the reward models of these names.

    Raises:
        TrainingError: one cannot be loaded, or cannot read a conversation.

    """
    return {name: _load(name, judges.get(name)) for name in names}


def _load(name: str, judge: RewardJudge | None) -> RewardModel:
    if judge is None:
        raise _refusal(name, "It is not known where its files are.", "")
    for folder in filter(None, (judge.model.model, judge.model.adapter)):
        if Path(folder).is_absolute() and not Path(folder).is_dir():
            raise _refusal(name, "Its files have been deleted.", "")
    try:
        model = _load_weights(judge.model)
        loaded = RewardModel(judge, model, served_models.load_tokenizer(judge.model))
        loaded.tokenise(_PROBE)
    except StudioError as error:
        raise _refusal(name, error.message, error.hint) from error
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _refusal(name, "Its files are damaged or incomplete.", "") from error
    return loaded


def _load_weights(request: GenerationRequest) -> Any:  # noqa: ANN401 -- a model, or peft around one
    model: Any = served_models.load_base_model(request)
    if request.adapter:
        renamed = served_models.renamed_weights(model)
        with served_models.explaining_damage():
            config = served_models.saved_adapter_config(request.adapter)
            model = get_peft_model(model, config)
            model.load_adapter(request.adapter, "default", key_mapping=renamed)
    model.requires_grad_(False)  # noqa: FBT003 -- upstream's signature
    return model.eval()


def _refusal(name: str, reason: str, hint: str) -> TrainingError:
    # Other codes would offer to change the base model.
    message = f"The reward model {name} does not work: {reason}"
    return TrainingError("conflict", message, hint=hint or _HINT)
