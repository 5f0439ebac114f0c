# SPDX-License-Identifier: Apache-2.0
"""kill -9 of engines and daemons at bad moments. The engines check every byte they get."""
import unittest

import harness


def judged(case, counts):
    case.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
    return counts


class Crash(harness.Case):
    def named(self, daemon, *names):
        for name in names:
            for state in ("shared", "open"):
                harness.until(f"{name} {state}", lambda n=name, s=state: daemon.metric(
                    f"kvplane_instance_{s}", instance=n) == 1)

    def test_an_engine_killed_in_the_middle_of_puts_and_gets_harms_nobody(self):
        daemon = self.daemon()
        b = self.engine(daemon, "b", "--fingerprint", requests=400)
        self.named(daemon, "b")
        fds = None
        maps = None
        for round_ in range(6):
            a = self.engine(daemon, "a", "--fingerprint", requests=400, name=f"a{round_}")
            self.named(daemon, "a")
            moved = daemon.metric("kvplane_puts_total", result="ok")
            a.command("run", first=0, count=400, use_cache=False)
            running = b.command("run", first=0, count=60, use_cache=False)
            if round_ % 2 == 0:  # as soon as it moves anything, or later
                harness.until("it puts", lambda m=moved: daemon.pending() > 0 or daemon.metric(
                    "kvplane_puts_total", result="ok") > m)
            else:
                harness.until("it gets", lambda: daemon.metric("kvplane_gets_total",
                                                               result="ok") > 0)
            a.kill()
            judged(self, b.wait(running))
            harness.until("the dead one is noticed", lambda: daemon.metric(
                "kvplane_instance_up", instance="a") == 0)
            harness.until("nothing pending", lambda: daemon.pending() == 0)
            harness.until("nothing reserved", lambda: daemon.metric("kvplane_store_reserved_bytes") == 0)
            harness.until("its regions are gone", lambda: daemon.metric("kvplane_regions", instance="a") == 0)
            if round_ == 0:
                fds, maps = daemon.fds(), daemon.maps("memfd")
            else:
                harness.until("its descriptors are gone", lambda: daemon.fds() <= fds)
                harness.until("its memory is let go", lambda: daemon.maps("memfd") == maps)
        a = self.engine(daemon, "a", "--fingerprint", requests=400, name="a-again")
        self.named(daemon, "a")
        counts = judged(self, a.run(0, 60))
        self.assertGreater(counts["hits"], 0, "what b put, whole")
        self.clean(a, b, daemon)

    def restart(self, daemon, *engines):
        """kill -9 of the daemon, and another one in its place."""
        daemon.kill()
        for engine in engines:
            engine.event("detached")
        another = self.daemon(name=f"daemon-{len(self.processes)}")
        for engine in engines:
            engine.event("attached")
        return another

    def tags(self, daemon):
        return daemon.instance("a")["tags"]

    def test_a_daemon_killed_while_the_engine_is_awake(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint")
        judged(self, engine.run(0, 20))
        running = engine.command("run", first=0, count=100, use_cache=False)
        daemon = self.restart(daemon, engine)
        judged(self, engine.wait(running))
        self.assertEqual(set(self.tags(daemon).values()), {"resident"})
        self.named(daemon, "a")
        judged(self, engine.run(0, 20, use_cache=False))
        counts = judged(self, engine.run(0, 20, use_cache=False))
        self.assertGreater(counts["hits"], 0, "its puts of now")
        self.clean(engine, daemon)

    def test_a_daemon_killed_while_the_engine_sleeps(self):
        for level in (1, 2):
            with self.subTest(level=level):
                daemon = self.daemon(name=f"daemon-level-{level}")
                engine = self.engine(daemon, "a", "--fingerprint", name=f"a-level-{level}")
                judged(self, engine.run(0, 20))
                daemon.ok(f"/sleep?level={level}")
                daemon = self.restart(daemon, engine)
                asleep = self.tags(daemon)
                self.assertEqual(asleep["kv_cache"], "discarded")
                self.assertEqual(asleep["weights"], "offloaded" if level == 1 else "discarded")
                self.assertTrue(daemon.get("/is_sleeping")[1]["is_sleeping"])
                self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
                self.assertEqual(daemon.post("/resume")[0], 409, "nothing runs on no memory")
                daemon.ok("/wake_up?tags=weights")
                if level == 2:  # what was discarded is loaded anew
                    daemon.ok("/collective_rpc", {"method": "reload_weights",
                                                  "kwargs": {"weights_id": 1}})
                daemon.ok("/wake_up?tags=kv_cache")
                self.assertEqual(set(self.tags(daemon).values()), {"resident"})
                judged(self, engine.run(0, 20))
                self.clean(engine, daemon)

    def test_a_daemon_killed_while_the_engine_is_half_awake(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint")
        judged(self, engine.run(0, 20))
        daemon.ok("/sleep?level=1")
        daemon.ok("/wake_up?tags=weights")
        daemon = self.restart(daemon, engine)
        self.assertEqual(self.tags(daemon), {"kv_cache": "discarded", "weights": "resident"})
        self.assertTrue(daemon.get("/is_sleeping")[1]["is_sleeping"])
        harness.until("what is resident is handed over", lambda: daemon.metric("kvplane_regions", instance="a") == 1)
        daemon.ok("/wake_up?tags=kv_cache")
        self.assertFalse(daemon.get("/is_sleeping")[1]["is_sleeping"])
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 2)
        judged(self, engine.run(0, 20))
        self.clean(engine, daemon)

    def test_a_daemon_killed_in_the_middle_of_a_sleep(self):
        for call in ("pause", "release"):
            with self.subTest(call):
                daemon = self.daemon(name=f"daemon-{call}")
                engine = self.engine(daemon, "a", "--fingerprint", "--misbehave",
                                     f"{call}-never:1", name=f"a-{call}")
                judged(self, engine.run(0, 20))
                with self.assertRaises((TimeoutError, OSError)):
                    daemon.post("/sleep?level=1", timeout=1)
                daemon = self.restart(daemon, engine)
                daemon.ok("/sleep?level=1")
                self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
                daemon.ok("/wake_up")
                daemon.post("/resume")
                self.assertEqual(set(self.tags(daemon).values()), {"resident"})
                judged(self, engine.run(0, 20))
                self.clean(engine, daemon)


if __name__ == "__main__":
    unittest.main(verbosity=2)
