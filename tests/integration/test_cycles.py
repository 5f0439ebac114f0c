# SPDX-License-Identifier: Apache-2.0
"""Many cycles leave nothing behind; engines that answer late or never are never trusted."""
import unittest

import harness


def judged(case, counts):
    case.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
    return counts


class Cycles(harness.Case):
    def open_(self, daemon, name="a"):
        for state in ("shared", "open"):
            harness.until(f"{name} {state}", lambda s=state: daemon.metric(
                f"kvplane_instance_{s}", instance=name) == 1)

    def reload(self, daemon):
        daemon.ok("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_id": 1}})

    def cycle(self, daemon, form):
        """One way there and back (B01, step 3)."""
        mapped = daemon.maps("memfd:")
        if form == "sleep":
            daemon.ok("/sleep?level=1")
        elif form == "sleep-by-tags":
            daemon.ok("/sleep?level=2")
        else:
            daemon.ok("/pause")
            daemon.ok("/release_kv_cache_memory")
        harness.until("no region of it", lambda: daemon.metric(
            "kvplane_regions", instance="a") == (1 if form == "release" else 0))
        self.assertEqual(daemon.maps("memfd:"), mapped - (1 if form == "release" else 2),
                         "no mapping of released memory")
        if form == "sleep":
            daemon.ok("/wake_up")
        else:
            daemon.ok("/wake_up?tags=weights")
            if form == "sleep-by-tags":
                self.reload(daemon)
            daemon.ok("/wake_up?tags=kv_cache")
        self.assertFalse(daemon.get("/is_sleeping")[1]["is_sleeping"])
        self.assertFalse(daemon.get("/is_paused")[1]["is_paused"])
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 2)

    def test_twenty_cycles_leave_descriptors_mappings_and_memory_as_after_the_first(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint")
        forms = ("sleep", "sleep-by-tags", "release")
        after_first = {}
        for i in range(20):
            judged(self, engine.run(0, 20))
            self.cycle(daemon, forms[i % len(forms)])
            self.open_(daemon)
            held = {"fds": daemon.fds, "maps": lambda: daemon.maps("memfd"), "engine fds": engine.fds,
                    "engine maps": lambda: engine.maps("memfd"), "threads": daemon.threads}
            if i == len(forms) - 1:
                after_first = {what: value() for what, value in held.items()}
                rss = daemon.status_kib("RssAnon"), engine.status_kib("RssAnon")
            elif i >= len(forms):
                for what, value in held.items():  # a connection that was asked on may not have ended yet
                    harness.until(f"{what} as after the first", lambda: value() <= after_first[what] + (what == "fds"))
        # The store holds what was put meanwhile: its share is not anonymous memory of the heap.
        if not harness.SANITIZED:
            self.assertLess(engine.status_kib("RssAnon"), rss[1] + 2048)
        harness.until("nothing pending", lambda: daemon.pending() == 0)
        self.clean(engine, daemon)

    def test_an_engine_that_answers_a_release_late_is_asleep_when_it_says_so(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint", "--misbehave", "release-late:300")
        judged(self, engine.run(0, 20))
        daemon.ok("/sleep?level=1")
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
        daemon.ok("/wake_up")
        self.open_(daemon)
        judged(self, engine.run(0, 20))
        self.clean(engine, daemon)

    def test_an_engine_that_refuses_to_release_serves_on_and_the_retry_works(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint", "--misbehave", "release-refuse:1")
        judged(self, engine.run(0, 20))
        code, answer = daemon.post("/sleep?level=1")
        self.assertGreaterEqual(code, 400, answer)
        self.assertFalse(daemon.get("/is_sleeping")[1]["is_sleeping"])
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 2)
        self.open_(daemon)
        judged(self, engine.run(0, 20))
        daemon.ok("/sleep?level=1")
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
        daemon.ok("/wake_up")
        self.clean(engine, daemon)

    def test_an_engine_that_never_becomes_idle_fails_the_sleep_and_serves_on(self):
        daemon = self.daemon("--drain-bound", "3s")
        engine = self.engine(daemon, "a", "--fingerprint", "--misbehave", "pause-never:1")
        judged(self, engine.run(0, 20))
        code, answer = daemon.post("/sleep?level=1")
        self.assertGreaterEqual(code, 400, answer)
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 2)
        self.assertEqual(daemon.get("/health")[0], 200)
        daemon.ok("/sleep?level=1")
        daemon.ok("/wake_up")
        self.open_(daemon)
        judged(self, engine.run(0, 20))
        self.clean(engine, daemon)

    def test_an_engine_sleeps_in_the_middle_of_its_work(self):
        """B10, B11: nothing hangs, nothing stays pending, whatever the sleep meets."""
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint", requests=400)
        other = self.engine(daemon, "b", "--fingerprint", requests=400)
        self.open_(daemon)
        self.open_(daemon, "b")
        for mode in ("abort", "wait", "keep") * 3:
            running = engine.command("run", first=0, count=200, use_cache=False)
            beside = other.command("run", first=100, count=100, use_cache=False)
            harness.until("it works", lambda: (daemon.instance("a")["load"]["running"]
                                               + daemon.pending()) > 0
                          or engine.stats()["running"] == 0)
            daemon.ok(f"/sleep?level=1&mode={mode}&instance=a")
            self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
            daemon.ok("/wake_up?instance=a")
            judged(self, engine.wait(running))
            judged(self, other.wait(beside))
            harness.until("nothing pending", lambda: daemon.pending() == 0)
        self.clean(other, engine, daemon)


if __name__ == "__main__":
    unittest.main(verbosity=2)
