# SPDX-License-Identifier: Apache-2.0
"""torch tensors on the CPU as KV cache, in shared memory (kvplane.link.HostMemory): two processes, a daemon between them."""
import json
import os
import subprocess
import unittest

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"  # Debian's: python3-torch is its own (deploy/packages/torch.txt)


def has_torch():
    """Without importing it, which takes seconds."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return os.path.exists(PYTHON) and subprocess.run([PYTHON, "-c", find], check=False).returncode == 0


class TorchEngine(harness.Process):
    def __init__(self, daemon, instance):
        super().__init__([os.path.join(HERE, "torch_engine.py"), daemon.socket, instance], daemon.directory, instance,
                         program=PYTHON, stdin=subprocess.PIPE,
                         env={"KVPLANE_LIBRARY": os.environ["KVPLANE_LIBRARY"], "PYTHONDONTWRITEBYTECODE": "1",
                              "PYTHONPATH": os.path.join(harness.ROOT, "api", "python")})

    def ask(self, command, seed=0):
        self.popen.stdin.write(f"{command} {seed}\n".encode())
        self.popen.stdin.flush()
        return json.loads(self.line("answer "))


@unittest.skipUnless(has_torch(), "no torch")
class Torch(harness.Case):
    def setUp(self):
        super().setUp()
        self.plane = self.daemon()
        self.engines = [TorchEngine(self.plane, name) for name in ("t0", "t1")]
        self.processes += self.engines
        self.named(self.plane, "t0", "t1")

    def test_tensors_are_put_by_one_process_and_got_by_another_over_a_sleep(self):
        one, other = self.engines
        self.assertEqual(set(one.ask("put", 7)), {"OK"})
        self.assertEqual(other.ask("get", 7), {"hits": 8, "equal": True})
        self.plane.ok("/sleep?level=2&instance=t1")
        self.assertEqual(other.ask("zero"), {"zero": True}, "its addresses are there, its pages are not")
        self.plane.ok("/wake_up?instance=t1")
        self.named(self.plane, "t1")
        self.assertEqual(other.ask("get", 7), {"hits": 8, "equal": True})
        # Other weights in one of them: nothing of before is got there.
        self.plane.ok("/update_weights?instance=t1", {"update_info": {"weights": "2"}})
        self.plane.ok("/finish_weight_update?instance=t1")
        self.named(self.plane, "t1")
        self.assertEqual(other.ask("get", 7)["hits"], 0)
        *said, too_long, beyond, before = one.ask("refused")
        for text, of in zip(said, ("not in region 0", "on the CPU", "contiguous", "contiguous", "0 bytes")):
            self.assertIn(of, text)
        for text in (too_long, beyond, before):
            self.assertIn("is not within", text)
        for engine in self.engines:
            engine.popen.stdin.close()
            self.assertEqual(engine.popen.wait(harness.DEADLINE_S), 0, engine.tail())


if __name__ == "__main__":
    if not has_torch():
        print("SKIP: python_torch: Debian's python3-torch is not installed (./dev deps torch)")
    unittest.main(verbosity=2)
