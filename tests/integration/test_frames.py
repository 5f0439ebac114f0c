# SPDX-License-Identifier: Apache-2.0
"""B03: whatever comes in on the engine socket costs its sender at most its own connection."""
import os
import random
import socket
import struct
import unittest

import harness

HELLO, LOOKUP, PUT, PAUSE, STATE = 1, 3, 5, 17, 24
REPLY = 1


class Frames(harness.Case):
    def setUp(self):
        super().setUp()
        self.served = self.daemon()
        self.good = self.engine(self.served, "good", "--fingerprint")
        harness.until("named", lambda: self.served.metric("kvplane_instance_shared") == 1)

    def assert_served(self, first):
        """A lookup, a put and a reset of another connection work, and nothing was reset."""
        before = self.served.instance("good")["lineage"]["id"]
        counts = self.good.run(first, 2)
        self.assertEqual((counts["errors"], counts["stale"], counts["torn"]), (0, 0, 0))
        self.assertEqual(self.served.instance("good")["lineage"]["id"], before)
        self.assertTrue(self.served.ok("/reset_prefix_cache")["success"])

    def test_bad_input_ends_its_own_connection_and_nothing_else(self):
        noise = random.Random(1).randbytes
        bad = {
            "nothing": b"",
            "an unknown message": harness.frame(999, 1),
            "a message of the other direction": harness.frame(PAUSE, 1, b"\0" * 12),
            "an answer to nothing": harness.frame(STATE, 1, b"\0" * 8, REPLY),
            "something before hello": harness.frame(LOOKUP, 1, b"\0" * 64),
            "a hello without its fields": harness.frame(HELLO, 1, b"\1\0"),
            "a hello of noise": harness.frame(HELLO, 1, noise(2000)),
            "a length beyond the limit": harness.frame(HELLO, 1, length=1 << 31),
            "a bad checksum": harness.frame(HELLO, 1)[:-1] + b"\xff",
            "seq 0": harness.frame(HELLO, 0),
            "an unknown flag": harness.frame(HELLO, 1, flags=0x80),
            "a mebibyte of noise": noise(1 << 20),
            "zeros": bytes(100),
        }
        self.assert_served(0)
        fds, threads = self.served.fds(), self.served.threads()
        for i, (what, data) in enumerate(bad.items()):
            with self.subTest(what):
                link = harness.RawLink(self.served)
                link.send(data)
                if not data:
                    link.socket.shutdown(socket.SHUT_WR)
                link.closed_by_peer()
                self.assert_served(2 + 2 * i)
        harness.until("no descriptor left", lambda: self.served.fds() <= fds)
        self.assertEqual(self.served.threads(), threads)
        self.assertEqual(self.served.get("/health")[0], 200)
        self.clean(self.good, self.served)

    def test_half_a_message_and_silence_holds_up_nobody(self):
        links = []
        whole = harness.frame(HELLO, 1, bytes(300))
        for cut in (1, 23, 24, 100):
            link = harness.RawLink(self.served)
            link.send(whole[:cut])
            links.append(link)
        self.assert_served(0)
        for link in links:
            link.closed_by_peer()  # by its bound
        self.assert_served(2)
        self.clean(self.good, self.served)

    def test_more_connections_than_the_limit_are_turned_away(self):
        daemon = self.daemon_with_few_sessions()
        links = [harness.RawLink(daemon) for _ in range(8)]
        for link in links[4:]:
            link.closed_by_peer()
        for link in links[:4]:
            link.socket.close()
        engine = self.engine(daemon, "late")
        self.clean(engine, daemon)

    def daemon_with_few_sessions(self):
        directory = os.path.join(self.directory, "few")
        os.mkdir(directory)
        daemon = harness.Daemon(directory, "--sessions-max", "4")
        self.processes.append(daemon)
        return daemon

    def test_descriptors_that_nobody_asked_for_do_not_stay(self):
        fds = self.served.fds()
        with open(os.devnull, "rb") as null:
            for count in (1, 16, 100):
                link = harness.RawLink(self.served)
                rights = struct.pack(f"{count}i", *([null.fileno()] * count))
                link.socket.sendmsg([harness.frame(999, 1)],
                                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                link.closed_by_peer()
        harness.until("closed", lambda: self.served.fds() <= fds)
        self.assert_served(0)
        self.clean(self.good, self.served)


if __name__ == "__main__":
    unittest.main(verbosity=2)
