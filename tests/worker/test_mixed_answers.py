"""Several adapters that one service answers at the same time, as a client hears them."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from sqlalchemy import Engine
from sqlmodel import select
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.db.column_types import now
from studio.db.session import read_session, unit_of_work
from studio.db.tables import Worker
from studio.db.tasks import LoadedModel
from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.services.models import service_clients
from studio.services.operations.home import open_home
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.socket_services import InferenceService
from tests.support.waiting import wait_until
from tests.worker.ticking import ticking

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

ADAPTERS: dict[str, dict[str, Any]] = {
    "narrow": {"r": 2, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 32},
    "wide": {"r": 16, "target_modules": "all-linear", "use_rslora": True},
    "mlp": {"r": 4, "target_modules": ["up_proj", "down_proj"], "lora_alpha": 16},
    "dora": {"r": 4, "target_modules": ["v_proj"], "lora_alpha": 32, "use_dora": True},
}
MIXED = ("narrow", "base", "wide", "mlp")


@dataclass(slots=True)
class Service:
    """An inference service, which a thread tends as a worker does."""

    settings: Settings
    engine: Engine
    root: Path
    base: Path
    inference: InferenceService
    must_restart: threading.Event

    def tick(self) -> None:
        if self.must_restart.is_set():
            if self.inference.service.child is not None:
                self.inference.service.child.kill()
                self.inference.service.child.wait()
            self.must_restart.clear()
        self.inference.tick(lambda: 1, lambda: None, lambda: None)
        self.inference.status.tick(self.engine, "w")

    def restart(self) -> None:
        self.must_restart.set()
        wait_until(lambda: not self.must_restart.is_set())

    def request(self, name: str, **changes: Any) -> GenerationRequest:  # noqa: ANN401 -- any field
        asked = GenerationRequest(
            model=str(self.base),
            adapter="" if name == "base" else str(self.root / name),
            name=f"ft:{name}",
            ids=[40, 60, 71, 85, 97][: 2 + len(name) % 4],
            stops=[-1],
            most=12,
            temperature=0,
            is_turn=False,
        )
        return asked.model_copy(update=changes)

    def fresh(self, request: GenerationRequest) -> "Heard":
        """Return the answer of a process that has loaded nothing else."""
        self.restart()
        return asyncio.run(self.hear(request))

    async def hear(self, request: GenerationRequest) -> "Heard":
        stream = await service_clients.open_stream(self.settings, request)
        try:
            *parts, end = [part async for part in stream.chunks()]
        finally:
            await stream.close()
        assert isinstance(end, GenerationEnd)
        return Heard("".join(map(str, parts)), end)

    async def hear_all(
        self, requests: Sequence[GenerationRequest]
    ) -> list["Heard | BaseException"]:
        return await asyncio.gather(*map(self.hear, requests), return_exceptions=True)

    def recorded_name(self) -> str:
        with read_session(self.engine) as db:
            row = db.exec(select(LoadedModel)).first()
            return row.model if row else ""


@dataclass(frozen=True, slots=True)
class Heard:
    text: str
    end: GenerationEnd


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, starter_model: Path) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("mixed")
    for name, config in ADAPTERS.items():
        write_adapter(starter_model, root / name, config)
    settings = Settings(home=root / "home")
    engine = open_home(settings)
    with unit_of_work(engine) as db:
        beat_at = now() + timedelta(hours=1)
        workers.heartbeat(db, Worker(name="w", pid=1, slots=1, beat_at=beat_at))
    service = Service(
        settings, engine, root, starter_model, InferenceService(settings), threading.Event()
    )
    service.tick()
    with ticking(service.tick):
        yield service
    service.inference.close()
    engine.dispose()


def write_adapter(base: Path, folder: Path, config: dict[str, Any]) -> None:
    """Write an adapter that has learnt nothing, and changes every answer."""
    torch.manual_seed(len(folder.name))
    section = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), section).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


@pytest.fixture(scope="module")
def fresh(service: Service) -> dict[str, Heard]:
    found = {name: service.fresh(service.request(name)) for name in (*ADAPTERS, "base")}
    assert len({heard.text for heard in found.values()}) == len(found)
    return found


@pytest.mark.parametrize("first", range(len(MIXED)))
def test_all_at_once_answer_as_in_fresh_processes(
    first: int, service: Service, fresh: dict[str, Heard]
) -> None:
    """Also twice each, and right after the process has started."""
    names = [*MIXED[first:], *MIXED[:first]] * 2
    service.restart()

    heard = asyncio.run(service.hear_all([service.request(name) for name in names]))

    assert heard == [fresh[name] for name in names]


@pytest.mark.parametrize("name", ["base", "wide", "mlp"])
def test_another_is_answered_while_one_answers_on(
    name: str, service: Service, fresh: dict[str, Heard]
) -> None:
    """It joins, and ends first; what is recorded is the one that joined last."""

    async def ends_first() -> bool:
        long = asyncio.create_task(service.hear(service.request("narrow", most=300)))
        await asyncio.to_thread(wait_until, lambda: service.recorded_name() == "ft:narrow")
        assert await service.hear(service.request(name)) == fresh[name]
        is_first = not long.done()
        await long
        return is_first

    # On a busy machine, the long answer may be over before the other one is asked.
    assert any(asyncio.run(ends_first()) for _ in range(10))
    wait_until(lambda: service.recorded_name() == f"ft:{name}")


def test_one_who_hangs_up_leaves_the_others_their_adapters(
    service: Service, fresh: dict[str, Heard]
) -> None:
    async def ask() -> list[Heard | BaseException]:
        endless = service.request("wide", most=None)
        leaving = await service_clients.open_stream(service.settings, endless)
        others = asyncio.ensure_future(
            service.hear_all([service.request(name) for name in ("mlp", "base", "narrow")])
        )
        await leaving.read()
        await leaving.close()
        return await others

    assert asyncio.run(ask()) == [fresh[name] for name in ("mlp", "base", "narrow")]


def test_broken_adapter_among_others_fails_alone(service: Service, fresh: dict[str, Heard]) -> None:
    for name in ("cut", "gone"):
        write_adapter(service.base, service.root / name, ADAPTERS["narrow"])
    weights = service.root / "cut" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (service.root / "gone" / "adapter_config.json").unlink()
    names = ["wide", "cut", "base", "gone", "narrow"]
    for is_fresh in (True, False):
        if is_fresh:
            service.restart()
        heard = asyncio.run(service.hear_all([service.request(name) for name in names]))

        assert [heard[place] for place in (0, 2, 4)] == [
            fresh[name] for name in ("wide", "base", "narrow")
        ]
        for place in (1, 3):
            error = heard[place]
            assert isinstance(error, InvalidError)
            assert error.message.startswith("The adapter cannot be loaded")


def test_adapter_that_does_not_mix_waits_for_its_turn(
    service: Service, fresh: dict[str, Heard]
) -> None:
    names = ["wide", "dora", "base", "dora", "mlp", "wide"]

    heard = asyncio.run(service.hear_all([service.request(name) for name in names]))

    assert heard == [fresh[name] for name in names]


def test_log_probabilities_of_a_prompt_are_those_of_its_adapter(
    service: Service, fresh: dict[str, Heard]
) -> None:
    """Some are scored when they join, between the answers of others."""

    async def scores(name: str) -> list[float | None]:
        request = service.request(name, ids=[5, 6, 7, 8], most=0, scored_from=0, top_logprobs=1)
        stream = await service_clients.send_generation_request(service.settings, request)
        found: list[float | None] = []
        chunk = await stream.read()
        while chunk.end is None:
            found += [token.logprob for token in chunk.tokens]
            chunk = await stream.read()
        await stream.close()
        return found

    async def ask() -> tuple[list[Any], list[Any]]:
        long = service.request("wide", most=40)
        answers = asyncio.gather(*(service.hear(long) for _ in range(2)))
        mixed = await asyncio.gather(*map(scores, MIXED))
        await answers
        return mixed, [await scores(name) for name in MIXED]

    mixed, alone = asyncio.run(ask())

    assert len({tuple(found) for found in alone}) == len(fresh) - 1
    for one, other in zip(mixed, alone, strict=True):
        assert one[1:] == pytest.approx(other[1:], abs=1e-4)
