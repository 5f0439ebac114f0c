# SPDX-License-Identifier: Apache-2.0
"""Faults that others shipped, each as the promise that must hold instead, seen from outside.

The numbers are those of the public bug reports in the project's list of cases. Where a case is about one
layer, its tests stand with that layer's unit tests; here is what a user would have met.
"""
import http.client
import random
import subprocess
import threading
import unittest

import harness

SEED = 20261129
# Every way to say yes and no (case 14).
YES = ("true", "TRUE", "True", "1", "on", "yes", "t", "y")
NO = ("false", "FALSE", "0", "off", "no", "f", "n")


class Reports(harness.Case):
    def hits(self, engine):
        """How many blocks of its first twenty requests the store serves, and of how many."""
        counts = engine.run(0, 20, use_cache=False)
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0))
        return counts["hits"], counts["looked_up"]

    def opened(self, daemon, instance, *args):
        """An engine whose lookups and puts count from now on."""
        engine = self.engine(daemon, instance, *args)
        harness.until("open", lambda: daemon.metric("kvplane_instance_open", instance=instance) == 1)
        return engine

    def filled(self):
        daemon = self.daemon()
        engine = self.opened(daemon, "a")
        engine.run(0, 20)
        hits, asked = self.hits(engine)
        self.assertEqual(hits, asked)
        return daemon, engine, asked

    def wake(self, daemon, path):
        if path.startswith("/pause"):
            daemon.ok("/resume")
        elif not path.startswith("/reset"):
            daemon.ok("/wake_up")
        if "level=2" in path:
            daemon.ok("/collective_rpc", {"method": "reload_weights"})

    def test_B02_a_clear_that_says_success_has_cleared_on_every_route(self):
        daemon, engine, asked = self.filled()
        for path in ("/reset_prefix_cache?reset_external=true", "/pause?clear_cache=true",
                     "/sleep?level=1", "/sleep?level=2", "/release_kv_cache_memory"):
            with self.subTest(path):
                daemon.ok(path)
                self.wake(daemon, path)
                cleared = engine.run(0, 1, use_cache=False)
                self.assertEqual(cleared["hits"], 0)
                self.assertGreater(cleared["stored"], 0)
                stored = engine.run(0, 1, use_cache=False)
                self.assertEqual(stored["hits"], stored["looked_up"], "and what it put since is there")
                engine.run(0, 20, use_cache=False)
        # With the opt-out everything stays.
        for path in ("/pause?clear_cache=true&reset_external=false", "/sleep?level=1&reset_external=false",
                     "/release_kv_cache_memory?reset_external=false", "/reset_prefix_cache"):
            with self.subTest(path):
                daemon.ok(path)
                self.wake(daemon, path)
                self.assertEqual(self.hits(engine), (asked, asked))

    def test_B02_used_bytes_come_back_when_everything_was_reset(self):
        daemon, _, _ = self.filled()
        self.assertGreater(daemon.metric("kvplane_store_used_bytes"), 0)
        daemon.ok("/v1/kvplane/tenants/default/reset")
        harness.until("empty", lambda: daemon.metric("kvplane_store_used_bytes") == 0)

    def test_B04_a_refused_reset_says_so_and_a_script_can_ask_for_a_status(self):
        daemon, engine, _ = self.filled()
        run = engine.command("run", first=0, count=8, stall=True)
        engine.event("stalled", id=run)
        code, answer = daemon.post("/reset_prefix_cache")
        self.assertEqual((code, answer["success"]), (200, False))
        code, answer = daemon.post("/reset_prefix_cache?strict=true")
        self.assertEqual(code, 409, answer)
        self.assertIn("held", answer["error"]["message"])
        daemon.ok("/pause?mode=keep&clear_cache=false")
        daemon.ok("/resume")
        engine.wait(run)
        self.assertTrue(daemon.ok("/reset_prefix_cache?strict=true")["success"])

    def test_B04_whatever_part_of_a_reset_fails_its_answer_and_the_exit_code_say_so(self):
        etcd = self.etcd()
        self.store_node(etcd)
        daemon = self.cluster_daemon(etcd)
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")

        def reset():
            """HTTP code and success, and the exit code of the command."""
            code, answer = daemon.post("/reset_prefix_cache?reset_external=true&strict=true")
            done = subprocess.run([harness.PROGRAM, "reset", "--reset-external", "true", "--url", daemon.url],
                                  capture_output=True, text=True, timeout=60)
            return code, answer["success"], done.returncode

        harness.until("etcd is there", lambda: daemon.get("/v1/kvplane/cluster")[1]["coordinator_reachable"])
        run = engine.command("run", first=0, count=8, stall=True)
        engine.event("stalled", id=run)
        self.assertEqual(reset(), (409, False, 1), "blocks are held")
        daemon.ok("/pause?mode=keep&clear_cache=false")
        daemon.ok("/resume")
        engine.wait(run)
        self.assertEqual(reset(), (200, True, 0))
        etcd.freeze()  # the store cannot be told
        harness.until("it is away", lambda: not daemon.get("/v1/kvplane/cluster")[1]["coordinator_reachable"])
        code, success, exit_code = reset()
        self.assertGreaterEqual(code, 400)
        self.assertEqual((success, exit_code), (False, 1))
        etcd.freeze(False)
        harness.until("it is back", lambda: daemon.get("/v1/kvplane/cluster")[1]["coordinator_reachable"])
        harness.until("success again", lambda: reset() == (200, True, 0))
        self.clean(engine, daemon)

    def test_B05_a_sleep_of_which_a_step_failed_has_released_nothing_and_the_retry_sleeps(self):
        for call in ("pause", "reset_local", "release"):
            for path in ("/sleep?level=1", "/sleep?level=2"):
                with self.subTest(call=call, path=path):
                    daemon = self.daemon(name=f"{call}-{path[-1]}", socket_name=f"{call}{path[-1]}.sock")
                    # The daemon asks for a local reset by itself, too: one that is refused always is.
                    again = call != "reset_local"
                    engine = self.engine(daemon, "a", "--misbehave", f"{call}-refuse" + ":1" * again,
                                         name=f"engine-{call}-{path[-1]}")
                    code, answer = daemon.post(path)
                    forward = call == "release" and path.endswith("2")
                    if not forward:  # of level 2 nothing is kept aside: what was begun is gone on with
                        self.assertGreaterEqual(code, 400, answer)
                        self.assertEqual(answer["state"]["tags"], {"kv_cache": "resident", "weights": "resident"})
                        view = daemon.instance("a")
                        self.assertEqual((view["is_sleeping"], view["degraded"]), (False, False))
                        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 2)
                        harness.until("it serves on", lambda d=daemon: d.get("/readyz")[0] == 200)
                        self.assertEqual(engine.run(0, 2)["errors"], 0)
                    if not again:
                        self.assertGreaterEqual(daemon.post(path)[0], 400, "as long as it is so")
                        self.clean(engine, daemon)
                        continue
                    if not forward:
                        daemon.ok(path)
                    self.assertTrue(daemon.instance("a")["is_sleeping"])
                    self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
                    daemon.ok("/wake_up")
                    self.clean(engine, daemon)

    def test_B06_nothing_is_scheduled_while_the_kv_cache_is_unmapped(self):
        daemon, engine, _ = self.filled()
        for first, last in (("weights", "kv_cache"), ("kv_cache", "weights")):
            with self.subTest(first):
                daemon.ok("/sleep?level=1")
                run = engine.command("run", first=0, count=4)
                for ignored in (first, "nonsense", ""):
                    self.assertEqual(daemon.ok(f"/wake_up?tags={ignored}")["status"], "sleeping")
                self.assertEqual(daemon.get("/is_sleeping"), (200, {"is_sleeping": True}))
                self.assertEqual(daemon.get("/readyz")[0], 503)
                self.assertEqual(daemon.get("/health")[0], 200)
                self.assertEqual(daemon.post("/resume")[0], 409)
                stats = engine.stats()
                self.assertEqual((stats["running"], stats["loading"]), (0, 0))
                self.assertEqual(daemon.ok(f"/wake_up?tags={last}")["status"], "awake")
                self.assertEqual(engine.wait(run)["errors"], 0)

    def test_B07_calls_in_any_order_and_number_do_no_harm(self):
        daemon, engine, _ = self.filled()
        for path in ("/wake_up", "/resume", "/sleep", "/sleep", "/release_kv_cache_memory", "/wake_up",
                     "/pause", "/release_kv_cache_memory", "/release_kv_cache_memory", "/sleep?level=2",
                     "/wake_up", "/wake_up", "/pause", "/pause", "/resume", "/resume"):
            code, answer = daemon.post(path)
            self.assertIn(code, (200, 409), (path, answer))
        print(f"seed {SEED}")
        draw = random.Random(SEED)
        paths = ["/pause", "/pause?mode=keep", "/resume", "/sleep?level=0", "/sleep?level=1", "/sleep?level=2",
                 "/wake_up", "/wake_up?tags=weights", "/wake_up?tags=kv_cache", "/release_kv_cache_memory",
                 "/reset_prefix_cache?reset_external=true", "/start_weight_update", "/finish_weight_update"]
        plans = [[draw.choice(paths) for _ in range(10)] for _ in range(40)]
        answers = []

        def client(plan):
            for path in plan:
                answers.append((path, *daemon.post(path, timeout=2 * harness.DEADLINE_S)))

        threads = [threading.Thread(target=client, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 400, "every request got its answer")
        for path, code, answer in answers:
            self.assertIn(code, (200, 409, 503), (path, answer))
            if code == 503:  # the queue of operations is bounded
                self.assertIn("wait", answer["error"]["message"], (path, answer))
        for path in ("/wake_up", "/finish_weight_update", "/resume"):
            daemon.ok(path)
        daemon.ok("/collective_rpc", {"method": "reload_weights"})  # level 2 had discarded them
        self.assertTrue(daemon.instance("a")["ready"])
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 2)
        self.assertEqual(self.hits(engine)[1] > 0, True)

    def test_B14_B16_a_parameter_means_what_it_says_or_is_refused_before_any_effect(self):
        daemon, _, _ = self.filled()
        for value in YES:
            self.assertEqual(daemon.ok(f"/reset_prefix_cache?reset_external={value}")["external"], "done")
        for value in NO:
            self.assertEqual(daemon.ok(f"/reset_prefix_cache?reset_external={value}")["external"], "not_asked")
        before = daemon.settled("a")
        for target, param in (("/reset_prefix_cache?reset_external", "reset_external"),
                              ("/reset_prefix_cache?reset_external=", "reset_external"),
                              ("/reset_prefix_cache?reset_external=2", "reset_external"),
                              ("/sleep?level", "level"), ("/sleep?level=", "level"), ("/sleep?level=abc", "level"),
                              ("/sleep?level=-1", "level"), ("/sleep?level=99", "level"), ("/sleep?level=1.5", "level"),
                              ("/sleep?level=2%20", "level"), ("/sleep?mode=sometimes", "mode")):
            code, answer = daemon.post(target)
            self.assertEqual((code, answer["error"]["param"]), (400, f"query.{param}"), target)
        for path in ("/sleep", "/pause", "/wake_up"):
            for method in ("GET", "PUT", "DELETE"):
                self.assertEqual(daemon.request(method, path)[0], 405, (method, path))
        self.assertEqual(daemon.settled("a"), before, "nothing has happened")
        # A level in the body is the level, and the answer names what is in force.
        self.assertEqual(daemon.ok("/sleep", {"level": 2, "mode": "keep"}),
                         {"status": "sleeping", "level": 2, "mode": "keep"})
        daemon.ok("/wake_up")
        # Absent names and bare question marks are no parameters.
        for target in ("/wake_up?", "/wake_up?&", "/wake_up?=true"):
            daemon.ok(target)

    def test_B22_one_tenants_reset_and_sleep_leave_the_others_objects(self):
        daemon = self.daemon("--tenants", "one=24MiB,two")
        one = self.opened(daemon, "a", "--tenant", "one")
        two = self.opened(daemon, "b", "--tenant", "two")
        one.run(0, 20)
        two.run(0, 20)
        hits, asked = self.hits(two)
        self.assertEqual(hits, asked)
        for path in ("/reset_prefix_cache?reset_external=true&instance=a", "/sleep?level=1&instance=a",
                     "/wake_up?instance=a", "/v1/kvplane/tenants/one/reset"):
            daemon.ok(path)
            self.assertEqual(self.hits(two), (asked, asked), path)
        one.run(0, 200)  # more than its quota
        self.assertLessEqual(daemon.metric("kvplane_tenant_used_bytes", tenant="one"), 24 << 20)
        self.assertEqual(self.hits(two), (asked, asked))

    def test_B31_what_differs_in_weights_layout_or_tenant_never_meets(self):
        daemon = self.daemon()
        first = self.engine(daemon, "a", "--fingerprint")
        others = {
            "tenant": self.engine(daemon, "b", "--fingerprint", "--tenant", "other"),
            "layout": self.engine(daemon, "c", "--fingerprint", "--block-bytes", "8192"),
            "weights": self.engine(daemon, "d", "--fingerprint", "--weights-id", "77"),
        }
        same = self.engine(daemon, "e", "--fingerprint")
        for name in "abcde":
            harness.until("named", lambda n=name: daemon.metric("kvplane_instance_shared", instance=n) == 1)
        first.run(0, 1)
        for what, engine in others.items():
            self.assertEqual(engine.run(0, 1, use_cache=False)["hits"], 0, what)
        counts = same.run(0, 1, use_cache=False)
        self.assertEqual(counts["hits"], counts["looked_up"])

    def test_B45_a_reset_holds_up_nobody_and_what_is_put_after_it_stays(self):
        daemon = self.daemon("--store-bytes", "256MiB")
        engine = self.opened(daemon, "a", "--block-bytes", "4096")
        other = self.opened(daemon, "b")
        other.run(0, 20)
        engine.run(0, 200)
        self.assertTrue(daemon.ok("/reset_prefix_cache?reset_external=true&reset_running_requests=true&instance=a")
                        ["success"])
        engine.run(0, 20)
        hits, asked = self.hits(engine)
        self.assertEqual(hits, asked, "put after the reset")
        hits, asked = self.hits(other)
        self.assertEqual(hits, asked)

    def test_a_client_that_goes_away_cancels_nothing(self):
        daemon, _, _ = self.filled()
        connection = http.client.HTTPConnection(daemon.host, daemon.port)
        connection.request("POST", "/sleep?level=1")
        connection.close()
        harness.until("asleep all the same", lambda: daemon.get("/is_sleeping")[1]["is_sleeping"])
        daemon.ok("/wake_up")


if __name__ == "__main__":
    unittest.main()
