# SPDX-License-Identifier: Apache-2.0
"""/livez while a thread of the process is stopped, as by a debugger: it names the thread, until that goes on.

It is the kernel that stops just this one thread (ptrace); who may not do that skips.
"""
import ctypes
import http.client
import os
import signal
import socket
import unittest

import harness

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # linux/ptrace.h
WALL = 0x40000000  # linux/wait.h: threads too
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid):
    if libc.ptrace(request, tid, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Threads(harness.Case):
    def setUp(self):
        super().setUp()
        self.stopped = []

    def tearDown(self):
        for tid in self.stopped:
            ptrace(DETACH, tid)
        super().tearDown()

    def threads(self, process):
        """By the names that they give themselves; the first is the process's own."""
        names = {}
        for tid in sorted(map(int, os.listdir(f"/proc/{process.pid}/task"))):
            with open(f"/proc/{process.pid}/task/{tid}/comm", encoding="utf-8") as comm:
                name = comm.read().strip()
            names["main" if tid == process.pid else name] = tid
        return names

    def stop(self, process, name):
        tid = self.threads(process)[name]
        try:
            ptrace(SEIZE, tid)
        except OSError as error:
            if isinstance(error, PermissionError):
                self.skipTest(f"ptrace: {error.strerror}")
            raise
        ptrace(INTERRUPT, tid)
        os.waitpid(tid, WALL)
        self.stopped.append(tid)

    def go_on(self):
        while self.stopped:
            ptrace(DETACH, self.stopped.pop())

    def stuck(self, process, *names):
        """Until /livez says that of each of them, and of nobody else (who may be late, on a busy machine)."""
        def told():
            status, answer = process.get("/livez")
            return status == 503 and sorted(reason.split(" is stuck: ")[0] for reason in answer["reasons"]) == sorted(
                f"thread {name}" for name in names)
        harness.until(f"{names} stuck", told)

    def alive(self, process):
        harness.until("alive", lambda: process.get("/livez") == (200, {"status": "alive"}))

    def test_the_loop_of_a_daemon(self):
        daemon = self.daemon()
        self.alive(daemon)
        self.stop(daemon, "main")
        self.stuck(daemon, "main")
        self.assertEqual(daemon.get("/health")[0], 503)
        self.go_on()
        self.alive(daemon)
        self.clean(daemon)

    def test_a_thread_of_a_daemon_that_serves_its_share_and_those_for_bodies(self):
        path = os.path.join(self.directory, "http.sock")
        daemon = self.daemon("--etcd", self.etcd().endpoints, "--io-threads", "2", "--cluster-listen", "127.0.0.1:0",
                             "--http-socket", path)
        engine = self.engine(daemon, "a")
        harness.until("well", lambda: daemon.get("/health")[0] == 200)
        self.alive(daemon)
        self.stop(daemon, "io-1")
        self.stuck(daemon, "io-1")
        harness.until("the engine is well all the same", lambda: daemon.get("/health")[0] == 200)
        self.stop(daemon, "bodies")
        self.stop(daemon, "bodies-unix")
        clients = [http.client.HTTPConnection(daemon.host, daemon.port, timeout=harness.DEADLINE_S) for _ in range(2)]
        clients[1].sock = socket.socket(socket.AF_UNIX)
        clients[1].sock.settimeout(harness.DEADLINE_S)
        clients[1].sock.connect(path)
        for client in clients:
            client.request("POST", "/wake_up", body='{"x": "%s"}' % ("y" * 100000))
        self.stuck(daemon, "io-1", "bodies", "bodies-unix")
        self.go_on()
        for client in clients:
            self.assertEqual(client.getresponse().status, 200)
            client.close()
        self.alive(daemon)
        # Who is away is no reason: neither the engine nor etcd.
        engine.kill(signal.SIGKILL)
        harness.until("ill", lambda: daemon.get("/health")[0] == 503)
        self.alive(daemon)
        self.clean(daemon)

    def test_threads_of_a_store_node(self):
        node = self.store_node(self.etcd(), "--io-threads", "2")
        self.alive(node)
        self.stop(node, "io-0")
        self.stuck(node, "io-0")
        self.go_on()
        self.alive(node)
        self.stop(node, "main")
        self.stuck(node, "main")
        self.go_on()
        self.alive(node)
        self.clean(node)


if __name__ == "__main__":
    unittest.main()
