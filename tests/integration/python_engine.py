# SPDX-License-Identifier: Apache-2.0
"""An engine in Python over kvplane.link, for test_python.py: blocks of one region, which may sleep."""
import hashlib
import json

from kvplane import link

BLOCKS = 8
BLOCK_BYTES = 65536


def block(key, weights):
    """What the block of this key is, computed with these weights."""
    return hashlib.blake2b(key, key=weights.encode()).digest() * (BLOCK_BYTES // 64)


class PythonEngine(link.Engine):
    def __init__(self, socket, instance, weights="1", **options):
        self.weights = weights
        self.paused = self.written = self.joined = False
        self.memory = link.HostMemory(BLOCKS * BLOCK_BYTES)
        self.asleep = False
        self.calls = []
        self.session = link.Session(self, socket=socket, instance=instance, layout="bytes", weights_name=weights, **options)

    def close(self):
        self.session.close()
        self.memory.close()

    # What the daemon asks.
    def state(self):
        residency = link.Residency.DISCARDED if self.asleep else link.Residency.RESIDENT
        return link.State(paused=self.paused, weights_written=self.written, local_reset_done=True, tags={"kv_cache": residency})

    def attached(self, result):
        self.calls.append(("attached", result))
        if result == link.Result.OK and not self.asleep:
            self.session.hand_over(self.memory)

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
            self.memory.discard()
            self.asleep = True
        call.answer()

    def restore(self, call, tags):
        self.asleep = False
        self.session.hand_over(self.memory)
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
        memory = memoryview(self.memory.map)
        places = [memory[at * BLOCK_BYTES:(at + 1) * BLOCK_BYTES] for at in range(len(keys))]
        entries = [link.Entry(key, [self.memory.slice(place)]) for key, place in zip(keys, places)]
        results = []
        memory[:] = b"\xee" * len(memory)
        if hits:
            self.session.get(1, token, entries[:hits], results.extend)
            turn(lambda: results)
        got = sum(result == link.Result.OK for result in results)
        for at, (key, place) in enumerate(zip(keys, places)):
            if at < hits and results[at] == link.Result.OK:
                assert place == block(key, self.weights), f"block {at} is not what these weights make of it"
            else:
                place[:] = block(key, self.weights)
        stored = []
        self.session.put([(entry, token) for entry in entries], stored.extend)
        turn(lambda: stored)
        return got
