# SPDX-License-Identifier: Apache-2.0
"""An engine in Python over kvplane.link, for test_python.py: blocks of one region, which may sleep."""
import fcntl
import hashlib
import json
import mmap
import os

from kvplane import link

BLOCKS = 8
BLOCK_BYTES = 65536
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


def block(key, weights):
    """What the block of this key is, computed with these weights."""
    return hashlib.blake2b(key, key=weights.encode()).digest() * (BLOCK_BYTES // 64)


class PythonEngine(link.Engine):
    def __init__(self, socket, instance, weights="1", **options):
        self.weights = weights
        self.paused = self.written = self.joined = False
        self.generation = 0
        self.memory = None
        self.calls = []
        self._map()
        self.session = link.Session(self, socket=socket, instance=instance, layout="bytes", weights_name=weights, **options)

    def _map(self):
        self.fd = os.memfd_create("kv_cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, BLOCKS * BLOCK_BYTES)
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK)
        self.memory = mmap.mmap(self.fd, BLOCKS * BLOCK_BYTES)

    def _hand_over(self):
        self.generation += 1
        self.session.register_region(0, self.fd, BLOCKS * BLOCK_BYTES, generation=self.generation)

    def close(self):
        self.session.close()
        self._unmap()

    def _unmap(self):
        if self.memory is not None:
            self.memory.close()
            os.close(self.fd)
            self.memory = None

    # What the daemon asks.
    def state(self):
        residency = link.Residency.DISCARDED if self.memory is None else link.Residency.RESIDENT
        return link.State(paused=self.paused, weights_written=self.written, local_reset_done=True, tags={"kv_cache": residency})

    def attached(self, result):
        self.calls.append(("attached", result))
        if result == link.Result.OK and self.memory is not None:
            self._hand_over()

    def disconnected(self, reason):
        self.session.reattach()

    def pause(self, call, mode):
        self.calls.append(("pause", mode))
        self.paused = True
        call.answer()

    def resume(self, call):
        self.paused = False
        call.answer()

    def reset_local(self, call, preempt):
        call.answer_reset(link.Result.OK)

    def release(self, call, commit, offload):
        if commit:
            self._unmap()
        call.answer()

    def restore(self, call, tags):
        if self.memory is None:
            self._map()
        self._hand_over()
        call.answer()

    def fingerprint(self, call):
        call.answer_text(hashlib.sha256(self.weights.encode()).hexdigest())

    def relay(self, call, method, body):
        if b'"raise"' in body:
            raise RuntimeError("an engine's own mistake")
        if method == "update_weights":
            self.written = True
            self.weights = json.loads(body)["update_info"]["weights"]
        call.answer_relay(link.Result.OK, json.dumps({"method": method}).encode(), weights_written=self.written)

    def lineage(self, left, name):
        self.joined = not left
        self.written = False

    # A prompt of `keys`: how many blocks came from the store, all of them judged.
    def run(self, keys, turn):
        token = self.session.token()
        answers = []
        self.session.lookup(1, token, [link.Keys(keys)], lambda result, hits: answers.append((result, hits[0])))
        turn(lambda: answers)
        hits = answers[0][1]
        entries = [link.Entry(key, [link.Slice(0, at * BLOCK_BYTES, BLOCK_BYTES)]) for at, key in enumerate(keys)]
        results = []
        self.memory[:] = b"\xee" * len(self.memory)
        if hits:
            self.session.get(1, token, entries[:hits], results.extend)
            turn(lambda: results)
        got = sum(result == link.Result.OK for result in results)
        for at, key in enumerate(keys):
            place = slice(at * BLOCK_BYTES, (at + 1) * BLOCK_BYTES)
            if at < hits and results[at] == link.Result.OK:
                assert self.memory[place] == block(key, self.weights), f"block {at} is not what these weights make of it"
            else:
                self.memory[place] = block(key, self.weights)
        stored = []
        self.session.put([(entry, token) for entry in entries], stored.extend)
        turn(lambda: stored)
        return got
