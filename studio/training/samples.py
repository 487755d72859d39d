"""Answers to fixed validation prompts, so that a person can read what training has changed."""

from collections.abc import Iterator, Sequence
from typing import Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.events import Sampled
from studio.training.data import Conversation
from studio.training.templates import Message, Template
from studio.training.undisturbed import undisturbed

_BATCH = 8


class Sampler:
    """Writes the answers: always the likeliest token, so that only the weights make a change."""

    def __init__(
        self,
        conversations: Sequence[Conversation],
        template: Template,
        tokenizer: PreTrainedTokenizerBase,
        max_new_tokens: int,
    ) -> None:
        self._turns = [_last_answer(conversation) for conversation in conversations]
        self._texts = [template.prompt(before) for before, _answer in self._turns]
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._stops = template.stops

    def answer(
        self, model: PreTrainedModel, stage: Literal["before", "after"], step: int
    ) -> Iterator[Sampled]:
        """Yield one answer a prompt, in the prompts' order."""
        answers: list[str] = []
        for at in range(0, len(self._texts), self._batch_size(model)):
            answers += self._generate(model, self._texts[at : at + self._batch_size(model)])
        for i, ((before, reference), answer) in enumerate(zip(self._turns, answers, strict=True)):
            yield Sampled(
                stage=stage,
                step=step,
                position=i,
                prompt=_readable(before),
                reference=reference,
                answer=answer.strip(),
            )

    def _batch_size(self, model: PreTrainedModel) -> int:
        # Recurrent families read padding as text: no row of theirs may be padded.
        return 1 if model._is_stateful else _BATCH  # noqa: SLF001 -- upstream has no other word

    def _generate(self, model: PreTrainedModel, texts: list[str]) -> list[str]:
        inputs = self._tokenizer(
            texts,
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_token_type_ids=False,
        ).to(model.device)
        with undisturbed(model):
            written = model.generate(
                **inputs,
                do_sample=False,
                num_beams=1,
                max_new_tokens=self._max_new_tokens,
                eos_token_id=self._stops,
                pad_token_id=self._tokenizer.pad_token_id,
                use_cache=True,
            )
        new = written[:, inputs["input_ids"].shape[1] :]
        answers: list[str] = self._tokenizer.batch_decode(new, skip_special_tokens=True)
        return answers


def _last_answer(conversation: Conversation) -> tuple[list[Message], str]:
    last = max(i for i, turn in enumerate(conversation) if turn["role"] == "assistant")
    return list(conversation[:last]), conversation[last]["content"]


def _readable(messages: Sequence[Message]) -> str:
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
