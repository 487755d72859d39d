"""Log-probabilities of tokens: those that a model gives when it reads them; and their bytes."""

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationChunk, GenerationRequest, TokenScore
from studio.runner.inference.generation import token_budget
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.prompt_scores import send_prompt_scores
from studio.runner.inference.text_stream import Likelihood, TextStream
from studio.runner.inference.token_text import LEAST_LOGPROB, ScoredToken
from tests.support.generated_answers import Answer, answer
from tests.training import tiny
from tests.training.models.small_families import SMALL_FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

PROMPT = [5, 6, 7, 80, 90]


@pytest.fixture(scope="module", params=SMALL_FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logprobs") / request.param
    return tiny.write_model(folder, SMALL_FAMILIES[request.param])


def asked(folder: Path, **changes: object) -> GenerationRequest:
    plain = GenerationRequest(
        model=str(folder), ids=PROMPT, stops=[-1], most=24, top_logprobs=3, is_turn=False
    )
    return plain.model_copy(update=changes)


def written(request: GenerationRequest) -> Answer:
    with ModelCache().model_for(request) as (model, tokenizer):
        return answer(request, model, tokenizer)


def scored(request: GenerationRequest) -> list[TokenScore]:
    pieces: list[GenerationChunk] = []
    with ModelCache().model_for(request) as (model, tokenizer):
        send_prompt_scores(request, model, tokenizer, pieces.append)
    return [token for piece in pieces for token in piece.tokens]


def read(folder: Path, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities in every place, as the plain model gives them."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits.log_softmax(dim=-1)


def total(tokens: list[TokenScore]) -> float:
    return sum(token.logprob or 0.0 for token in tokens)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.3, "top_p": 0.4, "seed": 7}]
)
def test_written_tokens_have_the_likelihood_of_reading_them(
    family: Path, sampling: dict[str, object]
) -> None:
    found = written(asked(family, **sampling))
    ids = [token.id for token in found.tokens]
    every = read(family, PROMPT + ids)
    places = every[len(PROMPT) - 1 : -1]

    expected = places[range(len(ids)), ids].sum().item()
    assert len(ids) == found.end.tokens > 8
    assert total(found.tokens) == pytest.approx(expected, abs=1e-4)
    assert [[other.logprob for other in token.top] for token in found.tokens] == [
        pytest.approx(place.topk(3).values.tolist(), abs=1e-4) for place in places
    ]


def test_logprobs_do_not_change_an_answer(family: Path) -> None:
    request = asked(family, temperature=1.0, seed=3)

    assert written(request).text == written(request.model_copy(update={"top_logprobs": None})).text


@pytest.mark.parametrize("first", [0, 1, 3])
def test_prompt_is_scored_as_the_model_reads_it(family: Path, first: int) -> None:
    request = asked(family, ids=[*PROMPT, *range(100, 180)], scored_from=first, most=0)
    every = read(family, request.ids)

    found = scored(request)

    assert [token.id for token in found] == request.ids[first:]
    assert [token.logprob is None for token in found[:2]] == [first == 0, False]
    start = max(first, 1)
    expected = every[range(start - 1, len(request.ids) - 1), request.ids[start:]].sum().item()
    assert total(found) == pytest.approx(expected, abs=1e-4)


def test_whole_context_can_be_scored_but_not_continued(family: Path) -> None:
    config = SMALL_FAMILIES["llama"]
    full = asked(family, ids=[5] * 128)

    assert token_budget(full.model_copy(update={"most": 0}), config) == 0
    with pytest.raises(InvalidError, match="context is 128"):
        token_budget(full, config)
    with pytest.raises(InvalidError, match="context is 128"):
        token_budget(full.model_copy(update={"most": 0, "ids": [5] * 129}), config)


def test_several_beams_have_no_logprobs() -> None:
    request = asked(Path("/x"), num_beams=2)

    with pytest.raises(InvalidError, match="several beams has no log-probabilities"):
        token_budget(request, SMALL_FAMILIES["llama"])


def word_pieces() -> PreTrainedTokenizerBase:
    words = ["[UNK]", "play", "##ing", "the", "game", "[END]"]
    inner = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="[END]")  # noqa: S106 -- no secret


def byte_fallback() -> PreTrainedTokenizerBase:
    """Make a tokenizer as Llama 2 has: pieces with a mark for a space, and bytes for the rest."""
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    words = ["<unk>", "</s>", *bytes_, "▁", "▁Go", "od", "▁day"]
    inner = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")  # noqa: S106 -- no secret


def streamed(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> tuple[str, list[TokenScore]]:
    stream = TextStream(tokenizer, [], strips_start=False)
    text, tokens = "", []
    for token in ids:
        text += stream.add(token, Likelihood(-1.0, [ScoredToken(token, -1.0)]))
        tokens += stream.take_tokens()
    text += stream.finish()
    return text, tokens + stream.take_tokens()


def joined(tokens: list[TokenScore]) -> bytes:
    return b"".join(bytes(token.bytes or []) for token in tokens)


@pytest.mark.parametrize("text", ["Plain words.", "Zwölf Boxkämpfer", "日本語 🎉 fin", "🎉"])
def test_bytes_of_byte_level_tokens_join_to_the_text(text: str) -> None:
    tokenizer = tiny.tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    said, tokens = streamed(tokenizer, ids)

    assert said == text
    assert joined(tokens) == text.encode()
    assert [token.id for token in tokens] == ids
    assert all(token.top[0].bytes == token.bytes for token in tokens)


def test_parts_of_characters_are_written_as_bytes() -> None:
    tokenizer = tiny.tokenizer()

    _text, tokens = streamed(tokenizer, tokenizer("é", add_special_tokens=False)["input_ids"])

    assert [(token.text, token.bytes) for token in tokens] == [("\\xc3", [195]), ("\\xa9", [169])]


def test_bytes_of_pieces_of_words_have_their_spaces() -> None:
    tokenizer = word_pieces()

    said, tokens = streamed(tokenizer, [1, 2, 3, 4])

    assert said == "playing the game"
    assert [token.text for token in tokens] == ["play", "ing", " the", " game"]
    assert joined(tokens) == said.encode()


def test_bytes_of_fallback_tokens_join_to_the_text() -> None:
    tokenizer = byte_fallback()
    place = tokenizer.convert_tokens_to_ids
    bytes_ = [place(f"<0x{byte:02X}>") for byte in "日".encode()]

    said, tokens = streamed(tokenizer, [place("▁Go"), place("od"), *bytes_, place("▁day")])

    assert said == "Good日 day"
    assert joined(tokens) == said.encode()
    assert [token.text for token in tokens[2:5]] == ["\\xe6", "\\x97", "\\xa5"]


def test_continued_text_begins_with_its_space() -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.convert_tokens_to_ids(["▁Go", "od", "▁day"])
    stream = TextStream(tokenizer, [], strips_start=False)
    stream.start_after(ids[:2])

    assert stream.add(ids[2], Likelihood(-1.0)) == " day"
    assert joined(stream.take_tokens()) == b" day"


def test_text_after_a_part_of_a_character_is_decoded_alone() -> None:
    tokenizer = tiny.tokenizer()
    first, second = tokenizer("é", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer, [], strips_start=False)
    stream.start_after([first])

    assert stream.add(second) + stream.finish() == "\ufffd"


def test_special_tokens_have_no_bytes() -> None:
    tokenizer = tiny.tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    said, tokens = streamed(tokenizer, [*tokenizer("Go")["input_ids"], end])

    assert said == "Go"
    assert (tokens[-1].text, tokens[-1].bytes) == ("<|im_end|>", None)


def test_tokens_of_a_stop_sequence_are_not_sent() -> None:
    tokenizer = tiny.tokenizer()
    ids = tokenizer("Good. </en and </end> more", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer, ["</end>"], strips_start=False)
    text, tokens = "", []

    for token in ids:
        text += stream.add(token, Likelihood(-1.0))
        tokens += stream.take_tokens()
        # A token comes with the piece in which its text begins, and not before.
        assert text.encode().startswith(joined(tokens[:-1]))
        assert len(joined(tokens)) >= len(text)
    text += stream.finish()
    tokens += stream.take_tokens()

    assert text == "Good. </en and "
    assert joined(tokens).startswith(text.encode())
    assert len(joined(tokens[:-1])) < len(text)


def test_withheld_tokens_follow_if_no_stop_sequence_comes() -> None:
    tokenizer = tiny.tokenizer()
    ids = tokenizer("a </e", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer, ["</end>"], strips_start=False)

    text = "".join(stream.add(token, Likelihood(-1.0)) for token in ids)
    before = stream.take_tokens()
    text += stream.finish()

    assert (text, joined(before)) == ("a </e", b"a ")
    assert joined(before + stream.take_tokens()) == text.encode()


def test_impossible_tokens_have_the_least_logprob() -> None:
    stream = TextStream(tiny.tokenizer(), [], strips_start=False)
    stream.add(40, Likelihood(-math.inf))
    (token,) = stream.take_tokens()

    assert token.logprob == LEAST_LOGPROB
