"""Eight who ask at once: one model, and four adapters with their base.

Those who ask one model are measured against the same eight one after another, and those who ask
several adapters against the same in groups, one adapter after another. Both are asked of one
inference service, turn and turn about, with a model of 28 million weights: each answer has as many
tokens as it may have, so that both write the same number.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.services.models import service_clients
from studio.settings import Settings
from studio.worker.socket_services import InferenceService
from tests.bench.measurement import Measurement
from tests.training import tiny

ASKERS, TOKENS, TURNS = 8, 64, 3
RANKS = (4, 8, 16, 16)
CONFIG = LlamaConfig(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=1024,
)


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder, _service(Settings(home=Path(folder))) as settings:
        model = tiny.write_model(Path(folder) / "model", CONFIG)
        requests = [_request(model, number) for number in range(ASKERS)]
        ratios = yield from _compare(settings, requests, "one after another", _in_turn)
        yield Measurement("at once against one after another", statistics.median(ratios), "x")
        yield Measurement("at once against one after another, least", min(ratios), "x")

        adapters = ["", *(_write_adapter(model, rank) for rank in RANKS)]
        requests = [
            request.model_copy(update={"adapter": adapters[number % len(adapters)]})
            for number, request in enumerate(requests)
        ]
        ratios = yield from _compare(settings, requests, "adapter after adapter", _in_groups)
        yield Measurement("adapters at once against in turn", statistics.median(ratios), "x")
        yield Measurement("adapters at once against in turn, least", min(ratios), "x")


Way = Callable[[Settings, Sequence[GenerationRequest]], Awaitable[float]]
"""How requests are asked; it returns tokens per second."""


def _compare(
    settings: Settings, requests: Sequence[GenerationRequest], name: str, way: Way
) -> Generator[Measurement, None, list[float]]:
    """Yield how fast requests are answered in a way and at once; return the ratios of all turns."""

    async def turn() -> tuple[float, float]:
        return await way(settings, requests), await _at_once(settings, requests)

    asyncio.run(turn())  # Loads what is asked.
    turns = [asyncio.run(turn()) for _ in range(TURNS)]
    in_turn, at_once = (statistics.median(turn[side] for turn in turns) for side in (0, 1))
    yield Measurement(f"answers {name}", in_turn, "tokens/s")
    yield Measurement(f"the same answers, of {ASKERS} who ask at once", at_once, "tokens/s")
    return [at_once / in_turn for in_turn, at_once in turns]


async def _in_groups(settings: Settings, requests: Sequence[GenerationRequest]) -> float:
    start = time.perf_counter()
    written = 0
    for adapter in dict.fromkeys(request.adapter for request in requests):
        group = [request for request in requests if request.adapter == adapter]
        written += sum(await asyncio.gather(*(_answer(settings, request) for request in group)))
    return written / (time.perf_counter() - start)


async def _in_turn(settings: Settings, requests: Sequence[GenerationRequest]) -> float:
    start = time.perf_counter()
    written = [await _answer(settings, request) for request in requests]
    return sum(written) / (time.perf_counter() - start)


async def _at_once(settings: Settings, requests: Sequence[GenerationRequest]) -> float:
    start = time.perf_counter()
    written = await asyncio.gather(*(_answer(settings, request) for request in requests))
    return sum(written) / (time.perf_counter() - start)


async def _answer(settings: Settings, request: GenerationRequest) -> int:
    """Return how many tokens an answer has."""
    stream = await service_clients.open_stream(settings, request)
    try:
        *_parts, end = [part async for part in stream.chunks()]
    finally:
        await stream.close()
    assert isinstance(end, GenerationEnd)
    return end.tokens


def _request(model: Path, number: int) -> GenerationRequest:
    ids = [(31 * number + 7 * place) % 300 for place in range(16 + 48 * number // (ASKERS - 1))]
    return GenerationRequest(model=str(model), ids=ids, stops=[-1], most=TOKENS, temperature=0)


def _write_adapter(model: Path, rank: int) -> str:
    """Write an adapter that has learnt nothing, and return its folder."""
    folder = model.parent / f"adapter{len(list(model.parent.glob('adapter*')))}"
    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, target_modules="all-linear", init_lora_weights=False
    )
    with torch.random.fork_rng():
        torch.manual_seed(len(folder.name))
        get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


@contextmanager
def _service(settings: Settings) -> Iterator[Settings]:
    """Run an inference service as a worker does."""
    service, stop = InferenceService(settings), Event()
    settings.home.mkdir(exist_ok=True)

    def tick() -> None:
        while not stop.wait(0.02):
            service.tick(lambda: 1, lambda: None, lambda: None)

    ticks = Thread(target=tick)
    service.tick(lambda: 1, lambda: None, lambda: None)
    ticks.start()
    try:
        yield settings
    finally:
        stop.set()
        ticks.join()
        service.close()


if __name__ == "__main__":
    for figure in measure():
        print(figure)  # noqa: T201 -- a program's output
