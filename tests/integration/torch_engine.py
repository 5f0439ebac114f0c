# SPDX-License-Identifier: Apache-2.0
"""An engine whose KV cache is a torch tensor in shared memory, for test_python_torch.py: commands come by line on stdin,
an answer goes by line to stdout. Runs with Debian's python3, which has torch where the tests have it."""
import json
import queue
import sys
import threading

import torch

import python_engine
from kvplane import link

SHAPE = (python_engine.BLOCKS, 2, 16, 8, 128)  # blocks, K and V, tokens, heads, head size: all of its memory
KEYS = [b"prefix %d" % i for i in range(SHAPE[0])]


class TorchEngine(python_engine.PythonEngine):
    def __init__(self, socket, instance):
        super().__init__(socket, instance)
        self.kv = self.memory.tensor(torch.bfloat16, SHAPE)
        self.entries = [link.Entry(key, [self.memory.slice(block)]) for key, block in zip(KEYS, self.kv)]

    def turn(self, condition):
        while not condition():
            self.session.wait(0.05)

    def put(self, seed):
        self.kv.copy_(computed(seed))
        results = []
        self.session.put([(entry, self.session.token()) for entry in self.entries], results.extend)
        self.turn(lambda: results)
        return [link.Result(result).name for result in results]

    def get(self, seed):
        self.kv.fill_(0)
        token, found, results = self.session.token(), [], []
        self.session.lookup(1, token, [link.Keys(KEYS)], lambda result, hits: found.append(hits[0]))
        self.turn(lambda: found)
        if found[0]:
            self.session.get(1, token, self.entries[:found[0]], results.extend)
            self.turn(lambda: results)
        return {"hits": results.count(link.Result.OK), "equal": torch.equal(self.kv, computed(seed))}

    def zero(self, _):
        return {"zero": bool((self.kv == 0).all())}

    def refused(self, _):
        """What each of these says that is no slice of this memory."""
        said = []
        for part in (torch.zeros(4), torch.empty(4, device="meta"), self.kv[:, 0], self.kv[:, :, :, 0].transpose(0, 1),
                     self.kv[0:0]):
            try:
                said.append(self.memory.slice(part))
            except ValueError as error:
                said.append(str(error))
        for shape, offset in (((*SHAPE[:-1], SHAPE[-1] + 1), 0), (SHAPE, 2), (SHAPE, -2)):
            try:
                said.append(list(self.memory.tensor(torch.bfloat16, shape, offset).shape))
            except ValueError as error:
                said.append(str(error))
        return said


def computed(seed):
    """What these weights make of the prompt."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def main():
    torch.set_num_threads(1)
    engine = TorchEngine(*sys.argv[1:])
    commands = queue.SimpleQueue()

    def read():
        for line in sys.stdin:
            commands.put(line)
        commands.put("")  # the end

    threading.Thread(target=read, daemon=True).start()
    while True:
        engine.turn(lambda: not commands.empty())
        line = commands.get()
        if not line:
            break
        name, _, seed = line.strip().partition(" ")
        print("answer " + json.dumps(getattr(engine, name)(int(seed or 0))), flush=True)
    engine.close()
    assert engine.kv.shape == SHAPE and engine.kv.sum() is not None, "tensors outlive the session"


if __name__ == "__main__":
    main()
