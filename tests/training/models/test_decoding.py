"""Answers that are decoded together: each is as if it were decoded alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    Gemma3TextConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.runner.inference.answer import Answer, start_answer
from studio.runner.inference.decoding import MAX_ANSWERS, MAX_PADDED_TOKENS, decode, fits
from studio.runner.inference.model_cache import ModelCache
from tests.support.generated_answers import answer
from tests.training import tiny
from tests.training.models.small_families import SIZES, SMALL_FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

FAMILIES: dict[str, PreTrainedConfig] = {
    **SMALL_FAMILIES,
    # Positions as a bias of the attention, and a window of it.
    "bloom": BloomConfig(vocab_size=320, hidden_size=32, n_layer=2, n_head=2),
    "gemma3": Gemma3TextConfig(**SIZES, num_key_value_heads=1, head_dim=16, sliding_window=8),
}
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("decoding") / request.param
    tiny.write_model(folder, FAMILIES[request.param])
    with ModelCache().model_for(asked(model=str(folder))) as pair:
        for weight in pair[0].parameters():
            # As they are made, weights are so small that the words before a token hardly count.
            weight.data *= 12 if weight.dim() > 1 else 1
        yield pair


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = tiny.write_model(tmp_path_factory.mktemp("decoding") / "one", tiny.llama())
    with ModelCache().model_for(asked(model=str(folder))) as pair:
        yield pair


def asked(number: int = 0, **changes: Any) -> GenerationRequest:  # noqa: ANN401 -- any field
    """Return a request with a prompt of its own length and words."""
    ids = [5 + (7 * number + 3 * place) % 250 for place in range(3 + 5 * number % 17)]
    plain = GenerationRequest(
        model="", ids=ids, stops=[2], most=24, temperature=0, top_logprobs=2, is_turn=False
    )
    return plain.model_copy(update=changes)


@dataclass(slots=True)
class Heard:
    """What arrives of an answer, and when its client hangs up."""

    leaves_after: int = 10**6
    pieces: list[GenerationChunk] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def logprobs(self) -> list[float | None]:
        return [token.logprob for piece in self.pieces for token in piece.tokens]

    def is_gone(self) -> bool:
        return len(self.pieces) >= self.leaves_after


def started(request: GenerationRequest, loaded: Loaded, heard: Heard) -> Answer:
    model, tokenizer = loaded
    return start_answer(
        request, request.most or 0, model, tokenizer, heard.pieces.append, heard.is_gone
    )


def together(requests: Sequence[GenerationRequest], loaded: Loaded) -> list[Heard]:
    heard = [Heard() for _ in requests]
    decode(
        [started(request, loaded, one) for request, one in zip(requests, heard, strict=True)],
        *loaded,
    )
    return heard


@dataclass(slots=True)
class Waiting:
    """Answers that come while others are decoded, one at a time."""

    answers: list[Answer]
    joined_with: list[int] = field(default_factory=list)

    def are_waiting(self, running: Sequence[Answer]) -> bool:
        return bool(self.answers) and fits(running, len(self.answers[0].ids))

    def take(self, running: Sequence[Answer]) -> list[Answer]:
        if not self.are_waiting(running):
            return []
        self.joined_with.append(len(running))
        return [self.answers.pop(0)]


def test_answers_together_are_those_of_each_alone(loaded: Loaded) -> None:
    requests = [asked(number) for number in range(32)]
    alone = [answer(request, *loaded) for request in requests]
    heard = [
        one for start in range(0, 32, 8) for one in together(requests[start : start + 8], loaded)
    ]

    same = [mine.text == theirs.text for mine, theirs in zip(heard, alone, strict=True)]
    assert sum(same) >= 0.99 * len(same)
    for mine, theirs in zip(heard, alone, strict=True):
        expected = [token.logprob for token in theirs.tokens]
        assert mine.logprobs == pytest.approx(expected, abs=1e-4)
        assert mine.pieces[-1].end == theirs.end


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}])
def test_one_answer_is_bit_for_bit_what_upstream_generates(
    loaded: Loaded, sampling: dict[str, float]
) -> None:
    model, tokenizer = loaded
    request = asked(3, seed=11, **sampling)
    inputs = torch.tensor([request.ids])
    chosen = {"do_sample": True, "top_k": 0, **sampling} if sampling else {"do_sample": False}
    torch.manual_seed(11)
    with torch.inference_mode():
        plain = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=24,
            eos_token_id=[2],
            pad_token_id=tokenizer.pad_token_id,
            output_logits=True,
            return_dict_in_generate=True,
            **chosen,
        )
    found = answer(request, *loaded)

    ids = plain.sequences[0, len(request.ids) :].tolist()
    exact = [
        logits.log_softmax(-1)[0, token].item()
        for logits, token in zip(plain.logits, ids, strict=True)
        if token != 2
    ]
    assert [token.id for token in found.tokens] == [token for token in ids if token != 2]
    assert [token.logprob for token in found.tokens] == exact


def test_each_answer_keeps_its_own_parameters(llama: Loaded) -> None:
    requests = [
        asked(0),
        asked(1, temperature=1.0, seed=5),
        asked(1, temperature=1.0, seed=6),
        asked(2, temperature=0.5, top_p=0.5, seed=5, most=7),
        asked(3, most=1, top_logprobs=None),
        asked(4, stops=[-1], top_logprobs=4),
        asked(5, stop=[answer(asked(5), *llama).text[2:4]]),
    ]
    alone = [answer(request, *llama) for request in requests]
    heard = together(requests, llama)

    assert [one.text for one in heard] == [one.text for one in alone]
    assert [one.pieces[-1].end for one in heard] == [one.end for one in alone]
    assert heard[1].text != heard[2].text
    assert alone[6].end.reason == "stop"


def test_those_who_come_later_join(loaded: Loaded) -> None:
    requests = [asked(number, most=40) for number in range(5)]
    alone = [answer(request, *loaded).text for request in requests]
    heard = [Heard() for _ in requests]
    answers = [started(request, loaded, one) for request, one in zip(requests, heard, strict=True)]
    waiting = Waiting(answers[1:])

    decode(answers[:1], *loaded, waiting)

    assert [one.text for one in heard] == alone
    assert waiting.joined_with[0] == 1
    assert max(waiting.joined_with) > 1


def test_one_who_hangs_up_does_not_stop_the_others(llama: Loaded) -> None:
    requests = [asked(number, stops=[-1]) for number in range(3)]
    alone = [answer(request, *llama).text for request in requests]
    heard = [Heard(), Heard(leaves_after=3), Heard()]

    decode(
        [started(request, llama, one) for request, one in zip(requests, heard, strict=True)],
        *llama,
    )

    assert [heard[0].text, heard[2].text] == [alone[0], alone[2]]
    assert len(heard[1].pieces) < 8


def test_no_position_is_beyond_the_context(loaded: Loaded) -> None:
    """A short prompt may be continued for longer than the padding of a long one leaves room."""
    requests = [
        asked(0, ids=[9] * 110, most=18, stops=[-1]),
        asked(0, ids=[5, 6, 7], most=125, stops=[-1]),
    ]
    alone = [answer(request, *loaded) for request in requests]
    heard = together(requests, loaded)

    assert [one.pieces[-1].end for one in heard] == [one.end for one in alone]
    assert [one.text for one in heard] == [one.text for one in alone]


def test_answers_are_given_one_at_a_time_if_memory_is_short(llama: Loaded) -> None:
    requests = [asked(number) for number in range(3)]
    alone = [answer(request, *llama).text for request in requests]

    def refuse(_module: object, _args: object, arguments: dict[str, Any]) -> None:
        if len(arguments["input_ids"]) > 1:
            raise torch.OutOfMemoryError

    hook = llama[0].register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        heard = together(requests, llama)
    finally:
        hook.remove()

    assert [one.text for one in heard] == alone


def test_rows_and_padding_are_limited(llama: Loaded) -> None:
    running = [started(asked(0), llama, Heard()) for _ in range(MAX_ANSWERS - 1)]
    long = [started(asked(0, ids=[5] * (MAX_PADDED_TOKENS // 2)), llama, Heard())]

    assert fits(running, 3)
    assert not fits([*running, running[0]], 3)
    assert fits(long, 3)
    assert not fits([*long, running[0]], 3)
    assert fits([], 10 * MAX_PADDED_TOKENS)
