# SPDX-License-Identifier: Apache-2.0
"""What the tests of vLLM ask of its sleep, pause and reset endpoints, asked of the daemon and a reference engine
(tests/parity.md says which is which)."""
import re
import unittest

import harness

BLOCKS = 8
REQUESTS = 20
# Of a path, an address or a line of code nothing is told to clients.
INSIDE = re.compile(r"(/[a-z0-9_.-]+){2,}/?(?!\w)|\.[ch]:\d|0x[0-9a-f]{6,}|Traceback", re.IGNORECASE)


class Upstream(harness.Case):
    def start(self, *args, **kw):
        trace = self.trace([[BLOCKS * r + b for b in range(BLOCKS)] for r in range(REQUESTS)])
        daemon = self.daemon(**kw)
        engine = self.engine(daemon, "a", "--fingerprint", "--trace", trace, *args)
        self.open_(daemon)
        return daemon, engine

    def open_(self, daemon):
        for state in ("shared", "open"):
            harness.until(state, lambda s=state: daemon.metric(f"kvplane_instance_{s}", instance="a") == 1)

    def judged(self, counts, requests=REQUESTS):
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
        self.assertEqual(counts["requests"], requests, counts)
        return counts

    def operations(self, daemon):
        return [(op["operation"], op["status"]) for op in daemon.get("/v1/kvplane/operations")[1]["operations"]]

    def counted(self, daemon, operation, status):
        return daemon.metric("kvplane_operations_total", operation=operation, outcome=status)

    def test_defaults_and_bodies_of_sleep_and_wake(self):
        daemon, engine = self.start()
        self.assertEqual(daemon.ok("/sleep"), {"status": "sleeping", "level": 1, "mode": "abort"})
        self.assertEqual(daemon.instance("a")["tags"], {"kv_cache": "discarded", "weights": "offloaded"})
        woken = daemon.ok("/wake_up?tags=kv_cache")
        self.assertEqual((woken["status"], woken["tags_woken"]), ("sleeping", ["kv_cache"]))
        woken = daemon.ok("/wake_up?tags=weights&tags=kv_cache")
        self.assertEqual((woken["status"], woken["tags_woken"]), ("awake", ["weights"]), "what was woken, no echo")
        woken = daemon.ok("/wake_up")
        self.assertEqual((woken["status"], woken["tags_woken"]), ("awake", []))
        self.clean(engine, daemon)

    def test_what_is_asked_wrongly_is_refused_before_anything_and_counted_nowhere(self):
        daemon, engine = self.start()
        before = daemon.settled("a"), self.operations(daemon), engine.stats()
        for target, param in (("/sleep?level=3", "level"), ("/sleep?level=-1", "level"), ("/sleep?level=one", "level"),
                              ("/sleep?mode=never", "mode"), ("/pause?mode=never", "mode"),
                              ("/pause?clear_cache=maybe", "clear_cache"),
                              ("/reset_prefix_cache?reset_external=maybe", "reset_external"),
                              ("/reset_prefix_cache?reset_running_requests=2", "reset_running_requests")):
            code, answer = daemon.post(target)
            self.assertEqual((code, answer["error"]["param"]), (400, f"query.{param}"), target)
        self.assertEqual((daemon.instance("a"), self.operations(daemon), engine.stats()), before)
        daemon.ok("/pause")  # ... also not while it is paused
        paused = daemon.settled("a")
        self.assertEqual(daemon.post("/pause?mode=never")[0], 400)
        self.assertEqual(daemon.instance("a"), paused)
        daemon.ok("/resume")
        harness.until("counted", lambda: self.counted(daemon, "resume", "ok") == 1)
        self.assertEqual(self.counted(daemon, "pause", "ok"), 1)
        code, text = daemon.get("/metrics")
        self.assertEqual(code, 200)
        self.assertNotRegex(text, r'kvplane_operations_total\{operation="(sleep|reset)')
        self.clean(engine, daemon)

    def test_operations_are_counted_by_how_they_ended_and_none_stays_in_flight(self):
        for misbehave, plays in (
                ("release-refuse:1", (("/sleep", "sleep", 0, 1), ("/sleep", "sleep", 1, 1), ("/wake_up", "wake", 1, 0),
                                      ("/pause", "pause", 1, 0), ("/resume", "resume", 1, 0))),
                ("restore-refuse:1", (("/sleep", "sleep", 1, 0), ("/wake_up", "wake", 0, 1), ("/wake_up", "wake", 1, 1))),
                ("pause-refuse:1", (("/release_kv_cache_memory", "release_kv_cache_memory", 0, 1),
                                    ("/release_kv_cache_memory", "release_kv_cache_memory", 1, 1)))):
            with self.subTest(misbehave):
                daemon, engine = self.start("--misbehave", misbehave, name=f"daemon-{misbehave}",
                                            socket_name=misbehave[:9])
                ended = {}
                for path, operation, ok, bad in plays:
                    code, answer = daemon.post(path)
                    self.assertEqual(code < 400, (ok, bad) != ended.get(operation, (0, 0)) and
                                     ok > ended.get(operation, (0, 0))[0], (path, answer))
                    ended[operation] = (ok, bad)
                    self.assertFalse([op for op in self.operations(daemon) if op[1] == "running"])
                    self.assertEqual(self.operations(daemon)[0][0], operation, "newest first")
                    self.assertEqual(daemon.get("/is_sleeping")[1]["is_sleeping"],
                                     daemon.metric("kvplane_instance_sleeping", instance="a") == 1)
                for operation, (ok, bad) in ended.items():
                    harness.until(f"{operation} counted", lambda o=operation, n=ok: self.counted(daemon, o, "ok") == n)
                    self.assertEqual(self.failed(daemon, operation), bad)
                    self.assertEqual(daemon.metric("kvplane_operation_seconds_count", operation=operation), ok + bad)
                self.clean(engine, daemon)

    def failed(self, daemon, operation):
        return sum(float(line.rsplit(" ", 1)[1]) for line in daemon.get("/metrics")[1].splitlines()
                   if line.startswith("kvplane_operations_total{") and f'operation="{operation}"' in line
                   and 'outcome="ok"' not in line)

    def test_again_is_200_and_nothing_happens(self):
        daemon, engine = self.start()
        self.judged(engine.run(0, REQUESTS))
        daemon.ok("/sleep")
        asleep = daemon.settled("a", regions=0)
        for path in ("/sleep", "/sleep?level=1&mode=wait", "/sleep?level=0"):
            daemon.ok(path)
            self.assertEqual(daemon.instance("a"), asleep, path)
        daemon.ok("/sleep?level=2")  # deeper is not nothing
        self.assertEqual(set(daemon.instance("a")["tags"].values()), {"discarded"})
        daemon.ok("/wake_up?tags=weights")
        daemon.ok("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_id": 1}})
        daemon.ok("/wake_up")
        self.open_(daemon)
        awake = daemon.settled("a")
        for path in ("/wake_up", "/wake_up?tags=weights", "/wake_up?tags=scheduling", "/resume"):
            daemon.ok(path)
            self.assertEqual(daemon.instance("a"), awake, path)
        for _ in range(3):  # pause and resume, each twice
            for path, paused in (("/pause", True), ("/pause", True), ("/resume", False), ("/resume", False)):
                daemon.ok(path)
                self.assertEqual(daemon.get("/is_paused")[1], {"is_paused": paused})
                self.assertEqual(daemon.get("/is_sleeping")[1], {"is_sleeping": False})
            self.judged(engine.run(0, REQUESTS))
        self.clean(engine, daemon)

    def test_asleep_at_level_0_requests_wait_and_nothing_was_given_up(self):
        daemon, engine = self.start()
        self.judged(engine.run(0, REQUESTS))
        self.open_(daemon)
        regions = daemon.instance("a")["regions"]
        for mode in ("abort", "wait", "keep"):
            for up in ("/wake_up", "/wake_up?tags=scheduling"):
                with self.subTest(mode=mode, up=up):
                    daemon.ok(f"/sleep?level=0&mode={mode}")
                    run = engine.command("run", first=0, count=REQUESTS)
                    daemon.ok("/wake_up?tags=weights")
                    stats = engine.stats()
                    self.assertEqual((stats["running"], stats["waiting"]), (0, REQUESTS))
                    self.assertTrue(daemon.get("/is_sleeping")[1]["is_sleeping"])
                    self.assertEqual(daemon.instance("a")["regions"], regions)
                    self.assertEqual(daemon.ok(up)["status"], "awake")
                    counts = self.judged(engine.wait(run))
                    self.assertEqual(counts["local_hits"], REQUESTS * BLOCKS, "its own cache is whole")
        self.clean(engine, daemon)

    def test_what_clears_the_local_cache_and_what_does_not(self):
        daemon, engine = self.start()
        whole = REQUESTS * BLOCKS
        self.judged(engine.run(0, REQUESTS))
        for down, up, kept in (("/pause?clear_cache=false", "/resume", True), ("/pause", "/resume", False),
                               ("/pause?mode=keep&clear_cache=false", "/resume", True),
                               ("/pause?mode=keep&clear_cache=true", "/resume", False),
                               ("/sleep?level=0", "/wake_up", True), ("/sleep?level=1", "/wake_up", False),
                               ("/sleep?level=1&reset_external=false", "/wake_up", False),
                               ("/release_kv_cache_memory", "/wake_up?tags=kv_cache", False),
                               ("/reset_prefix_cache", None, False),
                               ("/reset_prefix_cache?reset_external=true", None, False)):
            with self.subTest(down):
                daemon.ok(down)
                if up:
                    daemon.ok(up)
                self.open_(daemon)
                counts = self.judged(engine.run(0, REQUESTS))
                self.assertEqual(counts["local_hits"], whole if kept else 0)
                # The weights are the same by their fingerprint: what was not cleared for all is in the store.
                external = "reset_external=true" in down
                self.assertEqual(counts["hits"], 0 if kept or external else whole)
                self.assertEqual(self.judged(engine.run(0, REQUESTS))["local_hits"], whole)
        self.clean(engine, daemon)

    def test_each_pause_mode_ends_or_keeps_what_runs_and_holds_what_comes(self):
        daemon, engine = self.start("--max-running", "4")
        for mode, aborted, stalls in (("abort", REQUESTS, True), ("keep", 0, True), ("wait", 0, False)):
            with self.subTest(mode):
                run = engine.command("run", first=0, count=4 if stalls else REQUESTS, use_cache=False, stall=stalls)
                if stalls:
                    engine.event("stalled", id=run)  # half way through, each
                    more = engine.command("run", first=4, count=REQUESTS - 4, use_cache=False)
                    harness.until("they wait", lambda: engine.stats()["waiting"] == REQUESTS - 4)
                self.assertEqual(daemon.ok(f"/pause?mode={mode}&clear_cache=false"),
                                 {"status": "paused", "mode": mode, "clear_cache": False})
                late = engine.command("run", first=0, count=4)
                stats = engine.stats()
                self.assertEqual(stats["loading"], 0)
                self.assertGreaterEqual(stats["waiting"], 4, "what comes is held")
                runs = [run] + ([more] if stalls else [])
                daemon.ok("/resume")
                counts = [engine.wait(number) for number in runs]
                self.assertEqual(sum(one["aborted"] for one in counts), aborted)
                self.assertEqual(sum(one["requests"] for one in counts), REQUESTS - aborted)
                self.judged(engine.wait(late), 4)
        self.clean(engine, daemon)

    def test_a_release_is_200_or_an_error_that_says_why_and_a_wake_undoes_it(self):
        daemon, engine = self.start("--misbehave", "pause-refuse:1")
        code, answer = daemon.post("/release_kv_cache_memory")  # idle: it pauses by itself
        self.assertGreaterEqual(code, 500, answer)
        self.assertIn("pause", answer["error"]["message"])
        self.assertEqual(set(daemon.instance("a")["tags"].values()), {"resident"})
        run = engine.command("run", first=0, count=8, stall=True)
        engine.event("stalled", id=run)
        code, answer = daemon.post("/release_kv_cache_memory")
        self.assertEqual(code, 409)
        self.assertIn("pause", answer["error"]["message"])
        daemon.ok("/pause?mode=keep")
        self.assertEqual(daemon.ok("/release_kv_cache_memory")["status"], "kv_cache_released")
        self.assertEqual(daemon.instance("a")["tags"], {"kv_cache": "discarded", "weights": "resident"})
        self.assertEqual(daemon.ok("/release_kv_cache_memory")["status"], "kv_cache_released", "again is nothing")
        daemon.ok("/wake_up?tags=kv_cache")
        self.judged(engine.wait(run), 8)
        self.clean(engine, daemon)

    def test_errors_say_nothing_of_the_inside(self):
        daemon, engine = self.start("--misbehave", "pause-refuse:1,release-refuse:1,restore-refuse:1,relay-refuse:1")
        told = [daemon.post(path) for path in
                ("/sleep?level=9", "/sleep?mode=" + "x" * 4000, "/nowhere", "/pause", "/sleep", "/resume?instance=nobody",
                 "/release_kv_cache_memory", "/wake_up", "/wake_up")]
        told += [daemon.request("DELETE", "/sleep"), daemon.post("/collective_rpc", {"method": 7}),
                 daemon.post("/collective_rpc", {"method": "nonsense"}), daemon.post("/update_weights", {})]
        failures = [answer for code, answer in told if code >= 400]
        self.assertGreater(len(failures), 8, told)
        for answer in failures:
            text = answer["error"]["message"]
            text = text.replace("POST /resume", "").replace("POST /wake_up", "")
            self.assertNotRegex(text, INSIDE)
            self.assertLess(len(text), 1000)
        self.clean(engine, daemon)


if __name__ == "__main__":
    unittest.main(verbosity=2)
