# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector (api/python/kvplane/vllm): real daemons and stores, engines that are doubles of vLLM's
(tests/vllm_double): a scheduler's process and a process of each rank, with the connector in its two roles."""
import json
import os
import subprocess
import sys
import unittest
import uuid

import harness

PACKAGE = os.path.join(harness.API, "python")
DOUBLE = os.path.join(harness.ROOT, "tests", "vllm_double")
TORCH = os.environ.get("KVPLANE_TORCH") == "1"
PYTHON = "/usr/bin/python3" if TORCH else sys.executable
sys.path[:0] = [PACKAGE]

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
        super().__init__([os.path.join(DOUBLE, "engine.py"), json.dumps(self.options)], directory, instance, program=PYTHON,
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
        if not self.popen.stdin.closed:
            self.popen.stdin.close()
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
