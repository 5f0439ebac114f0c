# SPDX-License-Identifier: Apache-2.0
"""Every answer that a test sees of a kvplane server goes to a file in $KVPLANE_RECORD, one JSON a line.

The test `contract` (tests/npm/recorded.mjs) then holds all of them against api/openapi*.yaml. What goes through
http.client (and so urllib) in this process is seen there; tests that write their bytes themselves do so by a
Conversation; other clients are seen if they go through a Tap, which passes bytes on as they are, and those that
end TLS themselves (curl, Chromium) tell what they have got. Equal answers are written once.
"""
import contextlib
import hashlib
import http.client
import io
import json
import os
import select
import socket
import sys
import threading

DIRECTORY = os.environ.get("KVPLANE_RECORD")
# What is judged of a request; the rest is not written (tokens least of all).
ASKED = ("accept", "prefer", "content-type", "last-event-id", "if-none-match")
CONNECT_S = 30

_servers = {}  # port -> "daemon" or "store"
_written = set()
_lock = threading.Lock()
_test = "?"


def server(port, kind):
    """What answers at this port is judged by the contract of this kind; None: no longer."""
    _servers[port] = kind


def testing(name):
    global _test
    _test = name


def test():
    return _test


def write(kind, method, target, asked, status, headers, body, whole):
    """One answer; whole is false where the client did not wait for its end."""
    if not DIRECTORY:
        return
    names = {name.lower(): value for name, value in headers}
    text = None  # of text its type is enough: metrics, the contract itself, pages
    if names.get("content-type", "").split(";")[0] in ("application/json", "text/event-stream"):
        text = body.decode("utf-8", "replace")
    request = {name.lower(): value for name, value in asked if name.lower() in ASKED}
    entry = {"server": kind, "method": method, "target": target, "asked": request, "status": status,
             "headers": {n: v for n, v in names.items() if n not in ("date", "x-request-id")},
             "id": "x-request-id" in names, "length": len(body), "body": text, "whole": whole}
    line = json.dumps(entry, sort_keys=True)
    key = hashlib.sha256(line.encode()).digest()
    with _lock:
        if key in _written:
            return
        _written.add(key)
        program = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        os.makedirs(DIRECTORY, exist_ok=True)
        with open(os.path.join(DIRECTORY, f"{program}-{os.getpid()}.jsonl"), "a", encoding="utf-8") as out:
            out.write(json.dumps({"test": _test, **entry}) + "\n")


# ---- http.client ----

class _Response(http.client.HTTPResponse):
    """Keeps what is read of it, and writes it down when it ends or is closed."""
    exchange = None
    _inside = False

    def _keep(self, read, *args):
        if self._inside or self.exchange is None:
            return read(*args)
        self._inside = True
        try:
            data = read(*args)
        finally:
            self._inside = False
        self._kept += data
        if self.isclosed():
            self._end()
        return data

    def expect(self, exchange):
        self.exchange, self._kept = exchange, b""
        if self.isclosed():  # there is no body
            self._end()

    def read(self, *args):
        return self._keep(super().read, *args)

    def read1(self, *args):
        return self._keep(super().read1, *args)

    def readline(self, *args):
        return self._keep(super().readline, *args)

    def _end(self, whole=True):
        if self.exchange is not None:
            exchange, self.exchange = self.exchange, None
            write(*exchange, self.status, self.getheaders(), self._kept, whole)

    def close(self):
        if self.exchange is not None and not self._inside:
            self._end(whole=False)
        super().close()


def _watch():
    connection = http.client.HTTPConnection
    putrequest, putheader, getresponse = connection.putrequest, connection.putheader, connection.getresponse

    def first(self, method, url, *args, **kw):
        self.asked = (method, url, [])
        return putrequest(self, method, url, *args, **kw)

    def header(self, name, *values):
        text = [v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in values]
        self.asked[2].append((name, ", ".join(text)))
        return putheader(self, name, *values)

    def answer(self):
        response = getresponse(self)
        kind = _servers.get(self.port)
        if kind is not None:
            response.expect((kind, *self.asked))
        return response

    connection.response_class = _Response
    connection.putrequest, connection.putheader, connection.getresponse = first, header, answer


# ---- bytes of a connection ----

class _Cut(Exception):
    """The bytes end before what they began does."""


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def line(self):
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise _Cut
        line, self.at = self.data[self.at:end].rstrip(b"\r"), end + 1
        return line.decode("latin-1")

    def take(self, n):
        data = self.data[self.at:self.at + n]
        self.at += len(data)
        return data, len(data) == n

    def head(self):
        first, headers = self.line(), []
        while line := self.line():
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        return first, headers

    def body(self, headers, to_the_end):
        """What there is of it, and whether that is all."""
        names = {name.lower(): value for name, value in headers}
        if "chunked" in names.get("transfer-encoding", "").lower():
            data = b""
            with contextlib.suppress(_Cut):
                while size := int(self.line().split(";")[0], 16):
                    chunk, whole = self.take(size)
                    data += chunk
                    if not whole:
                        return data, False
                    self.line()
                while self.line():
                    pass
                return data, True
            return data, False
        if "content-length" in names:
            return self.take(int(names["content-length"]))
        return self.take(len(self.data) - self.at) if to_the_end else (b"", True)


def exchanges(kind, asked, answered):
    """Writes down what both ends of a connection have said. A request that is none is answered all the same."""
    requests, answers = _Reader(asked), _Reader(answered)
    known = True
    while answers.at < len(answers.data):
        method, target, request = None, None, []
        if known:
            try:
                first, request = requests.head()
                method, target, _ = first.split(" ")
                requests.body(request, to_the_end=False)
            except (_Cut, ValueError):
                known, method, target = False, None, None
        try:
            status, headers = 100, []
            while status < 200:
                first, headers = answers.head()
                status = int(first.split(" ")[1])
        except _Cut:
            return
        empty = method == "HEAD" or status in (204, 304)
        body, whole = (b"", True) if empty else answers.body(headers, to_the_end=True)
        write(kind, method, target, request, status, headers, body, whole)


class Conversation(io.RawIOBase):
    """What a test says and hears on a socket (which may speak TLS), byte by byte; `file` reads it."""

    def __init__(self, sock, port):
        super().__init__()
        self._socket, self._kind = sock, _servers.get(port)
        self._said = self._heard = b""
        self.file = io.BufferedReader(self)

    def sendall(self, data):
        self._said += data
        self._socket.sendall(data)

    def readable(self):
        return True

    def readinto(self, buffer):
        n = self._socket.recv_into(buffer)
        self._heard += bytes(buffer[:n])
        return n

    def makefile(self, _mode):
        """For http.client.HTTPResponse, instead of a socket."""
        return self.file

    def close(self):
        if not self.closed and self._kind and DIRECTORY:
            exchanges(self._kind, self._said, self._heard)
        super().close()


class Tap:
    """Stands before a server, for one client: what both say is passed on as it is, and written down."""

    def __init__(self, host, port):
        self._to = (host, port)
        self._kind = _servers.get(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._stopped = threading.Event()
        self._threads[0].start()

    def close(self):
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)  # one may stand before a client that does not read
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client):
        said = {}
        with client, contextlib.suppress(OSError), \
                socket.create_connection(self._to, timeout=CONNECT_S) as there:
            for end in (client, there):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(None)
                said[end] = b""
            others = {client: there, there: client}
            reading = [client, there]
            try:
                while there in reading and not self._stopped.is_set():
                    for end in select.select(reading, [], [], 0.1)[0]:
                        data = end.recv(65536)
                        said[end] += data
                        if data:
                            others[end].sendall(data)
                        else:
                            reading.remove(end)
                            others[end].shutdown(socket.SHUT_WR)
            finally:
                if self._kind and DIRECTORY:
                    exchanges(self._kind, said[client], said[there])


if DIRECTORY:
    _watch()
