"""The protocol of the tokenizer service: one JSON line each way over a Unix socket.

The service is a process of the worker (`python -m studio.runner.tokenizer.main`) that keeps
tokenizers loaded, so that pages can show a row as the model sees it without loading one.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from studio.schemas.field_docs import FieldDocs

MODULE = "studio.runner.tokenizer.main"

MAX_REQUEST_BYTES = 8 * 2**20
"""The longest request, which is mostly one row."""

MAX_RESPONSE_BYTES = 8 * 2**20
"""The longest response."""

MAX_PREVIEW_TOKENS = 2000
"""How many tokens of a row are returned; the others are only counted."""

PACKING_WINDOW_ROWS = 500
"""How many consecutive rows of a file are packed together.

With 7,473 grade-school math questions in sequences of 1,024 tokens, this fills 98.0 %; 1,000 rows
fill 98.2 % and all rows 98.4 %, but a preview of one row must wait for its whole window.
"""

MAX_PREVIEW_CHARACTERS = 2000
"""The maximum length of a template preview."""

TemplateSource = Literal["model", "chatml", "plain", "none"]
"""Where turns get their format from. With `none`, they are a prompt and its answer as plain text,
as encoder-decoder models read and write them."""
RequestKind = Literal[
    "tokens", "templates", "prompt", "answer", "reading", "steps", "words", "texts"
]


def packing_window(number: int) -> range:
    """Return the numbers, from 1, of the rows that a row may be packed with."""
    first = (number - 1) // PACKING_WINDOW_ROWS * PACKING_WINDOW_ROWS + 1
    return range(first, first + PACKING_WINDOW_ROWS)


class Message(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PackingWindow(Message):
    """The location of the rows that a row may be packed with."""

    path: str
    """The file of the split."""
    start: int
    """The byte offset of the first row."""
    rows: int
    """The number of rows in the file."""
    judged: bool = False
    """Whether rows may be rated as bad, which are not trained on."""
    share: float = 0.0
    """The share of trainable rows held out for validation."""
    seed: int = 0
    """The seed that selects the held-out rows."""


class TokenizerRequest(Message):
    """A row, and everything that determines how a model sees it."""

    kind: RequestKind
    model: str
    """A folder, or a name on the hub."""
    base: str = ""
    """The folder of an adapter's base model, whose config says how it reads images."""
    max_pixels: int | None = None
    """The size to which larger images are scaled, if the model keeps their shape."""
    row: dict[str, Any] = {}
    """The row as stored in the dataset's file."""
    number: int = 0
    """The number of the row; 0 if it is not from a file."""
    max_length: int = 1024
    chat_template: TemplateSource = "model"
    window: PackingWindow | None = None
    """With sequence packing, the rows it may be packed with."""
    source_language: str = ""
    """The code of the prompt's language, for a model that translates between several."""
    target_language: str = ""
    """The code of the answer's language."""
    with_bad: bool = True
    """Whether the model reads the worse answer of a pair, and answers that are rated bad."""
    is_encoder: bool = False
    """Whether the model reads in both directions."""
    answer_start: str = ""
    """The beginning of the answer to a prompt, which the model is to continue."""
    first: str = ""
    """A text that the model reads before each of them, if it compares both."""
    texts: list[str] = []
    """Of kind `texts`: what the model reads one by one, instead of a row."""


class Token(Message):
    id: int
    text: str
    """Its characters; empty for a further piece of the previous token's character."""
    start: int
    end: int
    """Its position in the rendered template; both 0 if it has none."""
    learnt: bool
    special: bool
    turn: int
    """The index of its turn, from 0."""
    cut: bool
    """Whether it is beyond the max sequence length, and therefore truncated."""
    differs: bool = False
    """In a pair of answers, whether the other answer lacks it here."""


class PackedRow(Message):
    """One of the rows in a packed sequence."""

    number: int
    size: int
    """The number of its tokens that are not truncated."""
    tokens: list[Token]
    """The last tokens of the row before the requested row, the first tokens of rows after it; none
    for the requested row itself."""


class PackedExample(Message):
    """A packed sequence with all of its rows, as the model reads it."""

    rows: list[PackedRow]
    size: int
    limit: int
    """The maximum length."""


class RejectedPreview(Message):
    """The worse answer of a pair, as a model will see it after the same prompt."""

    tokens: list[Token]
    """The first tokens, with those of the prompt; `total` is the number of all."""
    total: int
    learnt: int
    cut: int
    cut_at: int | None
    roles: list[str]


class TokenPreview(Message):
    """A row as a model will see it; of a pair, the prompt with the better answer."""

    tokens: list[Token]
    """The first tokens; `total` is the number of all."""
    total: int
    learnt: int
    """The number of tokens trained on, without truncated ones."""
    cut: int
    """The number of truncated tokens."""
    cut_at: int | None
    """The index of the first truncated token; None if there is none."""
    roles: list[str]
    """The roles of the turns in order; empty for text."""
    template: TemplateSource | None
    """The chat template that rendered the turns; None for text."""
    sentences: list[str]
    """Notes for the user."""
    warnings: list[str]
    """Sentences about lost data."""
    pack: PackedExample | None = None
    """The packed sequence that contains it; None without sequence packing."""
    rejected: RejectedPreview | None = None
    """The worse answer of a pair; None for other rows, and if the method does not read it."""
    prompt_turns: int = 0
    """Of a pair, the number of turns before the answers."""
    is_good: bool | None = None
    """How the last answer is rated; None if it is not."""


class TemplatePreview(Message):
    """A row rendered by a chat template."""

    name: TemplateSource
    title: str
    refused: str
    """Why the template cannot be used; empty if it can."""
    pieces: list[tuple[str, bool]]
    """The rendered text in pieces, and whether each is trained on."""
    shortened: bool


class TemplatePreviews(Message):
    """The other chat templates available for a model."""

    has_own: bool
    choices: list[TemplatePreview]


class PromptTokens(Message):
    """A tokenized prompt: turns rendered by the chat template, or plain text.

    A `reading` ends where the row does, and is truncated as in training, and so are `steps` and
    `words`. An `answer` ends with the last turn and is not truncated.
    """

    ids: list[int]
    stops: list[int]
    """The token IDs that end an answer."""
    places: list[int] = []
    """The indices of the tokens at which steps end, or which say what the words are; of an answer,
    that of its first token."""
    spoken: dict[str, int] = {}
    """What makes a model write the target language, by the names of `generate`."""
    texts: list[list[int]] = []
    """The tokens of several texts, each truncated as in training."""
    types: list[list[int]] = []
    """With a first text, 1 for the tokens that belong to the second one, in models such as BERT."""
    template_hash: str = ""
    """The first digits of the SHA-256 of the chat template; empty if none was used."""


class RowLengths(Message):
    """The lengths of a window's rows, which the service caches and does not return."""

    numbers: list[int] = []
    """Numbers of the rows trained on that are long enough after truncation."""
    tokens: list[int] = []
    firsts: list[int] = []
    """The index of the first token trained on; 0 if there is none."""
    held: list[int] = []
    """Numbers of the rows held out for validation."""
    trouble: str = ""
    """Why the lengths could not be determined."""


class ServiceFailure(Message):
    code: str
    message: str
    hint: str = ""


class TokenizerResponse(Message):
    """The response; exactly one field is set."""

    tokens: TokenPreview | None = None
    templates: TemplatePreviews | None = None
    prompt: PromptTokens | None = None
    failure: ServiceFailure | None = None


def socket_path(home: Path) -> Path:
    return home / "desk.sock"
