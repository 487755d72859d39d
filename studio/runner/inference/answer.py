"""One answer of a model: its tokens are chosen one by one, and sent as text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import ServiceFailure
from studio.runner.inference.constraints import (
    Constraint,
    marked_tokens,
    schema_grammar,
    start_constraint,
)
from studio.runner.inference.image_inputs import ImageInputs
from studio.runner.inference.mixed_adapters import BASE
from studio.runner.inference.text_stream import Likelihood, TextStream, send_piece
from studio.runner.inference.tool_calls import CallReader, Piece, find_format


@dataclass(slots=True)
class Answer:
    request: GenerationRequest
    most: int
    """The maximum number of tokens."""
    text: TextStream
    send: Callable[[GenerationChunk], None]
    is_gone: Callable[[], bool]
    """Whether its client has hung up."""
    generator: torch.Generator
    """Its own source of chance, so that other answers do not change it."""
    constraint: Constraint | None = None
    calls: CallReader | None = None
    """Finds calls of functions in the answer, if it may have any."""
    images: ImageInputs | None = None
    """Those of its prompt."""
    adapter: str = BASE
    """peft's name of the adapter that gives it."""
    written: list[int] = field(default_factory=list)
    end: GenerationEnd | None = None

    @property
    def ids(self) -> list[int]:
        """The prompt and what has been written."""
        return [*self.request.ids, *self.written]

    @property
    def remaining(self) -> int:
        return self.most - len(self.written)

    def choose(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the next token, chosen from the scores of a step as `generate` chooses."""
        if self.constraint is not None:
            scores = self.constraint.rule_out(scores)
        if self.request.temperature == 0:
            return scores.argmax(dim=-1)
        ids = scores.new_empty((1, 0), dtype=torch.long)
        if self.request.temperature != 1:
            scores = TemperatureLogitsWarper(self.request.temperature)(ids, scores)
        if self.request.top_p < 1:
            scores = TopPLogitsWarper(self.request.top_p)(ids, scores)
        probabilities = scores.softmax(dim=-1)
        return torch.multinomial(probabilities, 1, generator=self.generator)[:, 0]

    def add(self, token: int, likelihood: Likelihood | None) -> None:
        """Add the token that was chosen, and send the text that is final."""
        self.written.append(token)
        if self.constraint is not None:
            self.constraint.add(token)
        if token in self.request.stops:
            return
        piece = token, likelihood
        self._send_text([piece] if self.calls is None else self.calls.add(piece))

    def cut(self, computed_in: str) -> None:
        """End it where it is."""
        self.most = len(self.written)
        self.end_if_done(computed_in)

    def end_if_done(self, computed_in: str) -> bool:
        """Whether it has ended; if it ends now, send the rest and how it ended."""
        if self.end is not None:
            return True
        is_complete = self.constraint is not None and self.constraint.is_complete
        has_ended = self.text.has_stopped or self.written[-1] in self.request.stops or is_complete
        if not (has_ended or self.remaining <= 0 or self.is_gone()):
            return False
        if self.constraint is not None and self.constraint.failure:
            self._fail(self.constraint.failure)
            return True
        calls, rest = self.calls.finish() if self.calls is not None else ([], [])
        self._send_text(rest)
        send_piece(self.text.finish(), self.text, self.send)
        self.end = GenerationEnd(
            reason="stop" if has_ended else "length",
            tokens=len(self.written),
            computed_in=computed_in,
            calls=calls,
        )
        self.send(GenerationChunk(end=self.end))
        return True

    def _fail(self, reason: str) -> None:
        self.end = GenerationEnd(reason="stop", tokens=len(self.written))
        failure = ServiceFailure(
            code="grammar_failed",
            message=f"The answer could not be held to its format: {reason}.",
            hint="Use a simpler schema, or leave it out.",
        )
        self.send(GenerationChunk(failure=failure))

    def _send_text(self, pieces: Iterable[Piece]) -> None:
        for token, likelihood in pieces:
            send_piece(self.text.add(token, likelihood), self.text, self.send)


def start_answer(
    request: GenerationRequest,
    most: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
) -> Answer:
    """Return an answer that has no tokens yet.

    Raises:
        InvalidError: it cannot follow the JSON schema that is asked for, or call functions.

    """
    generator = torch.Generator(model.device)
    if request.seed is None:
        generator.seed()
    else:
        generator.manual_seed(request.seed)
    text = TextStream(tokenizer, request.stop, request.is_turn)
    if not (request.is_turn or model.config.is_encoder_decoder):
        text.start_after(request.ids)
    reader = request.stops, tokenizer, model.config.get_text_config().vocab_size
    grammar, calls = "", None
    if request.json_schema is not None:
        grammar = schema_grammar(request.json_schema)
    if request.tools:
        form = find_format(request, tokenizer)
        calls = CallReader(form, partial(tokenizer.decode, skip_special_tokens=False))
        if request.must_call:
            grammar = form.grammar(request.tools, marked_tokens(*reader))
    constraint = start_constraint(grammar, *reader) if grammar else None
    return Answer(request, most, text, send, is_gone, generator, constraint, calls)
