"""The speaker as a real process: what models answer, and whom it makes room for."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from sqlalchemy import Engine
from sqlmodel import select
from transformers import AutoTokenizer

from studio.db.column_types import now
from studio.db.session import read_session, unit_of_work
from studio.db.tables import Worker
from studio.db.tasks import LoadedModel
from studio.errors import ConflictError, InvalidError, UnavailableError
from studio.protocols import inference_service as line
from studio.protocols import tokenizer_service as desk_line
from studio.protocols.inference_service import GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import PromptTokens
from studio.protocols.tokenizer_service import TokenizerRequest as Row
from studio.services.models import loaded_model, service_clients
from studio.services.operations.home import open_home
from studio.services.queue.overview import Blocker
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.socket_services import InferenceService, SocketService
from tests.support.waiting import wait_until

TAKEN = Blocker("waiting for run 7 to end", 130)
TURN = {"messages": [{"role": "user", "content": "What is two plus two?"}]}


class Room:
    """How many slots are free, and how much memory beside them; a test takes them."""

    def __init__(self) -> None:
        self.slots, self.bytes = 1, 0
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What the thread that owns the service does next: its methods are for one thread."""

    def free(self) -> int:
        return self.slots

    def budget(self) -> int:
        return self.bytes

    def do_calls(self) -> None:
        with suppress(Empty):
            while True:
                self.calls.get_nowait()()


@pytest.fixture(scope="module")
def room() -> Room:
    return Room()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="module")
def engine(home: Settings) -> Iterator[Engine]:
    engine = open_home(home)
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=1, beat_at=now() + timedelta(hours=1)))
    yield engine
    engine.dispose()


def told(engine: Engine) -> LoadedModel | None:
    with read_session(engine) as db:
        return loaded_model.current(db)


@pytest.fixture(scope="module", autouse=True)
def speaking(home: Settings, room: Room, engine: Engine) -> Iterator[InferenceService]:
    """Tend a desk and a speaker as a worker does, until the tests are through with them."""
    here, stop = InferenceService(home), threading.Event()
    shown = SocketService(desk_line.socket_path(home.home), desk_line.MODULE)
    here.tick(room.free, lambda: None, lambda: TAKEN, room.budget)
    shown.tick()

    def tick() -> None:
        while not stop.wait(0.02):
            room.do_calls()
            here.tick(room.free, lambda: None, lambda: TAKEN, room.budget)
            here.status.tick(engine, "w")
            shown.tick()

    ticks = threading.Thread(target=tick)
    ticks.start()
    yield here
    stop.set()
    ticks.join()
    here.close()
    shown.close()


@pytest.fixture(scope="module")
def model(starter_model: Path) -> Path:
    return starter_model


@pytest.fixture(scope="module")
def prompt(home: Settings, model: Path) -> PromptTokens:
    return service_clients.render_prompt(home, Row(kind="prompt", model=str(model), row=TURN))


@pytest.fixture(scope="module")
def question(model: Path, prompt: PromptTokens) -> GenerationRequest:
    """Ask for the likeliest words, which are the same each time."""
    return GenerationRequest(
        model=str(model), ids=prompt.ids, stops=prompt.stops, most=12, temperature=0
    )


async def heard(home: Settings, asked: GenerationRequest) -> tuple[list[str], GenerationEnd]:
    voice = await service_clients.open_stream(home, asked)
    try:
        *parts, end = [one async for one in voice.chunks()]
    finally:
        await voice.close()
    assert isinstance(end, GenerationEnd)
    return [str(one) for one in parts], end


def answer(home: Settings, asked: GenerationRequest) -> tuple[str, GenerationEnd]:
    parts, end = asyncio.run(heard(home, asked))
    return "".join(parts), end


def test_answer_is_streamed_in_parts(home: Settings, question: GenerationRequest) -> None:
    parts, end = asyncio.run(heard(home, question))

    assert len(parts) > 1
    assert end.tokens <= 12


def test_greedy_decoding_is_deterministic(home: Settings, question: GenerationRequest) -> None:
    assert answer(home, question) == answer(home, question)


def test_same_seed_gives_same_sampled_answer(home: Settings, question: GenerationRequest) -> None:
    drawn = question.model_copy(update={"temperature": 1.0, "seed": 7})

    assert answer(home, drawn) == answer(home, drawn)
    assert answer(home, drawn) != answer(home, drawn.model_copy(update={"seed": 8}))


def test_answer_stops_at_max_tokens(home: Settings, question: GenerationRequest) -> None:
    text, _ = answer(home, question)
    short, end = answer(home, question.model_copy(update={"most": 2}))

    assert (end, text.startswith(short)) == (
        GenerationEnd(reason="length", tokens=2, computed_in="float32"),
        True,
    )


def test_stop_string_ends_answer_and_is_omitted(
    home: Settings, question: GenerationRequest
) -> None:
    text, _ = answer(home, question)
    mark = text[3:6]

    found, end = answer(home, question.model_copy(update={"stop": [mark]}))

    assert (found, end.reason) == (text[: text.index(mark)], "stop")


def test_prompt_longer_than_context_is_rejected(
    home: Settings, question: GenerationRequest
) -> None:
    with pytest.raises(InvalidError, match="The prompt has 5,000 tokens; this model's context is"):
        answer(home, question.model_copy(update={"ids": [5] * 5000}))


def test_missing_model_folder_gives_clear_error(
    home: Settings, question: GenerationRequest
) -> None:
    with pytest.raises(InvalidError, match="The base model's folder no longer exists"):
        answer(home, question.model_copy(update={"model": "/nowhere/at/all"}))


def test_generation_stops_when_client_disconnects(
    home: Settings, question: GenerationRequest
) -> None:
    async def leave() -> None:
        endless = question.model_copy(update={"most": None, "stops": [-1], "temperature": 1.0})
        voice = await service_clients.open_stream(home, endless)
        await voice.close()

    asyncio.run(leave())

    assert answer(home, question)[1].tokens <= 12


async def all_heard(
    home: Settings, requests: list[GenerationRequest]
) -> list[tuple[list[str], GenerationEnd] | BaseException]:
    """Ask at the same time."""
    return await asyncio.gather(*(heard(home, one) for one in requests), return_exceptions=True)


def test_those_who_ask_at_once_hear_what_each_hears_alone(
    home: Settings, question: GenerationRequest
) -> None:
    requests = [
        question.model_copy(update={"ids": question.ids[number:], "most": 12 + number})
        for number in range(8)
    ]
    requests[3] = requests[3].model_copy(update={"temperature": 1.0, "seed": 3})
    alone = [answer(home, one) for one in requests]

    told = asyncio.run(all_heard(home, requests))

    assert [("".join(one[0]), one[1]) for one in told if isinstance(one, tuple)] == alone


def test_bad_request_among_others_fails_alone(home: Settings, question: GenerationRequest) -> None:
    long = question.model_copy(update={"ids": [5] * 5000})
    scored = question.model_copy(update={"most": 0, "scored_from": 0, "top_logprobs": 1})
    elsewhere = question.model_copy(update={"model": "/nowhere/at/all"})
    first = question.model_copy(update={"most": 60, "stops": [-1]})

    told = asyncio.run(all_heard(home, [first, long, question, elsewhere, scored, question]))

    failures = [(place, type(one)) for place, one in enumerate(told) if not isinstance(one, tuple)]
    assert failures == [(1, InvalidError), (3, InvalidError)]
    assert told[2] == told[5]


def test_client_that_reads_nothing_keeps_nobody_waiting(
    home: Settings, question: GenerationRequest
) -> None:
    """An answer with alternatives is longer than a socket holds."""
    endless = question.model_copy(
        update={"most": 400, "stops": [-1], "top_logprobs": 20, "name": "slow"}
    )

    async def ask() -> tuple[int, int]:
        slow = await service_clients.open_stream(home, endless)
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined] # no other way
        _parts, end = await heard(home, question)
        slow.reader._transport.resume_reading()  # type: ignore[attr-defined] # as above
        tokens, chunk = 0, line.GenerationChunk()
        while chunk.end is None:
            chunk = await slow.read()
            tokens += len(chunk.tokens)
        await slow.close()
        return end.tokens, tokens

    mine, theirs = asyncio.run(ask())

    assert mine <= 12
    assert theirs == 400


def test_missing_inference_slot_fails_at_once(
    home: Settings, speaking: InferenceService, room: Room, question: GenerationRequest
) -> None:
    answer(home, question)
    assert speaking.slots == 1
    room.calls.put(speaking.release_slot)
    wait_until(lambda: speaking.slots == 0)
    room.slots = 0
    try:
        with pytest.raises(UnavailableError) as caught:
            answer(home, question)
    finally:
        room.slots = 1

    assert (caught.value.code, caught.value.message) == (
        "no_free_slot",
        "No slot is free for inference: waiting for run 7 to end, in about 3 min.",
    )


@pytest.mark.slow
def test_model_answers_beside_runs_while_memory_allows_both(
    home: Settings, speaking: InferenceService, room: Room, question: GenerationRequest
) -> None:
    expected, _end = answer(home, question)
    room.calls.put(speaking.release_slot)
    wait_until(lambda: speaking.slots == 0)
    room.slots, room.bytes = 0, 10**9
    try:
        beside, _end = answer(home, question)
        slots, gpus = speaking.slots, speaking.gpus
        room.bytes = 10**9 - 1  # Another run has started, and needs a part of it.
        wait_until(lambda: not speaking.service.is_running)
        room.bytes = 1000
        with pytest.raises(UnavailableError) as caught:
            answer(home, question)
    finally:
        room.slots, room.bytes = 1, 0

    assert (beside, slots, gpus) == (expected, 0, set())
    assert caught.value.message.startswith("All slots are taken, and this model needs")
    wait_until(lambda: not speaking.service.is_running)
    answer(home, question)
    assert speaking.slots == 1


def test_model_is_recorded_by_name_that_joins_last(
    home: Settings, engine: Engine, question: GenerationRequest
) -> None:
    """Several names may stand for the same weights, such as a run's and its alias."""

    def name() -> str:
        row = told(engine)
        return row.model if row else ""

    async def join() -> None:
        endless = question.model_copy(update={"most": None, "stops": [-1], "name": "ft:long"})
        first = await service_clients.open_stream(home, endless)
        await asyncio.to_thread(wait_until, lambda: name() == "ft:long")
        await heard(home, question.model_copy(update={"name": "ft:short"}))
        await first.close()

    asyncio.run(join())

    wait_until(lambda: name() == "ft:short")


def test_loaded_model_is_recorded_and_unloads_on_request(
    home: Settings, engine: Engine, question: GenerationRequest
) -> None:
    def has_answered() -> bool:
        row = told(engine)
        return row is not None and row.model == "ft:one" and row.leaves_at is not None

    for _ in range(2):  # What left because somebody wanted it is loaded again for who asks.
        answer(home, question.model_copy(update={"name": "ft:one"}))
        wait_until(has_answered)
        with unit_of_work(engine) as db:
            stays = loaded_model.time_left(db.exec(select(LoadedModel)).one())
            loaded_model.request_unload(db)
        wait_until(lambda: told(engine) is None)
        assert stays is not None
        assert timedelta() < stays <= timedelta(seconds=home.answer_idle_seconds)


def test_unload_without_loaded_model_is_rejected(engine: Engine) -> None:
    wait_until(lambda: told(engine) is None)

    with unit_of_work(engine) as db, pytest.raises(ConflictError, match="No model is loaded"):
        loaded_model.request_unload(db)


def test_empty_prompt_only_loads_model(home: Settings, question: GenerationRequest) -> None:
    async def lines(asked: GenerationRequest) -> list[line.GenerationChunk]:
        stream = await service_clients.send_generation_request(home, asked)
        try:
            chunks = [await stream.read()]
            while chunks[-1].end is None:
                chunks.append(await stream.read())
        finally:
            await stream.close()
        return chunks

    end = line.GenerationChunk(end=GenerationEnd(reason="stop", tokens=0))
    loads = question.model_copy(update={"ids": []})
    asyncio.run(lines(loads))

    assert asyncio.run(lines(loads)) == [end]  # in memory by now
    assert asyncio.run(lines(question))[0].started


def test_plain_text_prompt_is_rendered_unchanged(home: Settings, model: Path) -> None:
    text = service_clients.render_prompt(
        home, Row(kind="prompt", model=str(model), row={"text": "Once upon"})
    )

    known = AutoTokenizer.from_pretrained(model)

    assert known.decode(text.ids, skip_special_tokens=True) == "Once upon"


def test_inference_without_worker_is_unavailable(
    tmp_path: Path, question: GenerationRequest
) -> None:
    with pytest.raises(UnavailableError, match="No worker is running, so no model can answer"):
        answer(Settings(home=tmp_path), question)


def test_socket_is_accessible_only_to_owner(home: Settings) -> None:
    assert line.socket_path(home.home).stat().st_mode & 0o777 == 0o600
