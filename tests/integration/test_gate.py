# SPDX-License-Identifier: Apache-2.0
"""What can sleep, told at start; and a daemon that users of Mooncake start with what they have."""
import contextlib
import json
import os
import subprocess
import unittest

import harness


class Gate(harness.Case):
    def file(self, **fields):
        path = os.path.join(self.directory, "mooncake.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(fields, out)
        return {"MOONCAKE_CONFIG_PATH": path}

    def run_it(self, *args, env):
        return subprocess.run([harness.PROGRAM, *args], capture_output=True, text=True, check=False,
                              env=os.environ | env, timeout=harness.DEADLINE_S)

    def test_what_cannot_sleep_does_not_start_and_config_says_the_same(self):
        serve = ("serve", "--listen", "127.0.0.1:0", "--engine-socket", f"{self.directory}/s")
        cases = (
            ({"MC_FORCE_MNNVL": "0"}, ("MC_FORCE_MNNVL", "Unset it", "--sleep-mode=false")),
            ({"MC_INTRANODE_NVLINK": ""}, ("MC_INTRANODE_NVLINK", "Unset it")),
            (self.file(protocol="nvlink"), ("`protocol` of ", "mooncake.json", "rdma or tcp")),
        )
        for env, words in cases:
            for command in (serve, ("config",)):
                run = self.run_it(*command, env=env)
                self.assertEqual(run.returncode, 2, run.stderr)
                for word in words:
                    self.assertIn(word, run.stderr)
        self.assertEqual(self.run_it("config", "--sleep-mode=false",
                                     env={"MC_FORCE_MNNVL": "0"}).returncode, 0)

    def test_nothing_is_opened_that_is_not_needed(self):
        daemon = self.daemon(env=self.file(protocol="rdma", device_name="mlx5_0"))
        engine = self.engine(daemon, "a")
        self.assertEqual(daemon.ok("/sleep")["status"], "sleeping")
        self.assertEqual(daemon.ok("/wake_up")["status"], "awake")
        for library in ("libcuda", "libmlx", "rdmav"):  # the driver; providers of devices
            self.assertEqual(daemon.maps(library), 0)
        opened = []
        for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # a connection's that was closed meanwhile
                opened.append(os.readlink(f"/proc/{daemon.pid}/fd/{fd}"))
        self.assertTrue(opened)
        self.assertFalse([path for path in opened if path.startswith("/dev/infiniband")])
        self.clean(engine, daemon)

    def test_without_sleep_mode_memory_is_never_given_up(self):
        daemon = self.daemon("--sleep-mode=false", env={"MC_INTRANODE_NVLINK": "1"})
        engine = self.engine(daemon, "a")
        harness.until("open", lambda: daemon.instance("a")["lineage"]["open"])
        before = daemon.instance("a")
        for path in ("/sleep", "/sleep?level=2", "/release_kv_cache_memory"):
            code, answer = daemon.post(path)
            self.assertEqual(code, 501)
            self.assertIn("--sleep-mode", answer["error"]["message"])
        self.assertEqual(daemon.instance("a")["lineage"]["id"], before["lineage"]["id"],
                         "nothing was done")
        self.assertEqual(daemon.ok("/sleep?level=0")["level"], 0)
        self.assertEqual(daemon.ok("/wake_up")["status"], "awake")
        self.clean(engine, daemon)

    def test_the_log_says_what_was_taken_over_and_what_was_not(self):
        daemon = self.daemon("--tenants=default,mine",
                             env=self.file(tenant_id="theirs", device_name="mlx5_0", protocol="tcp",
                                           master_server_address="10.0.0.1:50051",
                                           something_new=1) | {"MC_TCP_SLICE_SIZE": "4096"})
        log = daemon.stderr()
        for name, word in (("device_name", "taken over"), ("tenant_id", "stronger source"),
                           ("protocol", "not used"), ("master_server_address", "give --etcd"),
                           ("something_new", "not known"), ("MC_TCP_", "not used")):
            line, = [line for line in log.splitlines() if name in line and "mooncake: " in line]
            self.assertIn(word, line)
        self.clean(daemon)


if __name__ == "__main__":
    unittest.main()
