"""Answers of endpoints: what is asked and read, and what is said of whatever else they send."""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.protocols.chat_endpoints import ChatEndpoint
from studio.services.playground import endpoint_answers
from studio.services.playground.endpoint_answers import EndpointAnswer, Limits
from tests.web.playground.streaming_endpoint import (
    EVENTS,
    Reply,
    StreamingEndpoint,
    chunk,
    event,
    failed,
    run_endpoint,
    said,
)

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "seed": 3, "top_p": 1}
PATIENT = Limits()
HTML = {"Content-Type": "text/html; charset=utf-8"}


def target(url: str, key: str = "sk-verysecret") -> ChatEndpoint:
    return ChatEndpoint(name="large", url=url, model="large", key=SecretStr(key))


def read(
    url: str, limits: Limits = PATIENT, *, allow_internal: bool = True
) -> tuple[str, EndpointAnswer, list[dict[str, Any]]]:
    """Ask an endpoint. Return the text, the answer, and its tokens."""
    answer, texts, tokens = EndpointAnswer(), [], []

    async def ask() -> None:
        pieces = endpoint_answers.stream(
            target(url), BODY, answer, allow_internal=allow_internal, limits=limits
        )
        async for piece in pieces:
            texts.append(piece.text)
            tokens.extend(piece.tokens)

    asyncio.run(ask())
    return "".join(texts), answer, tokens


def read_reply(reply: Reply, limits: Limits = PATIENT) -> tuple[str, StreamingEndpoint]:
    with run_endpoint(lambda _request: reply) as endpoint:
        return read(endpoint.url, limits)[0], endpoint


def test_answer_arrives_with_model_and_tokens() -> None:
    logprobs = {
        "content": [
            {
                "token": "Good",
                "logprob": -0.5,
                "top_logprobs": [
                    {"token": "Bad", "logprob": -1},
                    {"token": "x", "logprob": -1e999},
                ],
            }
        ]
    }
    pieces = [chunk(role="assistant", content=""), chunk(content="Good", logprobs=logprobs)]
    with run_endpoint(lambda _request: Reply([*pieces, *said(" day.").pieces])) as endpoint:
        text, answer, tokens = read(endpoint.url)

    assert text == "Good day."
    assert (answer.model, answer.reason, answer.tokens) == ("large-2026", "stop", 7)
    assert tokens == [
        {
            "text": "Good",
            "logprob": -0.5,
            "top": [{"text": "Bad", "logprob": -1.0}, {"text": "x", "logprob": -9999.0}],
        }
    ]
    assert endpoint.keys == ["Bearer sk-verysecret"]
    assert endpoint.asked[0].items() >= BODY.items()
    assert endpoint.asked[0]["stream"] is True


def test_calls_are_put_together() -> None:
    def part(index: int, **called: str) -> dict[str, Any]:
        return {"index": index, "function": called} | (
            {"id": f"c{index}"} if "name" in called else {}
        )

    parts = [
        part(0, name="weather", arguments=""),
        part(0, arguments='{"city": '),
        part(0, arguments='"Rome"}'),
        part(1, name="now", arguments="{}"),
    ]
    pieces = [chunk(tool_calls=[one]) for one in parts]
    with run_endpoint(lambda _request: Reply([*pieces, chunk("tool_calls")])) as endpoint:
        _text, answer, _tokens = read(endpoint.url)

    assert [(call["id"], call["function"]) for call in answer.calls] == [
        ("c0", {"name": "weather", "arguments": '{"city": "Rome"}'}),
        ("c1", {"name": "now", "arguments": "{}"}),
    ]


def test_refused_options_are_left_out_and_named() -> None:
    def reply(request: dict[str, Any]) -> Reply:
        if "logprobs" in request:
            return failed(400, "logprobs is not supported with this model")
        if "max_tokens" in request:
            return failed(400, "Use 'max_completion_tokens' instead of 'max_tokens'.")
        return failed(400, "Unknown field: seed") if "seed" in request else said("Hi")

    with run_endpoint(reply) as endpoint:
        text, answer, _tokens = read(endpoint.url)

    assert text == "Hi"
    assert answer.left_out == ("seed",)
    assert endpoint.asked[-1]["max_completion_tokens"] == 9
    assert not {"top_logprobs", "max_tokens", "seed"} & set(endpoint.asked[-1])


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (failed(401, "Wrong key sk-verysecret"), InvalidError, "refused the studio's key"),
        (failed(403, "No."), InvalidError, "refused the studio's key: No. An administrator can"),
        (failed(404, "No such model"), InvalidError, "does not have large: No such model"),
        (failed(429, "Slow", {"Retry-After": "20"}), UnavailableError, "Try again in 20 s."),
        (failed(429, "Slow", {"Retry-After": "x" * 99}), UnavailableError, "Try again later."),
        (failed(400, "Bad schema"), InvalidError, "refused the request with status 400: Bad"),
        (failed(500, ""), UnavailableError, "failed with status 500: no reason given."),
        (failed(302, "", {"Location": "http://169.254.169.254/"}), InvalidError, "not followed"),
        (Reply([b"<html>Hi</html>"], 200, HTML), InvalidError, "it sent text/html"),
        (Reply([b"<b>Gone</b>"], 502, HTML), UnavailableError, "status 502: <b>Gone</b>"),
        (Reply([b"{}"], 200, {"Content-Type": "application/json"}), InvalidError, "did not stream"),
        (Reply([b"data: <html>\n\n"]), InvalidError, "no answer of OpenAI's API"),
        (Reply([b"data: [1]\n\n"]), InvalidError, "no answer of OpenAI's API"),
        (Reply([event({"choices": [3]})]), InvalidError, "no answer of OpenAI's API"),
        (Reply([b'data: {"choices": NaN}\n\n']), InvalidError, "no answer of OpenAI's API"),
        (Reply([chunk(content=["Hal"])]), InvalidError, "no answer of OpenAI's API"),
        (Reply([b"data: " + b"[" * 100_000 + b"\n"]), InvalidError, "no answer of OpenAI's API"),
        (Reply([b"data: \xff\xfe\n\n"]), InvalidError, "not UTF-8"),
        (Reply([event({"error": {"message": "Overloaded"}})]), UnavailableError, "Overloaded"),
        (Reply([chunk(content="Hal")]), UnavailableError, "broke off in the middle"),
        (Reply([]), UnavailableError, "broke off in the middle"),
        (Reply(itertools.repeat(b"data: {}\n\n" * 9999)), TooLargeError, "too long an answer"),
        (Reply(itertools.repeat(b"x" * 2**16)), TooLargeError, "too long an answer"),
        (Reply(itertools.repeat(b"x" * 2**16), 503, HTML), UnavailableError, "status 503: xxx"),
    ],
)
def test_anything_else_is_said_in_words(reply: Reply, kind: type[StudioError], words: str) -> None:
    with pytest.raises(kind) as raised:
        read_reply(reply)
    told = f"{raised.value.message} {raised.value.hint}"

    assert told.startswith("127.0.0.1 ")
    assert words in told


def test_body_that_is_cut_off_is_no_whole_answer() -> None:
    headers = EVENTS | {"Content-Length": "9999"}
    with pytest.raises(UnavailableError, match="The connection broke off"):
        read_reply(Reply([chunk(content="Hal")], headers=headers))


@pytest.mark.parametrize("is_slow", [True, False])
def test_silence_and_trickle_end(is_slow: bool) -> None:  # noqa: FBT001 -- a case
    done = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield chunk(content="Well")
        while not done.wait(0.01 if is_slow else 60):
            yield b": wait\n"

    limits = Limits(silence=60, seconds=0.3) if is_slow else Limits(silence=0.3)
    try:
        with pytest.raises(UnavailableError, match="did not answer in time"):
            read_reply(Reply(pieces()), limits)
    finally:
        done.set()


def test_silence_before_the_response_ends() -> None:
    done = threading.Event()

    def reply(_request: object) -> Reply:
        done.wait()
        return said("Late")

    with run_endpoint(reply) as endpoint:
        try:
            with pytest.raises(UnavailableError, match="did not answer in time"):
                read(endpoint.url, Limits(silence=0.2))
        finally:
            done.set()


def test_closing_the_answer_closes_the_connection() -> None:
    async def stop_after_first(url: str) -> None:
        answer = EndpointAnswer()
        pieces = endpoint_answers.stream(target(url), BODY, answer, allow_internal=True)
        async with aclosing(pieces):
            async for piece in pieces:
                assert piece.text == "on"
                return

    endless = Reply(itertools.repeat(chunk(content="on")))
    with run_endpoint(lambda _request: endless) as endpoint:
        asyncio.run(stop_after_first(endpoint.url))
        assert endpoint.hung_up.wait(60)


def test_other_work_goes_on_while_an_endpoint_is_silent() -> None:
    """It holds neither the event loop nor a thread of it."""
    answered = threading.Event()

    def reply(_request: object) -> Reply:
        answered.wait(60)
        return said("Hi")

    async def both(url: str) -> str:
        answer = EndpointAnswer()
        pieces = endpoint_answers.stream(target(url), BODY, answer, allow_internal=True)
        first = asyncio.ensure_future(anext(pieces))
        while not endpoint.asked:  # noqa: ASYNC110 -- a thread adds to it
            await asyncio.sleep(0)
        answered.set()  # Only an event loop that goes on gets here.
        text = (await first).text
        await pieces.aclose()
        return text

    with run_endpoint(reply) as endpoint:
        assert asyncio.run(both(endpoint.url)) == "Hi"


def test_internal_addresses_are_refused_before_connecting() -> None:
    with run_endpoint(lambda _request: said("Hi")) as endpoint:
        with pytest.raises(InvalidError, match="is an internal address") as raised:
            read(endpoint.url, allow_internal=False)
        assert endpoint.asked == []
    assert "STUDIO_ALLOW_INTERNAL_ADDRESSES" in raised.value.hint


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/v1", "It could not be reached"),
        ("http://nothing.invalid/v1", "It could not be reached"),
        ("https://127.0.0.1:1/v1", "It could not be reached"),
        ("http://" + "x" * 70 + ".invalid/v1", "valid host name|could not be reached"),
    ],
)
def test_unreachable_endpoint_is_named(url: str, words: str) -> None:
    with pytest.raises(StudioError, match=words) as raised:
        read(url)
    assert raised.value.message


KEYS = [
    *("choices", "delta", "content", "tool_calls", "index", "function", "name", "arguments", "id"),
    *("model", "logprobs", "token", "logprob", "top_logprobs", "usage", "completion_tokens"),
    *("error", "message", "finish_reason"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(JSON, max_size=4))
def test_any_event_is_read_or_refused_in_words(chunks: list[Any]) -> None:
    """And what is passed on can be sent as JSON."""
    answer, endpoint = EndpointAnswer(), target("http://large.example/v1")
    for one in chunks:
        try:
            piece = endpoint_answers._add(endpoint, answer, json.dumps(one).encode())
        except StudioError:
            return
        json.dumps([piece.text, piece.tokens, answer.calls], allow_nan=False)
