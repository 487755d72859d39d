"""Let a tokenizer mark the language of texts, and a model write the one that is wanted.

mBART ends each text with the code of its language, and starts to write with that of the target.
mBART-50 and NLLB put the code first, as the first token that a model is made to write
(`transformers/models/mbart`, `mbart50` and `nllb`). Needs no torch.
"""

from typing import Any

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.weights import language_codes
from studio.weights.language_codes import Languages


def choose(
    tokenizer: PreTrainedTokenizerBase, family: str, languages: Languages | None
) -> dict[str, Any]:
    """Set a tokenizer's languages; return what makes the model write the target language.

    Raises:
        TrainingError: the model needs languages, or does not have these.

    """
    codes = language_codes.codes_among(tokenizer.all_special_tokens)
    if problem := language_codes.find_problem(family, languages, codes):
        raise TrainingError("conflict", problem.message, hint=problem.hint)
    return {} if languages is None else set_languages(tokenizer, languages)


def set_languages(tokenizer: PreTrainedTokenizerBase, languages: Languages) -> dict[str, Any]:
    """Set the languages; return what `generate` and a saved config are given for the target."""
    tokenizer.tgt_lang = languages.target
    tokenizer.src_lang = languages.source
    code = tokenizer.convert_tokens_to_ids(languages.target)
    marks: Any = tokenizer(text_target="")["input_ids"]
    is_first = marks[0] == code
    return {"forced_bos_token_id": code} if is_first else {"decoder_start_token_id": code}
