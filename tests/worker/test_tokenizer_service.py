"""The desk as a real process: what it answers, and what it survives."""

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from studio.errors import InvalidError, StudioError, UnavailableError
from studio.processes import unix_sockets
from studio.protocols import tokenizer_service as line
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.services.models import service_clients
from studio.settings import Settings
from studio.worker.socket_services import SocketService
from tests.support import tokenizer_services
from tests.support.waiting import wait_until

ROW: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
    ]
}
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module", autouse=True)
def desked(home: Settings) -> Iterator[SocketService]:
    with tokenizer_services.run_tokenizer_service(home) as here:
        yield here


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tokenizer_services.write_model(tmp_path / "model")


def asked(
    model: Path | str,
    row: dict[str, Any] = ROW,
    max_length: int = 1024,
    *,
    with_bad: bool = True,
) -> TokenizerRequest:
    return TokenizerRequest(
        kind="tokens", model=str(model), row=row, max_length=max_length, with_bad=with_bad
    )


def learnt(home: Settings, question: TokenizerRequest) -> str:
    return "".join(
        one.text for one in service_clients.tokenize_row(home, question).tokens if one.learnt
    )


def test_row_is_tokenised_with_roles_and_trained_tokens(home: Settings, model: Path) -> None:
    found = service_clients.tokenize_row(home, asked(model))

    assert "".join(one.text for one in found.tokens) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
    )
    assert [one.text for one in found.tokens if one.learnt] == ["Y", "o", "<|im_end|>"]
    assert [one.text for one in found.tokens if one.special] == [
        *tokenizer_services.SPECIAL,
        *tokenizer_services.SPECIAL,
    ]
    assert {one.turn for one in found.tokens if one.learnt} == {1}
    assert (found.learnt, found.cut, found.cut_at) == (3, 0, None)
    assert (found.roles, found.template) == (["user", "assistant"], "model")


def test_tokens_beyond_max_length_are_truncated(home: Settings, model: Path) -> None:
    whole = service_clients.tokenize_row(home, asked(model))
    found = service_clients.tokenize_row(home, asked(model, max_length=whole.total - 2))

    assert (found.total, found.cut, found.learnt) == (whole.total, 2, 2)
    assert [one.text for one in found.tokens if one.cut] == ["<|im_end|>", "\n"]
    assert found.warnings == ["2 tokens are truncated, 1 of which would have been trained on."]


def test_row_truncated_before_answer_has_no_trained_tokens(home: Settings, model: Path) -> None:
    found = service_clients.tokenize_row(home, asked(model, max_length=10))

    assert found.learnt == 0
    assert found.warnings == [
        (
            "Nothing in this row is trained on: the part to train on begins after the limit of "
            "10 tokens. Training leaves it out."
        )
    ]


def test_plain_text_row_is_trained_on_without_template(home: Settings, tmp_path: Path) -> None:
    base = tokenizer_services.write_model(tmp_path / "base", template="")

    found = service_clients.tokenize_row(home, asked(base, {"text": "So it goes."}))

    assert [one.text for one in found.tokens if not one.learnt] == ["S"]
    assert (found.tokens[-1].text, found.template) == ("<|im_end|>", None)


@pytest.mark.parametrize(
    ("row", "warning"),
    [
        (
            ROW | {"label": False},
            "This answer was rated bad, so nothing in this row is trained on.",
        ),
        (
            {"messages": ROW["messages"][:1]},
            (
                "Nothing in this row is trained on: it has no answer to train on. "
                "Training leaves it out."
            ),
        ),
    ],
    ids=["judged", "unanswered"],
)
def test_row_without_trained_tokens_shows_warning(
    home: Settings, model: Path, row: dict[str, Any], warning: str
) -> None:
    found = service_clients.tokenize_row(home, asked(model, row, with_bad=False))

    assert found.warnings == [warning]


PAIR = {
    "messages": [{"role": "user", "content": "Name a fruit."}],
    "chosen": [{"role": "assistant", "content": "A pear."}],
    "rejected": [{"role": "assistant", "content": "A bear, or so."}],
}


def test_both_answers_of_pair_are_shown_with_differences(home: Settings, model: Path) -> None:
    found = service_clients.tokenize_row(home, asked(model, PAIR))

    assert found.rejected is not None
    assert found.prompt_turns == 1
    differing = [
        "".join(one.text for one in tokens if one.differs)
        for tokens in (found.tokens, found.rejected.tokens)
    ]
    assert differing == ["p", "b, or so"]
    for preview, answer in ((found, "A pear."), (found.rejected, "A bear, or so.")):
        learnt = "".join(one.text for one in preview.tokens if one.learnt)
        assert learnt == f"{answer}<|im_end|>"
        assert preview.learnt == len(answer) + 1


def test_method_that_learns_from_good_answers_gets_better_one_alone(
    home: Settings, model: Path
) -> None:
    found = service_clients.tokenize_row(home, asked(model, PAIR, with_bad=False))

    assert found.rejected is None
    assert found.sentences == ["Only the chosen answer of this pair is trained on."]


@pytest.mark.parametrize(
    ("changes", "limit", "warning"),
    [
        ({}, 20, "The prompt fills the limit of 20 tokens, so an answer is cut off completely."),
        ({}, 0, "5 tokens of the better answer and 12 of the worse one are truncated."),
        ({"rejected": "A pear. No!"}, 0, "Both answers are equal up to the limit of"),
        ({"rejected": "A pear."}, 100, "Both answers are equal. Training leaves this pair out."),
    ],
    ids=["cut off", "truncated", "equal after the cut", "equal"],
)
def test_pair_that_is_cut_says_what_is_lost(
    home: Settings, model: Path, changes: dict[str, str], limit: int, warning: str
) -> None:
    row = PAIR | {name: [{"role": "assistant", "content": text}] for name, text in changes.items()}
    whole = service_clients.tokenize_row(home, asked(model, row))
    # In the middle of the answers, unless the case has its own limit.
    found = service_clients.tokenize_row(
        home, asked(model, row, max_length=limit or whole.total - 5)
    )

    assert [one[: len(warning)] for one in found.warnings] == [warning]


def test_rated_answer_is_shown_with_its_rating(home: Settings, model: Path) -> None:
    found = service_clients.tokenize_row(home, asked(model, ROW | {"label": False}))

    assert found.is_good is False
    assert found.learnt
    assert found.sentences == ["This answer is rated bad: supervised training leaves it out."]


def test_multi_token_character_is_shown_once(home: Settings, model: Path) -> None:
    row = {"messages": [ROW["messages"][0], {"role": "assistant", "content": "é"}]}

    found = [
        one for one in service_clients.tokenize_row(home, asked(model, row)).tokens if one.learnt
    ]

    assert [one.text for one in found] == ["é", "", "<|im_end|>"]


def test_very_long_row_is_counted_fully_and_shown_partly(home: Settings, model: Path) -> None:
    found = service_clients.tokenize_row(
        home, asked(model, {"text": "word " * 2000}, max_length=20_000)
    )

    assert (len(found.tokens), found.total) == (line.MAX_PREVIEW_TOKENS, 10_001)


def test_model_without_template_offers_built_in_templates(home: Settings, tmp_path: Path) -> None:
    base = tokenizer_services.write_model(tmp_path / "base", template="")

    with pytest.raises(InvalidError) as caught:
        service_clients.tokenize_row(home, asked(base))
    found = service_clients.render_templates(
        home, asked(base).model_copy(update={"kind": "templates"})
    )

    assert caught.value.code == "no_chat_template"
    assert (found.has_own, [(one.name, bool(one.refused)) for one in found.choices]) == (
        False,
        [("chatml", False), ("none", False), ("plain", False)],
    )
    assert found.choices[-1].pieces == [
        ("User: Hi\nAssistant:", False),
        (" Yo<|im_end|>", True),
        ("\n", False),
    ]


def test_endless_template_does_not_block_template_choices(home: Settings, tmp_path: Path) -> None:
    hostile = asked(tokenizer_services.write_model(tmp_path / "hostile", ENDLESS))

    found = service_clients.render_templates(home, hostile.model_copy(update={"kind": "templates"}))

    assert {one.name: one.refused for one in found.choices} == dict.fromkeys(
        ("chatml", "none", "plain"), ""
    )


def test_template_change_takes_effect_immediately(home: Settings, model: Path) -> None:
    assert learnt(home, asked(model)) == "Yo<|im_end|>"
    tokenizer_services.write_model(
        model, tokenizer_services.CHATML.replace("message.content", "message.content | upper")
    )

    assert learnt(home, asked(model)) == "YO<|im_end|>"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("owner/never-fetched", "owner/never-fetched has not been downloaded, so its"),
        ("/nowhere/at/all", "The model's folder has no usable tokenizer."),
    ],
)
def test_missing_model_gives_clear_error(home: Settings, model: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        service_clients.tokenize_row(home, asked(model))


def test_invalid_model_config_is_rejected_without_service_crash(
    home: Settings, desked: SocketService, model: Path
) -> None:
    service_clients.tokenize_row(home, asked(model))
    before = desked.child
    broken = tokenizer_services.write_model(model.parent / "broken")
    (broken / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}', "utf-8")

    with pytest.raises(InvalidError):
        service_clients.tokenize_row(home, asked(broken))
    assert desked.child is before


def test_invalid_row_gives_clear_error(home: Settings, model: Path) -> None:
    with pytest.raises(InvalidError, match="it has no list of turns called messages"):
        service_clients.tokenize_row(home, asked(model, {"question": "Hi"}))


def test_endless_template_times_out_without_blocking_other_requests(
    home: Settings, desked: SocketService, model: Path, tmp_path: Path
) -> None:
    hostile = tokenizer_services.write_model(tmp_path / "hostile", ENDLESS)
    told: list[StudioError] = []

    def ask() -> None:
        with pytest.raises(InvalidError) as caught:
            service_clients.tokenize_row(home, asked(hostile))
        told.append(caught.value)

    service_clients.tokenize_row(home, asked(model))
    before = desked.child
    waiting = [threading.Thread(target=ask) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert learnt(home, asked(model)) == "Yo<|im_end|>"
    for thread in waiting:
        thread.join()

    assert ["took more than 2 seconds" in one.message for one in told] == [True, True]
    assert desked.child is before


def test_disconnected_clients_do_not_delay_others(
    home: Settings, model: Path, tmp_path: Path
) -> None:
    hostile = (
        asked(tokenizer_services.write_model(tmp_path / "hostile", ENDLESS))
        .model_dump_json()
        .encode()
    )
    lines = [unix_sockets.connect(line.socket_path(home.home), timeout=5) for _ in range(12)]
    for here in lines:
        here.sendall(hostile)
        here.shutdown(socket.SHUT_WR)
    for here in lines:
        here.close()

    # Twelve times two seconds on two processors would be longer than anybody waits.
    assert learnt(home, asked(model)) == "Yo<|im_end|>"


def test_invalid_socket_data_does_not_crash_service(
    home: Settings, desked: SocketService, model: Path
) -> None:
    service_clients.tokenize_row(home, asked(model))
    before = desked.child
    with unix_sockets.connect(line.socket_path(home.home), timeout=5) as here:
        here.sendall(b"GET / HTTP/1.1\r\n\r\n")
        here.shutdown(socket.SHUT_WR)
        assert here.recv(100) == b""

    assert learnt(home, asked(model)) == "Yo<|im_end|>"
    assert desked.child is before


def test_killed_service_is_restarted(home: Settings, desked: SocketService, model: Path) -> None:
    service_clients.tokenize_row(home, asked(model))
    assert desked.child is not None
    desked.child.send_signal(signal.SIGKILL)
    desked.child.wait()

    assert learnt(home, asked(model)) == "Yo<|im_end|>"


def test_socket_is_accessible_only_to_owner(home: Settings) -> None:
    assert line.socket_path(home.home).stat().st_mode & 0o777 == 0o600


def test_service_stops_with_its_worker(tmp_path: Path, model: Path) -> None:
    settings = Settings(home=tmp_path)
    with tokenizer_services.run_tokenizer_service(settings) as here:
        service_clients.tokenize_row(settings, asked(model))
        assert here.child is not None
        process = psutil.Process(here.child.pid)

    wait_until(lambda: not process.is_running())
    with pytest.raises(UnavailableError, match="No worker is running, so tokens cannot be shown"):
        service_clients.tokenize_row(settings, asked(model))


def test_service_works_with_long_home_path(tmp_path: Path, model: Path) -> None:
    settings = Settings(home=tmp_path / ("long" * 25))
    settings.home.mkdir()

    with tokenizer_services.run_tokenizer_service(settings):
        assert learnt(settings, asked(model)) == "Yo<|im_end|>"


def test_second_worker_takes_over_socket_after_first_exits(tmp_path: Path, model: Path) -> None:
    settings = Settings(home=tmp_path)
    second = SocketService(line.socket_path(settings.home), line.MODULE)
    with tokenizer_services.run_tokenizer_service(settings):
        service_clients.tokenize_row(settings, asked(model))
        second.tick()
        assert second._listener is None
    second = SocketService(line.socket_path(settings.home), line.MODULE)
    second.tick()
    assert second._listener is not None
    second.close()
