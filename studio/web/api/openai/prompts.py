"""A request of the OpenAI-compatible API as the inference service gets it: with its tokens."""

from dataclasses import replace
from typing import Any, Literal

from studio.errors import InvalidError, StudioError, UnavailableError
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tokenizer_service import PromptTokens, TemplateSource, TokenizerRequest
from studio.services.chat import sent_images
from studio.services.models import service_clients
from studio.services.models.served_models import ServedModel
from studio.settings import Settings
from studio.web.api.openai.chat_bodies import GenerationOptions

_ANY_ROW = {"messages": [{"role": "user", "content": "?"}]}
"""A conversation whose rendering shows which tokens end an answer."""


def build_request(
    settings: Settings,
    served: ServedModel,
    options: GenerationOptions,
    template: TemplateSource = "model",
    answer_start: str = "",
) -> tuple[GenerationRequest, str]:
    """Return a request with its prompt, and the hash of the chat template that rendered it.

    The tokenizer service renders it: templates are untrusted. `answer_start` is the beginning of
    an answer that the model continues.

    Raises:
        InvalidError: The chat template cannot format the conversation, or the model sees no images.
        UnavailableError: The tokenizer service is not available.

    """
    options, images = _take_images(settings, served, options)

    def rendered(kind: Literal["prompt", "answer"], row: dict[str, Any]) -> PromptTokens:
        request = TokenizerRequest(
            kind=kind,
            model=served.folder,
            base=served.model,
            max_pixels=served.max_pixels,
            row=row,
            chat_template=template,
            answer_start=answer_start,
        )
        return service_clients.render_prompt(settings, request)

    kind = "answer" if options.has_tools else options.kind
    try:
        prompt = rendered(kind, options.row)
    except StudioError as error:
        if not options.has_tools or isinstance(error, UnavailableError):
            raise
        hint = "Use a model whose chat template shows functions and their calls, or send no tools."
        raise InvalidError(error.message, hint=hint, param="tools") from error
    asked = served.fill_in(options.options, options.model, prompt)
    asked = asked.model_copy(update={"images": images})
    if options.has_tools:
        # The last turn is an example of a call; what is before it is the prompt.
        start, plain = prompt.places[0], rendered("prompt", _ANY_ROW)
        ids, example = prompt.ids[:start], prompt.ids[start:]
        added: dict[str, Any] = {"ids": ids, "call_example": example, "stops": plain.stops}
        return asked.model_copy(update=added), plain.template_hash
    if options.kind == "answer":
        asked = asked.model_copy(update={"scored_from": prompt.places[0]})
    return asked, prompt.template_hash


def _take_images(
    settings: Settings, served: ServedModel, options: GenerationOptions
) -> tuple[GenerationOptions, list[bytes]]:
    """Return what is asked with its images fetched, and their files.

    Raises:
        InvalidError: The model cannot see them, or something is wrong with one.

    """
    messages = options.row.get("messages", [])
    if not any("images" in message for message in messages):
        return options, []
    if not served.sees_images:
        raise sent_images.unseen_error(options.model)
    sent = sent_images.take(settings, messages)
    return replace(options, row={**options.row, "messages": sent.messages}), sent.images
