"""What is asked of the desk, and what it answers: one line of JSON each, over a unix socket.

The desk is a process of the worker's side (`python -m studio.runner.tokenizer.main`) that keeps
tokenizers loaded, so that a page can show a row as a model will see it, and need not load any
itself.
"""

import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from studio.processes import unix_sockets
from studio.schemas.field_docs import FieldDocs

MODULE = "studio.runner.tokenizer.main"

MAX_REQUEST_BYTES = 8 * 2**20
"""The longest request: a row and little else."""

MAX_RESPONSE_BYTES = 8 * 2**20
"""The longest answer."""

MAX_PREVIEW_TOKENS = 2000
"""How many tokens of a row are told one by one; the others are counted."""

PACKING_WINDOW_ROWS = 500
"""How many rows that follow each other in a file are packed among themselves.

Of 7,473 questions of grade-school mathematics in examples of 1,024 tokens, 98.0 % is filled so,
98.2 % with 1,000 and 98.4 % with all at once; but who looks at a row waits for its whole window.
"""

MAX_PREVIEW_CHARACTERS = 2000
"""Characters of a template's preview."""

TemplateSource = Literal["model", "chatml", "plain"]
RequestKind = Literal["tokens", "templates", "prompt"]


def packing_window(number: int) -> range:
    """Return the numbers of the rows, counted from one, that a row may be packed with."""
    first = (number - 1) // PACKING_WINDOW_ROWS * PACKING_WINDOW_ROWS + 1
    return range(first, first + PACKING_WINDOW_ROWS)


class _Message(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PackingWindow(_Message):
    """Where the rows stand that a row may share an example with."""

    path: str
    """The file of its part."""
    start: int
    """Where in the file, in bytes, the first of them begins."""
    rows: int
    """How many the file has."""
    judged: bool = False
    """Whether some of them may be bad examples, which are not learnt."""
    share: float = 0.0
    """Of the rows that are learnt, how many are held back to measure by."""
    seed: int = 0
    """What those are drawn by."""


class TokenizerRequest(_Message):
    """A row, and all that decides how a model sees it."""

    kind: RequestKind
    model: str
    """A folder, or a name on the hub."""
    row: dict[str, Any]
    """As it stands in a data set's file."""
    number: int = 0
    """Which row it is; 0 where it is in no file."""
    max_length: int = 1024
    chat_template: TemplateSource = "model"
    window: PackingWindow | None = None
    """Where rows are packed, those it may be packed with."""


class Token(_Message):
    id: int
    text: str
    """The characters it stands for; none where it is a further piece of the character before."""
    start: int
    end: int
    """Where it stands in the text that the template wrote; nowhere if both are 0."""
    learnt: bool
    special: bool
    turn: int
    """Which turn it belongs to, from 0."""
    cut: bool
    """Whether it stands behind the longest example, and is not seen."""


class PackedRow(_Message):
    """One of the rows that share an example."""

    number: int
    size: int
    """Tokens of it that are kept."""
    tokens: list[Token]
    """Of the row before the one that was asked about the last, of those behind it the first; none
    of that one itself."""


class PackedExample(_Message):
    """An example with all of its rows, as a model will read them."""

    rows: list[PackedRow]
    size: int
    limit: int
    """The longest it may be."""


class TokenPreview(_Message):
    """A row as a model will see it."""

    tokens: list[Token]
    """The first of them; `total` says how many there are."""
    total: int
    learnt: int
    """Of those that are kept."""
    cut: int
    """How many stand behind the longest example."""
    cut_at: int | None
    """The place of the first that is cut; None where nothing is."""
    roles: list[str]
    """Of the turns, in their order; none for text."""
    template: TemplateSource | None
    """What wrote the turns; None for text."""
    sentences: list[str]
    """What a person should know of it."""
    warnings: list[str]
    """What is lost, in sentences."""
    pack: PackedExample | None = None
    """The example it shares with others, or could; None where rows are not packed."""


class TemplatePreview(_Message):
    """What a chat template makes of a row."""

    name: TemplateSource
    title: str
    refused: str
    """Why it cannot be used, in a sentence, or nothing."""
    pieces: list[tuple[str, bool]]
    """The text it writes, in stretches, and whether each is learnt."""
    shortened: bool


class TemplatePreviews(_Message):
    """The chat templates there are for a model, but the one that was asked about."""

    has_own: bool
    choices: list[TemplatePreview]


class PromptTokens(_Message):
    """What a model goes on with: turns as its chat template writes them, or a text."""

    ids: list[int]
    stops: list[int]
    """The tokens that end an answer."""


class RowLengths(_Message):
    """How long the rows of a window are: what the desk remembers, and nobody is told."""

    numbers: list[int] = []
    """Those that are learnt from, if enough of them is kept."""
    tokens: list[int] = []
    firsts: list[int] = []
    """Where the first token stands that is learnt; 0 where there is none."""
    held: list[int] = []
    """Numbers of those that are held back."""
    trouble: str = ""
    """Why they could not be told, in a sentence."""


class ServiceFailure(_Message):
    code: str
    message: str
    hint: str = ""


class TokenizerResponse(_Message):
    """One of them, and nothing else."""

    tokens: TokenPreview | None = None
    templates: TemplatePreviews | None = None
    prompt: PromptTokens | None = None
    failure: ServiceFailure | None = None


def socket_path(home: Path) -> Path:
    return home / "desk.sock"


def connect(home: Path, timeout: float) -> socket.socket:
    """Connect to the desk of a home.

    Raises:
        OSError: there is nobody.

    """
    return unix_sockets.connect(socket_path(home), timeout)
