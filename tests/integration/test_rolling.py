# SPDX-License-Identifier: Apache-2.0
"""A rolling update: instances on different weights put and get at once through one cluster.

Neither ever sees the other's blocks (the engines know whose bytes are whose), and each keeps its own.
"""
import unittest

import harness

REQUESTS = 60


class Rolling(harness.Case):
    def setUp(self):
        super().setUp()
        self.agreed = self.etcd(3)
        self.nodes = [self.store_node(self.agreed, name=f"store-{i}", store_bytes="256MiB") for i in range(3)]
        self.daemons = [self.cluster_daemon(self.agreed, name=f"daemon-{name}") for name in "ab"]
        self.engines = [self.engine(daemon, name, "--fingerprint", requests=REQUESTS)
                        for daemon, name in zip(self.daemons, "ab")]
        for engine in self.engines:
            engine.event("ok", id=engine.command("see", weights=[1, 2, 3]))
        for daemon in self.daemons:
            harness.until("all nodes", lambda d=daemon: sum(
                node["state"] == "up" for node in d.get("/v1/kvplane/nodes")[1]["nodes"]) == 3)
        self.shared()

    def shared(self):
        for daemon in self.daemons:
            for state in ("shared", "open"):
                harness.until(state, lambda d=daemon, s=state: d.metric(f"kvplane_instance_{s}") == 1)

    def together(self, **fields):
        """Both run every request at the same time."""
        running = [engine.command("run", first=0, count=REQUESTS, **fields) for engine in self.engines]
        counts = [engine.wait(number) for engine, number in zip(self.engines, running)]
        for one in counts:
            self.assertEqual((one["stale"], one["torn"], one["errors"]), (0, 0, 0), one)
        return counts

    def update(self, which, weights):
        name = "ab"[which]
        self.daemons[which].ok(f"/collective_rpc?instance={name}",
                               {"method": "reload_weights", "kwargs": {"weights_id": weights}})
        self.shared()

    def read_own(self):
        for one in self.together(use_cache=False):
            self.assertEqual(one["hits"], one["looked_up"], "each has all of its own")

    def lineages(self):
        return [daemon.instance(name)["lineage"]["id"] for daemon, name in zip(self.daemons, "ab")]

    def test_two_versions_side_by_side(self):
        self.together(use_cache=False)
        self.read_own()
        self.assertEqual(*self.lineages())
        # b is updated first, while a goes on.
        running = self.engines[0].command("run", first=0, count=REQUESTS, use_cache=False)
        self.update(1, 2)
        self.engines[0].wait(running)
        self.assertNotEqual(*self.lineages())
        first = self.engines[1].run(0, 1, use_cache=False)
        self.assertEqual(first["hits"], 0, "what a put under the old weights is not there for b")
        self.together(use_cache=False)
        self.read_own()
        # b's reset clears its own, and not a's.
        self.daemons[1].ok("/reset_prefix_cache?reset_external=true&reset_running_requests=true&instance=b")
        self.shared()
        own = self.engines[0].run(0, REQUESTS, use_cache=False)
        self.assertEqual(own["hits"], own["looked_up"], "a has lost nothing")
        self.assertEqual(self.engines[1].run(0, 1, use_cache=False)["hits"], 0)
        self.together(use_cache=False)
        # a follows, and both share again: what b has put is there for a at once.
        self.update(0, 2)
        self.assertEqual(*self.lineages())
        counts = self.engines[0].run(0, REQUESTS, use_cache=False)
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
        self.assertEqual(counts["hits"], counts["looked_up"])
        self.clean(*self.engines, *self.daemons, *self.nodes)


if __name__ == "__main__":
    unittest.main(verbosity=2)
