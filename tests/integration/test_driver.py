# SPDX-License-Identifier: Apache-2.0
"""Unmodified servers behind one daemon (server/driver): two of vLLM's and two of SGLang's, which are fakes
(fake_servers.py) that know what must never happen to a real one."""
import http.client
import json
import os
import socket
import ssl
import threading
import unittest

import authority
import fake_servers
import harness
from harness import until

BOUNDS = ("--engine-health-interval", "200ms", "--engine-health-bound", "60s", "--forward-retry", "20ms", "--forward-tries",
          "2")
# Where a call hangs, that is told after its bound; others are repeated until they are done.
SHORT = ("--engine-call-bound", "2s", "--engine-relay-bound", "2s", "--drain-bound", "2s")


def post(server, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=harness.DEADLINE_S)
    try:
        connection.request("POST", path, json.dumps(body or {}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


class Driven(harness.Case):
    def serve(self, *servers, args=BOUNDS):
        self.servers = servers
        for server in servers:
            self.addCleanup(server.close)
        engines = [a for s in servers for a in ("--engine", f"{type(s).__name__.lower()}={s.name}@{s.url}")]
        self.daemon_ = self.daemon(*engines, *args)
        for server in servers:
            self.attached(server)
        return self.daemon_

    def attached(self, server):
        until(f"{server.name} is attached", lambda: (self.daemon_.instance(server.name) or {}).get("attached"))

    def expect_safe(self):
        self.assertEqual([u for s in self.servers for u in s.unsafe], [])

    def calls(self, server):
        """What it was asked since last time, but for what is only looked at."""
        calls, server.log = [c for c in server.log if c not in ("/is_sleeping", "/is_paused")], []
        return calls


class OneServer(Driven):
    def test_verbs_become_the_calls_of_vllm_in_a_safe_order(self):
        vllm = fake_servers.Vllm(name="v")
        daemon = self.serve(vllm)
        self.calls(vllm)
        pause, reset = "/pause?mode={}&clear_cache=false", "/reset_prefix_cache?reset_running_requests={}"
        for verb, calls in (
                ("/pause?mode=keep&clear_cache=false", [pause.format("keep")]),
                ("/resume", ["/resume"]),
                ("/sleep?level=1&mode=wait", [pause.format("wait"), reset.format("true"), "/sleep?level=1&mode=keep"]),
                ("/wake_up?tags=weights", ["/wake_up?tags=weights"]),
                ("/wake_up?tags=bogus", []),
                # The last one resumes there by itself; who is to run again says so.
                ("/wake_up?tags=kv_cache", ["/wake_up?tags=kv_cache", pause.format("keep"), "/resume"]),
                ("/reset_prefix_cache", [reset.format("false")]),
                ("/sleep?level=2", [pause.format("abort"), reset.format("true"), "/sleep?level=2&mode=keep"]),
                ("/sleep?level=1", []),
                ("/wake_up", ["/wake_up?tags=weights", "/wake_up?tags=kv_cache", pause.format("keep"), "/resume"]),
                ("/pause?mode=abort", [pause.format("abort"), reset.format("true")]),
                ("/wake_up", []),
                ("/release_kv_cache_memory", [reset.format("true"), "/release_kv_cache_memory"]),
                ("/wake_up", ["/wake_up?tags=kv_cache", pause.format("keep"), "/resume"])):
            daemon.ok(verb)
            self.assertEqual(self.calls(vllm), calls, verb)
        daemon.ok("/sleep?level=1")
        self.assertEqual(daemon.post("/sleep?level=2")[0], 409)  # swallowed there
        self.assertEqual(daemon.post("/resume")[0], 409)
        view = daemon.instance("v")
        self.assertEqual(view["driven"], {"kind": "vllm", "url": vllm.url})
        self.assertEqual(view["tags"], {"weights": "offloaded", "kv_cache": "discarded"})
        self.assertNotIn("private_reason", view["lineage"])
        self.assertEqual(daemon.get("/get_world_size")[1]["world_size"], 2)
        daemon.ok("/wake_up")
        self.expect_safe()

    def test_what_a_server_shares_by_its_own_connector_is_cleared_where_its_lineage_is_left(self):
        vllm = fake_servers.Vllm(name="v")
        vllm.connector = True
        daemon = self.serve(vllm)

        def computes():
            self.assertEqual(post(vllm, "/v1/completions")[0], 200)
            self.assertIsNotNone(vllm.shared)

        for verb, body, kept in (("/reset_prefix_cache?reset_external=true", None, False), ("/reset_prefix_cache", None, True),
                                 ("/pause?clear_cache=true", None, False), ("/pause?clear_cache=false", None, True),
                                 ("/update_weights", {"update_info": {}}, False)):
            computes()
            daemon.ok(verb, body)
            until(f"{verb}: kept {kept}", lambda k=kept: (vllm.shared is not None) == k)
            daemon.ok("/resume")
            vllm.shared = None
        # One that cannot: nothing is answered as done.
        vllm.connector = False
        self.assertFalse(daemon.post("/reset_prefix_cache?reset_external=true")[1]["success"])
        code, answer = daemon.post("/sleep")
        self.assertEqual(code, 503, answer)
        self.assertEqual(vllm.asleep, {})
        vllm.connector = True
        computes()
        daemon.ok("/sleep")
        daemon.ok("/wake_up")
        computes()
        self.expect_safe()

    def test_older_versions_of_vllm_are_told_by_asking(self):
        for version in ("aug", "old"):
            with self.subTest(version):
                for process in self.processes:
                    process.kill()
                vllm = fake_servers.Vllm(name="v", version=version)
                daemon = self.serve(vllm)
                daemon.ok("/sleep")
                daemon.ok("/wake_up?tags=weights")
                self.assertEqual(set(vllm.asleep), {"kv_cache"})
                daemon.ok("/sleep?level=1")  # which it would not heed, partly asleep
                self.assertEqual(set(vllm.asleep), {"weights", "kv_cache"})
                daemon.ok("/wake_up")
                self.assertEqual((vllm.asleep, vllm.paused), ({}, False))
                code, answer = daemon.post("/release_kv_cache_memory")
                self.assertEqual(code, 409, answer)
                self.assertIn("has no /release_kv_cache_memory", answer["error"]["message"])
                until("it serves on", lambda: daemon.instance("v")["ready"])
                self.assertTrue(daemon.ok("/reset_prefix_cache")["success"])
                self.assertEqual(vllm.asleep, {})
                self.expect_safe()

    def test_a_release_of_kv_that_fails_does_not_take_the_weights(self):
        vllm = fake_servers.Vllm(name="v")
        daemon = self.serve(vllm)
        for kind in ("error", "break", "die"):
            with self.subTest(kind):
                daemon.ok("/pause")
                self.calls(vllm)
                vllm.fault("/release_kv_cache_memory", kind)
                daemon.post("/release_kv_cache_memory")
                if not vllm.alive:
                    vllm.start()
                self.attached(vllm)
                self.assertNotIn("weights", vllm.asleep)
                self.assertEqual([c for c in self.calls(vllm) if c.startswith("/sleep")], [])
                vllm.heal()
                until("it serves", lambda: daemon.post("/wake_up")[0] == 200 and daemon.post("/resume")[0] == 200)
                self.assertEqual((vllm.asleep, vllm.paused), ({}, False))
        self.expect_safe()

    def test_verbs_become_the_calls_of_sglang(self):
        sglang = fake_servers.Sglang(name="s")
        daemon = self.serve(sglang)
        self.calls(sglang)
        for verb, calls in (
                ("/pause_generation", ["/pause_generation"]),
                ("/release_memory_occupation", ["/flush_cache", "/release_memory_occupation"]),
                ("/release_memory_occupation", []),
                ("/resume_memory_occupation?tags=weights", ["/resume_memory_occupation"]),
                ("/resume_memory_occupation?tags=kv_cache", ["/resume_memory_occupation"]),
                ("/continue_generation", ["/continue_generation"]),
                ("/flush_cache", ["/flush_cache"]),
                ("/sleep?level=2&mode=wait", ["/get_load", "/pause_generation", "/flush_cache",
                                              "/release_memory_occupation"]),
                ("/wake_up", ["/resume_memory_occupation", "/continue_generation"])):
            daemon.ok(verb)
            self.assertEqual(self.calls(sglang), [c for c in calls if c != "/get_load"], verb)
        self.expect_safe()

    def test_a_server_that_is_asleep_or_paused_attaches_as_it_is(self):
        vllm = fake_servers.Vllm(name="v")
        post(vllm, "/pause")
        post(vllm, "/sleep?level=1&mode=abort")
        daemon = self.serve(vllm)
        self.assertEqual(daemon.instance("v")["tags"], {"weights": "offloaded", "kv_cache": "discarded"})
        self.assertTrue(daemon.get("/is_sleeping")[1]["is_sleeping"])
        daemon.ok("/wake_up")
        self.assertFalse(vllm.paused)
        post(vllm, "/pause")
        self.calls(vllm)
        vllm.die()
        until("it is missed", lambda: not daemon.instance("v")["attached"])
        self.assertEqual(daemon.get("/health")[0], 503)
        vllm.start()
        self.attached(vllm)
        self.assertEqual(daemon.get("/health")[0], 200)
        self.assertTrue(daemon.instance("v")["ready"])
        self.expect_safe()

    def test_a_server_that_hangs_is_gone_and_comes_back(self):
        vllm = fake_servers.Vllm(name="v")
        daemon = self.serve(vllm, args=("--engine-health-interval", "50ms", "--engine-health-bound", "500ms"))
        vllm.fault("/health", "hang", times=1000000)
        until("it is missed", lambda: not daemon.instance("v")["attached"])
        code, answer = daemon.post("/pause")
        self.assertEqual(code, 409, answer)
        self.assertIn("no answer within its bound", answer["error"]["message"])
        vllm.heal()
        until("it is back", lambda: daemon.post("/pause")[0] == 200)

    def test_the_token_of_the_file_is_sent_with_every_call(self):
        vllm = fake_servers.Vllm(name="v")
        path = os.path.join(self.directory, "token")
        with open(path, "w", encoding="utf-8") as out:
            out.write("tell-nobody\n")
        daemon = self.serve(vllm, args=BOUNDS + ("--engine-token-file", path))
        daemon.ok("/pause")
        self.assertEqual(vllm.authorizations, {"Bearer tell-nobody"})
        self.assertNotIn("tell-nobody", daemon.stderr())

    def test_a_server_by_tls_is_believed_by_its_authority_alone(self):
        one, other = authority.Authority(self.directory, "one"), authority.Authority(self.directory, "other")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*one.sign("server"))
        vllm = fake_servers.Vllm(name="v", tls=context)
        self.serve(vllm, args=BOUNDS + ("--upstream-ca-file", one.certificate)).ok("/pause")
        daemon = self.daemon("--engine", f"vllm={vllm.url}", "--upstream-ca-file", other.certificate, *BOUNDS, name="other",
                             socket_name="other.sock")
        daemon.says("certificate")
        self.assertEqual(daemon.get("/startupz")[0], 503)

    def test_a_sleep_of_all_that_discards_is_refused_where_one_is_known_to_fail(self):
        servers = fake_servers.Vllm(name="v0"), fake_servers.Vllm(name="v1"), fake_servers.Vllm(name="v2")
        servers[2].sleep_mode = False
        daemon = self.serve(*servers)
        daemon.ok("/sleep?level=1&instance=v0")
        for server in servers:
            self.calls(server)
        code, answer = daemon.post("/sleep?level=2")
        self.assertEqual(code, 409, answer)
        for name, why in (("v0", "until it is awake"), ("v1", "not asked"), ("v2", "--enable-sleep-mode")):
            self.assertIn(why, json.dumps(answer["instances"][name]))
        self.assertEqual([self.calls(s) for s in servers], [[]] * 3)  # nothing has begun
        daemon.ok("/wake_up?instance=v0")
        self.assertEqual(daemon.post("/sleep?level=2")[0], 409)
        self.assertEqual((servers[0].asleep, servers[1].asleep), ({}, {}))

    def test_without_development_mode_it_is_said_and_not_attached(self):
        vllm = fake_servers.Vllm(name="v")
        vllm.ROUTES = [r for r in vllm.ROUTES if r[0] != "/is_sleeping"]
        self.addCleanup(vllm.close)
        daemon = self.daemon("--engine", f"vllm={vllm.url}", *BOUNDS)
        daemon.says("start it with VLLM_SERVER_DEV_MODE=1")
        self.assertEqual(daemon.get("/startupz")[0], 503)



STEPS = (  # of one round of training: verb, and what is asked of each kind if it is not asked of all at once
    ("/pause?mode=abort", None), ("/sleep?level=1", None), ("/wake_up?tags=weights", None),
    (None, {"vllm": ("/update_weights", {"update_info": {}}), "sglang": ("/update_weights_from_disk", {"model_path": "x"})}),
    ("/finish_weight_update", None), ("/wake_up?tags=kv_cache", None),
)


class Fleet(Driven):
    """Four servers, and a trainer that speaks to one URL."""
    ARGS = BOUNDS

    def setUp(self):
        super().setUp()
        self.serve(fake_servers.Vllm(name="v0"), fake_servers.Vllm(name="v1", version="aug"),
                   fake_servers.Sglang(name="s0"), fake_servers.Sglang(name="s1", version="old"), args=self.ARGS)

    def step(self, verb, each):
        """Status and answer of the first that fails, or of all."""
        if each is None:
            return self.daemon_.post(verb)
        for server in self.servers:
            path, body = each[type(server).__name__.lower()]
            code, answer = self.daemon_.post(f"{path}?instance={server.name}", body)
            if code != 200:
                return code, answer
        return code, answer

    def round(self):
        """All steps, up to the first that fails: its answer, None if none did."""
        for verb, each in STEPS:
            code, answer = self.step(verb, each)
            if code != 200:
                return answer
            self.expect_safe()
        return None

    def passed_on(self, query=""):
        """What a server itself answers; None: not yet, the way to it is told a moment after the verb's answer. Not
        by http.client, all of whose answers are held against our own contract."""
        with socket.create_connection((self.daemon_.host, self.daemon_.port), harness.DEADLINE_S) as way:
            way.sendall(f"POST /v1/completions{query} HTTP/1.1\r\nHost: {self.daemon_.host}:{self.daemon_.port}\r\n"
                        "Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}".encode())
            head, body = way.makefile("rb").read().split(b"\r\n\r\n", 1)
        return json.loads(body) if head.split()[1] == b"200" else None

    def expect_serving(self):
        for server in self.servers:
            answer = until(f"{server.name} serves", lambda n=server.name: self.passed_on(f"?instance={n}"))
            self.assertEqual((answer["server"], answer["choices"][0]["finish_reason"]), (server.name, "stop"))
            self.assertEqual(answer["choices"][0]["text"], str(server.weights))
            self.assertEqual((server.asleep, server.paused), ({}, False), server.name)
        self.expect_safe()

    def expect_true(self):
        """What is told of each is what it is, or that it is not known."""
        def told(server):
            view = self.daemon_.instance(server.name)
            tags = view["tags"]
            return (not view["attached"] or "unknown" in tags.values() or "operation" in view or
                    not all(rank.get("answers") for rank in view["rank_states"]) or
                    {t for t in tags if tags[t] != "resident"} == set(server.asleep))
        for server in self.servers:
            until(f"{server.name} is as it is told to be", lambda s=server: told(s))

    def recover(self):
        """What an operator does: everything is told to wake and to go on, until it does."""
        for server in self.servers:
            server.heal()

        def woken():
            for server in self.servers:
                view = self.daemon_.instance(server.name)
                if view["driven"]["kind"] == "sglang" and view["attached"] and "unknown" in view["tags"].values():
                    server.die()  # what it has come to can be asked of nobody
                    until(f"{server.name} is missed", lambda n=server.name: not self.daemon_.instance(n)["attached"])
                if not server.alive:  # also one that a call of before has met only now
                    server.start()
            return self.daemon_.post("/wake_up")[0] == 200 and self.daemon_.post("/resume")[0] == 200 and all(
                self.daemon_.instance(s.name)["ready"] for s in self.servers)
        until("all are awake and run", woken)
        self.daemon_.ok("/reset_prefix_cache")

    def test_a_whole_loop_of_training_over_four_servers(self):
        for number in range(1, 4):
            held = []

            def keep(server):
                held.append(post(server, "/v1/completions", {"prompt": "x", "hold": True}))
            threads = [threading.Thread(target=keep, args=(s,)) for s in self.servers]
            for server in self.servers:
                server.holding = True
            for thread in threads:
                thread.start()
            for server in self.servers:
                until(f"{server.name} computes", lambda s=server: s.running == 1)
            self.assertIsNone(self.round())
            for thread in threads:
                thread.join()
            self.assertEqual([a["choices"][0]["finish_reason"] for _, a in held], ["abort"] * 4)
            self.assertEqual([s.weights for s in self.servers], [number] * 4)
            self.expect_serving()
        served = {until("one serves", self.passed_on)["server"] for _ in range(8)}
        self.assertLessEqual(served, {s.name for s in self.servers})
        answer = self.daemon_.ok("/sleep?level=2")
        self.assertEqual((answer["success"], answer["status"], answer["level"]), (True, "sleeping", 2))
        self.assertEqual(set(answer["instances"]), {"v0", "v1", "s0", "s1"})
        self.assertEqual({v for s in self.servers[:2] for v in s.asleep.values()}, {"discarded"})
        self.daemon_.ok("/wake_up")
        self.assertEqual(self.daemon_.get("/get_world_size")[1]["world_size"], 2 + 2 + 2 + 2)
        self.expect_serving()

    def fail_at_each(self, kind, routes):
        for victim in self.servers[:3:2]:
            for route in routes[type(victim).__name__.lower()]:
                with self.subTest(f"{victim.name} {route} {kind}"):
                    victim.fault(route, kind, times=1000)
                    answer = self.round()
                    if answer is not None and "error" in answer:
                        self.assertIn(victim.name, json.dumps(answer))
                        self.expect_true()
                    self.recover()
                    self.expect_serving()

    ROUTES = {"vllm": ("/pause", "/reset_prefix_cache", "/sleep", "/is_sleeping", "/wake_up", "/is_paused",
                       "/update_weights", "/resume"),
              "sglang": ("/pause_generation", "/flush_cache", "/release_memory_occupation",
                         "/resume_memory_occupation", "/update_weights_from_disk", "/continue_generation")}
    MOVES = {"vllm": ("/sleep", "/wake_up"), "sglang": ("/release_memory_occupation", "/resume_memory_occupation")}

    def test_one_that_refuses_at_each_step_leaves_all_awake_or_told_of(self):
        self.fail_at_each("error", self.ROUTES)

    def test_one_that_dies_at_each_step_leaves_all_awake_or_told_of(self):
        self.fail_at_each("die", self.ROUTES)

    def test_one_that_moves_memory_and_does_not_say_so_leaves_all_awake_or_told_of(self):
        self.fail_at_each("break", self.MOVES)


class Hanging(Fleet):
    ARGS = BOUNDS + SHORT

    def test_one_that_hangs_leaves_all_awake_or_told_of(self):
        self.fail_at_each("hang", self.MOVES)


def load_tests(loader, tests, pattern):
    """Of Hanging its own alone: what it inherits is Fleet's."""
    suite = unittest.TestSuite()
    for case in (OneServer, Fleet):
        suite.addTests(loader.loadTestsFromTestCase(case))
    suite.addTest(Hanging("test_one_that_hangs_leaves_all_awake_or_told_of"))
    return suite


if __name__ == "__main__":
    unittest.main()
