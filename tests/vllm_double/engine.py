# SPDX-License-Identifier: Apache-2.0
"""
An engine as vLLM runs one, as far as a KV connector can see: this process has the scheduler (EngineCore), each rank's
worker is a process of its own. Obeys JSON lines on its standard input, one answer each.
"""
import hashlib
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from multiprocessing.connection import Connection
from types import SimpleNamespace

import model
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec

BUDGET = 32  # tokens of a request in one step: prompts are computed in chunks
NULL = 0


class KVCacheBlocks:
    def __init__(self, ids):
        self._ids = ids

    def get_block_ids(self):
        return (list(self._ids),)


class Request:
    def __init__(self, request_id, tokens, max_tokens, size):
        self.request_id, self.prompt_token_ids, self.max_tokens, self.size = request_id, list(tokens), max_tokens, size
        self.all_token_ids = list(tokens)
        self.num_prompt_tokens = len(tokens)
        self.status = "WAITING"
        self.num_computed_tokens = 0
        self.blocks = []
        self.known = False  # the workers have its tokens and its block table
        self.resumed = False
        self.block_hashes = []
        self.local = self.external = 0
        self.output = []
        self.hash_more()

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    def hash_more(self):
        while (len(self.block_hashes) + 1) * self.size <= self.num_tokens:
            at = len(self.block_hashes)
            parent = self.block_hashes[-1] if at else b"none"
            text = repr(self.all_token_ids[at * self.size:(at + 1) * self.size]).encode()
            self.block_hashes.append(hashlib.sha256(parent + text).digest())


class BlockPool:
    """Blocks of the cache, with vLLM's own prefix cache: a block that is free keeps its hash until it is given to another."""

    def __init__(self, count):
        self.count = count
        self.free = OrderedDict((block, None) for block in range(1, count))
        self.refs = [0] * count
        self.by_hash = {}
        self.hash_of = {}

    def cached(self, hashes):
        found = []
        for one in hashes:
            if one not in self.by_hash:
                break
            found.append(self.by_hash[one])
        return found

    def touch(self, blocks):
        for block in blocks:
            self.refs[block] += 1
            self.free.pop(block, None)

    def take(self, count):
        if count > len(self.free):
            return None
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.by_hash.pop(self.hash_of.pop(block, None), None)
            self.refs[block] = 1
        return taken

    def cache(self, block, one):
        if one not in self.by_hash and block not in self.hash_of:
            self.by_hash[one], self.hash_of[block] = block, one

    def evict(self, block):
        self.by_hash.pop(self.hash_of.pop(block, None), None)

    def give_back(self, blocks):
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free[block] = None

    def used(self):
        return self.count - 1 - len(self.free)

    def reset(self):
        if self.used():
            return False
        self.by_hash.clear()
        self.hash_of.clear()
        return True


class Engine:
    def __init__(self, options):
        self.options = options
        self.size = options["block_size"]
        self.weights = options["weights"]
        self.policy = options["policy"]
        transfer = SimpleNamespace(kv_connector="KvplaneConnector", kv_role=options["kv_role"], engine_id=options["engine_id"],
                                   kv_connector_extra_config=options["extra"])
        parallel = SimpleNamespace(rank=0, world_size=options["ranks"], tensor_parallel_size=options["ranks"], data_parallel_size=1,
                                   data_parallel_rank=0)
        config = SimpleNamespace(
            kv_transfer_config=transfer, parallel_config=parallel, kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
            model_config=SimpleNamespace(model="lab/toy-model", revision=None, dtype="torch.uint8", quantization=None,
                                         max_model_len=4096, served_model_name="toy"),
            cache_config=SimpleNamespace(cache_dtype="auto", block_size=self.size))
        spec = FullAttentionSpec(self.size, page_size_bytes=2 * self.size * model.ROW)
        group = SimpleNamespace(kv_cache_spec=spec, layer_names=[f"model.layers.{i}.attn" for i in range(model.LAYERS)])
        cache = SimpleNamespace(num_blocks=options["blocks"], kv_cache_groups=[group])
        self.workers = []
        for rank in range(options["ranks"]):
            mine = SimpleNamespace(**{**vars(config), "parallel_config": SimpleNamespace(**{**vars(parallel), "rank": rank})})
            self.workers.append(self._spawn((mine, cache, options)))
        for _, pipe in self.workers:
            self._answer(pipe)
        from kvplane.vllm import KvplaneConnector
        self.connector = KvplaneConnector(config, KVConnectorRole.SCHEDULER, cache)
        self.connector.set_xfer_handshake_metadata(dict(enumerate(self.rpc("handshake"))))
        self.pool = BlockPool(options["blocks"])
        self.requests = {}
        self.waiting, self.running = [], []
        self.received = set()
        self.finished = set()
        self.preempted = set()
        self.delayed = {}  # finished, its blocks still read
        self.paused = None
        self.asleep = set()
        self.done = {}
        self.events = []
        self.hold_loads = self.held = False
        self.preemptions = 0
        self.stats = KVConnectorStatsSum()

    @staticmethod
    def _spawn(told):
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([sys.executable, *["-S"] * sys.flags.no_site, os.path.join(os.path.dirname(__file__), "worker.py"), str(theirs.fileno())],
                                       pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        pipe = Connection(ours.detach())
        pipe.send_bytes(pickle.dumps(told))
        return process, pipe

    @staticmethod
    def _answer(pipe):
        good, value = pipe.recv()
        if not good:
            raise RuntimeError(f"a worker: {value}")
        return value

    def rpc(self, name, *args):
        """On all workers, as a collective call: all are asked, then all are heard."""
        for _, pipe in self.workers:
            pipe.send((name, args))
        answers = [pipe.recv() for _, pipe in self.workers]
        for good, value in answers:
            if not good:
                raise RuntimeError(f"a worker: {value}")
        return [value for _, value in answers]

    # ---- scheduling

    def add(self, request_id, tokens, max_tokens):
        request = Request(request_id, tokens, max_tokens, self.size)
        self.requests[request_id] = request
        self.waiting.append(request)

    def _admit(self, request):
        """False: it waits on."""
        external, asynchronous = 0, False
        cached = []
        if request.num_computed_tokens == 0:
            cached = self.pool.cached(request.block_hashes[:(request.num_tokens - 1) // self.size])
            local = len(cached) * self.size
            external, asynchronous = self.connector.get_num_new_matched_tokens(request, local)
            if external is None:
                return False
            assert external == 0 or asynchronous
            request.local, request.external = local, external
            computed = local + external
        else:
            computed = request.num_computed_tokens
        count = 0 if asynchronous else min(BUDGET, request.num_tokens - computed)
        self.pool.touch(cached)
        fresh = self.pool.take(-(-(computed + count) // self.size) - len(request.blocks) - len(cached))
        if fresh is None:
            self.pool.give_back(cached)
            return False
        request.blocks += cached + fresh
        self.connector.update_state_after_alloc(request, KVCacheBlocks(request.blocks), external)
        request.num_computed_tokens = computed
        request.status = "WAITING_FOR_REMOTE_KVS" if asynchronous else "RUNNING"
        if not asynchronous:
            self.waiting.remove(request)
            self.running.append(request)
            self._schedule(request, count, True)
        return True

    def _schedule(self, request, count, from_waiting):
        output = self.output
        if not request.known:
            request.known = True
            output.scheduled_new_reqs.append(NewRequestData(request.request_id, list(request.all_token_ids), (list(request.blocks),),
                                                            request.num_computed_tokens))
        else:
            cached = output.scheduled_cached_reqs
            cached.req_ids.append(request.request_id)
            cached.num_computed_tokens.append(request.num_computed_tokens)
            if from_waiting:
                cached.resumed_req_ids.add(request.request_id)
                cached.all_token_ids[request.request_id] = list(request.all_token_ids)
                cached.new_block_ids.append((list(request.blocks),))
            else:
                cached.new_block_ids.append((request.more,) if request.more else None)
        output.num_scheduled_tokens[request.request_id] = count
        request.num_computed_tokens += count

    def preempt(self, request, told=True):
        self.running.remove(request)
        self.pool.give_back(request.blocks)
        request.blocks = []
        request.num_computed_tokens = 0
        request.status = "PREEMPTED"
        self.waiting.insert(0, request)
        if told:  # not by a reset
            self.preempted.add(request.request_id)
        self.preemptions += 1

    def step(self):
        """One step of the engine's loop; whether anything was scheduled."""
        self.output = SchedulerOutput(finished_req_ids=self.finished)
        self.finished = set()
        if self.paused != "keep":
            for request in list(self.running):
                if request not in self.running:
                    continue
                count = min(BUDGET, request.num_tokens - request.num_computed_tokens)
                need = -(-(request.num_computed_tokens + count) // self.size) - len(request.blocks)
                request.more = self.pool.take(need)
                while request.more is None and self.running[-1] is not request:
                    self.preempt(self.running[-1])
                    request.more = self.pool.take(need)
                if request.more is None:
                    self.preempt(request)
                    continue
                request.blocks += request.more
                self._schedule(request, count, False)
        if self.paused is None:
            for request in list(self.waiting):
                if request.status == "WAITING_FOR_REMOTE_KVS":
                    if request.request_id not in self.received:
                        continue
                    self.received.discard(request.request_id)
                    self._cache(request)
                    request.status = "WAITING"
                    keep = request.num_computed_tokens // self.size
                    if keep < len(request.blocks):
                        self.pool.give_back(request.blocks[keep:])
                        request.blocks = request.blocks[:keep]
                self._admit(request)
        self.output.preempted_req_ids, self.preempted = self.preempted, set()
        self.output.kv_connector_metadata = pickle.loads(pickle.dumps(self.connector.build_connector_meta(self.output)))
        if self.hold_loads and self.output.kv_connector_metadata.loads:
            self.held = True
            return True
        return self._execute()

    def _execute(self):
        self.held = False
        self._update(self.rpc("execute_model", self.output))
        return bool(self.output.num_scheduled_tokens)

    def step_to_load(self):
        """Until a load has been decided, which the workers have not heard of."""
        self.hold_loads = True
        self.run(lambda: self.held)
        self.hold_loads = False

    def _cache(self, request):
        for at in range(min(request.num_computed_tokens // self.size, len(request.block_hashes))):
            self.pool.cache(request.blocks[at], request.block_hashes[at])

    def _aggregate(self, outputs):
        """A request has been sent, or received, when every rank says so."""
        first = outputs[0]
        for name in ("finished_sending", "finished_recving"):
            counts = self.__dict__.setdefault("_" + name, {})
            done = set()
            for output in outputs:
                for req_id in getattr(output, name) or ():
                    counts[req_id] = counts.get(req_id, 0) + 1
                    if counts[req_id] == len(self.workers):
                        del counts[req_id]
                        done.add(req_id)
            setattr(first, name, done)
        for output in outputs[1:]:
            first.invalid_block_ids |= output.invalid_block_ids
            if first.kv_connector_worker_meta is None:
                first.kv_connector_worker_meta = output.kv_connector_worker_meta
            elif output.kv_connector_worker_meta is not None:
                first.kv_connector_worker_meta = first.kv_connector_worker_meta.aggregate(output.kv_connector_worker_meta)
        for output in outputs:
            self.stats.take(output.kv_connector_stats)
        return first

    def _update(self, answers):
        told = self._aggregate([output for _, output in answers])
        sampled = answers[0][0]
        assert all(one == sampled for one, _ in answers), "ranks differ"
        for request in list(self.requests.values()):
            bad = [at for at, block in enumerate(request.blocks) if block in told.invalid_block_ids]
            if not bad:
                continue
            assert request.status == "WAITING_FOR_REMOTE_KVS", "only what waits for a load has such blocks"
            request.num_computed_tokens = min(request.num_computed_tokens, bad[0] * self.size)
            request.external = max(0, request.num_computed_tokens - request.local)
            request.failed = True
            if self.policy == "fail":
                request.status = "FAILED"
        for request in list(self.running):
            if request.request_id in self.output.num_scheduled_tokens:
                self._cache(request)
            if request.request_id in sampled:
                request.all_token_ids.append(sampled[request.request_id])
                request.output.append(sampled[request.request_id])
                request.hash_more()
                if len(request.output) == request.max_tokens:
                    self.running.remove(request)
                    self._finish(request, "length")
        self.connector.update_connector_output(told)
        for req_id in told.finished_recving:
            assert req_id in self.requests or req_id in self.delayed, "received, and nobody asked for it"
            if req_id in self.delayed:
                self.pool.give_back(self.delayed.pop(req_id))
            elif self.requests[req_id].status == "FAILED":
                request = self.requests[req_id]
                self.waiting.remove(request)
                self._finish(request, "error")
            else:
                self.received.add(req_id)
        for req_id in told.finished_sending:
            self.pool.give_back(self.delayed.pop(req_id))
        self.events += [type(event).__name__ for event in self.connector.take_events()]
        self.stats.take(self.connector.get_kv_connector_stats())

    def _finish(self, request, reason):
        delay, _ = self.connector.request_finished(request, list(request.blocks))
        loading = request.status == "WAITING_FOR_REMOTE_KVS" and request.request_id not in self.received
        assert not (delay and loading)
        if delay or loading:
            self.delayed[request.request_id] = request.blocks
        else:
            self.pool.give_back(request.blocks)
        self.finished.add(request.request_id)
        del self.requests[request.request_id]
        expected = model.control(self.weights, request.prompt_token_ids, len(request.output)) if request.output else []
        self.done[request.request_id] = {"reason": reason, "output": request.output, "right": request.output == expected,
                                         "local": request.local, "external": request.external}

    def busy(self):
        return bool(self.requests or self.finished or self.delayed or self.connector.has_pending_push_work())

    def run(self, until=None):
        """Until nothing is left to do; what became of the requests since the last time."""
        end = time.monotonic() + 120
        if self.held:
            self._execute()
        while self.busy() if until is None else not until():
            if time.monotonic() > end:
                raise TimeoutError(f"not idle: waiting {[(r.request_id, r.status) for r in self.waiting]} running "
                                   f"{len(self.running)} delayed {list(self.delayed)}")
            if not self.step():
                time.sleep(0.001)
        done, self.done = self.done, {}
        return done

    def abort(self, req_ids):
        for req_id in req_ids:
            request = self.requests[req_id]
            (self.running if request in self.running else self.waiting).remove(request)
            self._finish(request, "abort")

    # ---- what vLLM's HTTP interface does

    def reset_prefix_cache(self, reset_running_requests=False, reset_external=False):
        if reset_running_requests:
            for request in list(reversed(self.running)):
                self.preempt(request, told=False)
        local = self.pool.reset()
        if reset_running_requests and not local:
            raise RuntimeError("Failed to reset KV cache even when all the running requests are preempted")
        external = self.connector.reset_cache() if reset_external else True
        return local and external is not False

    def _reset_caches(self):
        for request in list(reversed(self.running)):
            self.preempt(request, told=False)
        if not self.pool.reset():
            raise RuntimeError("Failed to reset KV cache")
        if self.connector.reset_cache() is False:
            raise RuntimeError("Failed to reset the KV connector cache.")

    def pause(self, mode="abort", clear_cache=True):
        self.paused = "keep" if mode == "keep" else "new"
        if mode == "abort":
            self.abort(list(self.requests))
        kept = self.done
        self.done = {}
        self.run(lambda: not self.connector.has_pending_push_work() and not self.delayed and not self.finished
                 and (mode == "keep" or not self.running))
        self.done.update(kept)
        if clear_cache:
            self._reset_caches()

    def sleep(self, level=1, mode="abort"):
        self.pause(mode, clear_cache=level >= 1)
        if level and not self.asleep:
            self.rpc("sleep", ["weights", "kv_cache"])
            self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags=None):
        wanted = set(tags or self.asleep) & self.asleep
        if wanted:
            self.rpc("wake", sorted(wanted))
            self.asleep -= wanted
        if not self.asleep:
            self.paused = None

    def resume(self):
        self.paused = None

    def set_weights(self, weights):
        self.rpc("set_weights", weights)
        self.weights = weights

    def shares_as(self):
        return self.connector.shares_as()

    def steps(self, count):
        for _ in range(count):
            self.step()

    def worker_call(self, name, args=()):
        return self.rpc("call", name, *args)

    def report(self):
        return {"preemptions": self.preemptions, "events": self.events, "stats": self.stats.data, "used": self.pool.used(), "asleep": sorted(self.asleep)}

    def shutdown(self):
        self.connector.shutdown()
        self.rpc("shutdown")
        for process, _ in self.workers:
            process.wait()


class KVConnectorStatsSum:
    def __init__(self):
        self.data = {}

    def take(self, stats):
        if stats is not None:
            assert isinstance(stats, KVConnectorStats) and not stats.is_empty() and stats.reduce()
            for name, n in pickle.loads(pickle.dumps(stats)).data.items():
                self.data[name] = self.data.get(name, 0) + n


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = Engine(json.loads(sys.argv[1]))
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"ok": getattr(engine, asked.pop("call"))(**asked)}
        except Exception as error:  # pylint: disable=broad-exception-caught
            import traceback
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
