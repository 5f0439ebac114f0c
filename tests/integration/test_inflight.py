# SPDX-License-Identifier: Apache-2.0
"""Requests in flight when a sleep comes: none is lost, none hangs, whatever it was about to do.

The store's node is behind a network that can be made so slow that loads are in flight for as long as a test wants
(and not silent: that would cost the connections).
What ends when is told by the order of events; a sleep's time is printed, and judged nowhere.
"""
import contextlib
import random
import threading
import time
import unittest

import harness

REQUESTS = 64
BLOCKS = 8  # of each, its own
RUNNING = 16  # of them at a time: the others are not scheduled yet
SLOW = 1000  # bytes a second of each connection; a request has a hundred times as many
TOKENS = 24  # that a model says after a prompt
NONE_ENDED = {"requests": 0, "aborted": 0}


class InFlight(harness.Case):
    agreed = None

    def judged(self, counts):
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
        return counts

    def named(self, daemon, name="a"):
        for state in ("shared", "open"):
            harness.until(f"{name} {state}", lambda s=state: daemon.metric(
                f"kvplane_instance_{s}", instance=name) == 1)

    def cluster(self, *engine_args, net=True, name="daemon"):
        """A daemon whose store is a node behind a network, and an engine whose prompts are all there."""
        trace = self.trace([[BLOCKS * r + b for b in range(BLOCKS)] for r in range(2 * REQUESTS)])
        if net:
            if self.agreed is None:
                self.agreed = self.etcd()
                _, self.net = self.proxied_node(self.agreed)
            # What the network holds up does not end by itself, and does not cost the node.
            daemon = self.cluster_daemon(self.agreed, "--node-bound", "5m", "--transfer-bound", "1h", name=name)
            harness.until("the node is reached", lambda: [
                node["state"] for node in daemon.get("/v1/kvplane/nodes")[1]["nodes"]] == ["up"])
        else:
            daemon = self.daemon()
        engine = self.engine(daemon, "a", "--fingerprint", "--trace", trace, "--max-running", str(RUNNING),
                             *engine_args, name=f"a-{name}")
        self.named(daemon)
        put = self.judged(engine.run(0, REQUESTS))
        self.assertEqual(put["stored"], REQUESTS * BLOCKS)
        return daemon, engine

    def load(self, daemon, engine):
        """REQUESTS in flight: as many as may run wait for bytes that do not come, the others to be scheduled."""
        before = engine.stats()
        self.net.rule("back", bytes_per_s=SLOW)
        run = engine.command("run", first=0, count=REQUESTS, use_cache=False)
        harness.until("loads are in flight", lambda: daemon.metric("kvplane_tasks_running", queue="get") > 0)
        harness.until("no more can begin", lambda: engine.stats()["loading"] == RUNNING)
        return run, before

    @contextlib.contextmanager
    def asking(self, daemon, path):
        """POST in a thread; yields the list that gets (code, answer, seconds), and waits for it."""
        answers = []

        def ask():
            begun = time.monotonic()
            code, answer = daemon.post(path, timeout=2 * harness.DEADLINE_S)
            answers.append((code, answer, time.monotonic() - begun))
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield answers
        finally:
            thread.join(2 * harness.DEADLINE_S)
        self.assertTrue(answers, f"{path} was answered")
        self.assertEqual(answers[0][0], 200, answers[0][1])

    def step(self, daemon, step, answers):
        """Until the call is at that step, or (on a busy machine) beyond it and answered."""
        harness.until(f"at {step}", lambda: answers or any(
            op["status"] == "running" and op.get("step") == step
            for op in daemon.get("/v1/kvplane/operations")[1]["operations"]))

    def asleep(self, daemon, engine):
        """Nothing is pending, nothing registered, nothing of the engine's runs."""
        self.assertTrue(daemon.get("/is_sleeping")[1]["is_sleeping"])
        self.assertEqual(daemon.metric("kvplane_regions", instance="a"), 0)
        harness.until("nothing pending", lambda: daemon.pending() == 0)
        stats = engine.stats()
        self.assertEqual((stats["running"], stats["loading"], stats["blocks_held"]), (0, 0, 0), stats)
        return stats

    def all_completed(self, engine, run, count=REQUESTS):
        done = engine.done(run)
        counts = self.judged(done["counts"])
        self.assertEqual((counts["requests"], counts["aborted"], done["unfinished"]), (count, 0, []), counts)
        self.assertEqual(counts["blocks"], count * BLOCKS, "each prompt whole")
        return counts

    def sleep_that_waits(self, *args):
        daemon, engine = self.cluster(*args)
        run, before = self.load(daemon, engine)
        with self.asking(daemon, "/sleep?level=1&mode=wait") as answers:
            self.step(daemon, "pause", answers)
            late = engine.command("run", first=REQUESTS, count=4)  # accepted while it drains
            stats = engine.stats()
            # What had begun goes on, what had not stays where it is, and the sleep waits.
            self.assertEqual((stats["loading"] + stats["running"], stats["waiting"]),
                             (RUNNING, REQUESTS - RUNNING + 4))
            self.assertEqual(answers, [])
            self.assertEqual(daemon.instance("a")["regions"]["registered"], 4 if "--tp=2" in args else 2)
            self.net.tell("clear")
        stats = self.asleep(daemon, engine)
        self.assertEqual(stats["requests"] - before["requests"], RUNNING, "all that had begun, and no other")
        self.assertEqual(stats["hits"] - before["hits"], RUNNING * BLOCKS, "from the store, all of it")
        self.assertEqual(stats["waiting"], REQUESTS - RUNNING + 4)
        later = engine.command("run", first=REQUESTS + 4, count=4)  # accepted while it sleeps
        daemon.ok("/wake_up")
        self.all_completed(engine, run)
        self.all_completed(engine, late, 4)
        self.all_completed(engine, later, 4)
        harness.until("nothing pending", lambda: daemon.pending() == 0)
        self.clean(engine, daemon)

    def test_up_to_a_sleep_that_waits_all_complete_and_the_unscheduled_ones_run_after_the_wake(self):
        self.sleep_that_waits()

    def test_up_to_a_sleep_that_waits_of_an_engine_of_two_ranks(self):
        self.sleep_that_waits("--tp=2", "--store-tp=2")

    def test_up_to_a_sleep_that_waits_of_an_engine_that_tracks_lineage(self):
        self.sleep_that_waits("--tracks-lineage")

    def sleep_that_aborts(self, *args):
        daemon, engine = self.cluster(*args)
        run, before = self.load(daemon, engine)
        with self.asking(daemon, "/sleep?level=1&mode=abort") as answers:
            pass  # it is answered while the network is as slow as ever
        print(f"mode=abort, {REQUESTS} requests in flight: asleep after {answers[0][2]:.3f} s")
        done = engine.event("done", id=run)
        counts = self.judged(done["counts"])
        self.assertEqual((counts["requests"], counts["aborted"]), (0, REQUESTS))
        self.assertEqual(sorted(done["unfinished"]), list(range(REQUESTS)), "each is told of, once")
        stats = self.asleep(daemon, engine)
        self.assertEqual((stats["waiting"], stats["requests"]), (0, before["requests"]))
        later = engine.command("run", first=0, count=REQUESTS, use_cache=False)
        self.net.tell("clear")
        daemon.ok("/wake_up")
        self.all_completed(engine, later)
        self.clean(engine, daemon)

    def test_a_sleep_that_aborts_waits_for_none_of_them(self):
        self.sleep_that_aborts()

    def test_a_sleep_that_aborts_waits_for_none_of_two_ranks(self):
        self.sleep_that_aborts("--tp=2", "--store-tp=2")

    def puts(self, daemon, engine):
        """Requests that are done, but for their puts."""
        stored = engine.stats()["stored"]
        self.net.rule("there", bytes_per_s=SLOW)
        run = engine.command("run", first=REQUESTS, count=RUNNING // 2, use_cache=False)
        harness.until("puts are in flight", lambda: daemon.metric("kvplane_tasks_running", queue="put") > 0)
        harness.until("all are done", lambda: (lambda stats: stats["running"] + stats["loading"] == 0)(engine.stats()))
        self.assertEqual(engine.stats()["stored"], stored)
        return run

    def test_puts_in_flight_are_waited_for_unless_the_sleep_aborts(self):
        for weights, mode in enumerate(("keep", "wait", "abort"), 2):  # each with blocks of its own
            with self.subTest(mode):
                daemon, engine = self.cluster("--weights-id", str(weights), name=mode)
                run = self.puts(daemon, engine)
                with self.asking(daemon, f"/sleep?level=1&mode={mode}") as answers:
                    if mode != "abort":
                        self.step(daemon, "drain", answers)
                        self.assertEqual((answers, daemon.instance("a")["regions"]["registered"]), ([], 2))
                        self.net.tell("clear")
                self.asleep(daemon, engine)
                counts = self.all_completed(engine, run, RUNNING // 2)
                whole = RUNNING // 2 * BLOCKS
                self.assertEqual(counts["stored"] + counts["put_dropped"] + counts["put_fenced"], whole)
                self.assertEqual(counts["stored"], whole if mode != "abort" else 0, counts)
                canceled = daemon.metric("kvplane_puts_total", result="canceled")
                self.assertEqual(canceled, 0 if mode != "abort" else whole, "by the sleep, not for want of an answer")
                self.net.tell("clear")
                daemon.ok("/wake_up")
                self.clean(engine, daemon)

    def test_a_sleep_that_keeps_ends_their_loads_and_they_go_on_as_if_there_had_been_none(self):
        daemon, engine = self.cluster()
        control = self.all_completed(engine, engine.command("run", first=0, count=REQUESTS, use_cache=False))
        for level in (0, 1, 2):
            with self.subTest(level=level):
                run, before = self.load(daemon, engine)
                with self.asking(daemon, f"/sleep?level={level}&mode=keep") as answers:
                    self.step(daemon, "pause", answers)
                    self.assertEqual(answers, [])
                    self.net.tell("clear")
                stats = engine.stats()
                self.assertEqual({k: stats[k] - before[k] for k in NONE_ENDED}, NONE_ENDED, "none has ended")
                if level > 0:
                    self.asleep(daemon, engine)
                    daemon.ok("/wake_up?tags=weights")
                    if level == 2:
                        self.reload(daemon)
                    self.assertEqual(engine.stats()["requests"], before["requests"])
                daemon.ok("/wake_up")
                kept = self.all_completed(engine, run)
                # A level-0 sleep takes nothing from them; a deeper one the blocks, so they begin anew.
                self.assertEqual(kept["preempted"], RUNNING if level > 0 else 0)
                if level == 0:
                    for what in ("blocks", "hits", "computed", "stored"):
                        self.assertEqual(kept[what], control[what], what)
                self.named(daemon)
        self.clean(engine, daemon)

    # ---- the same, of a transformer: token for token ----

    def model(self, *args):
        """An engine that computes, and what it says before it has ever slept; all of it is in the store then."""
        self.agreed = self.etcd()
        _, self.net = self.proxied_node(self.agreed)
        daemon = self.cluster_daemon(self.agreed, "--node-bound", "5m", "--transfer-bound", "1h")
        harness.until("the node is reached", lambda: [
            node["state"] for node in daemon.get("/v1/kvplane/nodes")[1]["nodes"]] == ["up"])
        engine = self.engine(daemon, "a", "--model", "--fingerprint", "--max-running", str(RUNNING), *args)
        self.named(daemon)
        rng = random.Random(5)
        prompts = [[rng.randrange(256) for _ in range(16 * BLOCKS)] for _ in range(REQUESTS)]
        awake = engine.generate(prompts, TOKENS)
        self.assertEqual(sum(output["computed_blocks"] for output in awake["outputs"]), REQUESTS * BLOCKS)
        return daemon, engine, prompts, self.tokens(awake)

    def tokens(self, done):
        self.judged(done["counts"])
        return [output and output["tokens"] for output in done["outputs"]]

    def slept_through(self, level, mode, *args):
        daemon, engine, prompts, want = self.model(*args)
        self.net.rule("back", bytes_per_s=SLOW)
        run = engine.command("generate", prompts=prompts, max_tokens=TOKENS, use_cache=False)
        harness.until("loads are in flight", lambda: daemon.metric("kvplane_tasks_running", queue="get") > 0
                      and engine.stats()["loading"] == RUNNING)
        with self.asking(daemon, f"/sleep?level={level}&mode={mode}") as answers:
            if mode != "abort":
                self.step(daemon, "pause", answers)
                self.net.tell("clear")
        self.net.tell("clear")
        if level > 0:
            self.asleep(daemon, engine)
        late = engine.command("generate", prompts=prompts[:8], max_tokens=TOKENS, use_cache=False)
        daemon.ok("/wake_up?tags=weights")
        if level == 2:
            daemon.ok("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_id": 1}})
        daemon.ok("/wake_up")
        done = engine.done(run)
        if mode == "abort":
            aborted = set(done["unfinished"])
            self.assertGreaterEqual(len(aborted), REQUESTS - RUNNING, "its first loads may just have come")
            self.assertEqual(self.tokens(done), [None if i in aborted else want[i] for i in range(REQUESTS)])
            done = engine.generate(prompts, TOKENS, use_cache=False)
        self.assertEqual(self.tokens(done), want)
        self.assertGreater(sum(output["store_blocks"] for output in done["outputs"]), 0)
        self.assertEqual(self.tokens(engine.done(late)), want[:8])
        self.named(daemon)
        # Half of what comes after each prompt was said before the sleep, half after it.
        run = engine.command("generate", prompts=prompts[:RUNNING], max_tokens=TOKENS, use_cache=False, stall=True)
        engine.event("stalled", id=run)
        daemon.ok(f"/sleep?level={level}&mode=keep")
        daemon.ok("/wake_up?tags=weights")
        if level == 2:
            daemon.ok("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_id": 1}})
        daemon.ok("/wake_up")
        self.assertEqual(self.tokens(engine.done(run)), want[:RUNNING])
        self.clean(engine, daemon)

    def test_tokens_are_those_of_an_engine_that_never_slept_if_the_sleep_waits(self):
        self.slept_through(1, "wait", "--tp=2", "--store-tp=2")

    def test_tokens_are_those_of_an_engine_that_never_slept_if_the_sleep_keeps(self):
        self.slept_through(2, "keep")

    def test_tokens_are_those_of_an_engine_that_never_slept_if_the_sleep_keeps_everything(self):
        self.slept_through(0, "keep", "--tp=2", "--store-tp=2")

    def test_tokens_are_those_of_an_engine_that_never_slept_if_the_sleep_aborts(self):
        self.slept_through(1, "abort")

    # ---- B10: whatever the moment, what was accepted ends or runs after the wake ----

    def at_any_moment(self, *args):
        slow = "pause-late:200,release-late:200,restore-late:200,resume-late:200"
        daemon, engine = self.cluster("--misbehave", slow, *args, net=False)
        for mode in ("abort", "wait", "keep"):
            for down, halves in ((f"/sleep?level=1&mode={mode}", ("weights", "kv_cache")),
                                 (f"/sleep?level=2&mode={mode}", ("weights", "kv_cache")),
                                 ("/release_kv_cache_memory", ("kv_cache",)),
                                 (f"/sleep?level=1&mode={mode}", ("kv_cache", "weights"))):
                with self.subTest(mode=mode, down=down, halves=halves):
                    self.moments(daemon, engine, mode, down, halves)
        self.clean(engine, daemon)

    def moments(self, daemon, engine, mode, down, halves):
        """With the call itself, at each step of it (the engine makes them last), asleep, half awake, waking."""
        accepted = []

        def accept(may_be_aborted):
            n = self.accepted = getattr(self, "accepted", 0) + 1
            run = engine.command("run", indexes=[n % REQUESTS, REQUESTS + n % REQUESTS], use_cache=False)
            accepted.append((run, may_be_aborted))

        release = down.startswith("/release")
        accept(mode == "abort")
        if release:
            daemon.ok(f"/pause?mode={mode}")
        accept(mode == "abort" and not release)
        with self.asking(daemon, down) as answers:
            accept(mode == "abort" and not release)
            for step in ("release",) if release else ("pause", "release"):
                self.step(daemon, step, answers)
                accept(mode == "abort" and step == "pause")  # it may come before the pause does
        accept(False)
        self.idle(daemon, engine)
        for tag in halves:
            with self.asking(daemon, f"/wake_up?tags={tag}") as answers:
                self.step(daemon, "restore", answers)
                accept(False)
            if tag != halves[-1]:
                accept(False)
                if "level=2" in down:
                    self.reload(daemon)
                self.idle(daemon, engine)
        for run, may_be_aborted in accepted:
            done = engine.done(run)
            counts = self.judged(done["counts"])
            self.assertEqual(counts["requests"] + counts["aborted"], 2, done)
            self.assertEqual(len(done["unfinished"]), counts["aborted"])
            if not may_be_aborted:
                self.assertEqual(counts["requests"], 2, done)
        self.named(daemon)

    def idle(self, daemon, engine):
        stats = engine.stats()
        self.assertEqual((stats["running"], stats["loading"]), (0, 0), "nothing before the last tag")
        harness.until("nothing pending", lambda: daemon.pending() == 0)

    def test_a_request_accepted_at_any_moment_of_a_sleep_ends_or_runs_after_the_wake(self):
        self.at_any_moment()

    def test_a_request_of_two_ranks_accepted_at_any_moment_of_a_sleep_ends_or_runs_after_the_wake(self):
        self.at_any_moment("--tp=2", "--store-tp=2")

    def reload(self, daemon):
        daemon.ok("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_id": 1}})


if __name__ == "__main__":
    unittest.main(verbosity=2)
