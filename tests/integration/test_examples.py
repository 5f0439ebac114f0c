# SPDX-License-Identifier: Apache-2.0
"""The examples of the REST contracts, asked of living servers (tests/npm/examples.mjs)."""
import unittest

import harness


class Examples(harness.Case):
    def test_every_operation_does_what_its_examples_show(self):
        etcd = self.etcd()
        store = self.store_node(etcd)
        daemon = self.cluster_daemon(etcd)
        engine = self.engine(daemon, "engine-0", "--fingerprint")
        self.named(daemon, "engine-0")
        harness.until("the node is there", lambda: daemon.get("/v1/kvplane/cluster")[1]["nodes_up"] == 1)
        self.assertGreater(engine.run(0, 20)["stored"], 8)
        busy = self.daemon(name="busy", socket_name="busy.sock")
        self.engine(busy, "engine-0", "--misbehave", "pause-never", name="never")
        harness.node(self, "examples.mjs", harness.API, daemon.url, store.url, busy.url)


if __name__ == "__main__":
    unittest.main()
