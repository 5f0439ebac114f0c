# SPDX-License-Identifier: Apache-2.0
"""What real trainers send, byte for byte, judged as they judge it (the project's recorded requests)."""
import concurrent.futures
import subprocess
import sys
import unittest

import fake_servers
import harness
from recorded import REPLAY, passes, raw, requests, send


@unittest.skipUnless(REPLAY.exists(), f"the recorded requests are not here ({REPLAY})")
class Trainers(harness.Case):
    def setUp(self):
        super().setUp()
        self.served = self.daemon()
        self.computing = self.engine(self.served, "engine-0")
        self.port = self.served.tapped()[1]

    def expect_serving(self):
        """Whatever was asked before: it can be brought back, and computes what is right."""
        harness.until("nothing runs", lambda: not any(
            o["status"] == "running"
            for o in self.served.get("/v1/kvplane/operations")[1]["operations"]))
        for path in ("/wake_up", "/resume"):
            self.served.ok(path)
        self.assertTrue(self.served.instance("engine-0")["ready"])
        counts = self.computing.run(0, 8)
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)

    def test_every_request_of_every_client_passes_in_order_on_one_system(self):
        run = subprocess.run([sys.executable, str(REPLAY), f"127.0.0.1:{self.port}"],
                             capture_output=True, text=True, timeout=1200, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn(" 0 failed", run.stdout)
        self.expect_serving()

    def test_every_request_sent_twice_at_once_is_answered_alike(self):
        defaults, all_requests = requests()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for request in all_requests:
                data = raw(defaults, request, self.port)
                for status, body in pool.map(lambda _, d=data: send(self.port, d), range(2)):
                    self.assertTrue(passes(request, status),
                                    f"{request['fw']}#{request['seq']} {request['path']}: {body}")
        self.expect_serving()

    def test_clients_that_go_away_early_leave_a_system_that_serves(self):
        defaults, all_requests = requests()
        for request in all_requests:
            send(self.served.port, raw(defaults, request, self.served.port), early=True)
            self.assertEqual(self.served.get("/health")[0], 200)
        self.expect_serving()


@unittest.skipUnless(REPLAY.exists(), f"the recorded requests are not here ({REPLAY})")
class Driven(harness.Case):
    """The same, where engines are servers that know nothing of kvplane, behind the one URL."""

    @classmethod
    def setUpClass(cls):
        """Who speaks to which kind of server; those that have one of their own speak as to vLLM."""
        _, all_requests = requests()
        cls.sglang = sorted({request["fw"] for request in all_requests if request["native"] == "sglang"})
        cls.vllm = sorted({request["fw"] for request in all_requests} - set(cls.sglang))

    def passes(self, clients, *servers):
        for server in servers:
            self.addCleanup(server.close)
        kind = "vllm" if clients == self.vllm else "sglang"
        daemon = self.daemon("--engine", ",".join(f"{kind}={server.url}" for server in servers))
        harness.until("they are there", lambda: daemon.get("/health")[0] == 200)
        run = subprocess.run([sys.executable, str(REPLAY), f"127.0.0.1:{daemon.tapped()[1]}", *clients],
                             capture_output=True, text=True, timeout=1200, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertNotIn("\n0 passed", "\n" + run.stdout)
        for path in ("/wake_up", "/resume"):
            daemon.ok(path)
        for server in servers:
            self.assertEqual((server.paused, server.asleep, server.unsafe), (False, {}, []))
        self.clean(daemon)

    def test_every_request_of_every_client_of_vllm_passes(self):
        self.passes(self.vllm, fake_servers.Vllm())

    def test_every_request_of_every_client_of_vllm_passes_with_a_fleet(self):
        self.passes(self.vllm, fake_servers.Vllm(name="v0"), fake_servers.Vllm(name="v1"))

    def test_every_request_of_every_client_of_sglang_passes(self):
        self.passes(self.sglang, fake_servers.Sglang())

    def test_every_request_of_every_client_of_sglang_passes_with_a_fleet(self):
        self.passes(self.sglang, fake_servers.Sglang(name="s0"), fake_servers.Sglang(name="s1"))


if __name__ == "__main__":
    if not REPLAY.exists():
        print(f"SKIP: trainers: the recorded requests are not beside this checkout ({REPLAY.name})")
    unittest.main()
