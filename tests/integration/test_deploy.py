# SPDX-License-Identifier: Apache-2.0
"""What deploy/ relies on: the service manager is told, and the configurations that it ships are the program's."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import unittest

import harness

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"


class Manager:
    """What systemd's end of Type=notify hears."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(harness.DEADLINE_S)

    def hears(self, wanted):
        """Datagrams until this one; what came before it."""
        before = []
        end = time.monotonic() + harness.DEADLINE_S
        while time.monotonic() < end:
            told = self.socket.recv(4096).decode()
            if told == wanted:
                return before
            before.append(told)
        raise AssertionError(f"never told {wanted}, only {before}")


class Notify(harness.Case):
    def manager(self, abstract=False):
        name = f"{self.directory}/notify"
        manager = Manager("\0" + name if abstract else name)
        self.addCleanup(manager.socket.close)
        return manager, {"NOTIFY_SOCKET": "@" + name if abstract else name}

    def test_the_daemon_says_when_it_serves_and_when_it_stops(self):
        for abstract in (False, True):
            manager, env = self.manager(abstract)
            daemon = self.daemon(env=env, name=f"daemon-{abstract}")
            self.assertEqual(manager.hears("READY=1"), [])
            self.assertEqual(daemon.kill(signal.SIGTERM), 0)
            self.assertEqual(manager.hears("STOPPING=1"), [])
            self.assertNotIn("service manager", daemon.stderr())

    def test_a_watchdog_hears_that_the_loop_turns_until_it_does_not(self):
        manager, env = self.manager()
        daemon = self.daemon(env={**env, "WATCHDOG_USEC": "30000000"})
        manager.hears("READY=1")
        self.assertEqual(manager.hears("WATCHDOG=1"), [])
        self.assertEqual(manager.hears("WATCHDOG=1"), [])
        daemon.popen.send_signal(signal.SIGSTOP)
        manager.socket.setblocking(False)
        harness.until("silence", lambda: self.stopped(daemon))
        try:
            while True:  # what was said before
                manager.socket.recv(4096)
        except BlockingIOError:
            pass
        daemon.popen.send_signal(signal.SIGCONT)
        manager.socket.settimeout(harness.DEADLINE_S)
        manager.hears("WATCHDOG=1")
        self.clean(daemon)

    @staticmethod
    def stopped(process):
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(") ", 1)[1][0] == "T"

    def test_a_store_node_says_when_it_serves_and_when_it_leaves(self):
        manager, env = self.manager()
        node = harness.Server(["store", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0",
                               "--store-bytes", "16MiB", "--drain-bound", "0s"],
                              self.directory, "store", env={**env, "WATCHDOG_USEC": "30000000"})
        self.processes.append(node)
        node.READY = "kvplane store ready "
        node.await_ready()
        manager.hears("READY=1")
        manager.hears("WATCHDOG=1")
        self.assertEqual(node.kill(signal.SIGTERM), 0)
        manager.hears("STOPPING=1")

    def test_a_manager_that_is_not_there_costs_a_warning(self):
        for name in (f"{self.directory}/nobody", "relative", "/", "x" * 200, "/" + "x" * 200):
            daemon = self.daemon(env={"NOTIFY_SOCKET": name}, name=f"daemon-{len(name)}")
            self.clean(daemon)
            self.assertEqual("service manager" in daemon.stderr(), name.endswith("nobody"), name)


class Configurations(unittest.TestCase):
    """As the program reads them: with what each place adds from the environment."""

    def accepted(self, command, path, env=(), args=()):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        run = subprocess.run([harness.PROGRAM, "config", *command, "show", "--config", str(path), *args],
                             env={**environment, **dict(env)}, capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, f"{path}: {run.stderr}")

    def test_those_of_kubernetes(self):
        serve = DEPLOY / "kubernetes" / "engine" / "serve.json"
        self.accepted([], serve, {"KVPLANE_INSTANCES": "kvplane-engine-0"})
        etcd = {"KVPLANE_ETCD": "http://etcd-0.etcd:2379,http://etcd-1.etcd:2379"}
        self.accepted([], serve, {**etcd, "KVPLANE_STORE_BYTES": "0", "KVPLANE_TRANSPORT": "rdma",
                                  "KVPLANE_SECRET_FILE": "/etc/kvplane/secret/secret"})
        self.accepted(["store"], DEPLOY / "kubernetes" / "store" / "store.json",
                      {**etcd, "KVPLANE_NODE_NAME": "kvplane-store-0", "KVPLANE_CLUSTER_LISTEN": "10.1.2.3:8102",
                       "KVPLANE_HUGE_PAGES": "true"})

    def test_those_of_systemd_with_the_arguments_of_their_units(self):
        for unit, names in (("kvplane@.service", ["engine-0"]), ("kvplane-store.service", [""])):
            text = (DEPLOY / "systemd" / unit).read_text(encoding="utf-8")
            for name in names:
                start = re.search(r"^ExecStart=/usr/bin/kvplane (.*)$", text, re.M)[1].replace("%i", name).split()
                path = DEPLOY / "systemd" / pathlib.Path(start.pop(start.index("--config") + 1)).name
                start.remove("--config")
                self.accepted([start[0]] if start[0] == "store" else [], path, args=start[1:])


if __name__ == "__main__":
    unittest.main()
