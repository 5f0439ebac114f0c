# SPDX-License-Identifier: Apache-2.0
"""Sleep and wake, as a trainer asks for them, of an engine whose blocks go to a store node by RDMA:
nothing of its memory is pinned while it sleeps, the bytes are right, and 50 times leave nothing."""
import contextlib
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
import harness  # noqa: E402

CYCLES = 50
BLOCK = 4096
BLOCKS = 4096
KV = BLOCK * BLOCKS
WEIGHTS = 1 << 20


def memory_free():
    with open("/proc/meminfo", encoding="utf-8") as text:
        return next(int(line.split()[1]) << 10 for line in text if line.startswith("MemFree:"))


class Connector(harness.Case):
    def judged(self, counts):
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
        return counts

    def shared(self, daemon):
        for state in ("shared", "open"):
            harness.until(state, lambda s=state: daemon.metric(
                f"kvplane_instance_{s}", instance="a") == 1)

    def test_sleep_and_wake_over_rdma(self):
        secret = os.path.join(self.directory, "secret")
        with open(secret, "w", encoding="utf-8") as text:
            os.chmod(secret, 0o600)
            text.write("a secret of the cluster, long enough for anybody\n")
        rdma = ("--transport", "rdma", "--secret-file", secret)
        etcd = self.etcd()
        store = self.store_node(etcd, *rdma)
        daemon = self.cluster_daemon(etcd, *rdma)
        engine = self.engine(daemon, "a", "--fingerprint", "--block-bytes", str(BLOCK),
                             "--blocks", str(BLOCKS), "--weights-bytes", str(WEIGHTS))
        self.shared(daemon)
        counts = self.judged(engine.run(0, 10))
        self.assertGreater(counts["stored"], 0)
        pinned = lambda: daemon.status_kib("VmPin") << 10  # noqa: E731
        awake = pinned()
        self.assertGreaterEqual(awake, KV + WEIGHTS)
        hits = 0
        # Not its sockets: what asks etcd at one time has connections of its own, and keeps them for two minutes.
        def descriptors():
            count = 0
            for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    count += not os.readlink(f"/proc/{daemon.pid}/fd/{fd}").startswith("socket:")
            return count
        held = {"descriptors": descriptors, "maps": lambda: daemon.maps("memfd:"), "engine fds": engine.fds,
                "engine maps": lambda: engine.maps("memfd:"), "threads": daemon.threads}
        after_first = None
        for i in range(CYCLES):
            free = memory_free()
            daemon.ok("/sleep?level=1")
            self.assertEqual(pinned(), awake - KV - WEIGHTS, f"asleep, cycle {i}")
            self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
            self.assertGreater(memory_free() - free, KV // 2, f"free while asleep, cycle {i}")
            daemon.ok("/wake_up")
            self.shared(daemon)
            self.assertEqual(pinned(), awake, f"awake, cycle {i}")
            hits += self.judged(engine.run(i % 10, 2))["hits"]
            now = {what: count() for what, count in held.items()}
            after_first = after_first or now
            # What a call has just let go of may take a moment; what is kept stays.
            for what, count in held.items():
                harness.until(f"no more {what} than after the first cycle",
                              lambda w=what, c=count: c() <= after_first[w])
        self.assertGreater(hits, 0, "the store gave back what was put before a sleep")
        print(f"{CYCLES} cycles: {awake >> 20} MiB pinned awake, "
              f"{(awake - KV - WEIGHTS) >> 10} KiB asleep, {hits} blocks by RDMA")
        self.clean(engine, daemon, store)


if __name__ == "__main__":
    unittest.main()
