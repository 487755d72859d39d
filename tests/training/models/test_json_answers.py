"""Answers that follow a JSON schema, whatever the model would rather write."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped] # has no types
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.runner.inference.constraints import schema_grammar, start_constraint
from studio.runner.inference.decoding import decode
from studio.runner.inference.generation import token_budget
from studio.runner.inference.model_cache import ModelCache
from tests.support.generated_answers import answer
from tests.training import tiny
from tests.training.models.small_families import SMALL_FAMILIES
from tests.training.models.test_decoding import Heard, Loaded, started

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

Schema = dict[str, Any]
SCHEMAS: dict[str, Schema] = {
    "choice": {"enum": ["yes", "no", 3, None, "größer"]},
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "is_new": {"type": "boolean"},
        },
        "required": ["name", "age", "is_new"],
        "additionalProperties": False,
    },
    "list": {
        "type": "array",
        "items": {"anyOf": [{"enum": [0.5, -1e3]}, {"const": "none"}, {"type": "null"}]},
        "minItems": 2,
        "maxItems": 3,
    },
    "references": {
        "$defs": {"pair": {"type": "array", "prefixItems": [{"type": "null"}], "maxItems": 1}},
        "type": "object",
        "properties": {"one": {"$ref": "#/$defs/pair"}},
        "required": ["one"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]{3}$"},
}


@pytest.fixture(scope="module", params=SMALL_FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("json") / request.param
    tiny.write_model(folder, SMALL_FAMILIES[request.param])
    with ModelCache().model_for(asked(None, model=str(folder))) as pair:
        yield pair


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = tiny.write_model(tmp_path_factory.mktemp("json") / "one", tiny.llama())
    with ModelCache().model_for(asked(None, model=str(folder))) as pair:
        yield pair


def asked(schema: Schema | None, **changes: object) -> GenerationRequest:
    plain = GenerationRequest(model="", ids=[5, 6, 7], stops=[2], most=100, json_schema=schema)
    return plain.model_copy(update=changes)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"seed": 3}, {"seed": 4, "top_p": 0.9}])
def test_untrained_model_follows_schema(
    family: Loaded, name: str, sampling: dict[str, object]
) -> None:
    found = answer(asked(SCHEMAS[name], **sampling), *family)

    assert found.end.reason == "stop"
    jsonschema.validate(json.loads(found.text), SCHEMAS[name])


def test_answer_is_cut_at_its_most_tokens(llama: Loaded) -> None:
    found = answer(asked({"type": "array", "minItems": 90, "items": {}}, most=5), *llama)

    assert (found.end.reason, found.end.tokens) == ("length", 5)


def test_answers_with_and_without_schema_are_decoded_together(llama: Loaded) -> None:
    requests = [
        asked(schema, ids=[5 + number] * (3 + number), temperature=0)
        for number, schema in enumerate([None, SCHEMAS["object"], SCHEMAS["choice"], None])
    ]
    heard = [Heard() for _ in requests]
    alone = [answer(one, *llama).text for one in requests]

    decode([started(one, llama, ear) for one, ear in zip(requests, heard, strict=True)], *llama)

    assert [one.text for one in heard] == alone
    jsonschema.validate(json.loads(heard[1].text), SCHEMAS["object"])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        ({"type": "array", "uniqueItems": True}, "Unimplemented keys"),
        ({"type": "string", "pattern": "(?<=a)b"}, "look-around"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
    ],
)
def test_schema_that_cannot_be_followed_is_rejected(
    llama: Loaded, schema: Schema, reason: str
) -> None:
    with pytest.raises(InvalidError, match=r"This JSON schema cannot be followed: ") as caught:
        answer(asked(schema), *llama)

    assert reason in caught.value.message


def test_search_with_beams_cannot_follow_schema() -> None:
    request = asked({}, num_beams=2)

    with pytest.raises(InvalidError, match="cannot follow a JSON schema"):
        token_budget(request, tiny.llama())


def test_constraint_that_breaks_off_says_why(llama: Loaded) -> None:
    constraint = start_constraint(schema_grammar({"enum": ["yes"]}), [2], llama[1], 320)
    constraint.add(llama[1].convert_tokens_to_ids("z"))

    assert constraint.is_complete
    assert "doesn't satisfy the grammar" in constraint.failure


def metaspace() -> PreTrainedTokenizerFast:
    """Make a tokenizer as those of SentencePiece are: pieces with bytes to fall back on."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    pieces += [("▁", -2.0), *((letter, -3.0) for letter in 'abcdenosy"{}[]:,0123456789-')]
    inner = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")  # noqa: S106 -- no secret


def wordpiece() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))  # noqa: S106 -- no secret
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", eos_token="a")  # noqa: S106 -- no secret


def test_pieces_of_sentencepiece_are_understood() -> None:
    tokenizer = metaspace()
    constraint = start_constraint(
        schema_grammar({"enum": ["yes", "no"]}), [1], tokenizer, len(tokenizer)
    )

    for token in tokenizer.convert_tokens_to_ids(list('"no"')):
        assert not constraint.is_complete
        constraint.add(token)
    assert constraint.is_complete


def test_tokenizer_without_bytes_is_rejected() -> None:
    tokenizer = wordpiece()

    with pytest.raises(InvalidError, match="tokenizer cannot be held to a JSON schema"):
        start_constraint(schema_grammar({}), [1], tokenizer, len(tokenizer))
