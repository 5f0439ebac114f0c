# SPDX-License-Identifier: Apache-2.0
"""The misbehaving network does what it says; without that, what it proves of others is worth nothing."""
import select
import socket
import time
import unittest

import harness

FAR = b"there" * 1000
NEAR = b"back!" * 1000


class Proxied(harness.Case):
    def setUp(self):
        super().setUp()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(harness.DEADLINE_S)
        self.net = self.proxy(f"127.0.0.1:{self.server.getsockname()[1]}")
        self.sockets = [self.server]

    def tearDown(self):
        for one in self.sockets:
            one.close()
        super().tearDown()

    def connect(self):
        """Both ends of one connection through it."""
        host, port = self.net.address.split(":")
        near = socket.create_connection((host, int(port)), timeout=harness.DEADLINE_S)
        far, _ = self.server.accept()
        far.settimeout(harness.DEADLINE_S)
        self.sockets += [near, far]
        return near, far

    def take(self, one, n):
        data = bytearray()
        while len(data) < n:
            more = one.recv(min(n - len(data), 1 << 20))
            if not more:
                break
            data += more
        return bytes(data)

    def rest(self, one):
        """What still comes, and how it ends: closed or reset."""
        data = b""
        try:
            while more := one.recv(65536):
                data += more
            return data, "closed"
        except ConnectionResetError:
            return data, "reset"

    def silent(self, one):
        return not select.select([one], [], [], 0.2)[0]

    def exchange(self, near, far):
        near.sendall(FAR)
        self.assertEqual(self.take(far, len(FAR)), FAR)
        far.sendall(NEAR)
        self.assertEqual(self.take(near, len(NEAR)), NEAR)

    def test_without_rules_it_is_not_there(self):
        near, far = self.connect()
        self.exchange(near, far)
        near.shutdown(socket.SHUT_WR)
        self.assertEqual(self.rest(far), (b"", "closed"))
        far.sendall(NEAR)
        far.close()
        self.assertEqual(self.rest(near), (NEAR, "closed"))
        harness.until("gone", lambda: self.net.stats()["connections"] == 0)

    def test_it_cuts_and_resets_at_every_byte(self):
        for way in ("there", "back"):
            for then, end in (("cut", "closed"), ("reset", "reset")):
                for after in (0, 1, 2, 7, 20, 21, 4999):
                    with self.subTest(way=way, then=then, after=after):
                        near, far = self.connect()
                        self.net.rule(way, after=after, then=then)
                        source, sink = (near, far) if way == "there" else (far, near)
                        try:
                            source.sendall(FAR)
                        except OSError:
                            pass  # it may be gone already
                        data, how = self.rest(sink)
                        self.assertEqual(how, end)
                        if then == "cut":
                            self.assertEqual(data, FAR[:after])
                        self.net.tell("clear")

    def test_it_counts_anew_for_each_connection(self):
        self.net.rule("there", after=10, then="cut")
        for _ in range(3):
            near, far = self.connect()
            near.sendall(FAR)
            self.assertEqual(self.rest(far)[0], FAR[:10])
        self.assertEqual(self.net.stats()["fired"], 3)

    def test_it_swallows_in_silence_and_resets_what_lost_bytes_when_cleared(self):
        near, far = self.connect()
        self.exchange(near, far)
        self.net.rule("there", after=3, then="drop")
        near.sendall(FAR)
        self.assertEqual(self.take(far, 3), FAR[:3])
        self.assertTrue(self.silent(far))
        far.sendall(NEAR)
        self.assertTrue(self.silent(near))
        self.net.tell("clear")
        self.assertEqual(self.rest(near)[1], "reset")

    def test_half_open_the_far_end_is_reset_and_the_near_one_not_told(self):
        near, far = self.connect()
        self.net.rule("back", after=0, then="half")
        self.assertEqual(self.rest(far)[1], "reset")
        near.sendall(FAR)
        self.assertTrue(self.silent(near))

    def test_frozen_it_pushes_back_and_loses_nothing(self):
        near, far = self.connect()
        self.net.rule("there", after=0, then="freeze")
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
        near.setblocking(False)
        sent = 0
        with self.assertRaises(BlockingIOError):
            while True:
                sent += near.send(bytes(65536))
                self.assertLess(sent, 1 << 28)
                if not select.select([], [near], [], 0.2)[1]:
                    near.send(b"x")
        self.assertTrue(self.silent(far))
        self.net.tell("clear")
        self.assertEqual(len(self.take(far, sent)), sent)

    def test_it_passes_one_byte_at_a_time(self):
        near, far = self.connect()
        self.net.rule("there", piece=1)
        self.net.rule("back", piece=1)
        self.exchange(near, far)

    def test_it_delays_and_throttles(self):
        near, far = self.connect()
        self.net.rule("there", delay_ms=300)
        began = time.monotonic()
        near.sendall(FAR)
        self.take(far, len(FAR))
        self.assertGreaterEqual(time.monotonic() - began, 0.3)
        self.net.rule("there", bytes_per_s=20000)
        began = time.monotonic()
        near.sendall(FAR)
        self.assertEqual(self.take(far, len(FAR)), FAR)
        self.assertGreaterEqual(time.monotonic() - began, 0.2, "5000 bytes at 20000 a second")

    def test_it_refuses_and_takes_again(self):
        self.net.tell("refuse", on=True)
        host, port = self.net.address.split(":")
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        self.net.tell("refuse", on=False)
        self.exchange(*self.connect())


if __name__ == "__main__":
    unittest.main(verbosity=2)
