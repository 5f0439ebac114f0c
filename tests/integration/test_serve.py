# SPDX-License-Identifier: Apache-2.0
"""The daemon and an engine as a person meets them: starting, serving, stopping."""
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import time
import unittest
import unittest.mock

import harness


class Serve(harness.Case):
    def test_too_few_descriptors_are_told_with_what_would_be_enough(self):
        limited = os.path.join(self.directory, "limited")
        with open(limited, "w", encoding="utf-8") as script:
            script.write(f'#!/bin/sh\nulimit -n 1000 && exec {os.path.abspath(harness.PROGRAM)} "$@"\n')
        os.chmod(limited, 0o755)
        with unittest.mock.patch.object(harness, "PROGRAM", limited):
            few = self.daemon(name="few", socket_name="few.sock")
            enough = self.daemon("--connections-max", "800", "--sessions-max", "10")
        few.says("fewer connections than configured")
        few.says("allowed=250 nofile=1000 needed=5248")  # 4096, of 256 sessions, and its own
        self.assertNotIn("fewer connections than configured", enough.stderr())  # it is ready
        self.clean(few, enough)

    def test_health_is_bad_before_an_engine_attaches_and_after_it_died(self):
        daemon = self.daemon()
        self.assertEqual(daemon.get("/livez")[0], 200)
        self.assertEqual(daemon.get("/health")[0], 503)
        engine = self.engine(daemon, "a")
        harness.until("well", lambda: daemon.get("/health")[0] == 200)
        harness.until("ready", lambda: daemon.get("/readyz")[0] == 200)
        engine.kill()
        harness.until("ill", lambda: daemon.get("/health")[0] == 503)
        self.assertEqual(daemon.get("/livez")[0], 200)
        self.clean(daemon)

    def test_what_one_engine_put_another_with_the_same_weights_gets(self):
        daemon = self.daemon()
        a = self.engine(daemon, "a", "--fingerprint")
        b = self.engine(daemon, "b", "--fingerprint")
        for name in ("a", "b"):
            harness.until("named", lambda n=name: daemon.metric("kvplane_instance_shared",
                                                                instance=n) == 1)
        put = a.run(0, 40)
        got = b.run(0, 40)
        self.assertGreater(put["stored"], 0)
        self.assertGreater(got["hits"], 0)
        for counts in (put, got):
            self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0))
        self.assertGreater(daemon.metric("kvplane_gets_total", result="ok"), 0)
        harness.until("nothing pending", lambda: daemon.pending() == 0)
        self.clean(b, a, daemon)

    def test_sigint_and_sigterm_end_it_with_0_also_with_engines_and_open_connections(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            daemon = self.daemon()
            engine = self.engine(daemon, "a")
            with socket.create_connection((daemon.host, daemon.port)) as idle:
                idle.sendall(b"GET /health HTTP/1.1\r\n")
                self.assertEqual(daemon.kill(signum), 0, daemon.stderr())
            self.assertNotIn("Sanitizer", daemon.stderr())
            self.assertFalse(os.path.exists(daemon.socket), "the socket is gone")
            self.clean(engine)

    def test_whoever_signals_again_and_again_kills_nothing_that_ends(self):
        etcd = self.etcd()
        for turn in range(3):
            daemon = self.daemon("--dump-dir", self.directory, name=f"daemon-{turn}")
            node = self.store_node(etcd, "--dump-dir", self.directory, name=f"store-{turn}")
            engine = self.engine(daemon, "a", name=f"engine-{turn}")
            self.assertEqual(engine.storm(signal.SIGTERM, signal.SIGINT), 0, engine.stderr())
            for server in (daemon, node):
                self.assertEqual(server.storm(signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT), 0,
                                 server.stderr())

    def test_a_reload_asked_for_too_early_does_not_kill_a_server_that_starts(self):
        servers = {"daemon": ["serve", "--engine-socket", os.path.join(self.directory, "engine.sock")],
                   "store": ["store", "--cluster-listen", "127.0.0.1:0"]}
        for name, args in servers.items():
            server = harness.Server([*args, "--listen", "127.0.0.1:0", "--store-bytes", "64MiB"], self.directory, name)
            self.processes.append(server)
            server.READY = f"kvplane {name} ready " if name == "store" else server.READY
            harness.until("it holds its signals", lambda s=server: s.blocks(signal.SIGHUP))
            server.popen.send_signal(signal.SIGHUP)
            server.await_ready()
            self.clean(server)

    def test_an_engine_in_the_middle_of_a_replay_ends_with_0(self):
        daemon = self.daemon()
        for turn in range(3):
            put = daemon.metric("kvplane_puts_total", result="ok")
            engine = harness.Process(
                ["engine", "--socket", daemon.socket, "--instance", "a", "--speed", "0",
                 "--requests", "100000"], self.directory, f"replay-{turn}")
            self.processes.append(engine)
            harness.until("it puts", lambda put=put:
                          daemon.metric("kvplane_puts_total", result="ok") > put)
            self.clean(engine)
        self.clean(daemon)

    def test_a_request_in_work_is_answered_when_the_daemon_stops(self):
        daemon = self.daemon()
        self.engine(daemon, "a", "--misbehave", "pause-never")
        connection = socket.create_connection(daemon.tapped())
        connection.settimeout(harness.DEADLINE_S)
        connection.sendall(b"POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        harness.until("in work", lambda: "operation" in (daemon.instance("a") or {}))
        daemon.popen.send_signal(signal.SIGTERM)
        self.assertTrue(connection.recv(4096).startswith(b"HTTP/1.1 503"))
        connection.close()
        self.clean(daemon)  # asks it to stop once more

    def test_a_second_daemon_on_the_socket_is_refused_and_the_first_serves_on(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        second = subprocess.run(
            [harness.PROGRAM, "serve", "--listen", "127.0.0.1:0", "--engine-socket",
             daemon.socket], capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another process", second.stderr)
        self.assertEqual(daemon.get("/health")[0], 200)
        self.clean(engine, daemon)

    def test_a_bad_command_line_ends_with_2_and_says_what_is_allowed(self):
        for args, word in ((["--shards", "0"], "1 to 256"), (["--listen", "0.0.0.0:0"], "token"),
                           (["--transport", "rdma"], "loopback"), (["--no-such"], "no-such")):
            result = subprocess.run([harness.PROGRAM, "serve", *args], capture_output=True,
                                    text=True, timeout=harness.DEADLINE_S)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(word, result.stderr)

    def test_an_engine_that_cannot_start_says_what_to_change(self):
        for args, word in (([], "socket"),
                           (["--socket", "/tmp/s", "--instance", "a b"], "instance")):
            with self.subTest(args):
                env = {k: v for k, v in os.environ.items() if k != "KVPLANE_SOCKET"}
                done = subprocess.run([harness.PROGRAM, "engine", *args], capture_output=True,
                                      text=True, timeout=harness.DEADLINE_S, env=env)
                self.assertEqual(done.returncode, 1)
                self.assertIn(word + ":", done.stderr)

    def test_an_engine_without_a_daemon_says_that_it_waits(self):
        path = os.path.join(self.directory, "engine.sock")
        engine = harness.Process(["engine", "--socket", path], self.directory, "alone")
        self.processes.append(engine)
        self.assertIn(path, engine.says("waiting for its daemon"))
        daemon = self.daemon()
        harness.until("it attaches", lambda: daemon.get("/health")[0] == 200)
        engine.says("attached")
        self.clean(engine, daemon)

    def test_a_daemon_that_cannot_start_says_what_to_change(self):
        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

        for args, before, word in (
                (["--store-bytes", "1MiB", "--shards", "256"], None, "shard_min=65536"),
                (["--store-bytes", "64TiB"], None, "memory_bytes="),
                ([], few_descriptors, "ulimit -n")):
            with self.subTest(word):
                done = subprocess.run(
                    [harness.PROGRAM, "serve", "--listen", "127.0.0.1:0", "--engine-socket",
                     os.path.join(self.directory, "s"), *args], preexec_fn=before,
                    capture_output=True, text=True, timeout=harness.DEADLINE_S)
                self.assertEqual(done.returncode, 1)
                self.assertIn(word, done.stderr)

    def test_config_shows_what_is_in_force_and_refuses_what_is_not_allowed(self):
        def run(*args):
            return subprocess.run([harness.PROGRAM, "config", *args], capture_output=True,
                                  text=True, timeout=harness.DEADLINE_S)

        for args in ((), ("show",)):
            self.assertEqual(json.loads(run(*args).stdout)["shards"], 4)
            self.assertEqual(json.loads(run(*args, "--shards", "8").stdout)["shards"], 8)
            self.assertEqual(run(*args, "--shards", "0").returncode, 2)
        self.assertEqual(run("nonsense").returncode, 2)

    def test_a_daemon_without_descriptors_says_so_and_is_not_asked_without_pause(self):
        daemon = self.daemon()
        own = max(map(int, os.listdir(f"/proc/{daemon.pid}/fd"))) + 1
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        # The engine's connection fits, its regions do not.
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (own + 1, before[1]))
        begun = time.monotonic()
        engine = self.engine(daemon, "a", attach=False)
        daemon.says('reason="this daemon has no descriptor left', 5)  # it is thrown out again and again
        self.assertGreater(time.monotonic() - begun, 0.3, "each time it waits longer")
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        harness.until("it is taken", lambda: daemon.get("/health")[0] == 200
                      and daemon.metric("kvplane_regions", instance="a") == 2)
        self.clean(engine, daemon)

    def test_a_connection_that_finds_no_descriptor_is_accepted_when_there_is_one(self):
        daemon = self.daemon()
        own = max(map(int, os.listdir(f"/proc/{daemon.pid}/fd"))) + 1
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (own, before[1]))
        engine = self.engine(daemon, "a", attach=False)
        daemon.says("accept on the engine socket")
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        engine.event("attached")
        self.clean(engine, daemon)

    @unittest.skipIf(harness.SANITIZED, "a sanitizer keeps what is freed")
    def test_memory_of_a_crowd_of_large_bodies_is_given_back(self):
        daemon = self.daemon("--store-bytes", "8MiB")
        body, crowd = 512 << 10, 100
        idle = daemon.status_kib("RssAnon")
        for _ in range(3):
            with contextlib.ExitStack() as connections:
                for _ in range(crowd):
                    connection = connections.enter_context(socket.create_connection((daemon.host, daemon.port)))
                    connection.sendall(b"POST /update_weights?instance=nobody HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                       b"Content-Length: %d\r\n\r\n" % (body + 1) + b" " * body)
                harness.until("the bodies are there", lambda: daemon.status_kib("RssAnon") > idle + crowd * (body >> 10) * 3 // 4)
            harness.until("they are given back", lambda: daemon.status_kib("RssAnon") < idle + crowd * (body >> 10) // 4)
        self.clean(daemon)

    def test_connections_of_one_address_are_limited_if_asked_for(self):
        daemon = self.daemon("--connections-each-max", "3")

        def answered(connection):
            try:
                connection.request("GET", "/livez")
                answer = connection.getresponse()
                answer.read()
                return answer.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                return False
        with contextlib.ExitStack() as stack:
            several = [stack.enter_context(contextlib.closing(http.client.HTTPConnection(
                daemon.host, daemon.port, timeout=harness.DEADLINE_S))) for _ in range(4)]
            for connection in several[:3]:
                self.assertTrue(answered(connection))
            self.assertFalse(answered(several[3]))
            self.assertTrue(answered(several[0]))
            several[0].close()
            harness.until("another one takes its place", lambda: answered(several[3]))
        self.clean(daemon)

    def test_tokens_guard_what_acts_and_probes_need_none(self):
        path = os.path.join(self.directory, "tokens")
        with open(path, "w", encoding="utf-8") as tokens:
            tokens.write("# ours\nadmin s3cret\nread look\n")
        daemon = self.daemon("--token-file", path)
        engine = self.engine(daemon, "a")
        harness.until("well", lambda: daemon.get("/health")[0] == 200)
        self.assertEqual(daemon.post("/pause")[0], 401)
        reader = {"Authorization": "Bearer look"}
        admin = {"Authorization": "Bearer s3cret"}
        self.assertEqual(daemon.get("/v1/kvplane/instances", headers=reader)[0], 200)
        self.assertEqual(daemon.post("/pause", headers=reader)[0], 403)
        self.assertEqual(daemon.post("/pause", headers=admin)[0], 200)
        # Every call that acts leaves its line: what, who, from where, how it ended. No secret does.
        lines = [line for line in daemon.says("msg=audit", 3).splitlines() if "msg=audit" in line]
        self.assertEqual(len(lines), 3, lines)
        for line, token, status in zip(lines, (0, 2, 1), (401, 403, 200)):
            for word in ("operation=pause", "from=127.0.0.1", f"token={token}", f"http_status={status}"):
                self.assertIn(word, line)
        self.assertNotIn("s3cret", daemon.stderr())
        # SIGHUP: other tokens, at once; a file that is wrong changes nothing.
        with open(path, "w", encoding="utf-8") as tokens:
            tokens.write("admin an0ther\n")
        daemon.popen.send_signal(signal.SIGHUP)
        other = {"Authorization": "Bearer an0ther"}
        harness.until("the new token", lambda: daemon.post("/resume", headers=other)[0] == 200)
        self.assertEqual(daemon.post("/pause", headers=admin)[0], 401)
        with open(path, "w", encoding="utf-8") as tokens:
            tokens.write("admin an0ther\nread \n")  # of a template whose variable is empty
        daemon.popen.send_signal(signal.SIGHUP)
        daemon.says("a role without a token")
        self.assertEqual(daemon.post("/resume", headers={"Authorization": "Bearer read"})[0], 401)
        with open(path, "w", encoding="utf-8") as tokens:
            tokens.write("# none\n")
        daemon.popen.send_signal(signal.SIGHUP)
        daemon.says("the tokens stay as they were", 2)
        self.assertEqual(daemon.post("/pause", headers=other)[0], 200)
        self.clean(engine, daemon)

    def test_an_engine_may_claim_only_the_tenants_of_the_config(self):
        daemon = self.daemon("--tenants", "red=8MiB,blue")
        refused = self.engine(daemon, "a", "--tenant", "green", attach=False)
        self.assertIn("red=8MiB,blue", refused.event("refused")["text"])
        refused.kill()
        self.clean(self.engine(daemon, "b", "--tenant", "blue"), daemon)

    def test_client_commands_speak_for_themselves(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")

        def run(*args):
            return subprocess.run([harness.PROGRAM, *args, "--url", daemon.tap()],
                                  capture_output=True, text=True, timeout=harness.DEADLINE_S)

        overview = run("status").stdout
        self.assertIn("cluster: coordinator embedded, 1 of 1 nodes up", overview)
        self.assertRegex(overview, r"(?m)^  local +- +up +local +64 MiB ")
        self.assertRegex(overview, r"(?m)^  a +default +serving ")
        self.assertIn("instance: a", run("status", "--instance", "a").stdout)
        other = run("status", "--instance", "b")
        self.assertEqual((other.returncode, other.stdout), (1, ""), "not shown as somebody else")
        self.assertIn("no instance of that name", other.stderr)
        self.assertEqual(run("sleep", "--level", "2").returncode, 0)
        self.assertTrue(daemon.get("/is_sleeping")[1]["is_sleeping"])
        self.assertEqual(run("resume").returncode, 1, "memory is not there")
        self.assertEqual(run("wake", "--tags", "weights", "--tags", "kv_cache").returncode, 0)
        self.assertIn("nothing_to_do: true", run("wake").stdout, "also where a list is empty")
        self.assertFalse(daemon.get("/is_sleeping")[1]["is_sleeping"])
        self.assertIn("sleep", run("ops").stdout)
        self.assertEqual(run("sleep", "--level", "7").returncode, 1)
        self.assertEqual(run("sleep", "--nonsense").returncode, 2)
        self.clean(engine, daemon)
        self.assertEqual(run("status").returncode, 3)

    def test_a_fleet_sleeps_as_one_or_not_at_all(self):
        daemon = self.daemon()
        engines = [self.engine(daemon, name) for name in "abc"]
        engines.append(self.engine(daemon, "d", "--misbehave", "release-refuse:1"))
        for level in (1, 2):
            if level == 1:
                code, answer = daemon.post(f"/sleep?instance=*&level={level}")
                self.assertNotEqual(code, 200, answer)
                self.assertEqual([answer["instances"][name]["undone"] for name in "abc"], [True] * 3)
                for name in "abcd":
                    self.assertTrue(daemon.instance(name)["ready"], name)
                    counts = engines["abcd".index(name)].run(0, 4)
                    self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0))
            answer = daemon.ok(f"/sleep?instance=*&level={level}")
            self.assertTrue(answer["success"])
            for name in "abcd":
                self.assertEqual(answer["instances"][name]["level"], level)
                self.assertTrue(daemon.instance(name)["is_sleeping"])
            self.assertTrue(daemon.ok("/wake_up?instance=*")["success"])
        daemon.ok("/collective_rpc?instance=*", {"method": "reload_weights"})
        for engine in engines:
            counts = engine.run(0, 4)
            self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
