# SPDX-License-Identifier: Apache-2.0
"""
The same client for asyncio: every method of `Client`, awaited.

    async with kvplane.AsyncClient("http://127.0.0.1:8100") as daemon:
        await daemon.sleep(level=1)
        async for event in daemon.events():
            ...

Each call runs in a thread of its own pool, over Python's http.client. A task that is cancelled ends its
connection at once; what it had asked for goes on in the daemon, as with any client that goes away.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import http.client
import socket
import threading
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Concatenate, Iterator, ParamSpec, TypeVar

from .rest import VERB_TIMEOUT_S, Client, Document
from .rest import Operation as SyncOperation

P = ParamSpec("P")
R = TypeVar("R")


class _Current:
    """The connection of one call, to be shut when its task is cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._ended = False

    def use(self, connection: http.client.HTTPConnection | None) -> None:
        with self._lock:
            self._connection = connection
            if self._ended and connection is not None:
                raise ConnectionAbortedError("the task was cancelled")

    def end(self) -> None:
        with self._lock:
            self._ended = True
            sock = self._connection.sock if self._connection is not None else None
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed already


def _awaited(method: Callable[Concatenate[Client, P], R]) -> Callable[Concatenate[AsyncClient, P], Awaitable[R]]:
    @functools.wraps(method)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return self._run(lambda: method(self._client, *args, **kwargs))

    return call


def _listed(method: Callable[Concatenate[Client, P], Iterator[Document]]) \
        -> Callable[Concatenate[AsyncClient, P], AsyncIterator[Document]]:
    @functools.wraps(method)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Document]:
        return self._each(lambda: method(self._client, *args, **kwargs))

    return call


class AsyncClient:
    """As Client, of whose arguments it takes all. `calls`: how many may wait at one time; more queue."""

    def __init__(self, url: str | None = None, *, calls: int = 64, **options: Any) -> None:
        self._client = Client(url, **options)
        self.url = self._client.url
        self._threads = concurrent.futures.ThreadPoolExecutor(calls, "kvplane")
        self._running: set[_Current] = set()

    async def close(self) -> None:
        """Ends what still runs: its tasks see Unreachable."""
        self._client.close()
        for current in list(self._running):
            current.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def _run(self, call: Callable[[], R], current: _Current | None = None) -> R:
        using = current or _Current()

        def run() -> R:
            self._client._call.hand_over = using.use
            try:
                return call()
            finally:
                self._client._call.hand_over = None

        self._running.add(using)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except asyncio.CancelledError:
            using.end()
            raise
        finally:
            self._running.discard(using)

    async def _each(self, make: Callable[[], Iterator[Document]]) -> AsyncIterator[Document]:
        iterator = make()
        current = _Current()  # one for all items: a stream keeps its connection
        try:
            while (item := await self._run(lambda: next(iterator, None), current)) is not None:
                yield item
        finally:
            current.end()

    async def begin(self, verb: str, /, body: object = None, **query: object) -> AsyncOperation:
        """As Client.begin()."""
        return AsyncOperation(self, await self._run(lambda: self._client.begin(verb, body, **query)))

    async def get(self, path: str, /, timeout_s: float | None = None, **query: object) -> Document:
        """As Client.get()."""
        return await self._run(lambda: self._client.get(path, timeout_s, **query))

    async def post(self, path: str, /, body: object = None, timeout_s: float | None = None, **query: object) -> Document:
        """As Client.post()."""
        return await self._run(lambda: self._client.post(path, body, timeout_s, **query))

    request = _awaited(Client.request)
    alive = _awaited(Client.alive)
    ready = _awaited(Client.ready)
    healthy = _awaited(Client.healthy)
    version = _awaited(Client.version)
    metrics = _awaited(Client.metrics)
    pause = _awaited(Client.pause)
    resume = _awaited(Client.resume)
    sleep = _awaited(Client.sleep)
    wake_up = _awaited(Client.wake_up)
    release_kv_cache_memory = _awaited(Client.release_kv_cache_memory)
    reset_prefix_cache = _awaited(Client.reset_prefix_cache)
    is_sleeping = _awaited(Client.is_sleeping)
    is_paused = _awaited(Client.is_paused)
    start_weight_update = _awaited(Client.start_weight_update)
    update_weights = _awaited(Client.update_weights)
    finish_weight_update = _awaited(Client.finish_weight_update)
    weight_version = _awaited(Client.weight_version)
    collective_rpc = _awaited(Client.collective_rpc)
    instance = _awaited(Client.instance)
    operation = _awaited(Client.operation)
    tenant = _awaited(Client.tenant)
    reset_tenant = _awaited(Client.reset_tenant)
    set_quota = _awaited(Client.set_quota)
    instances = _listed(Client.instances)
    operations = _listed(Client.operations)
    regions = _listed(Client.regions)
    queues = _listed(Client.queues)
    nodes = _listed(Client.nodes)
    tenants = _listed(Client.tenants)
    events = _listed(Client.events)


class AsyncOperation:
    """As Operation."""

    def __init__(self, client: AsyncClient, operation: SyncOperation) -> None:
        self._client = client
        self._operation = operation
        self.id = operation.id

    async def get(self) -> Document:
        return await self._client._run(self._operation.get)

    def progress(self, every_s: float = 0.5) -> AsyncIterator[Document]:
        return self._client._each(lambda: self._operation.progress(every_s))

    async def result(self, timeout_s: float = VERB_TIMEOUT_S) -> Document:
        return await self._client._run(lambda: self._operation.result(timeout_s))

    async def cancel(self) -> Document:
        return await self._client._run(self._operation.cancel)
