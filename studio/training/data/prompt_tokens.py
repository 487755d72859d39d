"""Tokenise a prompt: the turns of a conversation, or a text. Needs no torch."""

from transformers import PreTrainedTokenizerBase

from studio.protocols.tokenizer_service import PromptTokens, TokenizerRequest
from studio.training.data import chat_templates
from studio.training.data.chat_templates import ChatTemplate


def tokenise_prompt(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Return the tokens of a row with `messages`, or with a `text` to continue.

    Raises:
        TrainingError: the chat template cannot render it, or there is none.

    """
    if "text" in request.row:
        return _tokenise_text(request.row["text"], tokenizer)
    chat_templates.set_chat_template(tokenizer, request.chat_template)
    template = ChatTemplate(tokenizer)
    text = template.render_prompt(request.row["messages"])
    return PromptTokens(
        ids=tokenizer(text, add_special_tokens=False)["input_ids"], stops=template.stop_tokens
    )


def _tokenise_text(text: str, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    ids = tokenizer(text)["input_ids"]
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids.pop()  # Some tokenizers end every text.
    return PromptTokens(ids=ids, stops=[tokenizer.eos_token_id])
