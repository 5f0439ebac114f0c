# SPDX-License-Identifier: Apache-2.0
"""Part of the cluster loses etcd, and nothing else: a member that cannot hear leaves before anybody counts it out.

Daemon b and the store node reach etcd through a network that can go silent; daemon a reaches it always.
"""
import unittest

import harness

REQUESTS = 40


class View:
    """An etcd as those see it that reach it through a proxy."""

    def __init__(self, proxy):
        self.endpoints = f"http://{proxy.address}"


class Partition(harness.Case):
    def setUp(self):
        super().setUp()
        agreed = self.etcd()
        self.net = self.proxy(agreed.members[0].url.removeprefix("http://"), name="etcd-net")
        behind = View(self.net)
        lease = ("--lease", "3s")
        self.node = self.store_node(behind, *lease, store_bytes="256MiB")
        self.a, self.b = (self.cluster_daemon(view, *lease, name=f"daemon-{name}")
                          for view, name in ((agreed, "a"), (behind, "b")))
        self.ea, self.eb = (self.engine(daemon, name, "--fingerprint", requests=REQUESTS)
                            for daemon, name in ((self.a, "a"), (self.b, "b")))
        self.together()

    def together(self):
        for daemon, name in ((self.a, "a"), (self.b, "b")):
            harness.until("the node is there", lambda d=daemon: d.get("/v1/kvplane/nodes")[1]["nodes"])
            for state in ("shared", "open"):
                harness.until(state, lambda d=daemon, s=state: d.metric(f"kvplane_instance_{s}") == 1)
        harness.until("one lineage", lambda: self.lineage(self.a, "a") == self.lineage(self.b, "b"))

    def lineage(self, daemon, name):
        return daemon.instance(name)["lineage"]["id"]

    def judged(self, counts):
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
        return counts

    def read(self, engine):
        return self.judged(engine.run(0, REQUESTS, use_cache=False))

    def test_who_cannot_hear_of_a_reset_has_left_when_the_reset_is_a_success(self):
        self.read(self.ea)
        counts = self.read(self.eb)
        self.assertEqual(counts["hits"], counts["looked_up"], "they share")
        left = self.lineage(self.b, "b")
        self.net.rule("there", then="drop")
        self.net.rule("back", then="drop")
        reset = "/reset_prefix_cache?reset_external=true&instance=a"
        harness.until("a success", lambda: self.a.ok(reset)["success"])
        # The node has not heard of it either: the cleared blocks still lie there, and b reaches them.
        self.assertGreater(self.node.metric("kvplane_store_used_bytes"), 0)
        self.assertEqual(self.judged(self.eb.run(0, 1, use_cache=False))["hits"], 0)
        self.assertNotEqual(self.lineage(self.b, "b"), left)
        # Sleep and wake go on, and say what is pending.
        self.assertEqual(self.b.ok("/sleep?level=1&instance=b").get("external"), "pending")
        self.b.ok("/wake_up?instance=b")
        refused = self.b.ok("/reset_prefix_cache?reset_external=true&instance=b")
        self.assertFalse(refused["success"], refused)
        self.read(self.eb)
        self.net.tell("clear")
        self.together()
        harness.until("what is retired is reclaimed", lambda: self.node.metric("kvplane_store_used_bytes") == 0)
        self.read(self.ea)
        counts = self.read(self.eb)
        self.assertEqual(counts["hits"], counts["looked_up"], "they share again")
        self.clean(self.ea, self.eb, self.a, self.b, self.node)


if __name__ == "__main__":
    unittest.main(verbosity=2)
