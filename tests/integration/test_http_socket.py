# SPDX-License-Identifier: Apache-2.0
"""The REST API on a Unix socket, beside TCP or instead of it."""
import contextlib
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import unittest

import harness
from authority import Authority


class Connection(http.client.HTTPConnection):
    """By a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=harness.DEADLINE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(path, method, target, headers=None):
    with contextlib.closing(Connection(path)) as connection:
        connection.request(method, target, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


class HttpSocket(harness.Case):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.directory, "http.sock")

    def serve(self, *args, **kw):
        return self.daemon("--http-socket", self.path, *args, **kw)

    def command(self, *words, env=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        run = subprocess.run([harness.PROGRAM, *words], capture_output=True, text=True, timeout=harness.DEADLINE_S,
                             env={**environment, **(env or {})})
        return run.returncode, run.stdout, run.stderr

    def test_one_daemon_answers_on_both_and_says_who_asked(self):
        daemon = self.serve()
        engine = self.engine(daemon, "a")
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        self.assertEqual(ask(self.path, "POST", "/pause")[1]["status"], "paused")
        self.assertEqual(daemon.ok("/resume")["status"], "resumed")
        line, = (line for line in daemon.says("msg=audit", 2).splitlines() if "operation=pause" in line
                 and "msg=audit" in line)
        for word in ("from=unix", f"uid={os.geteuid()}", f"pid={os.getpid()}", "http_status=200"):
            self.assertIn(word, line)
        run = subprocess.run(["curl", "-sS", "--unix-socket", self.path, "http://localhost/health"],
                             capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        for words in (["status"], ["pause"], ["resume"], ["events"]):
            self.assertEqual(self.command(*words, "--unix-socket", self.path)[0], 0, words)
        self.assertEqual(self.command("status", env={"KVPLANE_HTTP_SOCKET": self.path})[0], 0)
        code, _, said = self.command("status", "--unix-socket", self.path + "-none")
        self.assertEqual(code, 3)
        self.assertIn(self.path + "-none", said)
        # Many at a time, and one connection for many.
        with contextlib.ExitStack() as stack:
            many = [stack.enter_context(contextlib.closing(Connection(self.path))) for _ in range(50)]
            for _ in range(3):
                for one in many:
                    one.request("GET", "/livez")
                for one in many:
                    answer = one.getresponse()
                    self.assertEqual((answer.status, answer.read() != b""), (200, True))
        self.clean(engine, daemon)
        self.assertFalse(os.path.exists(self.path))

    def test_it_may_be_the_only_way_in(self):
        daemon = harness.Process(["serve", "--listen", "", "--http-socket", self.path, "--store-bytes", "1MiB",
                                  "--engine-socket", f"{self.directory}/engine.sock"], self.directory, "daemon")
        self.processes.append(daemon)
        self.assertEqual(daemon.line("kvplane ready "), f"unix:{self.path}")
        self.assertEqual(ask(self.path, "GET", "/livez")[0], 200)
        with open(f"/proc/{daemon.pid}/net/tcp", encoding="utf-8") as sockets:
            listening = {line.split()[9] for line in sockets if line.split()[3] == "0A"}
        for entry in os.listdir(f"/proc/{daemon.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                self.assertNotIn(os.readlink(f"/proc/{daemon.pid}/fd/{entry}").strip("socket:[]"), listening)
        self.clean(daemon)

    def test_a_store_node_has_one_too(self):
        node = harness.Process(["store", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0",
                                "--store-bytes", "1MiB", "--http-socket", self.path], self.directory, "store")
        self.processes.append(node)
        node.line("kvplane store ready ")
        self.assertEqual(ask(self.path, "GET", "/v1/kvplane/node")[0], 200)
        self.clean(node)

    def test_what_a_dead_one_left_is_replaced_and_a_living_one_is_not(self):
        first = self.serve(name="first", socket_name="first.sock")
        for program in (["serve", "--engine-socket", f"{self.directory}/second.sock"],
                        ["store", "--cluster-listen", "127.0.0.1:0"]):
            run = subprocess.run([harness.PROGRAM, *program, "--listen", "127.0.0.1:0", "--store-bytes", "1MiB",
                                  "--http-socket", self.path], capture_output=True, text=True,
                                 timeout=harness.DEADLINE_S)
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertIn("another process serves this Unix socket", run.stderr)
            self.assertEqual(ask(self.path, "GET", "/livez")[0], 200)
        first.kill()
        self.assertTrue(os.path.exists(self.path))
        second = self.serve(name="second", socket_name="second.sock")
        self.assertEqual(ask(self.path, "GET", "/livez")[0], 200)
        self.clean(second)
        with open(self.path, "w", encoding="utf-8") as other:
            other.write("mine")
        run = subprocess.run([harness.PROGRAM, "serve", "--listen", "127.0.0.1:0", "--store-bytes", "1MiB",
                              "--engine-socket", f"{self.directory}/third.sock", "--http-socket", self.path],
                             capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("there is something else", run.stderr)
        with open(self.path, encoding="utf-8") as other:
            self.assertEqual(other.read(), "mine")

    def test_tokens_are_asked_for_where_there_are_some_and_changed_on_both(self):
        tokens = os.path.join(self.directory, "tokens")

        def write(text):
            with open(tokens, "w", encoding="utf-8") as out:
                out.write(text)
        write("s3cret\n")
        daemon = self.serve("--token-file", tokens, "--http-socket-mode", "0660")
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o660)
        self.assertEqual(ask(self.path, "GET", "/livez")[0], 200)
        self.assertEqual(ask(self.path, "GET", "/v1/kvplane/instances")[0], 401)
        first, second = ({"Authorization": f"Bearer {token}"} for token in ("s3cret", "an0ther"))
        self.assertEqual(ask(self.path, "GET", "/v1/kvplane/instances", first)[0], 200)
        write("an0ther\n")
        daemon.popen.send_signal(signal.SIGHUP)
        daemon.says("tokens were read anew")
        self.assertEqual(ask(self.path, "GET", "/v1/kvplane/instances", first)[0], 401)
        self.assertEqual(ask(self.path, "GET", "/v1/kvplane/instances", second)[0], 200)
        self.assertEqual(daemon.get("/v1/kvplane/instances", headers=second)[0], 200)
        harness.until("it is counted",
                      lambda: daemon.metric("kvplane_reloads_total", file="tokens", outcome="ok") == 1)
        self.clean(daemon)

    def test_tls_is_for_tcp_alone(self):
        pair = Authority(self.directory, "authority").sign("server")
        daemon = self.serve("--tls-cert-file", pair[0], "--tls-key-file", pair[1])
        self.assertTrue(daemon.url.startswith("https://"))
        self.assertEqual(ask(self.path, "GET", "/livez")[0], 200)
        daemon.popen.send_signal(signal.SIGHUP)
        daemon.says("the TLS certificate was read anew")
        self.assertEqual(ask(self.path, "GET", "/livez")[0], 200)
        self.clean(daemon)


if __name__ == "__main__":
    unittest.main(verbosity=2)
