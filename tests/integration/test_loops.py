# SPDX-License-Identifier: Apache-2.0
"""Every trainer's sequence as a training loop: two engines on one store, rollouts between the steps.

Their weights are named by fingerprint, so that both share blocks whenever they hold the same: what a
step leaves behind of the old weights would be read by the other engine, or by itself, and is known by
its bytes.
"""
import concurrent.futures
import itertools
import signal
import unittest

import harness
from recorded import REPLAY, passes, raw, requests, send

STEPS = 2 if harness.SANITIZED else 10
REQUESTS = 12


@unittest.skipUnless(REPLAY.exists(), f"the recorded requests are not here ({REPLAY})")
class Loops(harness.Case):
    def setUp(self):
        super().setUp()
        self.agreed = self.etcd()
        self.nodes = [self.store_node(self.agreed, name=f"store-{i}") for i in range(2)]
        self.daemons = [self.cluster_daemon(self.agreed, "--retire-bound", "2s", name=f"daemon-{name}")
                        for name in "ab"]
        self.engines = [self.engine(daemon, name, "--fingerprint", requests=REQUESTS)
                        for daemon, name in zip(self.daemons, "ab")]
        self.defaults, everything = requests()
        self.clients = {name: list(of) for name, of in itertools.groupby(everything, lambda r: r["fw"])}
        self.hits = 0
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.addCleanup(self.pool.shutdown)

    def outage(self, begins):
        self.agreed.freeze(begins)
        for node in self.nodes:
            node.popen.send_signal(signal.SIGSTOP if begins else signal.SIGCONT)

    def both(self, request):
        """The trainer asks its two servers at once."""
        def one(daemon):
            return send(daemon.port, raw(self.defaults, request, daemon.port))
        for status, body in self.pool.map(one, self.daemons):
            self.assertTrue(passes(request, status),
                            f"{request['fw']}#{request['seq']} {request['path']}: {status} {body}")

    def rollout(self, why):
        """Both serve, whatever the trainer left them in, and each block is of the weights they hold."""
        for daemon in self.daemons:
            for path in ("/wake_up", "/resume"):
                daemon.ok(path)
        if self.engines[0].stats()["weights_id"] == 0:  # discarded last: a loop loads them again
            for daemon in self.daemons:
                daemon.ok("/collective_rpc", {"method": "reload_weights"})
        for use_cache in (True, False):
            running = [e.command("run", first=0, count=REQUESTS, use_cache=use_cache)
                       for e in self.engines]
            for engine, number in zip(self.engines, running):
                counts = engine.wait(number)
                self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0),
                                 (why, counts, engine.stats()["story"]))
                self.hits += counts["hits"]

    def test_ten_steps_of_every_trainer_leave_nothing_stale(self):
        for name, sequence in self.clients.items():
            for step in range(STEPS):
                for request in sequence:
                    self.both(request)
                self.rollout(f"{name}, step {step}")
        self.assertGreater(self.hits, 0)

    def test_with_the_store_away_during_every_call_all_is_answered_and_nothing_stale(self):
        for name, sequence in self.clients.items():
            for request in sequence:
                self.outage(True)
                try:
                    self.both(request)
                finally:
                    self.outage(False)
            self.rollout(name)


if __name__ == "__main__":
    if not REPLAY.exists():
        print("SKIP: loops: the recorded requests are not beside this checkout")
    unittest.main()
