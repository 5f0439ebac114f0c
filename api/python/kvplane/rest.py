# SPDX-License-Identifier: Apache-2.0
"""
The REST interface of a kvplane daemon (its contract: GET /openapi.yaml).

    with kvplane.Client("http://127.0.0.1:8100") as daemon:
        daemon.sleep(level=1)
        daemon.wake_up(tags=["weights"])

A verb returns when the thing is done, which the daemon bounds (`drain bound`, 480 s by default), and
raises what went wrong: `OperationFailed` says what the instance is in now. `begin()` returns at once,
with an `Operation` to follow. Where `instance` is left out there has to be one instance only;
`instance="*"` is all of them as one operation.

A client may be used by several threads. Nothing here needs more than Python's own library.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, Sequence

from .errors import Error

Document = dict[str, Any]
"""A JSON object, as the contract describes it."""

VERB_TIMEOUT_S = 7200.0
"""Longer than the daemon's own bounds, of which that of a weight transfer is an hour: it is the daemon that says what did
not end in time. A host that is gone is noticed within two minutes all the same."""

IDLE_CONNECTIONS = 8
RETRY_AFTER_MAX_S = 30.0
CONNECT_AGAIN_S = 0.5
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class Unreachable(Error):
    """The daemon was not reached, or went away before it answered. `sent`: whether it may have done what
    was asked. Every verb may be repeated; an identical one that still runs is joined."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Refused(Error):
    """An answer other than success. `status` is HTTP's; `param` names the parameter that does not
    fit (nothing has happened then); `document` is the whole answer."""

    def __init__(self, status: int, document: Document, request_id: str, retry_after_s: float | None = None) -> None:
        error = document.get("error")
        error = error if isinstance(error, dict) else {"message": str(error or document)}
        self.status = status
        self.message = str(error.get("message", ""))
        self.type = str(error.get("type", ""))
        self.param: str | None = error.get("param")
        self.document = document
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        super().__init__(f"{self.message} (HTTP {status}, request {request_id})")


class OperationFailed(Refused):
    """An operation that was begun and failed. `label` is why, in a word; `state` is what the
    instance is in now; `instances` is what became of each, of `instance="*"`."""

    def __init__(self, status: int, document: Document, request_id: str, retry_after_s: float | None = None) -> None:
        super().__init__(status, document, request_id, retry_after_s)
        self.operation_id: int | None = document.get("operation_id")
        self.label = str(document.get("status") or document.get("result") or "")
        self.state: Document | None = document.get("state")
        self.instances: Document = document.get("instances") or {}


@dataclass(frozen=True)
class Answer:
    """What a daemon answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> Document:
        if not self.body:
            return {}
        try:
            document = json.loads(self.body)
        except ValueError:
            text = self.body.decode("utf-8", "replace")
            return {"answer": text} if self.status < 400 else {"error": {"message": text[:1000]}}
        return document if isinstance(document, dict) else {"answer": document}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Call(threading.local):
    """The connection that this thread's call uses, so that another thread can end it."""

    connection: http.client.HTTPConnection | None = None
    hand_over: Callable[[http.client.HTTPConnection | None], None] | None = None

    def use(self, connection: http.client.HTTPConnection | None) -> None:
        if self.hand_over is not None:
            self.hand_over(connection)


class Operation:
    """One that was begun. Cheap: it holds a number and asks for the rest."""

    def __init__(self, client: Client, operation_id: int) -> None:
        self._client = client
        self.id = operation_id

    def get(self) -> Document:
        """What it is in now: `status` is running, succeeded or failed; `step`, `drain` and
        `deadline_in_ms` say how far it is."""
        return self._client.operation(self.id)

    def progress(self, every_s: float = 0.5) -> Iterator[Document]:
        """Its state now, then whenever `every_s` has passed, and at last its end."""
        while True:
            state = self._client.operation(self.id, timeout_s=every_s)
            yield state
            if state.get("status") != "running":
                return

    def result(self, timeout_s: float = VERB_TIMEOUT_S) -> Document:
        """Its end. Raises OperationFailed, or TimeoutError if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            state = self._client.operation(self.id, timeout_s=max(0.0, min(left, 30.0)))
            if state.get("status") == "failed":
                raise OperationFailed(
                    int(state.get("http_status") or 503),
                    {"error": {"message": state.get("message", "")}, "operation_id": self.id, **state,
                     "status": state.get("result")},
                    str(state.get("request_id", "")))
            if state.get("status") != "running":
                return state
            if left <= 0:
                raise TimeoutError(f"operation {self.id} still runs after {timeout_s} s: {state.get('message', '')}")

    def cancel(self) -> Document:
        """Undoes it as far as that can be done; its end says so. 409 if it cannot."""
        return self._client.post(f"/v1/kvplane/operations/{self.id}/cancel")


class Client:
    """
    A daemon at `url`: http://HOST:PORT, https://HOST:PORT or unix:///PATH. `None`: $KVPLANE_URL, else
    http://127.0.0.1:8100.

    `token`: one of its token file; None: $KVPLANE_TOKEN, if that is set. `timeout_s` bounds a question
    that waits for nothing, `verb_timeout_s` one that waits for engines. `ssl_context`: of https; the
    system's authorities if None (with `load_cert_chain` for a daemon that wants a certificate).
    `retry_s`: what was not taken is asked again for so long: 409 and 503 with Retry-After (another
    operation's turn; too many requests), and a daemon that nobody can connect to yet. 0: never.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None, timeout_s: float = 30.0,
                 verb_timeout_s: float = VERB_TIMEOUT_S, ssl_context: ssl.SSLContext | None = None,
                 retry_s: float = 0.0) -> None:
        url = url or os.environ.get("KVPLANE_URL") or "http://127.0.0.1:8100"
        at = urllib.parse.urlsplit(url)
        if at.scheme not in ("http", "https", "unix") or at.query or at.fragment or \
                (at.scheme != "unix" and (not at.hostname or at.path not in ("", "/"))) or \
                (at.scheme == "unix" and (at.netloc or not at.path)):
            raise ValueError(f"{url!r} is no address of a daemon: http://HOST:PORT, https://HOST:PORT or unix:///PATH")
        self.url = url
        self._at = at
        self._port = at.port  # raises ValueError for a bad one
        self._token = token if token is not None else os.environ.get("KVPLANE_TOKEN")
        self._timeout_s = timeout_s
        self._verb_timeout_s = verb_timeout_s
        self._ssl = ssl_context if ssl_context is not None or at.scheme != "https" else ssl.create_default_context()
        self._retry_s = retry_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._call = _Call()

    # ---- connections

    def close(self) -> None:
        """Closes what is idle; calls of other threads end by themselves."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._at.scheme == "unix":
            return _UnixConnection(urllib.parse.unquote(self._at.path), timeout_s)
        host = self._at.hostname or ""
        if self._at.scheme == "https":
            return http.client.HTTPSConnection(host, self._port, timeout=timeout_s, context=self._ssl)
        return http.client.HTTPConnection(host, self._port, timeout=timeout_s)

    def _take(self, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            return self._open(timeout_s), False
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection, True

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        self._call.use(connection)  # who was to end it while it had no socket could not
        if connection.sock.family != socket.AF_UNIX:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and connection.sock is not None and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {"Accept": "application/json", **({"Authorization": f"Bearer {self._token}"} if self._token else {}), **headers}

    def request(self, method: str, path: str, *, query: Mapping[str, object] | None = None, body: object = None,
                headers: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Answer:
        """
        One request and its answer, whatever its status. Of `query`, None is left out and a list is
        repeated. Raises Unreachable, and TimeoutError after `timeout_s` of silence.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        target = path + _query(query)
        data = None if body is None else json.dumps(body).encode()
        head = self._headers(headers or {})
        if data is not None:
            head["Content-Type"] = "application/json"
        # The daemon may close an idle connection while it is taken: what only asks is asked again. What acts has a
        # connection of its own, so that it is never sent twice without its caller's knowledge.
        asks = method in ("GET", "HEAD")
        while True:
            connection, used = self._take(timeout_s) if asks else (self._open(timeout_s), False)
            sent = used
            try:
                self._call.use(connection)
                if not used:
                    self._connect(connection)
                sent = True
                connection.request(method, target, data, head)
                response = connection.getresponse()
                answer = Answer(response.status, dict(response.getheaders()), response.read())
            except http.client.InvalidURL as error:
                connection.close()
                raise ValueError(str(error)) from None
            except TimeoutError:
                connection.close()
                raise TimeoutError(f"{method} {path}: {self.url} has not answered within {timeout_s:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if used and isinstance(error, (ConnectionError, http.client.BadStatusLine)):
                    continue
                raise Unreachable(f"{method} {path}: {self.url}: {error or type(error).__name__}", sent) from error
            except BaseException:
                connection.close()
                raise
            finally:
                self._call.use(None)
            self._give(connection)
            return answer

    def _asked(self, method: str, path: str, query: Mapping[str, object] | None, body: object, timeout_s: float | None,
               headers: Mapping[str, str] | None = None) -> Document:
        give_up = time.monotonic() + self._retry_s
        while True:
            try:
                answer = self.request(method, path, query=query, body=body, headers=headers, timeout_s=timeout_s)
            except Unreachable as error:
                if (error.sent and method != "GET") or time.monotonic() + CONNECT_AGAIN_S > give_up:
                    raise
                time.sleep(CONNECT_AGAIN_S)
                continue
            document = answer.document()
            if 200 <= answer.status < 300 and answer.status != 207:
                return document
            retry_after_s = _seconds(_header(answer, "Retry-After"))
            # What has begun and failed with 503 may have done half of it: that is its caller's to judge.
            not_taken = answer.status == 409 or (answer.status == 503 and "operation_id" not in document)
            if not_taken and retry_after_s is not None and time.monotonic() + retry_after_s < give_up:
                time.sleep(retry_after_s)
                continue
            kind = OperationFailed if "operation_id" in document or answer.status == 207 else Refused
            raise kind(answer.status, document, _header(answer, "X-Request-Id") or "", retry_after_s)

    def get(self, path: str, /, timeout_s: float | None = None, **query: object) -> Document:
        """GET of any path of the contract. Raises Refused."""
        return self._asked("GET", path, query, None, timeout_s)

    def post(self, path: str, /, body: object = None, timeout_s: float | None = None, **query: object) -> Document:
        """POST to any path of the contract, so also those of SGLang's names. Raises Refused."""
        return self._asked("POST", path, query, body, self._verb_timeout_s if timeout_s is None else timeout_s)

    def begin(self, verb: str, /, body: object = None, **query: object) -> Operation:
        """Begins a verb (`sleep`, `wake_up`, `pause`, …) and returns while it runs."""
        document = self._asked("POST", f"/{verb.lstrip('/')}", query, body, self._verb_timeout_s, {"Prefer": "respond-async"})
        if "operation_id" not in document:
            raise Error(f"{verb} is no operation: the daemon answered at once with {document}")
        return Operation(self, int(document["operation_id"]))

    # ---- probes

    def alive(self) -> bool:
        """Whether the daemon's loops turn."""
        return self._probe("/livez")

    def ready(self) -> bool:
        return self._probe("/readyz")

    def healthy(self) -> bool:
        """Whether every instance is there."""
        return self._probe("/health")

    def _probe(self, path: str) -> bool:
        try:
            return self.request("GET", path).status == 200
        except (Unreachable, TimeoutError):
            return False

    def version(self) -> str:
        return str(self.get("/version")["version"])

    def metrics(self) -> str:
        """Prometheus text."""
        answer = self.request("GET", "/metrics")
        if answer.status != 200:
            raise Refused(answer.status, answer.document(), _header(answer, "X-Request-Id") or "")
        return answer.body.decode()

    # ---- lifecycle: vLLM's names and meanings

    def pause(self, *, instance: str | None = None, mode: str | None = None, clear_cache: bool | None = None,
              reset_external: bool | None = None, all_or_nothing: bool | None = None) -> Document:
        """Stops the scheduler, waits until the engine is idle. mode: abort, wait or keep."""
        return self.post("/pause", instance=instance, mode=mode, clear_cache=clear_cache, reset_external=reset_external,
                         all_or_nothing=all_or_nothing)

    def resume(self, *, instance: str | None = None, all_or_nothing: bool | None = None) -> Document:
        return self.post("/resume", instance=instance, all_or_nothing=all_or_nothing)

    def sleep(self, *, level: int | None = None, instance: str | None = None, mode: str | None = None,
              reset_external: bool | None = None, all_or_nothing: bool | None = None) -> Document:
        """Gives the engine's memory back. level 1 (default): weights are kept aside; 2: discarded; 0: none is."""
        return self.post("/sleep", level=level, instance=instance, mode=mode, reset_external=reset_external,
                         all_or_nothing=all_or_nothing)

    def wake_up(self, *, tags: Sequence[str] | None = None, instance: str | None = None, weight_version: str | None = None,
                all_or_nothing: bool | None = None) -> Document:
        """Brings memory back: that of `tags`, or all. The scheduler goes on when all of it is there."""
        return self.post("/wake_up", tags=tags, instance=instance, weight_version=weight_version, all_or_nothing=all_or_nothing)

    def release_kv_cache_memory(self, *, instance: str | None = None) -> Document:
        return self.post("/release_kv_cache_memory", instance=instance)

    def reset_prefix_cache(self, *, instance: str | None = None, reset_running_requests: bool | None = None,
                           reset_external: bool | None = None) -> Document:
        """Empties the engine's own prefix cache, with `reset_external` what it shares as well. Raises unless it did."""
        document = self.post("/reset_prefix_cache", instance=instance, reset_running_requests=reset_running_requests,
                             reset_external=reset_external)
        if document.get("success") is False:
            raise OperationFailed(200, document, "")
        return document

    def is_sleeping(self, *, instance: str | None = None) -> bool:
        return bool(self.get("/is_sleeping", instance=instance)["is_sleeping"])

    def is_paused(self, *, instance: str | None = None) -> bool:
        return bool(self.get("/is_paused", instance=instance)["is_paused"])

    # ---- weights: relayed to the engine

    def start_weight_update(self, *, instance: str | None = None) -> Document:
        return self.post("/start_weight_update", instance=instance)

    def update_weights(self, update_info: object, *, instance: str | None = None) -> Document:
        return self.post("/update_weights", {"update_info": update_info}, instance=instance)

    def finish_weight_update(self, *, weight_version: str | None = None, instance: str | None = None) -> Document:
        return self.post("/finish_weight_update", {"weight_version": weight_version} if weight_version else None,
                         instance=instance)

    def weight_version(self, *, instance: str | None = None) -> str:
        return str(self.get("/weight_info", instance=instance)["weight_version"])

    def collective_rpc(self, method: str, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None, *,
                       instance: str | None = None) -> Document:
        return self.post("/collective_rpc", {"method": method, "args": list(args), "kwargs": dict(kwargs or {})},
                         instance=instance)

    # ---- what there is

    def instances(self) -> Iterator[Document]:
        return self._listed("instances")

    def instance(self, name: str) -> Document:
        return self.get(f"/v1/kvplane/instances/{_segment(name)}")

    def operations(self) -> Iterator[Document]:
        """Running ones and the last finished ones, newest first."""
        return self._listed("operations")

    def operation(self, operation_id: int, timeout_s: float | None = None) -> Document:
        """With timeout_s: when it has ended, or after so long."""
        wait = {} if timeout_s is None else {"timeout": f"{timeout_s:.3f}"}
        return self._asked("GET", f"/v1/kvplane/operations/{int(operation_id)}", wait, None,
                           self._timeout_s + (timeout_s or 0.0))

    def regions(self, *, instance: str | None = None) -> Iterator[Document]:
        return self._listed("regions", instance=instance)

    def queues(self, *, instance: str | None = None) -> Iterator[Document]:
        return self._listed("queues", instance=instance)

    def nodes(self) -> Iterator[Document]:
        return self._listed("nodes")

    def tenants(self) -> Iterator[Document]:
        return self._listed("tenants")

    def tenant(self, name: str) -> Document:
        return self.get(f"/v1/kvplane/tenants/{_segment(name)}")

    def reset_tenant(self, name: str) -> Document:
        """Retires every lineage of a tenant: nothing put before is got again."""
        return self.post(f"/v1/kvplane/tenants/{_segment(name)}/reset")

    def set_quota(self, name: str, quota_bytes: int) -> Document:
        return self.post(f"/v1/kvplane/tenants/{_segment(name)}/quota", quota_bytes=quota_bytes)

    def _listed(self, name: str, **query: object) -> Iterator[Document]:
        """All pages, asked for one by one."""
        cursor: object = None
        while True:
            page = self._asked("GET", f"/v1/kvplane/{name}", {**query, "cursor": cursor}, None, None)
            yield from page[name]
            cursor = page.get("next")
            if cursor is None:
                return

    def events(self, after: int | None = None) -> Iterator[Document]:
        """
        What happens, as it happens, until the iterator is closed: of kind `state`, `sleep`, `reset`,
        `cleared`, `node`, … With `after`: what came after that id first. A connection that is lost is
        made again, and goes on where it was; Refused ends it. Unreachable: there was none to begin with.
        """
        retry_s, begun = 0.1, False
        while True:
            connection = self._open(self._timeout_s)
            self._call.use(connection)
            try:
                self._connect(connection)
                connection.request("GET", "/v1/kvplane/events", headers=self._headers(
                    {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": str(after)})}))
                response = connection.getresponse()
                if response.status != 200:
                    answer = Answer(response.status, dict(response.getheaders()), response.read())
                    raise Refused(answer.status, answer.document(), _header(answer, "X-Request-Id") or "",
                                  _seconds(_header(answer, "Retry-After")))
                begun = True
                for event in _events(response):
                    retry_s = 0.1
                    after = int(event["id"]) if "id" in event else after
                    yield event
            except (OSError, http.client.HTTPException) as error:
                if not begun:
                    raise Unreachable(f"events: {self.url}: {error or type(error).__name__}", False) from error
            finally:
                self._call.use(None)
                connection.close()
            if self._closed:
                return
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, 5.0)


def _events(response: http.client.HTTPResponse) -> Iterator[Document]:
    """Events of a stream, of which each has its JSON in its data."""
    data: list[str] = []
    for raw in response:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            event = json.loads("\n".join(data))
            data = []
            if isinstance(event, dict):
                yield event


def _segment(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _query(query: Mapping[str, object] | None) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        if value is None:
            continue
        many = value if isinstance(value, (list, tuple)) else [value]
        pairs += [(name, str(one).lower() if isinstance(one, bool) else str(one)) for one in many]
    return f"?{urllib.parse.urlencode(pairs)}" if pairs else ""


def _header(answer: Answer, name: str) -> str | None:
    return next((value for key, value in answer.headers.items() if key.lower() == name.lower()), None)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else min(max(float(text), 0.0), RETRY_AFTER_MAX_S)
    except ValueError:
        return None
