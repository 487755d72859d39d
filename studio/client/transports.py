"""Send requests and parse responses: synchronously, and with asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

import httpx2

from studio.client import retries
from studio.client.discovery import resolve_settings
from studio.client.request import ApiRequest, PagedRequest

T = TypeVar("T")


class Transport:
    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.Client(**retries.client_options(resolve_settings(url, token)))

    def send(self, call: ApiRequest[T]) -> T:
        schedule = retries.RetrySchedule(call)
        while True:
            outcome = self._ask(call)
            delay = schedule.next_delay(outcome)
            if delay is None:
                return retries.parse_response(call, outcome, self.client.base_url)
            time.sleep(delay)

    def iterate(self, request: PagedRequest[T]) -> Iterator[T]:
        after: int | None = None
        while True:
            page = self.send(request.page(after))
            yield from page.data
            if not page.has_more:
                return
            after = page.next_after

    def _ask(self, call: ApiRequest[Any]) -> retries.Outcome:
        with call.file.open() if call.file else nullcontext() as files:
            try:
                return self.client.send(retries.build_request(self.client, call, files))
            except httpx2.TransportError as error:
                return error


class AsyncTransport:
    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.AsyncClient(**retries.client_options(resolve_settings(url, token)))

    async def send(self, call: ApiRequest[T]) -> T:
        schedule = retries.RetrySchedule(call)
        while True:
            outcome = await self._ask(call)
            delay = schedule.next_delay(outcome)
            if delay is None:
                return retries.parse_response(call, outcome, self.client.base_url)
            await asyncio.sleep(delay)

    async def iterate(self, request: PagedRequest[T]) -> AsyncIterator[T]:
        after: int | None = None
        while True:
            page = await self.send(request.page(after))
            for item in page.data:
                yield item
            if not page.has_more:
                return
            after = page.next_after

    async def _ask(self, call: ApiRequest[Any]) -> retries.Outcome:
        with call.file.open() if call.file else nullcontext() as files:
            try:
                return await self.client.send(retries.build_request(self.client, call, files))
            except httpx2.TransportError as error:
                return error
