# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector (api/python/kvplane/vllm): real daemons and stores, engines that are doubles of vLLM's
(tests/vllm_double): a scheduler's process and a process of each rank, with the connector in its two roles.
With KVPLANE_TORCH=1 the caches are torch tensors (Debian's python3-torch)."""
import dataclasses
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import unittest
import uuid
from types import ModuleType, SimpleNamespace

import harness

PACKAGE = os.environ.get("KVPLANE_PACKAGE") or os.path.join(harness.API, "python")
DOUBLE = os.path.join(harness.ROOT, "tests", "vllm_double")
TORCH = os.environ.get("KVPLANE_TORCH") == "1"
PYTHON = "/usr/bin/python3" if TORCH else sys.executable
FLAGS = [] if TORCH else ["-S"]  # starts in half the time
sys.path[:0] = [PACKAGE, DOUBLE]

SIZE = 16


def prompt(number, blocks=6, more=3):
    """Tokens: so many whole blocks, and some more, by which prompts of one number begin alike."""
    return [number * 100000 + at for at in range(blocks * SIZE + more)]


class Engine(harness.Process):
    def __init__(self, daemon, instance, directory, **options):
        extra = {"socket": daemon.socket, "instance": instance, "weights_version": "v0", **options.pop("extra", {})}
        self.options = {"block_size": SIZE, "blocks": 64, "weights": "v0", "policy": "recompute", "kv_role": "kv_both", "ranks": 1,
                        "engine_id": str(uuid.uuid4()), "shape": "kv_first", "memory": "memfd", "torch": TORCH, "sleep_mode": True,
                        "extra": extra, **options}
        self.instance = instance
        super().__init__([*FLAGS, os.path.join(DOUBLE, "engine.py"), json.dumps(self.options)], directory, instance, program=PYTHON,
                         stdin=subprocess.PIPE, env={"PYTHONPATH": f"{DOUBLE}:{PACKAGE}", "OMP_NUM_THREADS": "1",
                                                     "KVPLANE_LIBRARY": os.environ["KVPLANE_LIBRARY"], **options.pop("env", {})})
        self.requests = 0

    def send(self, call, **args):
        self.popen.stdin.write(json.dumps({"call": call, **args}).encode() + b"\n")
        self.popen.stdin.flush()

    def answer(self):
        answer = json.loads(self.line(""))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def call(self, call, **args):
        self.send(call, **args)
        return self.answer()

    def generate(self, *prompts, max_tokens=4):
        """What became of each, in order. Every output is what a run without any cache gives."""
        names = []
        for tokens in prompts:
            self.requests += 1
            names.append(f"{self.instance}-{self.requests}")
            self.call("add", request_id=names[-1], tokens=tokens, max_tokens=max_tokens)
        done = self.call("run")
        wrong = [name for name in names if not done[name]["right"]]
        assert not wrong, f"{wrong}: not what these weights put out: {done}\n{self.tail()}"
        return [done[name] for name in names]

    def kill(self, *args, **kw):
        """Ends as an engine that is told to: its ranks with it."""
        if not self.popen.stdin.closed:
            self.popen.stdin.close()
            try:
                self.popen.wait(harness.DEADLINE_S)
            except subprocess.TimeoutExpired:
                pass
        return super().kill(*args, **kw)


class Vllm(harness.Case):
    def vllm(self, daemon, instance, **options):
        engine = Engine(daemon, instance, self.directory, **options)
        self.processes.append(engine)
        engine.line("ready")
        return engine

    def shared(self, *engines, name="fingerprint:v0"):
        """All of them have been told that they are in one lineage."""
        for engine in engines:
            harness.until(f"{engine.instance} shares", lambda: engine.call("shares_as") == name)

    @staticmethod
    def lineage(daemon, engine):
        seen = daemon.instance(engine.instance)
        return seen["lineage"] if seen else {"weights_name": None}

    def stored(self, engine):
        """Wait until what it has put is stored, or has failed."""
        return engine.call("report")["stats"]

    def test_prompts_shared_between_two_engines_hit(self):
        daemon = self.daemon()
        one, two = (self.vllm(daemon, name, shape=shape) for name, shape in (("a", "kv_first"), ("b", "blocks_first")))
        self.shared(one, two)
        first = one.generate(prompt(1), prompt(2, blocks=9))
        self.assertEqual([done["external"] for done in first], [0, 0])
        again = two.generate(prompt(1), prompt(2, blocks=9), prompt(3))
        self.assertEqual([done["external"] for done in again], [6 * SIZE, 9 * SIZE, 0],
                         (one.call("report"), two.call("report")))
        self.assertEqual([done["output"] for done in again[:2]], [done["output"] for done in first])
        # Its own prefix cache has it now.
        self.assertEqual([(done["local"], done["external"]) for done in two.generate(prompt(1))], [(6 * SIZE, 0)])


    def test_two_ranks_share_with_two_ranks_and_memory_that_cannot_be_handed_over_is_copied(self):
        daemon = self.daemon()
        one = self.vllm(daemon, "a", ranks=2)
        two = self.vllm(daemon, "b", ranks=2, memory="private", extra={"staging_bytes": 16384})
        self.shared(one, two)
        first = one.generate(prompt(1), prompt(2, blocks=9))
        again = two.generate(prompt(1), prompt(2, blocks=9))
        self.assertEqual([done["external"] for done in again], [6 * SIZE, 9 * SIZE], "more than there are slots")
        self.assertEqual([done["output"] for done in again], [done["output"] for done in first])
        two.generate(prompt(3))
        report = two.call("report")
        self.assertEqual(report["stats"]["get_blocks"], 2 * 15)
        self.assertGreater(report["stats"]["put_blocks"], 0)
        self.assertEqual([done["external"] for done in one.generate(prompt(3))], [6 * SIZE], "what was copied out is there")

    def test_blocks_that_are_wanted_by_others_are_not_written_while_they_are_read(self):
        daemon = self.daemon()
        one, two = self.vllm(daemon, "a", blocks=24), self.vllm(daemon, "b", blocks=24)
        self.shared(one, two)
        prompts = [prompt(number, blocks=5) for number in range(6)]
        one.generate(*prompts, max_tokens=40)
        self.assertGreater(one.call("report")["preemptions"], 0)
        done = two.generate(*prompts, max_tokens=2)
        self.assertTrue(any(one["external"] for one in done))
        for engine in (one, two):
            self.assertEqual(engine.call("report")["used"], 0, "every block was given back")

    def test_an_engine_whose_blocks_are_copied_out_goes_on_while_the_daemon_hangs(self):
        daemon = self.daemon()
        one = self.vllm(daemon, "a", memory="private", blocks=24, extra={"lookup_timeout_s": 0.2, "staging_bytes": 1 << 20})
        self.shared(one)
        daemon.popen.send_signal(signal.SIGSTOP)
        try:
            one.generate(*[prompt(number, blocks=5) for number in range(6)], max_tokens=40)
        finally:
            daemon.popen.send_signal(signal.SIGCONT)
        self.assertGreater(one.call("report")["preemptions"], 0)
        self.assertEqual(one.call("report")["used"], 0)

    def test_nothing_of_before_comes_back_after_any_reset(self):
        daemon = self.daemon()
        one, two = self.vllm(daemon, "a"), self.vllm(daemon, "b")
        self.shared(one, two)
        tokens = prompt(1)
        two.generate(tokens)
        resets = [("reset_prefix_cache", {"reset_external": True}), ("pause", {}), ("pause", {"mode": "wait"}),
                  ("pause", {"mode": "keep"}), ("sleep", {"level": 1}), ("sleep", {"level": 2, "mode": "keep"})]
        for number, (name, args) in enumerate(resets, start=1):
            with self.subTest(reset=name, **args):
                done = one.generate(tokens)
                self.assertEqual(done[0]["external"], 6 * SIZE if number == 1 else 0)
                self.assertEqual(one.generate(tokens)[0]["local"], 6 * SIZE)
                one.call(name, **args)
                one.call("set_weights", weights=f"after {number}")
                one.call("wake_up")
                self.assertEqual(one.call("shares_as"), "")
        # Its own blocks come back to it, in the stay in which it computed them; the other one never left.
        one.generate(tokens)
        self.assertEqual([done["external"] for done in two.generate(tokens)], [0], "its own cache has them")
        two.call("reset_prefix_cache")
        self.assertEqual([done["external"] for done in two.generate(tokens)], [6 * SIZE])
        self.assertIn("AllBlocksCleared", one.call("report")["events"])
        self.assertEqual(one.call("report")["stats"]["resets"], len(resets))
        self.assertEqual(one.call("worker_call", name="reset_cache"), [None], "of the other role")

    def test_engines_share_again_under_a_version_that_is_given_after_a_weight_update(self):
        daemon = self.daemon()
        engines = [self.vllm(daemon, name) for name in ("a", "b")]
        self.shared(*engines)
        tokens = prompt(7)
        for step in range(1, 3):
            for engine in engines:
                engine.call("sleep", level=2)
                engine.call("set_weights", weights=f"v{step}")
                engine.call("wake_up")
            for engine in engines:
                harness.until("it is attached again", lambda: daemon.instance(engine.instance)["attached"])
                daemon.ok(f"/update_weight_version?instance={engine.instance}", {"new_version": f"v{step}"})
            self.shared(*engines, name=f"v{step}")
            done = [engine.generate(tokens)[0] for engine in engines]
            self.assertEqual([one["external"] for one in done], [0, 6 * SIZE])
            self.assertEqual(done[0]["output"], done[1]["output"])

    def test_a_kept_request_carries_nothing_over_a_change_of_weights(self):
        daemon = self.daemon()
        one, two = self.vllm(daemon, "a"), self.vllm(daemon, "b")
        self.shared(one, two)
        tokens = prompt(1, blocks=12)
        one.call("add", request_id="kept", tokens=tokens, max_tokens=2)
        one.call("steps", count=3)  # of seven
        one.call("pause", mode="keep", clear_cache=False)
        self.assertEqual(one.call("reset_prefix_cache", reset_external=True), False, "it holds blocks")
        one.call("set_weights", weights="v1")
        one.call("resume")
        one.call("run")  # frozen in the middle: of both weights, as vLLM has it
        self.assertLessEqual(one.call("report")["stats"]["put_blocks"], 6, "what it put after that is dropped")
        daemon.ok("/update_weight_version?instance=a", {"new_version": "v1"})
        self.shared(one, name="v1")
        # Its blocks are in its own cache: whoever goes on with those is of both, too, and puts nothing.
        before = one.call("report")["stats"]["put_blocks"]
        one.call("add", request_id="next", tokens=tokens[:12 * SIZE] + prompt(2), max_tokens=2)
        one.call("run")
        self.assertEqual(one.call("report")["stats"]["put_blocks"], before)
        self.assertEqual([done["external"] for done in two.generate(tokens)][0] % SIZE, 0)
        one.call("pause")
        one.call("resume")
        one.generate(tokens)

    def test_asleep_the_daemon_holds_nothing_of_its_memory_and_a_part_of_a_wake_schedules_nothing(self):
        daemon = self.daemon()
        one, two = self.vllm(daemon, "a"), self.vllm(daemon, "b", shape="blocks_first")
        self.shared(one, two)
        one.generate(prompt(1))
        held = daemon.maps("vllm_kv_cache")
        for _ in range(2):
            one.call("sleep", level=1)
            self.assertLess(daemon.maps("vllm_kv_cache"), held)
            self.assertEqual([done["external"] for done in two.generate(prompt(1))][0] + 0, 6 * SIZE if _ == 0 else 0)
            one.call("wake_up", tags=["weights"])
            self.assertLess(daemon.maps("vllm_kv_cache"), held)
            one.call("add", request_id=f"early{_}", tokens=prompt(1), max_tokens=2)
            one.call("steps", count=5)
            self.assertEqual(one.call("report")["asleep"], ["kv_cache"])
            one.call("wake_up", tags=["kv_cache"])
            harness.until("it is handed over again", lambda: daemon.maps("vllm_kv_cache") == held)
            self.assertTrue(one.call("run")[f"early{_}"]["right"])
            one.generate(prompt(2))
        self.assertGreater(one.call("report")["stats"]["put_blocks"], 0)

    def test_a_release_that_is_not_over_in_time_gives_nothing_up_and_can_be_tried_again(self):
        daemon = self.daemon()
        one = self.vllm(daemon, "a", extra={"release_timeout_s": 0.2, "lookup_timeout_s": 0.2})
        self.shared(one)
        held = daemon.maps("vllm_kv_cache")
        daemon.popen.send_signal(signal.SIGSTOP)
        try:
            one.call("add", request_id="r", tokens=prompt(1), max_tokens=1)
            one.call("steps", count=30)  # its lookup waits, so it is computed when that is given up
            harness.until("a put is on its way", lambda: one.call("steps", count=20) or one.call("report")["used"])
            with self.assertRaisesRegex(RuntimeError, "TimeoutError"):
                one.call("worker_call", name="release_kv_caches")
            one.send("worker_call", name="handle_preemptions", args=[["r"]])
            self.assertFalse(select.select([one.popen.stdout], [], [], 0.3)[0], "what is being read is not given to others")
        finally:
            daemon.popen.send_signal(signal.SIGCONT)
        one.answer()
        self.assertTrue(one.call("run")["r"]["right"])
        self.assertEqual(daemon.maps("vllm_kv_cache"), held)
        one.call("sleep", level=1)
        self.assertEqual(daemon.maps("vllm_kv_cache"), 0)
        one.call("wake_up")
        one.generate(prompt(1))

    def test_loads_that_fail_are_computed_or_told(self):
        """Decided in one step, and when the workers begin it the store has nothing for them any more."""
        daemon = self.daemon()
        two = self.vllm(daemon, "b")
        for policy in ("recompute", "fail"):
            one = self.vllm(daemon, policy, policy=policy)
            self.shared(one, two)
            two.call("reset_prefix_cache")
            two.generate(prompt(1))
            one.call("add", request_id="r", tokens=prompt(1), max_tokens=2)
            one.call("step_to_load")
            if policy == "recompute":
                daemon.ok("/v1/kvplane/tenants/default/reset")
            else:
                daemon.kill()
            done = one.call("run")["r"]
            self.assertEqual(done["reason"], "length" if policy == "recompute" else "error")
            self.assertTrue(done["right"])
            self.assertEqual(one.call("report")["stats"]["get_failed_blocks"], 6)
            self.assertEqual(one.call("report")["used"], 0)
            one.generate(prompt(1), prompt(2))

    def loading(self, daemon, **options):
        """An engine and its request "r", whose load of six blocks has been decided and which the workers have not heard of."""
        one, two = self.vllm(daemon, "a", **options), self.vllm(daemon, "b")
        self.shared(one, two)
        two.generate(prompt(1))
        one.call("add", request_id="r", tokens=prompt(1), max_tokens=2)
        one.call("step_to_load")
        return one

    def test_a_request_whose_load_a_daemon_that_hangs_has_is_computed_where_that_is_safe(self):
        daemon = self.daemon()
        one = self.loading(daemon, memory="private", extra={"load_timeout_s": 0.3, "staging_bytes": 1 << 20})
        daemon.popen.send_signal(signal.SIGSTOP)
        try:
            done = one.call("run")["r"]
        finally:
            daemon.popen.send_signal(signal.SIGCONT)
        self.assertEqual((done["reason"], done["right"]), ("length", True))
        self.assertEqual(one.call("report")["stats"]["get_failed_blocks"], 6)
        one.generate(*[prompt(number) for number in range(1, 9)])  # what comes now goes nowhere
        self.assertEqual(one.call("report")["used"], 0)

    def test_a_request_whose_blocks_a_daemon_that_hangs_may_still_write_waits_until_it_is_killed(self):
        daemon = self.daemon()
        one = self.loading(daemon, extra={"load_timeout_s": 0.3})
        daemon.popen.send_signal(signal.SIGSTOP)
        one.send("run")
        one.says("may still write into 6 of its blocks")
        self.assertFalse(select.select([one.popen.stdout], [], [], 0.3)[0])
        daemon.kill()
        done = one.answer()["r"]
        self.assertEqual((done["reason"], done["right"]), ("length", True))

    def test_engines_serve_without_a_daemon_and_share_again_with_the_next(self):
        daemon = self.daemon()
        engines = [self.vllm(daemon, name) for name in ("a", "b")]
        self.shared(*engines)
        engines[0].generate(prompt(1))
        daemon.kill()
        for engine in engines:
            self.assertEqual([done["external"] for done in engine.generate(prompt(1), prompt(2))], [0, 0])
        daemon = self.daemon(name="again")
        self.shared(*engines)
        done = [engine.generate(prompt(3))[0]["external"] for engine in engines]
        self.assertEqual(done, [0, 6 * SIZE])
        # A reset without a daemon is a reset: nothing is left of before that could come back.
        daemon.kill()
        self.assertTrue(engines[0].call("reset_prefix_cache", reset_external=True))
        engines[0].call("set_weights", weights="v1")
        daemon = self.daemon(name="third")
        self.shared(engines[1])
        engines[1].generate(prompt(3), prompt(4))
        harness.until("it is attached", lambda: (daemon.instance("a") or {}).get("attached"))
        self.assertEqual([done["external"] for done in engines[0].generate(prompt(3), prompt(4))], [0, 0])
        self.assertEqual(engines[0].call("shares_as"), "")

    def test_a_reset_that_the_daemon_does_not_acknowledge_is_not_one(self):
        daemon = self.daemon()
        one = self.vllm(daemon, "a", extra={"reset_timeout_s": 0.2, "lookup_timeout_s": 0.2})
        self.shared(one)
        daemon.popen.send_signal(signal.SIGSTOP)
        try:
            self.assertFalse(one.call("reset_prefix_cache", reset_external=True))
            with self.assertRaisesRegex(RuntimeError, "reset the KV connector cache"):
                one.call("pause")
            one.call("resume")
            self.assertEqual(one.call("shares_as"), "fingerprint:v0")
        finally:
            daemon.popen.send_signal(signal.SIGCONT)
        harness.until("it has left", lambda: one.call("reset_prefix_cache", reset_external=True))
        self.assertEqual(one.generate(prompt(1))[0]["external"], 0)

    def test_what_the_connector_expects_of_vllm_is_checked(self):
        done = subprocess.run([sys.executable, "-m", "kvplane.vllm.check"], env={**os.environ, "PYTHONPATH": f"{DOUBLE}:{PACKAGE}"},
                              capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("vllm check: ok", done.stdout)
        done = subprocess.run([sys.executable, "-m", "kvplane.vllm.check"], env={**os.environ, "PYTHONPATH": PACKAGE},
                              capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no vLLM is installed", done.stdout)


class Groups(harness.Case):
    """A model of full and of sliding-window attention, both roles in this process."""
    WINDOW = 33

    def setUp(self):
        super().setUp()
        import memory
        from kvplane.vllm import KvplaneConnector
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        self.daemon_ = self.daemon()
        kinds = {"FullAttentionSpec": {}, "SlidingWindowSpec": {"sliding_window": self.WINDOW}}
        groups = [SimpleNamespace(kv_cache_spec=type(kind, (), {"block_size": SIZE, **more})(), layer_names=[kind])
                  for kind, more in kinds.items()]
        config, cache = Parts.config(groups, socket=self.daemon_.socket, instance="g", weights_version="v0")
        config.kv_transfer_config.engine_id = str(uuid.uuid4())
        config.kv_events_config = SimpleNamespace(enable_kv_cache_events=True)
        self.memory = [memory.Memory(8 * SIZE * 16, True) for _ in groups]
        tensors = {one.layer_names[0]: memory.PlainTensor(mine, 0, (8, SIZE, 16)) for one, mine in zip(groups, self.memory)}
        self.scheduler = KvplaneConnector(config, KVConnectorRole.SCHEDULER, cache)
        self.addCleanup(self.scheduler.shutdown)
        self.worker = KvplaneConnector(config, KVConnectorRole.WORKER, cache)
        self.addCleanup(self.worker.shutdown)
        self.worker.register_kv_caches(tensors)
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})
        harness.until("it shares", lambda: self.scheduler.shares_as() == "fingerprint:v0")

    def block(self, group, block):
        return self.memory[group].view()[block * SIZE * 16:(block + 1) * SIZE * 16]

    def step(self, *new, scheduled=None, resumed=()):
        """A step with these new requests, and those that go on after a preemption. What the worker is told."""
        output = SimpleNamespace(
            scheduled_new_reqs=list(new), num_scheduled_tokens=scheduled or {}, preempted_req_ids=None,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[req_id for req_id, _ in resumed], new_block_ids=[table for _, table in resumed],
                num_computed_tokens=[0 for _ in resumed], resumed_req_ids={req_id for req_id, _ in resumed}))
        metadata = self.scheduler.build_connector_meta(output)
        self.worker.handle_preemptions(metadata)
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        self.worker.clear_connector_metadata()
        return metadata

    def results(self, name, *finished):
        found = []

        def told():
            found.append(self.worker.get_transfer_results(set(finished)))
            return getattr(found[-1], name)
        harness.until(name, told)
        return found[-1]

    def request(self, name, blocks, table, **more):
        """Its hit, and its blocks given."""
        request = SimpleNamespace(**{"request_id": name, "num_tokens": blocks * SIZE + 3, "num_prompt_tokens": blocks * SIZE + 3,
                                     "block_hashes": [b"prefix %d" % at for at in range(blocks)], "all_token_ids": [],
                                     "num_computed_tokens": 0, **more})
        return request, self.start(request, table)

    def start(self, request, table, local=0):
        hit = harness.until("a lookup", lambda: [found for found in [self.scheduler.get_num_new_matched_tokens(request, local)]
                                                 if found[0] is not None])[0]
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: table), hit[0])
        return hit

    TABLE = ([1, 2, 3], [1, 2, 3])

    def compute(self, request, table=TABLE, computed=0):
        """All of it, in a step."""
        told = self.step(SimpleNamespace(req_id=request.request_id, block_ids=table, num_computed_tokens=computed),
                         scheduled={request.request_id: request.num_tokens - computed})
        request.num_computed_tokens = request.num_tokens
        return told

    def told(self, **more):
        self.scheduler.update_connector_output(SimpleNamespace(**{
            "finished_sending": set(), "finished_recving": set(), "invalid_block_ids": set(), "kv_connector_worker_meta": None, **more}))

    def test_a_window_gets_what_it_reaches_back_to_and_a_load_that_fails_is_told_by_request(self):
        for group in range(2):
            for block in range(1, 4):
                self.block(group, block)[:] = bytes([16 * group + block]) * (SIZE * 16)
        one, hit = self.request("one", 3, ([1, 2, 3], [1, 2, 3]))
        self.assertEqual(hit, (0, False))
        self.compute(one)
        self.assertEqual(self.scheduler.request_finished_all_groups(one, ([], [])), (True, None))
        self.assertEqual(self.results("finished_sending", "one").finished_sending, {"one"})
        # The first block of the window's group is before its window.
        two, hit = self.request("two", 3, ([4, 5, 6], [0, 4, 5]))
        self.assertEqual(hit, (3 * SIZE, True))
        self.step()
        told = self.results("finished_recving")
        self.assertEqual((told.finished_recving, told.failed_recving), ({"two"}, set()))
        self.assertEqual([self.block(0, block)[0] for block in (4, 5, 6)], [1, 2, 3])
        self.assertEqual([self.block(1, block)[0] for block in (0, 4, 5)], [0, 18, 19])
        self.assertEqual(self.scheduler.request_finished(two, []), (False, None), "it has saved nothing")
        three, hit = self.request("three", 3, ([4, 5, 6], [0, 4, 5]))
        self.assertEqual(hit, (3 * SIZE, True))
        self.assertTrue(self.scheduler.reset_cache())
        self.step()
        told = self.results("finished_recving")
        self.assertEqual((told.finished_recving, told.failed_recving), ({"three"}, {"three"}))
        self.assertEqual(self.worker.get_block_ids_with_load_errors(), set())
        self.scheduler.update_connector_output(SimpleNamespace(**{**vars(told), "invalid_block_ids": set()}))
        self.assertEqual(self.scheduler.get_num_new_matched_tokens(three, 0), (0, False), "not asked for again")


    def test_what_was_saved_before_a_preemption_is_not_told_of_after_it(self):
        one, _ = self.request("one", 3, self.TABLE)
        self.compute(one)
        harness.until("it is stored", self.worker.build_connector_worker_meta)
        one.num_computed_tokens = 0  # by a reset, of which the step does not tell
        self.assertEqual(self.start(one, ([4, 5, 6], [0, 4, 5])), (3 * SIZE, True))
        self.assertEqual(self.step().preempted, {"one"})
        self.assertEqual(self.scheduler.request_finished_all_groups(one, ([], [])), (False, None), "it is loading")
        told = self.results("finished_recving", "one")
        self.assertEqual((told.finished_sending, told.finished_recving), (set(), {"one"}))

    def test_puts_of_what_a_reset_has_preempted_are_waited_for(self):
        """One goes on, in the blocks of one that waits and of one that is aborted."""
        made = {}
        for at, name in enumerate(("goes on", "aborted", "waits")):
            table = ([2 * at + 1, 2 * at + 2],) * 2
            made[name], _ = self.request(name, 2, table, block_hashes=[name.encode() + b"0", name.encode() + b"1"])
            self.compute(made[name], table)
        for one in made.values():
            one.num_computed_tokens = 0
        self.assertEqual(self.scheduler.request_finished_all_groups(made["aborted"], ([], [])), (False, None))
        self.assertEqual(self.step(resumed=[("goes on", ([4, 5], [3, 6]))], scheduled={"goes on": 35}).preempted, {*made})
        self.assertEqual(self.worker.get_transfer_results({"aborted"}).finished_sending, set())

    def test_a_request_that_is_to_be_computed_is_not_looked_up(self):
        self.compute(self.request("one", 3, self.TABLE)[0])
        harness.until("it is stored", self.worker.build_connector_worker_meta)
        self.assertEqual(self.request("two", 3, self.TABLE, skip_reading_prefix_cache=True)[1], (0, False))
        self.assertEqual(self.request("three", 3, ([4, 5, 6], [0, 4, 5]))[1], (3 * SIZE, True))

    def test_hashes_of_fewer_tokens_than_expected_name_nothing(self):
        """Of 8 where 16 are expected: prompts with 24 tokens in common are not one prompt."""
        one, _ = self.request("one", 3, self.TABLE, block_hashes=[b"%d" % at for at in range(6)])
        self.assertEqual(self.compute(one).saves, [])
        self.assertEqual(self.scheduler.request_finished_all_groups(one, ([], [])), (False, None))

    def test_blocks_that_lost_their_hashes_between_lookup_and_load_fail(self):
        self.compute(self.request("one", 3, self.TABLE)[0])
        harness.until("it is stored", self.worker.build_connector_worker_meta)
        two = SimpleNamespace(request_id="two", num_tokens=51, num_prompt_tokens=51, block_hashes=[b"prefix %d" % at for at in range(3)])
        hit = harness.until("a lookup", lambda: [found for found in [self.scheduler.get_num_new_matched_tokens(two, 0)]
                                                 if found[0] is not None])[0]
        self.assertEqual(hit, (3 * SIZE, True))
        two.block_hashes = []
        self.scheduler.update_state_after_alloc(two, SimpleNamespace(get_block_ids=lambda: ([4, 5, 6], [0, 4, 5])), hit[0])
        self.step()
        told = self.results("finished_recving")
        self.assertEqual((told.finished_recving, told.failed_recving), ({"two"}, {"two"}))
        self.told(finished_recving={"two"}, failed_recving={"two"})
        self.assertEqual(self.scheduler.get_num_new_matched_tokens(two, 0), (0, False))

    def test_events_have_the_fields_that_they_have_and_an_odd_one_costs_itself_alone(self):
        from vllm.distributed import kv_events
        made = kv_events.BlockStored
        lora = SimpleNamespace(lora_name="adapter", lora_int_id=7)
        one, _ = self.request("one", 3, self.TABLE, lora_request=lora, all_token_ids=list(range(51)))
        self.compute(one)
        stored = []
        harness.until("it is stored", lambda: stored.append(self.worker.build_connector_worker_meta()) or
                      sum(len(some.stored) for some in stored if some is not None) == 6)
        stored = [some for some in stored if some is not None]
        self.addCleanup(setattr, kv_events, "BlockStored", made)
        kv_events.BlockStored = dataclasses.make_dataclass("BlockStored", ["something_new", "group_idx"])
        self.told(kv_connector_worker_meta=dataclasses.replace(stored[0]))
        self.assertEqual(list(self.scheduler.take_events()), [])
        kv_events.BlockStored = dataclasses.make_dataclass("BlockStored", ["group_idx"], bases=(made,))
        self.scheduler._scheduler._told.clear()  # pylint: disable=protected-access
        for some in stored:
            self.told(kv_connector_worker_meta=some)
        events = list(self.scheduler.take_events())
        self.assertEqual(sorted((event.group_idx, event.token_ids[0]) for event in events), [(group, at) for group in range(2) for at in (0, 16, 32)])
        self.assertEqual({(event.lora_name, event.lora_id, event.medium) for event in events}, {("adapter", 7, "KVPLANE")})

    def test_what_is_remembered_of_blocks_that_were_told_of_is_bounded(self):
        from kvplane.vllm import scheduler, transfers
        self.addCleanup(setattr, scheduler, "EVENTS_MAX", scheduler.EVENTS_MAX)
        scheduler.EVENTS_MAX = 3
        for at in range(10):
            stored = {(0, b"whole %d" % at): 1, (0, b"of a rank that does not come %d" % at): 0}
            self.told(kv_connector_worker_meta=transfers.StoredBlocks(stored))
        inner = self.scheduler._scheduler  # pylint: disable=protected-access
        self.assertEqual((len(inner._told), len(inner._stored)), (3, 3))  # pylint: disable=protected-access

    def test_what_derives_from_an_earlier_stay_is_not_even_put(self):
        self.compute(self.request("one", 2, ([1, 2], [1, 2]))[0])
        self.assertTrue(self.scheduler.reset_cache())
        two = SimpleNamespace(request_id="two", num_tokens=51, num_prompt_tokens=51, all_token_ids=[],
                              block_hashes=[b"prefix %d" % at for at in range(3)])
        self.assertEqual(self.start(two, self.TABLE, local=2 * SIZE), (0, False))
        self.assertEqual(self.compute(two, computed=2 * SIZE).saves, [])
        three, _ = self.request("three", 2, ([4, 5], [4, 5]))
        self.assertEqual(len(self.compute(three, ([4, 5], [4, 5])).saves), 1)
        # The blocks that "two" began with are computed anew by now, the one that it derived from them is not.
        four = SimpleNamespace(request_id="four", num_tokens=67, num_prompt_tokens=67, all_token_ids=[],
                               block_hashes=[b"prefix %d" % at for at in range(4)])
        table = ([4, 5, 3, 6], [4, 5, 3, 6])
        self.start(four, table, local=3 * SIZE)
        self.assertEqual(self.compute(four, table, computed=3 * SIZE).saves, [])

    def test_a_step_that_is_not_understood_is_one_that_saves_nothing(self):
        one, _ = self.request("one", 3, self.TABLE)
        told = self.scheduler.build_connector_meta(SimpleNamespace(scheduled_new_reqs=[object()]))
        self.assertEqual((told.loads, told.saves), ([], []))
        self.assertEqual(self.compute(one).saves, [])

    def test_a_request_that_the_connector_does_not_understand_is_computed(self):
        request = SimpleNamespace(request_id="odd", num_tokens=99, num_prompt_tokens=99, block_hashes=[1, 2, 3, 4, 5, 6])
        self.assertEqual(self.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: ([1, 2, 3], [1, 2, 3])), 0)
        self.step(SimpleNamespace(req_id="odd", block_ids=([1, 2, 3], [1, 2, 3]), num_computed_tokens=0), scheduled={"odd": 51})
        self.assertEqual(self.scheduler.request_finished(request, []), (False, None))
        self.worker.handle_preemptions(object())
        self.worker.handle_preemptions({"odd"})


class Parts(unittest.TestCase):
    """What needs no engine."""

    @staticmethod
    def config(groups=None, **extra):
        spec = type("FullAttentionSpec", (), {"block_size": SIZE, "num_kv_heads": 2, "head_size": 8, "dtype": "bf16", "page_size_bytes": 1})
        groups = groups or [SimpleNamespace(kv_cache_spec=spec(), layer_names=["l0"])]
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra, kv_role="kv_both", engine_id="e"),
            parallel_config=SimpleNamespace(rank=0, world_size=1, tensor_parallel_size=1),
            model_config=SimpleNamespace(model="lab/model", dtype="torch.bfloat16", max_model_len=100),
            cache_config=SimpleNamespace(block_size=SIZE, cache_dtype="auto")), SimpleNamespace(num_blocks=8, kv_cache_groups=groups)

    class Tensor:
        def __init__(self, shape, stride, base=0):
            self.shape, self._stride, self._base = shape, stride, base

        def stride(self):
            return self._stride

        def element_size(self):
            return 2

        def data_ptr(self):
            return 4096 + self._base

        def untyped_storage(self):
            return self

        def nbytes(self):
            return 1 << 20

    def shape(self, *sizes, stride=None):
        from kvplane.vllm import layout, settings
        steps, step = [], 1
        for n in reversed(sizes):
            steps.insert(0, step)
            step *= n
        tensor = self.Tensor(sizes, stride or tuple(steps))
        tensor.untyped_storage = lambda: type("S", (), {"data_ptr": lambda s: 4096, "nbytes": lambda s: 1 << 20})()
        return layout.Shape({"l0": tensor}, [settings.Group(0, SIZE, 0, ("l0",))], 8)

    def test_a_block_is_the_same_bytes_wherever_keys_and_values_part(self):
        apart, together = self.shape(2, 8, 16, 4), self.shape(8, 2, 16, 4)
        self.assertEqual(apart.tag, together.tag)
        self.assertEqual([(span.base, span.step, span.length) for span in apart.spans[0]], [(0, 128, 128), (1024, 128, 128)])
        self.assertEqual([(span.base, span.step, span.length) for span in together.spans[0]], [(0, 256, 256)])
        self.assertNotEqual(self.shape(8, 2, 16, 4, 8).tag, self.shape(8, 2, 16, 4, 8, stride=(1024, 512, 8, 128, 1)).tag,
                            "heads before tokens is another order")
        kernel = self.shape(2, 32, 4, 4)  # four rows of a kernel's for one block
        self.assertEqual([(span.base, span.step, span.length) for span in kernel.spans[0]], [(0, 128, 128), (1024, 128, 128)])
        for sizes, stride in (((8, 2, 16, 4), (256, 128, 4, 1)), ((3, 5), None)):
            with self.assertRaises(ValueError):
                self.shape(*sizes, stride=stride)

    def test_what_cannot_work_is_refused_at_the_start(self):
        from kvplane.vllm import settings
        for extra in ({"sockt": "x"}, {"lookup_timeout_s": 0}, {"lookup_async": "maybe"}, {"instance": 3}, {"memory": "gpu"}):
            with self.subTest(**extra), self.assertRaisesRegex(ValueError, f"{next(iter(extra))}"):
                settings.read(*self.config(**extra), 0)
        mamba = SimpleNamespace(kv_cache_spec=type("MambaSpec", (), {"block_size": SIZE})(), layer_names=["m"])
        window = SimpleNamespace(kv_cache_spec=type("SlidingWindowSpec", (), {"block_size": SIZE, "sliding_window": 64})(), layer_names=["w"])
        for groups in ([mamba], [window], []):
            with self.assertRaises(settings.UnsupportedModel):
                settings.read(*self.config([*groups] or [SimpleNamespace(kv_cache_spec=mamba.kv_cache_spec, layer_names=[])]), 0)
        config, cache = self.config()
        alike = settings.read(config, cache, 0).layout
        config.model_config.dtype = "torch.float16"
        self.assertNotEqual(settings.read(config, cache, 0).layout, alike)

    def test_the_layout_is_the_same_in_every_process_and_another_where_bytes_are(self):
        from kvplane.vllm import settings
        spec = type("FullAttentionSpec", (), {"block_size": SIZE, "num_kv_heads": 2, "head_size": 8, "dtype": "bf16", "page_size_bytes": 1})

        def layout(change=lambda config: None, one=spec()):
            config, cache = self.config([SimpleNamespace(kv_cache_spec=one, layer_names=["l0"])])
            config.model_config.hf_text_config = SimpleNamespace(num_hidden_layers=1, rope_parameters={"rope_type": "yarn", "factor": 2.0})
            change(config)
            return settings.read(config, cache, 0).layout

        alike = layout()
        wrapped = SimpleNamespace(block_size=SIZE, page_size_bytes=3, kv_cache_specs={"l0": spec(), "l1": spec()})
        self.assertEqual(layout(one=wrapped), alike, "the scheduler is given the first in its place")
        self.assertEqual(layout(lambda config: config.model_config.hf_text_config.rope_parameters.update(rope_type="deepseek_yarn", mscale=0)), alike,
                         "written by the model, in the workers")
        others = [
            lambda config: config.model_config.hf_text_config.rope_parameters.update(factor=4.0),
            lambda config: setattr(config.model_config, "hf_overrides", {"rope_parameters": {"factor": 4.0}}),
            lambda config: setattr(config, "speculative_config", SimpleNamespace(method="eagle", model="lab/draft", revision=None)),
            lambda config: setattr(config, "speculative_config", SimpleNamespace(method="eagle", model="lab/other", revision=None)),
            lambda config: setattr(config.cache_config, "calculate_kv_scales", True),
        ]
        found = [layout(change) for change in others]
        self.assertEqual(len({alike, *found}), 1 + len(others))
        window = SimpleNamespace(block_size=SIZE, kv_cache_specs={"w": type("SlidingWindowSpec", (), {"block_size": SIZE, "sliding_window": 64})()})
        groups = [SimpleNamespace(kv_cache_spec=one, layer_names=[name]) for name, one in (("l0", spec()), ("w", window))]
        self.assertEqual([group.window_tokens for group in settings.read(*self.config(groups), 0).groups], [0, 63])
        with self.assertRaisesRegex(settings.UnsupportedModel, "MambaSpec"):
            layout(one=SimpleNamespace(block_size=SIZE, kv_cache_specs={"l0": spec(), "l1": type("MambaSpec", (), {})()}))

    def test_the_tokens_of_a_hash_are_what_vllm_says(self):
        from kvplane.vllm import settings
        groups = [SimpleNamespace(kv_cache_spec=type(kind, (), {"block_size": size, **more})(), layer_names=[kind])
                  for kind, size, more in (("FullAttentionSpec", 32, {}), ("SlidingWindowSpec", 16, {"sliding_window": 64}))]
        config, cache = self.config(groups)
        name = "vllm.v1.core.kv_cache_utils"
        found = {}
        for tokens in (8, 16):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].resolve_kv_cache_block_sizes = lambda cache, config, tokens=tokens: (32, tokens)
            try:
                read = settings.read(config, cache, 0)
            finally:
                del sys.modules[name]
            self.assertEqual(read.hash_tokens, tokens)
            found[tokens] = read.layout
        self.assertNotEqual(found[8], found[16])
        self.assertEqual(settings.read(config, cache, 0).hash_tokens, 16)

    def test_a_vllm_that_cannot_be_told_of_failed_requests_makes_one_group_of_all(self):
        from kvplane.vllm import _base
        from vllm.distributed.kv_transfer.kv_connector.v1 import base
        results = base.KVConnectorTransferResults
        self.assertIs(_base.HybridMixin, base.SupportsHMA)
        del base.KVConnectorTransferResults
        try:
            spec = importlib.util.spec_from_file_location("kvplane.vllm._older", _base.__file__)
            older = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(older)
        finally:
            base.KVConnectorTransferResults = results
        self.assertFalse(issubclass(older.HybridMixin, base.SupportsHMA))

    def test_sleep_mode_is_refused_where_a_transport_hands_out_keys(self):
        from kvplane.vllm import KvplaneConnector
        self.assertTrue(KvplaneConnector.supports_sleep_mode(None))
        for name in ("MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"):
            os.environ[name] = "0"
            try:
                self.assertFalse(KvplaneConnector.supports_sleep_mode(None))
            finally:
                del os.environ[name]

    def test_nobody_vouches_once_a_reset_has_come_whoever_has_the_socket(self):
        from kvplane.vllm import pristine, settings
        config, cache = self.config(weights_version="v0", instance=f"p{os.getpid()}")
        config.kv_transfer_config.engine_id = str(uuid.uuid4())
        read = settings.read(config, cache, 0)
        self.assertFalse(pristine.is_pristine(read))
        mine = pristine.Pristine(read)
        self.assertTrue(pristine.is_pristine(read))
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            mine.end()
            self.assertFalse(pristine.is_pristine(read), "though a child has it open")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_stats_are_sums(self):
        from kvplane.vllm import KvplaneConnector
        one, two = KvplaneConnector.build_kv_connector_stats({"put_blocks": 2}), KvplaneConnector.build_kv_connector_stats()
        self.assertTrue(two.is_empty())
        two.add("put_blocks", 3)
        self.assertEqual(one.aggregate(two).reduce(), {"put_blocks": 5})
        self.assertEqual(one.taken().data, {"put_blocks": 5})
        self.assertIsNone(one.taken())


class Staging(unittest.TestCase):
    """A worker over a session that does what the test says."""

    class Session:
        def __init__(self):
            self.asked = []  # what completes a get or a put, and for how many blocks
            self.broken = None

        def get(self, number, token, entries, done):
            if self.broken is not None:
                raise self.broken
            self.asked.append((done, len(entries)))

        def put(self, entries, done):
            self.get(0, None, entries, done)

        def detach(self):
            pass

    class Pump:
        def __init__(self):
            self.session, self.jobs = Staging.Session(), []
            self.on_disconnected = lambda: None

        def post(self, job):
            self.jobs.append(job)

        def turn(self):
            while self.jobs:
                self.jobs.pop(0)()

        def complete(self, result=0):
            asked, self.session.asked = self.session.asked, []
            for done, count in asked:
                done([result] * count)
            self.turn()

    class Slots(list):
        """Others take from it as well: it says more than it has."""

        def __len__(self):
            return 100

        def __bool__(self):
            return True

    def setUp(self):
        from kvplane.vllm import layout, transfers, worker
        self.module, self.transfers = worker, transfers
        self.copied = []
        self.events = []
        memory = layout.Staged.__new__(layout.Staged)
        memory.free, memory.fd = self.Slots(range(2)), -1
        memory.copy = lambda group, slot, block, out: self.copied.append((block, out))
        memory.slices = lambda group, slot: []
        self.settings = SimpleNamespace(rank=0, release_timeout_s=0.01, reset_timeout_s=0.01, load_timeout_s=1000)
        self.worker = worker.Worker(self.settings, 8, record_event=self.event)
        self.pump = self.worker._pump = self.Pump()
        self.worker._memory = self.memory = memory
        self.worker._shape = SimpleNamespace(tag=b"t", spans={0: [1]}, block_bytes=lambda group: 1)

    def event(self):
        number = len(self.events)
        self.events.append(False)

        def synchronize():
            self.events[number] = True
            self.copied.append(("event", number))
        return SimpleNamespace(synchronize=synchronize)

    def step(self, load=(), save=()):
        blocks = {name: tuple(self.transfers.Block(0, b"%d" % at, b"p", at) for at in some) for name, some in (("l", load), ("s", save))}
        told = self.transfers.StepMetadata()
        if load:
            told.loads = [self.transfers.Load("l", 1, (1, 1), blocks["l"])]
        if save:
            told.saves = [self.transfers.Save("s", (1, 1), blocks["s"])]
        self.worker.start_loads(told)
        self.worker.start_saves(told)
        self.pump.turn()

    def test_loads_take_what_slots_saves_leave_and_go_on_when_there_are_more(self):
        self.step(load=range(1, 6))
        for _ in range(3):
            self.assertEqual(self.worker.finished(()), (set(), set(), set()))
            self.pump.complete()
        self.assertEqual(self.worker.finished(()), (set(), {"l"}, set()))
        self.assertEqual(sorted(list.copy(self.memory.free)), [0, 1])
        self.assertEqual(sorted(block for block, out in self.copied if out is False and block != "event"), list(range(1, 6)))

    def test_nothing_is_written_into_blocks_that_the_gpu_may_still_use(self):
        self.step(load=[1])
        self.pump.complete()
        self.assertEqual(self.copied[:2], [("event", 0), (1, False)])

    def test_every_load_ends_whatever_happens_to_it(self):
        def fail(*args, **kw):
            raise MemoryError("so it is said")

        for where, name in ((self.pump.session, "broken"), (self.memory, "copy"), (self.worker, "_batches"), (self.worker, "_entry")):
            with self.subTest(name), self.assertLogs("kvplane.vllm", "ERROR"):
                before = getattr(where, name)
                setattr(where, name, MemoryError("so it is said") if name == "broken" else fail)
                self.step(load=[1, 2, 3])
                for _ in range(3):
                    self.pump.complete()
                setattr(where, name, before)
                self.assertEqual(self.worker.finished(()), (set(), {"l"}, {"l"}))
                self.assertEqual(self.worker.failed_blocks(), {1, 2, 3})
                self.assertEqual(sorted(list.copy(self.memory.free)), [0, 1])

    def late(self):
        """The time of what loads is over; the pump's thread has not heard of that."""
        for loading in self.worker._loading.values():
            loading.since -= 2 * self.settings.load_timeout_s
        self.worker._heard -= 2 * self.settings.load_timeout_s
        self.worker.finished(())

    def test_a_load_that_ends_just_when_it_is_given_up_ends_once(self):
        self.step(load=[1, 2])
        self.late()
        jobs, self.pump.jobs = self.pump.jobs, []
        self.pump.complete()
        self.assertEqual(self.worker.finished(()), (set(), {"l"}, set()))
        self.step(load=[1, 2])  # the same request, anew
        self.pump.jobs = jobs
        self.pump.turn()
        self.assertEqual(self.worker.finished(()), (set(), set(), set()))
        self.pump.complete()
        self.assertEqual(self.worker.finished(()), (set(), {"l"}, set()))

    def test_a_daemon_that_answers_anything_does_not_hang(self):
        """However long a load waits for slots that others have."""
        self.step(load=range(1, 6))
        self.worker._loading["l"].since -= 2 * self.settings.load_timeout_s
        self.pump.complete()  # two of them
        self.worker.finished(())
        self.assertEqual(self.pump.jobs, [])
        self.late()
        self.assertEqual(len(self.pump.jobs), 1)

    def test_blocks_that_the_daemon_writes_itself_are_not_given_up(self):
        from kvplane.vllm import layout
        direct = layout.Direct.__new__(layout.Direct)
        direct.regions, direct.slices = [], lambda group, block: []
        self.worker._memory = direct
        self.step(load=[1, 2])
        self.late()
        with self.assertLogs("kvplane.vllm", "ERROR"):
            self.pump.turn()
        self.assertEqual(self.worker.finished(()), (set(), set(), set()))
        self.pump.complete()
        self.assertEqual(self.worker.finished(()), (set(), {"l"}, set()))

    def test_what_comes_too_late_is_dropped(self):
        """Its blocks are computed by then, or another request's."""
        self.step(load=[1, 2, 3])
        self.late()
        with self.assertLogs("kvplane.vllm", "WARNING"):
            self.pump.turn()
        self.assertEqual(self.worker.finished(()), (set(), {"l"}, {"l"}))
        self.assertEqual(self.worker.failed_blocks(), {1, 2, 3})
        self.assertTrue(self.worker._idle(0))
        self.step(load=[1])  # the same request, anew: it waits for a slot
        asked = len(self.pump.session.asked)
        self.pump.complete()
        self.assertEqual((asked, self.copied), (1, []), "two blocks of the load before were asked for, and are not copied")
        self.assertEqual(self.worker.finished(()), (set(), set(), set()))
        self.pump.complete()
        self.assertEqual([block for block, out in self.copied if out is False and block != "event"], [1])
        self.assertEqual(self.worker.finished(()), (set(), {"l"}, set()))
        self.assertEqual(sorted(list.copy(self.memory.free)), [0, 1])

    def test_what_is_copied_out_is_read_no_more(self):
        self.step(save=[1])
        self.worker.preempted({"s"})  # or it would wait for the daemon
        self.step(save=[2])
        self.assertEqual(self.worker.finished({"s"}), ({"s"}, set(), set()))
        self.pump.complete()
        self.assertEqual(sorted(list.copy(self.memory.free)), [0, 1])

    def test_what_is_put_has_been_copied_out(self):
        asked, self.pump.session.put = self.pump.session.put, lambda entries, done: (self.copied.append("put"), asked(entries, done))
        self.step(save=[1])
        self.assertEqual(self.copied, [(1, True), ("event", 1), "put"])

    def test_a_cache_that_is_still_copied_to_is_not_released(self):
        self.step(load=[1])
        with self.assertRaises(TimeoutError):
            self.worker.release()
        self.pump.complete()
        self.worker.release()

    def test_memory_that_the_daemon_may_still_hold_is_not_released(self):
        from kvplane.vllm import layout
        direct = layout.Direct.__new__(layout.Direct)
        direct.regions = []
        self.worker._memory = direct
        self.worker._released, self.worker._detached = True, threading.Event()  # a restore failed, and nothing has hung up yet
        before, self.module.TRANSFER_S = self.module.TRANSFER_S, 0.01
        try:
            for _ in range(2):
                with self.assertRaises(TimeoutError):
                    self.worker.release()
                self.pump.turn()
        finally:
            self.module.TRANSFER_S = before
        self.worker._let_go()
        self.worker.release()  # nothing is left to wait for


if __name__ == "__main__":
    if TORCH and subprocess.run([PYTHON, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"],
                                check=False).returncode:
        print("SKIP: vllm_torch: Debian's python3-torch is not installed (./dev deps torch)")
        sys.exit(77)
    unittest.main(verbosity=2)
