# SPDX-License-Identifier: Apache-2.0
"""One URL: what is for no route goes on to the engine's own server, and its answer back."""
import contextlib
import json
import os
import queue
import signal
import socket
import ssl
import threading
import time
import unittest
import zlib

import fake_servers
import harness
import recording
from authority import Authority

MIB = 1 << 20
ADMIN, READER = "administrators-token", "somebody-reads-it"
HOPS = ("Keep-Alive", "TE", "Trailer", "Upgrade", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection")


class Wire:
    """One side of a connection, as bytes."""

    def __init__(self, sock):
        sock.settimeout(harness.DEADLINE_S)
        self.sock = sock
        self._buffer = b""

    def close(self):
        self.sock.close()

    def send(self, *parts):
        self.sock.sendall(b"".join(part.encode("latin-1") if isinstance(part, str) else part for part in parts))

    def _more(self):
        data = self.sock.recv(1 << 18)
        self._buffer += data
        return data

    def line(self):
        while b"\r\n" not in self._buffer:
            if not self._more():
                raise EOFError(self._buffer)
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        return line.decode("latin-1")

    def head(self):
        """First line, headers."""
        first = self.line()
        headers = []
        while line := self.line():
            name, value = line.split(":", 1)
            headers.append((name, value.strip()))
        return first, headers

    def take(self, n=None):
        """So many bytes; without: what comes next, b"" at the end."""
        if n is None:
            data, self._buffer = self._buffer, b""
            return data or self.sock.recv(1 << 18)
        while len(self._buffer) < n:
            if not self._more():
                raise EOFError(self._buffer)
        data, self._buffer = self._buffer[:n], self._buffer[n:]
        return data

    def chunk(self):
        size = int(self.line(), 16)
        data = self.take(size)
        self.line()
        return data

    def chunks(self):
        while data := self.chunk():
            yield data

    def body(self, headers):
        if value(headers, "Transfer-Encoding"):
            return b"".join(self.chunks())
        return self.take(int(value(headers, "Content-Length") or 0))

    def ended(self):
        """Waits for the other end to close, or break off."""
        with contextlib.suppress(ConnectionError):
            while self.take():
                pass
        return True


def value(headers, name):
    return next((v for n, v in headers if n.lower() == name.lower()), None)


def values(headers, name):
    return [v for n, v in headers if n.lower() == name.lower()]


def established(port):
    """Connections to it that have no end yet, as this machine sees them."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [row for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream:
    """The engine's own server: answer(wire, first line, headers) for each request; True: the connection goes on."""

    def __init__(self, answer, context=None):
        self.answer = answer
        self._context = context  # ssl.SSLContext
        self.connections = 0
        self.seen = queue.Queue()  # requests: first line, headers
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock = self._listener.accept()[0]
                self.connections += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        wire = Wire(sock)
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: wire.close())
            stack.enter_context(contextlib.suppress(OSError, EOFError))
            if self._context:
                wire = Wire(self._context.wrap_socket(sock, server_side=True))
            more = True
            while more:
                first, headers = wire.head()
                self.seen.put((first, headers))
                more = self.answer(wire, first, headers)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def ok(wire, _first, headers):
    """What it got, as a body of the same bytes."""
    data = wire.body(headers)
    wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n", data)
    return True


class Passthrough(harness.Case):
    def setUp(self):
        super().setUp()
        self.wires = []

    def tearDown(self):
        for wire in self.wires:
            wire.close()
        super().tearDown()

    def upstream(self, answer=ok, context=None):
        upstream = Upstream(answer, context)
        self.addCleanup(upstream.close)
        return upstream

    def serve(self, upstream, *args, **kw):
        daemon = self.daemon("--upstream", getattr(upstream, "url", upstream), *args, **kw)
        recording.server(daemon.port, None)  # what another server answers is in no contract of ours
        return daemon

    def connect(self, daemon):
        wire = Wire(socket.create_connection((daemon.host, daemon.port), harness.DEADLINE_S))
        self.wires.append(wire)
        return wire

    def ask(self, daemon, method, target, body=b"", headers=(), wire=None):
        """Status, headers, body."""
        wire = wire or self.connect(daemon)
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        wire.send(f"{method} {target} HTTP/1.1\r\nHost: us\r\n{length}",
                  "".join(f"{n}: {v}\r\n" for n, v in headers), "\r\n", body)
        return self.answer(wire, method)

    def answer(self, wire, method="GET"):
        first, headers = wire.head()
        status = int(first.split()[1])
        return status, headers, b"" if method == "HEAD" or status in (204, 304) else wire.body(headers)

    def refused(self, answer, status, *texts):
        self.assertEqual(answer[0], status, answer)
        error = json.loads(answer[2])["error"]
        self.assertEqual(error["code"], status)
        for text in texts:
            self.assertIn(text, error["message"])


class Messages(Passthrough):
    def test_a_request_arrives_as_it_was_but_for_what_is_of_the_connection(self):
        upstream = self.upstream()
        daemon = self.serve(upstream)
        for method, body in (("GET", b""), ("POST", b"{}"), ("PUT", b"x" * 70000), ("DELETE", b""), ("OPTIONS", b""),
                             ("PATCH", b"y"), ("POST", b""), ("FROB", b"z")):
            target = "/a%20b/c?x=%2F&&y=1&instance="
            headers = [("X-One", "1"), ("X-One", "2"), ("X-Empty", ""), ("Connection", "X-Mine, keep-alive"),
                       ("X-Mine", "here"), ("X-Request-Id", "mine"), ("X-Forwarded-For", "10.0.0.9"),
                       ("X-Forwarded-Proto", "gopher"), ("Authorization", "Bearer engine"),
                       *((name, "x") for name in HOPS)]
            status, _, got = self.ask(daemon, method, target, body, headers)
            self.assertEqual((status, got), (200, body), method)
            first, seen = upstream.seen.get(timeout=harness.DEADLINE_S)
            self.assertEqual(first, f"{method} {target} HTTP/1.1")
            self.assertEqual(values(seen, "X-One"), ["1", "2"])
            self.assertEqual(values(seen, "X-Empty"), [""])
            self.assertEqual(values(seen, "Host"), [f"127.0.0.1:{upstream.port}"])
            self.assertEqual(values(seen, "X-Request-Id"), ["mine"])
            self.assertEqual(values(seen, "X-Forwarded-For"), ["10.0.0.9, 127.0.0.1"])
            self.assertEqual(values(seen, "X-Forwarded-Proto"), ["http"])
            self.assertEqual(values(seen, "Authorization"), ["Bearer engine"])
            for name in ("X-Mine", "Connection", "Accept", "Content-Type", "Expect", "User-Agent", "Transfer-Encoding",
                         *HOPS):
                self.assertEqual(values(seen, name), [], f"{method}: {name}")

    def test_where_a_request_came_from_last_is_never_what_is_left_out(self):
        upstream = self.upstream()
        daemon = self.serve(upstream)
        for given in (["6.6.6.6"] * 57, ["6.6.6.6"] * 300, ["x" * 505], ["y" * 1000], ["z" * 600, "7.7.7.7"]):
            self.assertEqual(self.ask(daemon, "GET", "/x", headers=[("X-Forwarded-For", ", ".join(given))])[0], 200)
            seen, = values(upstream.seen.get(timeout=harness.DEADLINE_S)[1], "X-Forwarded-For")
            seen = seen.split(", ")
            self.assertEqual(seen[-1], "127.0.0.1")
            self.assertEqual(seen[:-1], given[len(given) - len(seen) + 1:])
            self.assertGreater(len(seen), 45 if len(given) > 2 else len(given) - 1)

    def test_an_answer_arrives_as_it_was_but_for_what_is_of_the_connection(self):
        def answer(wire, first, _headers):
            status = first.split()[1].removeprefix("/")
            body = b"" if status in ("204", "304") or first.startswith("HEAD") else b"12345"
            length = "" if status == "204" else "Content-Length: 5\r\n"
            wire.send(f"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\nHTTP/1.1 {status} Whatever\r\n{length}",
                      f"Location: {upstream.url}/next/?a=b\r\nContent-Location: http://another:1/x\r\n",
                      f"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Tab: a\t{'b' * 300}\r\nServer: it\r\n",
                      "Connection: X-Mine\r\nX-Mine: 1\r\n",
                      "".join(f"{name}: x\r\n" for name in HOPS), "\r\n", body)
            return True
        upstream = self.upstream(answer)
        daemon = self.serve(upstream)
        for method, status in (("GET", 200), ("HEAD", 200), ("GET", 204), ("GET", 304), ("GET", 404), ("POST", 500),
                               ("GET", 299), ("GET", 301)):
            got, headers, body = self.ask(daemon, method, f"/{status}", headers=[("X-Request-Id", "mine")])
            self.assertEqual(got, status)
            empty = method == "HEAD" or status in (204, 304)
            self.assertEqual(body, b"" if empty else b"12345", method)
            if status not in (204, 304):
                self.assertEqual(values(headers, "Content-Length"), ["5"])
            self.assertEqual(values(headers, "Set-Cookie"), ["a=1", "b=2"])
            self.assertEqual(values(headers, "X-Tab"), ["a " + "b" * 300])
            self.assertEqual(values(headers, "Location"), ["/next/?a=b"])  # clients reach it here
            self.assertEqual(values(headers, "Content-Location"), ["http://another:1/x"])
            self.assertEqual(values(headers, "Server"), ["it"])
            self.assertEqual(values(headers, "X-Request-Id"), ["mine"])
            for name in ("X-Mine", "X-Early", "X-Forwarded-For", "X-Forwarded-Proto", *HOPS):
                self.assertEqual(values(headers, name), [], f"{status}: {name}")

    def test_what_is_ours_and_what_could_be_is_never_passed_on(self):
        upstream = self.upstream()
        daemon = self.serve(upstream)
        for method, target, status in (
                ("GET", "/livez", 200), ("DELETE", "/pause", 405), ("POST", "/%70ause", 409), ("GET", "/v1/kvplane/no", 404),
                ("POST", "//pause", 404), ("POST", "/x/../pause", 404), ("POST", "/%2e%2E/pause", 404),
                ("POST", "/./pause", 404), ("POST", "/x%2fpause", 404), ("POST", "/x%5Cpause", 404),
                ("POST", "/pause//", 404), ("POST", "/%", 400), ("CONNECT", "us:80", 404), ("OPTIONS", "*", 404),
                ("POST", "/pause#x", 400), ("POST", "/x#", 400)):
            self.assertEqual(self.ask(daemon, method, target)[0], status, f"{method} {target}")
        for target in ("/slow_down", "/start_profile?x", "/%6fpen_session/"):  # an image of a page would be enough
            self.assertEqual(self.ask(daemon, "GET", target, headers=[("Sec-Fetch-Site", "cross-site")])[0], 403, target)
        self.assertEqual(self.ask(daemon, "GET", "http://us/seen")[0], 200)
        self.assertEqual(upstream.seen.get(timeout=harness.DEADLINE_S)[0], "GET /seen HTTP/1.1")
        self.assertTrue(upstream.seen.empty())

    def test_a_client_that_waits_for_our_word_gets_it_and_one_connection_serves_many(self):
        upstream = self.upstream()
        daemon = self.serve(upstream)
        wire = self.connect(daemon)
        wire.send("POST /x HTTP/1.1\r\nHost: us\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        self.assertEqual(wire.head()[0], "HTTP/1.1 100 Continue")
        wire.send("body")
        self.assertEqual(self.answer(wire)[2], b"body")
        for i in range(50):
            self.assertEqual(self.ask(daemon, "POST", "/x", b"%d" % i, wire=wire)[2], b"%d" % i)
        self.assertEqual(upstream.connections, 1)

    def test_a_server_by_its_name_is_looked_up_and_watched(self):
        """Beside connections libcurl has sockets of its resolver, whose numbers come again."""
        name = socket.gethostname()
        try:
            there = {each[4][0] for each in socket.getaddrinfo(name, 1, type=socket.SOCK_STREAM)} == {"127.0.0.1"}
        except OSError:
            there = False
        if not there:
            self.skipTest(f"{name} is not this machine's loopback address")
        upstream = self.upstream()
        daemon = self.serve(f"http://{name}:{upstream.port}")
        for i in range(5):
            body = b"x" * (i % 2 * 100000 + 1)
            self.assertEqual(self.ask(daemon, "POST", "/x", body)[::2], (200, body))
        self.assertNotIn("cannot be watched", daemon.stderr())

    def test_a_connection_that_the_server_had_closed_is_nobody_s_trouble(self):
        upstream = self.upstream(lambda *args: ok(*args) and False)  # it does not say so
        daemon = self.serve(upstream)
        for i in range(20):
            self.assertEqual(self.ask(daemon, "POST", "/x", b"%d" % i)[::2], (200, b"%d" % i))
            harness.until("its end has arrived", lambda: not established(upstream.port))
        harness.until("all are counted", lambda: daemon.metric(
            "kvplane_upstream_requests_total", instance="-", code="2xx") == 20)
        self.assertEqual(upstream.seen.qsize(), 20)

    def test_a_question_is_asked_again_where_its_connection_ends_unanswered(self):
        lost = []
        upstream = self.upstream(lambda wire, first, headers:
                                 not ("/lost" in first and lost and lost.pop()) and ok(wire, first, headers))
        daemon = self.serve(upstream)

        def asked_again():  # a connection that has been idle for too long would not be used
            lost.append(True)
            self.assertEqual(self.ask(daemon, "GET", "/warm")[0], 200)
            return self.ask(daemon, "GET", "/lost")[0] == 200
        harness.until("it is answered", asked_again)
        self.assertEqual(lost, [])

    def test_what_may_not_happen_twice_is_sent_once(self):
        def answer(wire, first, headers):
            return "/dies" not in first and ok(wire, first, headers)
        upstream = self.upstream(answer)
        daemon = self.serve(upstream)
        for method, target, body in (("POST", "/dies", b"{}"), ("POST", "/dies", b""), ("PUT", "/dies", b"x" * 100000),
                                     ("DELETE", "/dies", b""), ("POST", "/v1/completions?/dies", b"{}"),
                                     ("GET", "/slow_down?/dies", b"")):
            self.assertEqual(self.ask(daemon, "GET", "/warm")[0], 200)
            self.refused(self.ask(daemon, method, target, body), 502, "unanswered")
            self.assertEqual([upstream.seen.get(timeout=harness.DEADLINE_S)[0] for _ in range(2)],
                             ["GET /warm HTTP/1.1", f"{method} {target} HTTP/1.1"])
            self.assertTrue(upstream.seen.empty(), f"{method}: {upstream.seen.queue}")

    def test_an_answer_that_comes_before_the_body_ends_is_given(self):
        def answer(wire, _first, _headers):
            wire.send("HTTP/1.1 413 Too much\r\nContent-Length: 3\r\n\r\nno!")
            wire.ended()
        daemon = self.serve(self.upstream(answer))
        status, _, body = self.ask(daemon, "POST", "/x", b"x" * 4 * MIB)
        self.assertEqual((status, body), (413, b"no!"))


class Streams(Passthrough):
    def test_an_event_is_seen_before_the_next_one_is_sent(self):
        seen = queue.Queue()

        def answer(wire, first, _headers):
            chunked = "chunked" in first
            wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n",
                      "Transfer-Encoding: chunked\r\n\r\n" if chunked else "\r\n")
            for i in range(20):
                event = b"data: %d\n\n" % i
                wire.send(chunk(event) if chunked else event)
                assert seen.get(timeout=harness.DEADLINE_S) == event
            wire.send("0\r\n\r\n" if chunked else "")
            return chunked
        daemon = self.serve(self.upstream(answer))
        for target in ("/chunked", "/until-the-end"):
            wire = self.connect(daemon)
            wire.send(f"POST {target} HTTP/1.1\r\nHost: us\r\nContent-Length: 2\r\n\r\n{{}}")
            _, headers = wire.head()
            self.assertEqual(value(headers, "Content-Type"), "text/event-stream")
            for i in range(20):
                event = wire.chunk()
                self.assertEqual(event, b"data: %d\n\n" % i)
                seen.put(event)
            self.assertEqual(wire.chunk(), b"")

    def test_a_part_of_a_body_is_there_before_the_next_one_is_sent(self):
        seen = queue.Queue()

        def answer(wire, _first, headers):
            self.assertEqual(values(headers, "Transfer-Encoding"), ["chunked"])
            for data in wire.chunks():
                seen.put(data)
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        daemon = self.serve(self.upstream(answer))
        wire = self.connect(daemon)
        wire.send("POST /x HTTP/1.1\r\nHost: us\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(20):
            wire.send(chunk(b"part %d" % i))
            self.assertEqual(seen.get(timeout=harness.DEADLINE_S), b"part %d" % i)
        wire.send("0\r\n\r\n")
        self.assertEqual(self.answer(wire)[0], 200)

    def test_large_bodies_pass_without_being_held(self):
        size, piece = 128 * MIB, bytes(range(256)) * 1024
        sums = [zlib.crc32(piece)]
        while len(sums) < size // len(piece):
            sums.append(zlib.crc32(piece, sums[-1]))

        def take(wire):
            total, crc = 0, 0
            while total < size:
                data = wire.take()
                if not data:
                    raise EOFError(total)
                total, crc = total + len(data), zlib.crc32(data, crc)
            return total, crc

        def answer(wire, first, _headers):
            if first.startswith("PUT"):
                got = repr(take(wire)).encode()
                wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(got)}\r\n\r\n", got)
            else:
                wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
                for _ in range(size // len(piece)):
                    wire.send(piece)
            return True
        daemon = self.serve(self.upstream(answer))
        self.ask(daemon, "GET", "/livez")
        before = daemon.status_kib("VmHWM")
        wire = self.connect(daemon)
        wire.send(f"PUT /up HTTP/1.1\r\nHost: us\r\nContent-Length: {size}\r\n\r\n")
        for _ in range(size // len(piece)):
            wire.send(piece)
        self.assertEqual(self.answer(wire)[2].decode(), repr((size, sums[-1])))
        wire.send("GET /down HTTP/1.1\r\nHost: us\r\n\r\n")
        self.assertEqual(value(wire.head()[1], "Content-Length"), str(size))
        self.assertEqual(take(wire), (size, sums[-1]))
        if not harness.SANITIZED:
            self.assertLess(daemon.status_kib("VmHWM") - before, 16 << 10)

    def test_who_does_not_read_stops_who_writes(self):
        held, sent = [], []

        def flood(sock):
            """As much as goes: until nothing has gone for a while."""
            total, piece = 0, b"x" * (1 << 18)
            sock.settimeout(2)
            with contextlib.suppress(TimeoutError):
                while total < 512 * MIB:
                    total += sock.send(piece)
            return total

        def answer(wire, first, _headers):
            if first.startswith("GET"):
                wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {1 << 40}\r\n\r\n")
                sent.append(flood(wire.sock))
            else:
                held.append(wire)
                done.wait()
        done = threading.Event()
        self.addCleanup(done.set)
        daemon = self.serve(self.upstream(answer))
        before = daemon.status_kib("VmHWM")
        wire = self.connect(daemon)
        wire.send("GET /x HTTP/1.1\r\nHost: us\r\n\r\n")
        harness.until("the server is stopped", lambda: sent)
        self.assertLess(sent[0], 64 * MIB)
        other = self.connect(daemon)
        other.send(f"PUT /x HTTP/1.1\r\nHost: us\r\nContent-Length: {1 << 40}\r\n\r\n")
        harness.until("it is there", lambda: held)
        self.assertLess(flood(other.sock), 64 * MIB)
        if not harness.SANITIZED:
            self.assertLess(daemon.status_kib("VmHWM") - before, 16 << 10)

    def test_slow_streams_hold_up_no_probe_and_no_verb(self):
        n, go = 200, threading.Event()

        def answer(wire, _first, _headers):
            wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(b"first"))
            go.wait(harness.DEADLINE_S)
            wire.send(chunk(b"last"), "0\r\n\r\n")
        daemon = self.serve(self.upstream(answer), "--upstream-requests-max", str(n))
        self.engine(daemon, "a")
        wires = [self.connect(daemon) for _ in range(n)]
        for wire in wires:
            wire.send("GET /slow HTTP/1.1\r\nHost: us\r\n\r\n")
        for wire in wires:
            self.assertEqual(wire.head()[0], "HTTP/1.1 200 OK")
            self.assertEqual(wire.chunk(), b"first")
        harness.until("all are there", lambda: daemon.metric("kvplane_upstream_requests_running") == n)
        self.assertEqual(daemon.get("/livez")[0], 200)
        self.assertEqual(daemon.ok("/pause")["status"], "paused")
        self.assertEqual(daemon.ok("/resume")["status"], "resumed")
        answer = self.ask(daemon, "GET", "/one-more")
        self.refused(answer, 503, "upstream-requests-max")
        self.assertEqual(values(answer[1], "Retry-After"), ["1"])
        go.set()
        for wire in wires:
            self.assertEqual(list(wire.chunks()), [b"last"])
        harness.until("all have ended", lambda: daemon.metric("kvplane_upstream_requests_running") == 0)


class Failures(Passthrough):
    def errors(self, daemon, kind, n=1):
        harness.until(f"{n} of {kind}",
                      lambda: daemon.metric("kvplane_upstream_errors_total", kind=kind) >= n)

    def test_a_client_that_leaves_takes_its_request_along(self):
        left = queue.Queue()

        def answer(wire, first, headers):
            wire.body(headers)
            if "stream" in first:
                wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(b"first"))
            left.put(wire.ended())
        upstream = self.upstream(answer)
        daemon = self.serve(upstream)
        for target in ("/quiet", "/stream"):
            wire = self.connect(daemon)
            wire.send(f"POST {target} HTTP/1.1\r\nHost: us\r\nContent-Length: 2\r\n\r\n{{}}")
            upstream.seen.get(timeout=harness.DEADLINE_S)
            if target == "/stream":
                wire.head()
                self.assertEqual(wire.chunk(), b"first")
            wire.close()
            self.assertTrue(left.get(timeout=harness.DEADLINE_S))
        self.errors(daemon, "client", 2)
        harness.until("nothing is left", lambda: daemon.metric("kvplane_upstream_requests_running") == 0)

    def test_an_answer_that_breaks_off_never_looks_whole(self):
        def answer(wire, first, _headers):
            length = "Transfer-Encoding: chunked" if "chunked" in first else "Content-Length: 10"
            wire.send(f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n", chunk(b"12345") if "chunked" in first else b"12345")
            assert seen.get(timeout=harness.DEADLINE_S)
        seen = queue.Queue()
        daemon = self.serve(self.upstream(answer))
        for target in ("/chunked", "/length"):
            wire = self.connect(daemon)
            wire.send(f"GET {target} HTTP/1.1\r\nHost: us\r\n\r\n")
            wire.head()
            self.assertEqual(wire.chunk() if target == "/chunked" else wire.take(5), b"12345")
            seen.put(True)
            with self.assertRaises((EOFError, ConnectionError)):
                wire.take(1)
        # Of a body without a length only a reset tells.
        wire = self.connect(daemon)
        wire.send("GET /chunked HTTP/1.0\r\n\r\n")
        wire.head()
        self.assertEqual(wire.take(5), b"12345")
        seen.put(True)
        with self.assertRaises(ConnectionResetError):
            while wire.take():
                pass
        self.errors(daemon, "broken", 3)

    def test_what_is_no_http_is_502(self):
        good = "HTTP/1.1 200 OK\r\n"
        texts = ["nonsense\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", good + "No colon\r\n\r\n", good + ": no name\r\n\r\n",
                 good + "Bad name: x\r\n\r\n", good + "A: 1\r\n folded\r\n\r\n", good + "A: \x01\r\n\r\n",
                 good + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", good + "Content-Length: x\r\n\r\n",
                 good + "A: " + "x" * 35000 + "\r\n\r\n", good + "A: 1\r\n" * 300 + "\r\n",
                 "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"]

        def answer(wire, first, _headers):
            wire.send(texts[int(first.split()[1][1:])])
        daemon = self.serve(self.upstream(answer))
        for i, text in enumerate(texts):
            got = self.ask(daemon, "GET", f"/{i}")
            self.assertEqual(got[0], 502, text[:80])
            self.refused(got, 502, "engine's server")

    def test_a_server_that_is_not_there_or_says_nothing_is_told(self):
        done = threading.Event()
        self.addCleanup(done.set)

        def answer(wire, first, _headers):
            if "begins" in first:
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
            if "closes" not in first:
                done.wait(harness.DEADLINE_S)
        upstream = self.upstream(answer)
        daemon = self.serve(upstream, "--upstream-idle-timeout", "300ms")
        self.refused(self.ask(daemon, "GET", "/silent"), 504, "upstream-idle-timeout")

        def begun():  # on a busy machine it may be late itself
            wire = self.connect(daemon)
            wire.send("GET /begins HTTP/1.1\r\nHost: us\r\n\r\n")
            return wire if wire.head()[0] == "HTTP/1.1 200 OK" else None
        wire = harness.until("it begins in time", begun)
        with self.assertRaises((EOFError, ConnectionError)):
            wire.take(10)
        self.errors(daemon, "timeout", 2)
        daemon = self.serve(upstream, name="patient", socket_name="patient.sock")
        self.refused(self.ask(daemon, "POST", "/closes", b"x"), 502, "unanswered")
        port, = harness.free_ports(1)
        daemon = self.serve(f"http://127.0.0.1:{port}", name="other", socket_name="other.sock")
        self.refused(self.ask(daemon, "GET", "/x"), 502, "cannot be reached", str(port))
        self.errors(daemon, "connect")

    def test_a_body_that_does_not_come_holds_no_place(self):
        daemon = self.serve(self.upstream(), "--receive-timeout", "1s", "--upstream-requests-max", "1")
        for length in (2, 65536, 65537):
            wire = self.connect(daemon)
            wire.send(f"POST /x HTTP/1.1\r\nHost: us\r\nContent-Length: {length}\r\n\r\nx")
            wire.sock.settimeout(0.05)

            def shut(wire=wire, length=length):
                self.ask(daemon, "POST", "/x", b"y")  # one more that comes
                with contextlib.suppress(TimeoutError):
                    if length > 65536:
                        wire.send("x")  # it still comes, but too slowly
                    return not wire.take()
            with contextlib.suppress(ConnectionError):
                harness.until("it is shut", shut)
            harness.until("its place is another's", lambda: self.ask(daemon, "POST", "/x", b"y")[::2] == (200, b"y"))

    def test_those_that_wait_for_the_server_leave_room_for_others(self):
        go = threading.Event()
        self.addCleanup(go.set)
        upstream = self.upstream(lambda *args: go.wait(harness.DEADLINE_S) and ok(*args))
        daemon = self.serve(upstream, "--connections-max", "16")
        wires = [self.connect(daemon) for _ in range(9)]
        for wire in wires:  # half of them may wait, but none does yet
            wire.send("POST /x HTTP/1.1\r\nHost: us\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
            self.assertEqual(wire.head()[0], "HTTP/1.1 100 Continue")
        for wire in wires[:8]:
            wire.send("x")
            upstream.seen.get(timeout=harness.DEADLINE_S)
        wires[8].send("x")
        self.refused(self.answer(wires[8]), 503, "too many connections")
        self.refused(self.ask(daemon, "GET", "/x"), 503, "too many connections")
        self.assertEqual(daemon.get("/livez")[0], 200)
        go.set()
        for wire in wires[:8]:
            self.assertEqual(self.answer(wire)[::2], (200, b"x"))

    def test_a_connection_that_is_not_taken_in_time_is_504(self):
        with socket.socket() as listener, contextlib.ExitStack() as stack:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(4):  # further ones are not answered
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            daemon = self.serve(f"http://127.0.0.1:{listener.getsockname()[1]}", "--upstream-connect-timeout", "300ms")
            self.refused(self.ask(daemon, "GET", "/x"), 504, "upstream-connect-timeout")

    def test_what_is_under_way_at_sigterm_ends_and_what_does_not_end_is_broken_off(self):
        go = threading.Event()

        def answer(wire, first, _headers):
            wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(b"first"))
            if "ends" in first:
                go.wait(harness.DEADLINE_S)
                wire.send(chunk(b"last"), "0\r\n\r\n")
            wire.ended()
        daemon = self.serve(self.upstream(answer))
        ends, never = self.connect(daemon), self.connect(daemon)
        for wire, target in ((ends, "/ends"), (never, "/never")):
            wire.send(f"GET {target} HTTP/1.1\r\nHost: us\r\n\r\n")
            wire.head()
            self.assertEqual(wire.chunk(), b"first")
        begun = time.monotonic()
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.says("stopping")
        go.set()
        try:
            self.assertEqual(list(ends.chunks()), [b"last"])
        except (EOFError, ConnectionError):
            if time.monotonic() - begun < 4:  # of the 5 s that it has
                raise
        with self.assertRaises((EOFError, ConnectionError)):
            never.line()
        self.assertEqual(daemon.popen.wait(harness.DEADLINE_S), 0, daemon.tail())

    def test_an_upstream_that_is_none_is_refused_at_start(self):
        for url in ("127.0.0.1:8000", "ftp://h:1", "http://h:1/path", "http://u:p@h:1", "http://", "http://h:99999"):
            process = harness.Process(["serve", "--listen", "127.0.0.1:0", "--engine-socket",
                                       os.path.join(self.directory, "s"), "--store-bytes", "1MiB", "--upstream", url],
                                      self.directory, "bad")
            self.assertEqual(process.popen.wait(harness.DEADLINE_S), 1, url)
            process.kill()


class Gate(Passthrough):
    GENERATION = ("POST", "/v1/completions", b"{}")

    def gated(self, *args):
        upstream = self.upstream()
        daemon = self.serve(upstream, *args)
        self.engine(daemon, "a")
        harness.until("it runs", lambda: daemon.get("/readyz")[0] == 200)
        return daemon, upstream

    def later(self, daemon, method="POST", target="/v1/completions"):
        """One that is held by now."""
        held = daemon.metric("kvplane_upstream_requests_held")
        wire = self.connect(daemon)
        wire.send(f"{method} {target} HTTP/1.1\r\nHost: us\r\nContent-Length: 2\r\n\r\n{{}}")
        harness.until("it is held", lambda: daemon.metric("kvplane_upstream_requests_held") == held + 1)
        return wire

    def test_by_default_a_paused_engine_gets_requests_and_one_asleep_gets_none(self):
        daemon, upstream = self.gated()
        daemon.ok("/pause")
        self.assertEqual(self.ask(daemon, *self.GENERATION)[0], 200)
        daemon.ok("/resume")
        daemon.ok("/sleep?level=1")
        answer = self.ask(daemon, *self.GENERATION)
        self.refused(answer, 503, "a takes no request that generates: asleep", "/wake_up")
        self.assertTrue(int(value(answer[1], "Retry-After")) > 0)
        for method, target in (("POST", "/v1/%63ompletions"), ("PUT", "/generate"), ("POST", "/generat%65/")):
            self.refused(self.ask(daemon, method, target, b"{}"), 503, "a takes no request that generates: asleep")
        for method, target in (("GET", "/v1/completions"), ("POST", "/tokenize"), ("POST", "/v1/completions/x/cancel")):
            self.assertEqual(self.ask(daemon, method, target)[0], 200, target)
        self.assertEqual(daemon.metric("kvplane_upstream_requests_refused_total", reason="asleep"), 4)
        daemon.ok("/wake_up")
        self.assertEqual(self.ask(daemon, *self.GENERATION)[0], 200)
        self.assertEqual(upstream.seen.qsize(), 5)

    def test_requests_are_held_until_the_engine_runs(self):
        daemon, upstream = self.gated("--upstream-while-paused", "hold", "--upstream-while-asleep", "hold",
                                      "--upstream-hold-max", "2")
        daemon.ok("/pause")
        first = self.later(daemon)
        second = self.later(daemon, target="/generate?x=1")
        self.refused(self.ask(daemon, *self.GENERATION), 503, "a takes no request that generates: paused", "/resume")
        daemon.ok("/sleep?level=1")  # still held
        self.assertEqual(self.ask(daemon, "POST", "/tokenize", b"t")[2], b"t")
        second.close()
        harness.until("who left is not held", lambda: daemon.metric("kvplane_upstream_requests_held") == 1)
        third = self.later(daemon)
        self.assertEqual(upstream.seen.qsize(), 1)
        daemon.ok("/wake_up")
        for wire in (first, third):
            self.assertEqual(self.answer(wire)[::2], (200, b"{}"))
        self.assertEqual(upstream.seen.qsize(), 3)
        harness.until("none is held", lambda: daemon.metric("kvplane_upstream_requests_held") == 0)

    def test_a_request_is_held_for_so_long_and_at_the_end_let_go(self):
        daemon, upstream = self.gated("--upstream-while-paused", "hold", "--upstream-hold-bound", "300ms")
        daemon.ok("/pause")
        self.refused(self.ask(daemon, *self.GENERATION), 503, "a takes no request that generates: paused")
        self.assertEqual(daemon.metric("kvplane_upstream_requests_refused_total", reason="held"), 1)
        self.assertTrue(upstream.seen.empty())

    def test_what_is_held_when_the_daemon_ends_is_told_so(self):
        daemon, _ = self.gated("--upstream-while-paused", "hold")
        daemon.ok("/pause")
        wire = self.later(daemon)
        os.kill(daemon.pid, signal.SIGTERM)
        self.refused(self.answer(wire), 503, "shutting down")
        self.assertEqual(daemon.popen.wait(harness.DEADLINE_S), 0, daemon.tail())

    def test_refuse_is_refused_and_an_unknown_instance_is_404(self):
        daemon, upstream = self.gated("--upstream-while-paused", "refuse", "--upstream-while-asleep", "pass")
        self.refused(self.ask(daemon, "GET", "/x?instance=b"), 404, "no instance of that name")
        self.assertEqual(self.ask(daemon, "GET", "/x?y=1&instance=a")[0], 200)
        self.assertEqual(self.ask(daemon, "GET", "/x", headers=[("X-Kvplane-Instance", "a")])[0], 200)
        self.assertEqual(values(upstream.seen.queue[1][1], "X-Kvplane-Instance"), [])
        daemon.ok("/pause")
        answer = self.ask(daemon, *self.GENERATION)
        self.refused(answer, 503, "a takes no request that generates: paused")
        self.assertEqual(values(answer[1], "Retry-After"), ["1"])
        daemon.ok("/sleep?level=1")
        self.assertEqual(self.ask(daemon, *self.GENERATION)[0], 200)


class Several(Passthrough):
    """Servers of engines that no daemon drives: what they say of themselves is not asked for."""

    def test_what_one_server_cannot_take_another_one_does(self):
        servers = [fake_servers.Vllm(name=f"v{i}") for i in range(2)]
        daemon = self.daemon(*(arg for each in servers for arg in ("--engine", f"vllm={each.name}@{each.url}")),
                             "--engine-health-interval", "10m")
        for each in servers:
            self.addCleanup(each.close)
            harness.until("it is attached", lambda each=each: daemon.get(
                f"/v1/kvplane/instances/{each.name}")[1].get("attached"))
        harness.until("both run", lambda: daemon.get("/readyz")[0] == 200)
        for _ in range(10):
            self.assertEqual(self.ask(daemon, *Gate.GENERATION)[0], 200)
        self.assertEqual([each.generated for each in servers], [5, 5])  # equals take turns
        servers[0].fault("/v1/completions", "break")  # what one may have begun is no other's
        self.assertEqual(sorted(self.ask(daemon, *Gate.GENERATION)[0] for _ in range(2)), [200, 502])
        servers[0].heal()
        servers[0].die()
        for body in (b"{}", b'{"x": "%s"}' % (b"x" * 100000)) * 5:
            self.assertEqual(self.ask(daemon, "POST", "/v1/completions", body)[0], 200)
        self.assertEqual(self.ask(daemon, "POST", "/v1/completions", b"{}", [("X-Kvplane-Instance", "v0")])[0], 502)
        servers[1].die()
        self.assertEqual(self.ask(daemon, *Gate.GENERATION)[0], 502)


class Tls(Passthrough):
    def test_a_server_by_tls_is_believed_by_its_authority_alone(self):
        authority, other = Authority(self.directory, "one"), Authority(self.directory, "other")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.sign("server"))
        upstream = self.upstream(context=context)
        daemon = self.serve(upstream, "--upstream-ca-file", authority.certificate)
        for size in (1, 1 << 20):
            self.assertEqual(self.ask(daemon, "POST", "/x", b"x" * size)[::2], (200, b"x" * size))
        daemon = self.serve(upstream, "--upstream-ca-file", other.certificate, name="other", socket_name="other.sock")
        self.refused(self.ask(daemon, "GET", "/x"), 502, "certificate")


class Tokens(Passthrough):
    def file(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def test_our_tokens_stay_here_and_the_engines_key_travels(self):
        upstream = self.upstream()
        daemon = self.serve(upstream, "--token-file", self.file("tokens", f"{ADMIN}\nread {READER}\n"),
                            "--upstream-key-file", self.file("key", "engines\n"))

        def seen():
            headers = upstream.seen.get(timeout=harness.DEADLINE_S)[1]
            self.assertEqual(values(headers, "X-Kvplane-Token"), [])
            return values(headers, "Authorization")
        for method, target, headers, status, key in (
                ("GET", "/x", [], 401, None),
                ("GET", "/x", [("Authorization", "Bearer other")], 401, None),
                ("GET", "/x", [("Authorization", f"Bearer {READER}")], 200, ["Bearer engines"]),
                ("POST", "/v1/completions", [("Authorization", f"Bearer {READER}")], 200, ["Bearer engines"]),
                ("GET", "/start_profile", [("Authorization", f"Bearer {READER}")], 403, None),
                ("GET", "/start_profile", [("Authorization", f"Bearer {ADMIN}")], 200, ["Bearer engines"]),
                ("POST", "/x", [("Authorization", f"Bearer {READER}")], 403, None),
                ("POST", "/x", [("Authorization", f"Bearer {ADMIN}")], 200, ["Bearer engines"]),
                ("POST", "/x", [("Authorization", "Bearer own"), ("X-Kvplane-Token", ADMIN)], 200, ["Bearer own"]),
                ("POST", "/x", [("Authorization", f"Bearer {ADMIN}"), ("X-Kvplane-Token", ADMIN)], 200, ["Bearer engines"]),
                ("POST", "/x", [("Authorization", f"Bearer {ADMIN}"), ("Authorization", f"bearer {READER}")], 200,
                 ["Bearer engines"]),
                ("POST", "/x", [("Authorization", f"Bearer {ADMIN}"), ("X-Kvplane-Token", "no")], 401, None)):
            self.assertEqual(self.ask(daemon, method, target, headers=headers)[0], status, headers)
            if key is not None:
                self.assertEqual(seen(), key)
        self.assertTrue(upstream.seen.empty())

    def test_the_engine_may_judge_alone(self):
        upstream = self.upstream()
        daemon = self.serve(upstream, "--token-file", self.file("tokens", f"{ADMIN}\n"), "--upstream-auth", "engine",
                            "--upstream-key-file", self.file("key", "engines\n"))
        self.assertEqual(self.ask(daemon, "GET", "/v1/kvplane/instances")[0], 401)
        for given, travels in (([], []), ([("Authorization", "Bearer own")], ["Bearer own"]),
                               ([("Authorization", "Bearer own"), ("Authorization", f"Bearer {ADMIN}")], ["Bearer own"]),
                               ([("Authorization", f"Bearer {ADMIN}")], ["Bearer engines"])):
            self.assertEqual(self.ask(daemon, "POST", "/x", headers=given)[0], 200)
            self.assertEqual(values(upstream.seen.get(timeout=harness.DEADLINE_S)[1], "Authorization"), travels)


if __name__ == "__main__":
    unittest.main(verbosity=2)
