# SPDX-License-Identifier: Apache-2.0
"""What real trainers send, byte for byte, judged as they judge it (the project's recorded requests)."""
import os
import pathlib
import subprocess
import sys
import unittest

import harness

SHARED = os.environ.get("KVPLANE_SHARED") or pathlib.Path(__file__).resolve().parents[3] / "shared"
REPLAY = pathlib.Path(SHARED) / "reference" / "replay_trainers.py"
CLIENTS = ("vllm-docs-curl", "vllm-examples")


class Trainers(harness.Case):
    @unittest.skipUnless(REPLAY.exists(), f"the recorded requests are not here ({REPLAY})")
    def test_every_request_of_these_clients_passes(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0")
        for client in CLIENTS:
            run = subprocess.run([sys.executable, str(REPLAY), f"127.0.0.1:{daemon.port}", client],
                                 capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(run.returncode, 0, run.stdout)
            self.assertIn(" 0 failed", run.stdout)


if __name__ == "__main__":
    if not REPLAY.exists():
        print(f"SKIP: trainers: the recorded requests are not beside this checkout ({REPLAY.name})")
    unittest.main()
