"""The protocol of the inference service: JSON lines over a Unix socket.

The service is a process of the worker (`python -m studio.runner.inference.main`) that loads models
and generates answers. A client sends one request per connection, and the answer is streamed:

    request   {"model": "/…/starter", "ids": [1, 52, …], …}
    response  {"loading": true}   {"started": true}   {"text": "Go"}
              {"text": "od."}   {"end": {"reason": "stop", …}}

without `loading` if the model is in memory; or ends with `{"failure": …}`. Closing the connection
stops the generation.

With `texts`, the lines have `values` instead, in the order of the texts.

With `top_logprobs`, each piece of text comes with its tokens. With `scored_from`, the tokens of the
prompt from there on come first, as the model expects each of them after those before it.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from studio.protocols.tokenizer_service import Message, ServiceFailure

MODULE = "studio.runner.inference.main"

MAX_REQUEST_BYTES = 112 * 2**20
"""The longest request, enough for a million tokens and the images that settings allow at most."""

MAX_LINE_BYTES = 2**20
"""The longest line of a response."""

MAX_LINE_TOKENS = 64
"""The most tokens on a line of a response."""

FinishReason = Literal["stop", "length"]

EXAMPLE_CALL = ("studio_example", {"studio_key": "studio_value"})
"""The function and the arguments of a call that shows how a chat template writes calls."""


class GenerationRequest(Message):
    """A prompt and the parameters of its generation."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    model: str
    """The folder of the model or of an adapter's base model, or a name on the hub."""
    code: str = ""
    """The checksum of the model's custom code that may run; empty runs none."""
    adapter: str = ""
    """The folder of an adapter; empty without one."""
    name: str = ""
    """The model's name as used by the client, for display."""
    pins: str = ""
    """The endpoint for which the model stays loaded from now on; empty for none."""
    unpins: str = ""
    """The endpoint that no longer needs its model; nothing is answered."""
    precision: str = ""
    """The precision an adapter was trained in."""
    base_dtype: str = ""
    """The format of an adapter's frozen base model, as named in recipes. A rounded or quantised
    base is loaded the same way again, because the adapter compensates for its errors. Without an
    adapter, the base alone answers in that format."""
    weights: str = ""
    """The folder of a checkpoint whose weights replace those of the model or adapter."""
    lora: dict[str, Any] = Field(default_factory=dict)
    """The recipe's adapter section, for a checkpoint whose run has not saved its adapter."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The recipe's model section, for an adapter, or a checkpoint whose run has not saved its
    model: the base model is loaded as the run loads it."""
    tokenizer: str = ""
    """The folder of the run's own tokenizer, if it added tokens; else that of the model."""
    ids: list[int]
    """The prompt; an empty one only loads the model."""
    images: list[bytes] = Field(default_factory=list)
    """The files of the images in the prompt, which has one mark for each, in this order."""
    image_options: dict[str, Any] = Field(default_factory=dict)
    """The recipe's section on images, of the run that the model belongs to."""
    stops: list[int]
    """The token IDs that end an answer."""
    stop: list[str] = Field(default_factory=list)
    """Strings that end an answer and are not included in it."""
    most: int | None = None
    """The maximum number of new tokens; None allows as many as fit into the context."""
    temperature: float = 1.0
    """0 selects the most likely token (greedy decoding)."""
    top_p: float = 1.0
    num_beams: int = 1
    """Drafts that are followed at a time; with several, the answer arrives as a whole."""
    length_penalty: float = 1.0
    """With several beams: above 0 prefers longer answers."""
    spoken: dict[str, int] = Field(default_factory=dict)
    """What makes the model write its target language, by the names of `generate`."""
    seed: int | None = None
    json_schema: dict[str, Any] | None = None
    """The JSON schema that the answer follows; an empty one allows any JSON."""
    tools: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The functions that the answer may call: a JSON schema of the parameters by name."""
    must_call: bool = False
    """Whether the answer is a call of one of them."""
    call_example: list[int] = Field(default_factory=list)
    """The tokens of a turn that makes `EXAMPLE_CALL`."""
    gives_scores: bool = False
    """Whether the model reads the prompt and gives scores, instead of writing an answer."""
    places: list[int] = Field(default_factory=list)
    """The indices of the tokens whose scores are wanted, if each token has its own."""
    gives_tags: bool = False
    """Whether these scores are those of the tags of words."""
    texts: list[list[int]] = Field(default_factory=list)
    """Texts that the model reads one by one: it gives numbers for each, and writes no answer."""
    types: list[list[int]] = Field(default_factory=list)
    """Of texts that hold two each: 1 for the tokens of the second one, in models such as BERT."""
    pooling: Literal["", "mean", "cls", "last"] = ""
    """How it makes a vector of a text, if that is what it gives."""
    top_logprobs: int | None = None
    """How many alternatives of each token are wanted with its log-probability; None wants neither.
    They are those before `temperature` and `top_p` change them."""
    scored_from: int | None = None
    """The index of the first token of the prompt whose log-probability is wanted, too; 0 for all,
    of which the first has none. With `most` 0, nothing is generated."""
    is_turn: bool = True
    """Whether the output is a turn of a conversation, which has no leading space, rather than a
    continuation of text."""

    @property
    def reads_only(self) -> bool:
        """Whether the model writes nothing."""
        return self.gives_scores or bool(self.pooling)


class ScoredText(Message):
    """The text of a token, and how likely it was."""

    text: str
    """Its characters; a part of a character is written as its bytes, as `\\xe6`."""
    bytes: list[int] | None
    """In UTF-8; None for a special token, which is no text."""
    logprob: float | None
    """The natural logarithm of its probability; None for the first token of a prompt."""


class TokenScore(ScoredText):
    """A token of an answer or of a prompt."""

    id: int
    top: list[ScoredText] = Field(default_factory=list)
    """The likeliest tokens in its place, the likeliest first."""


class WordTag(Message):
    tag: str
    """In BIO: O outside of entities, else B- or I- with a label."""
    likely: float
    """The probability of the tag."""


class ToolCall(Message):
    name: str
    arguments: str
    """A JSON object."""


class GenerationEnd(Message):
    reason: FinishReason
    tokens: int
    """The number of generated tokens, including the end token."""
    computed_in: str = ""
    """The number format that the model computed in, as in `events.Sampled`."""
    calls: list[ToolCall] = Field(default_factory=list)
    """The functions that the answer calls, which are no part of its text."""
    scores: dict[str, float] = Field(default_factory=dict)
    """By name, what a model gives that writes nothing."""
    labels: list[str] = Field(default_factory=list)
    """The labels that a classifier gives."""
    steps: list[float] = Field(default_factory=list)
    """For each step of a solution, the probability that it is right."""
    tags: list[WordTag] = Field(default_factory=list)
    """For each word of a text, its tag."""


class GenerationChunk(Message):
    """One line of a response; exactly one field is set, but `text` may come with its tokens."""

    loading: bool = False
    """The model is being loaded."""
    started: bool = False
    """The model is loaded, and generation starts."""
    text: str = ""
    tokens: list[TokenScore] = Field(default_factory=list)
    """The tokens whose text begins within this piece, if their log-probabilities are wanted."""
    values: list[str] = Field(default_factory=list)
    """What the model gives for the next of several texts: each float32 numbers in base64."""
    end: GenerationEnd | None = None
    failure: ServiceFailure | None = None

    def to_line(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


class InferenceStatus(Message):
    """The line that the service sends to its worker when an answer starts or ends."""

    name: str
    is_answering: bool
    computed_in: str = ""
    """The number format that it computed in, after its first answer."""

    def to_line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"


def socket_path(home: Path) -> Path:
    return home / "speaker.sock"
