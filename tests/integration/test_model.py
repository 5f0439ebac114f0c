# SPDX-License-Identifier: Apache-2.0
"""Engines that compute: a transformer whose KV lies in the registered regions. Nothing is compared
with a pattern here: what is stale or torn shows as other tokens than those of an engine that was
never without its memory and never got a block from the store."""
import os
import random
import signal
import unittest

import harness

SHARE = "--fingerprint", "--store-tp=2"


def prompts(seed, n, length):
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(length)] for _ in range(n)]


def tokens(done):
    return [output and output["tokens"] for output in done["outputs"]]


def hashes(done):
    return [output["blocks"] for output in done["outputs"]]


def total(done, where):
    return sum(output[f"{where}_blocks"] for output in done["outputs"])


def running(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            return "zombie" not in status.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Model(harness.Case):
    def setUp(self):
        super().setUp()
        self.plane = self.daemon()

    def model(self, instance, *args, **kw):
        return self.engine(self.plane, instance, "--model", *args, **kw)

    def control(self):
        """An engine that shares with nobody."""
        return self.model("alone", "--tenant=other")

    def new_weights(self, instance, weights):
        self.plane.ok(f"/start_weight_update?instance={instance}")
        self.plane.ok(f"/update_weights?instance={instance}",
                      {"update_info": {"names": [], "weights_id": weights}})
        self.plane.ok(f"/finish_weight_update?instance={instance}", {})

    def honest(self, *engines):
        for engine in engines:
            stats = engine.stats()
            self.assertEqual((stats["errors"], stats["story"]), (0, ""))
        self.clean(*engines, self.plane)

    # ---- sharing ----

    def test_engines_split_otherwise_generate_alike_from_each_others_blocks(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        b = self.model("b", *SHARE)
        self.named(self.plane, "a", "b")
        asked = prompts(1, 6, 96)
        want = alone.generate(asked, 40)
        put = a.generate(asked, 40)
        self.assertEqual(tokens(put), tokens(want))
        self.assertEqual(total(put, "computed"), 36)
        self.assertEqual(len(hashes(put)[0]), (96 + 39) // 16)
        got = b.generate(asked, 40)
        self.assertEqual(tokens(got), tokens(want))
        self.assertEqual((total(got, "store"), total(got, "computed")), (30, 6))
        self.assertEqual(hashes(got), hashes(put))
        # An answer that is the beginning of the next prompt: its blocks were put as well.
        more = [prompt + answer for prompt, answer in zip(asked, tokens(want))]
        got = a.generate(more, 8, use_cache=False)
        self.assertEqual(tokens(got), tokens(alone.generate(more, 8)))
        self.assertEqual(total(got, "store"), 6 * 8, "of 136 tokens all that had KV")
        # A block is what came before it, too: the same tokens behind others are not found.
        moved = [[prompt[0] ^ 1] + prompt[1:] for prompt in asked]
        got = b.generate(moved, 8)
        self.assertEqual(tokens(got), tokens(alone.generate(moved, 8)))
        self.assertEqual(total(got, "store"), 0)
        # ... and its own prefix cache is as good
        again = a.generate(asked, 40)
        self.assertEqual((total(again, "local"), total(again, "computed")), (30, 6))
        self.assertEqual(tokens(again), tokens(want))
        self.assertEqual(hashes(again), hashes(put))
        self.honest(a, b, alone)

    def test_four_ranks_and_one_share_blocks_of_four_parts(self):
        four = self.model("four", "--tp=4", "--store-tp=4", "--fingerprint")
        one = self.model("one", "--store-tp=4", "--fingerprint")
        self.named(self.plane, "four", "one")
        asked = prompts(5, 3, 64)
        put = four.generate(asked, 20)
        got = one.generate(asked, 20)
        self.assertEqual((tokens(got), hashes(got)), (tokens(put), hashes(put)))
        self.assertEqual({len(block) for output in hashes(got) for block in output}, {4})
        self.assertEqual(total(got, "store"), 9)
        self.honest(four, one)

    def test_other_weights_say_other_things_and_share_nothing(self):
        a = self.model("a", *SHARE)
        b = self.model("b", "--weights-id=2", *SHARE)
        c = self.model("c", "--tp=2", "--fingerprint")
        self.named(self.plane, "a", "b", "c")
        asked = prompts(2, 4, 64)
        first, other, apart = (engine.generate(asked, 16) for engine in (a, b, c))
        self.assertFalse(any(x == y for x, y in zip(tokens(first), tokens(other))))
        self.assertEqual(tokens(apart), tokens(first))
        for done in (first, other, apart):
            self.assertEqual(total(done, "store"), 0)
        self.honest(a, b, c)

    # ---- sleeping ----

    def test_after_every_form_of_sleep_it_says_the_same(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        b = self.model("b", *SHARE)
        self.named(self.plane, "a", "b")
        want = {}
        for i, (down, up) in enumerate((("/sleep?level=1", "/wake_up"),
                                        ("/release_kv_cache_memory", "/wake_up?tags=kv_cache"),
                                        ("/sleep?level=1&mode=keep", "/wake_up?tags=weights"),
                                        ("/sleep?level=1&mode=wait", "/wake_up"))):
            own, others = prompts(10 + i, 3, 80), prompts(20 + i, 3, 80)
            want = {"own": alone.generate(own, 20), "others": alone.generate(others, 20)}
            self.assertEqual(tokens(a.generate(own, 20)), tokens(want["own"]), down)
            self.plane.ok(f"{down}{'&' if '?' in down else '?'}instance=a")
            put = b.generate(others, 20)  # while the other one is asleep
            self.assertEqual(tokens(put), tokens(want["others"]))
            self.plane.ok(f"{up}{'&' if '?' in up else '?'}instance=a")
            if up.endswith("=weights"):
                self.plane.ok("/wake_up?tags=kv_cache&instance=a")
            self.named(self.plane, "a")
            for asked, name in ((own, "own"), (others, "others")):
                got = a.generate(asked, 20)
                self.assertEqual(tokens(got), tokens(want[name]), (down, name))
                self.assertEqual(total(got, "store"), 12, (down, name))
        self.honest(a, b, alone)

    def test_a_sleep_that_discards_the_weights_forgets_what_they_said(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        self.named(self.plane, "a")
        asked = prompts(3, 4, 64)
        said = []
        for weights in (2, 3, 2):
            before = a.generate(asked, 20)
            self.plane.ok("/sleep?level=2&instance=a")
            self.plane.ok("/wake_up?tags=weights&instance=a")
            self.new_weights("a", weights)
            self.plane.ok("/wake_up?tags=kv_cache&instance=a")
            self.new_weights("alone", weights)
            self.named(self.plane, "a")
            self.assertEqual(a.stats()["weights_id"], weights)
            got = a.generate(asked, 20)
            self.assertEqual(tokens(got), tokens(alone.generate(asked, 20)))
            self.assertNotEqual(tokens(got), tokens(before))
            # what these weights have said before is there again, and nothing else
            self.assertEqual(total(got, "store"), 12 if tokens(got) in said else 0)
            said.append(tokens(got))
        self.honest(a, alone)

    def test_an_update_under_running_requests_leaves_nothing_behind(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        self.named(self.plane, "a")
        asked = prompts(4, 4, 64)
        for weights in (2, 3):
            number = a.command("generate", prompts=asked, max_tokens=400)
            harness.until("running", lambda: a.stats()["running"] == 4)
            self.new_weights("a", weights)  # a bracket does not stop the scheduler
            self.new_weights("alone", weights)
            self.assertEqual(a.done(number)["unfinished"], [])
            self.named(self.plane, "a")
            for _ in range(2):
                self.assertEqual(tokens(a.generate(asked, 20)), tokens(alone.generate(asked, 20)))
        self.honest(a, alone)

    # ---- pausing ----

    def halfway(self, engine, asked):
        """Requests that have said half of what they are to say, and wait."""
        number = engine.command("generate", prompts=asked, max_tokens=30, stall=True)
        engine.event("stalled", id=number)
        return number

    def test_kept_requests_go_on_as_if_nothing_had_been(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        self.named(self.plane, "a")
        for i, (down, up, preempted) in enumerate((
                ("/pause?mode=keep&clear_cache=false&instance=a", "/resume?instance=a", 0),
                ("/pause?mode=keep&clear_cache=true&instance=a", "/resume?instance=a", 3),
                ("/sleep?level=1&mode=keep&instance=a", "/wake_up?instance=a", 3))):
            asked = prompts(30 + i, 3, 50)
            number = self.halfway(a, asked)
            self.plane.ok(down)
            self.plane.ok(up)
            done = a.done(number)
            self.assertEqual(done["unfinished"], [])
            self.assertEqual(tokens(done), tokens(alone.generate(asked, 30)), down)
            self.assertEqual(done["counts"]["preempted"], preempted, down)
        self.honest(a, alone)

    def test_requests_kept_across_an_update_leave_nothing_behind(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        b = self.model("b", "--tracks-lineage", *SHARE)
        for i, engine in enumerate((a, b)):
            name = engine.instance
            self.named(self.plane, name)
            asked = prompts(35 + i, 3, 50)  # what one of them put first would hide the other's
            number = self.halfway(engine, asked)
            self.plane.ok(f"/pause?mode=keep&clear_cache=false&instance={name}")
            self.new_weights(name, 2)
            self.new_weights("alone", 2)
            self.plane.ok(f"/resume?instance={name}")
            self.assertEqual(engine.done(number)["unfinished"], [])
            self.named(self.plane, name)
            for _ in range(2):
                got = engine.generate(asked, 30)
                self.assertEqual(tokens(got), tokens(alone.generate(asked, 30)))
        self.honest(a, b, alone)

    def test_a_pause_that_aborts_tells_what_it_ended_and_one_that_waits_ends_nothing(self):
        alone = self.control()
        a = self.model("a", "--tp=2", *SHARE)
        self.named(self.plane, "a")
        asked = prompts(40, 3, 50)
        number = self.halfway(a, asked)
        self.plane.ok("/pause?mode=abort&instance=a")
        done = a.done(number)
        self.assertEqual((sorted(done["unfinished"]), tokens(done)), ([0, 1, 2], [None] * 3))
        self.plane.ok("/resume?instance=a")
        number = a.command("generate", prompts=asked, max_tokens=200)
        harness.until("running", lambda: a.stats()["running"] == 3)
        self.plane.ok("/pause?mode=wait&instance=a")
        self.assertEqual(a.stats()["running"], 0)
        self.plane.ok("/resume?instance=a")
        self.assertEqual(tokens(a.done(number)), tokens(alone.generate(asked, 200)))
        self.honest(a, alone)

    def test_requests_that_do_not_fit_together_all_end_alike(self):
        alone = self.control()
        a = self.model("a", "--tp=2", "--blocks=20", *SHARE)
        self.named(self.plane, "a")
        asked = prompts(50, 6, 60)
        done = a.generate(asked, 100)
        self.assertEqual(tokens(done), tokens(alone.generate(asked, 100)))
        self.assertGreater(done["counts"]["preempted"], 0)
        self.honest(a, alone)

    # ---- ranks and people ----

    def test_an_engine_whose_rank_is_gone_ends_at_once(self):
        for victim in (0, 1):
            a = self.model("a", "--tp=2", name=f"a-{victim}")
            pids = a.stats()["rank_pids"]
            a.command("generate", prompts=prompts(60, 8, 200), max_tokens=1000)
            harness.until("running", lambda e=a: e.stats()["running"] == 8)
            os.kill(pids[victim], signal.SIGKILL)
            self.assertNotEqual(a.popen.wait(harness.DEADLINE_S), 0)
            for pid in pids:
                harness.until("no rank is left", lambda p=pid: not running(p))
        self.clean(self.plane)

    def test_a_prompt_of_a_person_is_answered(self):
        said = []
        for i, args in enumerate((["--tp=2"], [])):
            one = harness.Process(
                ["engine", "--socket", self.plane.socket, "--model", *SHARE, *args,
                 "--prompt", "a text of fifty bytes that says nothing whatsoever",
                 "--max-tokens", "8"], self.directory, f"person-{i}")
            self.processes.append(one)
            said.append(one.line("tokens: ").split())
            self.assertIn(("0 from the store", "3 from the store")[i], one.line("blocks "))
            self.assertEqual(one.popen.wait(harness.DEADLINE_S), 0)
        self.assertEqual(len(said[0]), 8)
        self.assertEqual(said[0], said[1])
        self.clean(self.plane)


if __name__ == "__main__":
    unittest.main()
