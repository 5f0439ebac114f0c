# SPDX-License-Identifier: Apache-2.0
"""Faults of HTTP servers and their probes that others shipped, each as the promise that must hold
instead, of the real daemon over real sockets. The numbers are those of the project's list of cases."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import unittest
import unittest.mock

import harness
import recording

HOST = b"Host: x\r\n"
HIDDEN = b"POST /sleep HTTP/1.1\r\n" + HOST + b"\r\n"


class Raw:
    """Bytes to the daemon, and what comes back."""

    def __init__(self, daemon, data=b""):
        self.socket = socket.create_connection((daemon.host, daemon.port), timeout=harness.DEADLINE_S)
        self.conversation = recording.Conversation(self.socket, daemon.port)
        self.file = self.conversation.file
        self.send(data)

    def send(self, data):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.conversation.sendall(data)

    def answer(self):
        """Status and body of the next one, interim ones included; None: closed."""
        try:
            line = self.file.readline()
            if not line:
                return None
            length = 0
            while (header := self.file.readline()) not in (b"\r\n", b""):
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            return int(line.split()[1]), self.file.read(length)
        except ConnectionResetError:
            return None

    def close(self):
        self.file.close()
        self.socket.close()


class Reports(harness.Case):
    def raw(self, daemon, data=b""):
        raw = Raw(daemon, data)
        self.addCleanup(raw.close)
        return raw

    def test_B17_a_request_with_two_ends_is_refused_and_what_it_hides_never_runs(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        before = daemon.instance("a")
        for framing in (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 6",
                        b"Content-Length: +5", b"Content-Length: -1", b"Content-Length: 0x10",
                        b"Content-Length: " + b"9" * 30, b"Transfer-Encoding: chunked, gzip",
                        b"Transfer-Encoding : chunked"):
            with self.subTest(framing):
                raw = self.raw(daemon, b"POST /resume HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n" + HIDDEN + HIDDEN)
                self.assertIn(raw.answer()[0], (400, 413), framing)
                self.assertNotIn(b"HTTP/1.1 2", raw.file.read(), "the connection ends")
        raw = self.raw(daemon, b"POST /resume HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
                       + b"F" * 17 + b"\r\n" + HIDDEN)
        self.assertIn((raw.answer() or (400,))[0], (400, 413))
        # Expectations are met at once or refused, and one answer follows.
        raw = self.raw(daemon, b"POST /resume HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        self.assertEqual(raw.answer(), (100, b""))
        raw.send(b"{}")
        self.assertEqual(raw.answer()[0], 200)
        raw = self.raw(daemon, b"POST /resume HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nExpect: foo\r\n\r\n")
        self.assertEqual(raw.answer()[0], 417)
        # What follows on the connection is answered in its turn.
        raw = self.raw(daemon, b"GET /is_paused HTTP/1.1\r\n" + HOST + b"\r\nGET /version HTTP/1.1\r\n" + HOST + b"\r\n")
        self.assertEqual(json.loads(raw.answer()[1]), {"is_paused": False})
        self.assertIn("version", json.loads(raw.answer()[1]))
        after = daemon.instance("a")
        for changing in ("tags", "scheduler", "is_sleeping"):
            self.assertEqual(after.get(changing), before.get(changing))
        self.assertEqual(daemon.get("/v1/kvplane/operations")[1]["operations"][-1]["operation"], "resume",
                         "no sleep was ever asked for")
        self.clean(engine, daemon)

    def test_B19_idle_slow_and_deaf_clients_leave_room_for_a_probe(self):
        limited = os.path.join(self.directory, "limited")
        with open(limited, "w", encoding="utf-8") as script:
            script.write(f'#!/bin/sh\nulimit -n 192 && exec {os.path.abspath(harness.PROGRAM)} "$@"\n')
        os.chmod(limited, 0o755)
        with unittest.mock.patch.object(harness, "PROGRAM", limited):
            daemon = self.daemon()
        engine = self.engine(daemon, "a")
        with contextlib.ExitStack() as stack:
            for data in (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",  # idle after it, and deaf
                         b"GET /he", b""):                               # never ends
                for _ in range(120):  # each more than there is room for
                    one = stack.enter_context(socket.create_connection((daemon.host, daemon.port)))
                    with contextlib.suppress(OSError):
                        one.sendall(data)
                for _ in range(10):
                    self.assertEqual(probes(daemon, "/health"), 200)
            self.assertLess(len(os.listdir(f"/proc/{daemon.pid}/fd")), 192)
        # Too large is told, and the next request is served.
        for target, headers, code in ((b"/health?x=" + b"y" * (64 << 10), b"", 414),
                                      (b"/health", b"X: " + b"y" * (64 << 10) + b"\r\n", 431),
                                      (b"/health", b"".join(b"X-%d: y\r\n" % i for i in range(200)), 431)):
            raw = self.raw(daemon, b"GET " + target + b" HTTP/1.1\r\n" + HOST + headers + b"\r\n")
            answer = raw.answer()
            self.assertEqual(answer and answer[0], code)
        self.assertEqual(daemon.get("/health")[0], 200)
        self.clean(engine, daemon)

    def test_B21_every_scrape_is_read_by_a_strict_parser_whatever_names_are_sent(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--tenant", "t-0.a_B")
        engine.run(0, 5)
        # Paths and methods are counted by route: warm up each kind once, then invent.
        def invent(n):
            for i in range(n):
                odd = f'%22%5C%0A{i}' + "x" * 300
                daemon.get(f"/nothing/{odd}")
                daemon.get(f"/v1/kvplane/objects?instance=a&tenant=t{i}&key=00")
                daemon.get(f"/v1/kvplane/tenants/t{i}{odd[:30]}")
                daemon.post(f"/sleep?instance=i{i}")
                daemon.post("/update_weight_version", {"new_version": f'"\\ü{i}'})
            daemon.request("BREW", "/health")

        counters = self.scrape(daemon)
        for what in (lambda: invent(100), lambda: daemon.ok("/sleep"), lambda: daemon.ok("/wake_up"),
                     lambda: daemon.ok("/v1/kvplane/tenants/t-0.a_B/reset"), lambda: invent(5)):
            what()
            now = self.scrape(daemon)
            for series, value in counters.items():
                if re.match(r"\w+_(total|count|sum|bucket)\b", series):
                    self.assertGreaterEqual(now.get(series, -1), value, series)
            counters = now
        families = [series.partition("{")[0] for series in counters]
        self.assertLess(families.count("kvplane_http_requests_total"), 200, "paths are routes, not what was sent")
        self.clean(engine, daemon)

    def scrape(self, daemon):
        """Series and their values; what is not of the format fails."""
        code, text = daemon.get("/metrics")
        self.assertEqual(code, 200)
        self.assertTrue(text.endswith("\n"))
        label = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"'
        series, types = {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.assertNotIn(name, types, "declared once")
                types[name] = kind
            elif not line.startswith("# HELP "):
                found = re.fullmatch(rf"([a-zA-Z_:][\w:]*)((?:\{{{label}(?:,{label})*\}})?) ([-+\w.]+)", line)
                self.assertIsNotNone(found, line)
                name, key = found[1], found[1] + found[2]
                family = re.sub(r"_(bucket|sum|count)$", "", name)
                self.assertTrue(name in types or types.get(family) in ("histogram", "summary"), line)
                self.assertNotIn(key, series, "once")
                series[key] = float(found[3])
        return series

    def test_B30_a_key_is_what_was_sent_or_is_refused(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        self.assertGreater(engine.run(0, 2)["stored"], 0)
        where = "/v1/kvplane/objects?instance=a"
        for query in ("", "&key", "&key=", "&key=0", "&key=zz", "&key=%20", "&key=2F2", "&key=" + "00" * 513,
                      "&key=0x2f", "&key=%2F"):
            for method, path in (("GET", where), ("POST", where.replace("objects", "objects/remove")),
                                 ("POST", where.replace("objects", "objects/pin") + "&pin=hard")):
                code, answer = daemon.request(method, path + query)
                self.assertEqual(code, 400, (method, query[:40]))
                self.assertIn(answer["error"]["param"], ("key", "query.key"))
        for key in ("20", "00", "2f", "252f", "25324637", "c3bc", "3a25", "ff" * 512):
            code, answer = daemon.get(f"{where}&key={key}")
            self.assertEqual(code, 404, "legal, and not there")
            self.assertEqual(answer["nodes"][0]["result"], "not_found", answer)
        # '/' and '%2F' are two keys, and case of hex makes none.
        self.assertEqual(daemon.get(f"{where}&key=2F")[0], 404)
        self.clean(engine, daemon)

    def test_B43_liveness_holds_in_every_state_and_readiness_says_what_is_missing(self):
        daemon = self.daemon("--instances", "a")
        stop = threading.Event()
        answers = []

        def poll():
            while not stop.is_set():
                for path in ("/livez", "/liveness"):
                    answers.append((path, probes(daemon, path)))
                stop.wait(0.02)

        poller = threading.Thread(target=poll)
        poller.start()
        try:
            self.states(daemon)
            harness.until("polled", lambda: len(answers) > 20)
        finally:
            stop.set()
            poller.join()
        self.assertEqual({code for _, code in answers}, {200})

    def states(self, daemon):
        def expect(what, started, health, ready, *words):
            """In this state, and told why."""
            def so():
                code, answer = daemon.get("/readyz")
                return code == ready and all(word in json.dumps(answer) for word in words)

            harness.until(what, so)
            self.assertEqual([daemon.get(path)[0] for path in ("/startupz", "/health", "/ready")],
                             [started, health, ready], what)

        expect("before an engine", 503, 503, 503, "a", "attach")
        engine = self.engine(daemon, "a", attach=False)
        engine.popen.send_signal(signal.SIGSTOP)  # registers as slowly as it likes
        for _ in range(20):
            self.assertEqual(daemon.get("/livez")[0], 200)
        engine.popen.send_signal(signal.SIGCONT)
        engine.event("attached")
        expect("serving", 200, 200, 200)
        for path, while_it_lasts, then in (("/sleep?level=1", ("paus",), ("asleep",)),
                                           ("/wake_up", ("asleep",), ())):
            engine.popen.send_signal(signal.SIGSTOP)  # a drain, a restore that last
            code, started = daemon.post(path, headers={"Prefer": "respond-async"})
            self.assertEqual(code, 202, started)
            operation = f"/v1/kvplane/operations/{started['operation_id']}"
            harness.until("it runs", lambda o=operation: daemon.get(o)[1].get("step"))
            expect(f"during {path}", 200, 200, 503, *while_it_lasts)
            self.assertEqual(daemon.get(operation)[1]["status"], "running")
            engine.popen.send_signal(signal.SIGCONT)
            self.assertEqual(daemon.get(operation + "?timeout=30")[1]["status"], "succeeded")
            expect(f"after {path}", 200, 200, 503 if then else 200, *then)
        daemon.ok("/pause?mode=keep")
        expect("paused", 200, 200, 503, "paused")
        daemon.ok("/resume")
        expect("running", 200, 200, 200)
        engine.kill()
        expect("after its death", 200, 503, 503, "a")


def probes(daemon, path):
    """The status of one on a connection of its own; None: not answered."""
    connection = http.client.HTTPConnection(daemon.host, daemon.port, timeout=harness.DEADLINE_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None


if __name__ == "__main__":
    unittest.main()
