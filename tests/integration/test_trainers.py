# SPDX-License-Identifier: Apache-2.0
"""What real trainers send, byte for byte, judged as they judge it (the project's recorded requests)."""
import concurrent.futures
import subprocess
import sys
import unittest

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


if __name__ == "__main__":
    if not REPLAY.exists():
        print(f"SKIP: trainers: the recorded requests are not beside this checkout ({REPLAY.name})")
    unittest.main()
