"""Why a model cannot be written as GGUF, in the words that pages show."""

from collections.abc import Sequence

from studio.errors import InvalidError

_TOKENIZER_HINT = (
    "Export the model for Transformers, or train a base model with a tokenizer like that of GPT-2, "
    "Llama or Qwen."
)


def other_pieces(kind: str) -> InvalidError:
    """Return the refusal of a tokenizer that is not of byte pairs."""
    return InvalidError(
        f"GGUF cannot hold this model's tokenizer: it is of the type {kind}, and llama.cpp reads "
        "byte pairs (BPE).",
        hint=_TOKENIZER_HINT,
    )


def unnamed_split() -> InvalidError:
    """Return the refusal of a tokenizer that splits text in a way of its own."""
    return InvalidError(
        "GGUF cannot hold this model's tokenizer: it splits text into words in a way that "
        "llama.cpp has no name for.",
        hint=_TOKENIZER_HINT,
    )


def changed_text(kinds: Sequence[str]) -> InvalidError:
    """Return the refusal of a tokenizer that normalises text."""
    changes = ", ".join(kinds)
    return InvalidError(
        "GGUF cannot hold this model's tokenizer: it changes text before it splits it "
        f"({changes}).",
        hint=_TOKENIZER_HINT,
    )


def other_spaces() -> InvalidError:
    """Return the refusal of a byte fallback that is not that of SentencePiece."""
    return InvalidError(
        "GGUF cannot hold this model's tokenizer: it does not write spaces as SentencePiece does.",
        hint=_TOKENIZER_HINT,
    )


def space_before_text() -> InvalidError:
    """Return the refusal of a space that llama.cpp would not put before plain text."""
    return InvalidError(
        "GGUF cannot hold this model's tokenizer: it puts a space before each text, which only a "
        "chat template could write, and this run was trained on plain text.",
        hint=_TOKENIZER_HINT,
    )


def space_in_template() -> InvalidError:
    """Return the refusal of a space that the chat template cannot write."""
    return InvalidError(
        "GGUF cannot hold this model's tokenizer: it puts a space before each text, and its chat "
        "template cannot be cut into turns that write it.",
        hint=_TOKENIZER_HINT,
    )


def failed_quantiser(title: str, last: str) -> InvalidError:
    """Return the refusal of llama.cpp's program, with the last line that it wrote."""
    return InvalidError(
        f"llama-quantize cannot write {title}: {last}.",
        hint="Choose Q8_0, or another build of llama.cpp.",
    )
