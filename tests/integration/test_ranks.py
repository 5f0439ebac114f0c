# SPDX-License-Identifier: Apache-2.0
"""Engines of several ranks, each a process: they sleep and wake together or not at all, and share
blocks with engines that are split otherwise. The engines check every byte they read, on every rank,
against the pattern of tenant, key, part and weights."""
import os
import re
import signal
import struct
import subprocess
import threading
import unittest

import harness

HELLO = 1
SCHEDULER, WORKER = 1, 2
GROUPS = os.environ.get("KVPLANE_GROUPS", "build/debug/kvplane_groups")
with open(os.path.join(harness.ROOT, "base/include/base/link.h"), encoding="utf-8") as header:
    LINK_VERSION = int(re.search(r"define KVB_LINK_VERSION (\d+)", header.read())[1])


def hello(rank, world, roles=SCHEDULER | WORKER, local=None, instance="raw", tp=0, store_tp=0,
          layout="raw/1"):
    """The first frame of a rank (base/link.h)."""
    def text(string):
        return struct.pack("<I", len(string)) + string.encode()
    payload = struct.pack("<HBBIIIIIII", LINK_VERSION, roles, 0, rank, world, world if local is None else local,
                          tp, store_tp, 16, 0)
    payload += text(instance) + text("default") + text(layout) + text("") + bytes(4) + text("")
    payload += bytes(32) + text("") + struct.pack("<I", 0)
    payload += struct.pack("<QBBBBBI", 0, 0, 0, 0, 0, 0, 0)
    return harness.frame(HELLO, 1, payload)


class RawRank(harness.RawLink):
    """A rank that says hello, and then nothing."""

    def __init__(self, daemon, *args, **kw):
        super().__init__(daemon)
        self.send(hello(*args, **kw))
        head = self._exactly(24)
        reply = self._exactly(struct.unpack("<I", head[16:20])[0])
        self.status, size = struct.unpack("<iI", reply[:8])
        self.reason = reply[8:8 + size].decode()

    def _exactly(self, n):
        data = b""
        while len(data) < n:
            more = self.socket.recv(n - len(data))
            assert more, "the daemon closed the connection"
            data += more
        return data


def judged(case, counts):
    case.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
    return counts


def ended(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            return "zombie" in status.read()
    except (FileNotFoundError, ProcessLookupError):
        return True


class Ranks(harness.Case):
    def memfds(self, process, pids, name):
        """Bytes of the engine's memory that anybody still has mapped or open, by inode."""
        found = set()
        for pid in (process.pid, *pids):
            base = f"/proc/{pid}"
            if not os.path.exists(base):
                continue
            with open(f"{base}/maps", encoding="utf-8") as maps:
                found |= {line.split()[4] for line in maps if f"memfd:{name}" in line}
            for fd in os.listdir(f"{base}/fd"):
                try:
                    if f"memfd:{name}" in os.readlink(f"{base}/fd/{fd}"):
                        found.add(str(os.stat(f"{base}/fd/{fd}").st_ino))
                except FileNotFoundError:
                    pass
        return found

    def test_an_instance_is_there_when_every_rank_is(self):
        daemon = self.daemon()
        first = RawRank(daemon, 0, 2)
        self.assertEqual(first.status, 0, first.reason)
        view = daemon.instance("raw")
        self.assertEqual((view["ranks"], view["world_size"], view["attached"]), (1, 2, False))
        self.assertEqual(view["layout"], "raw/1@split(tp=2,pp=1)")
        for path in ("/sleep", "/wake_up", "/pause", "/resume", "/release_kv_cache_memory"):
            code, answer = daemon.post(path)
            self.assertEqual(code, 409, answer)
            self.assertIn("1 of 2 ranks", answer["error"]["message"])
        self.assertEqual(daemon.get("/health")[0], 503)
        for what, args, kw, reason in (
                ("the same rank again", (0, 2), {"roles": WORKER}, "attached already"),
                ("another scheduler", (1, 2), {}, "scheduler already"),
                ("another world", (1, 3), {"roles": WORKER}, "world_size differs"),
                ("another split", (1, 2), {"roles": WORKER, "tp": 1}, "layout differs"),
                ("a world that spans hosts", (1, 2), {"roles": WORKER, "local": 1},
                 "spans hosts")):
            with self.subTest(what):
                refused = RawRank(daemon, *args, **kw)
                self.assertNotEqual(refused.status, 0)
                self.assertIn(reason, refused.reason)
                refused.closed_by_peer()
        second = RawRank(daemon, 1, 2, roles=WORKER)
        self.assertEqual(second.status, 0, second.reason)
        harness.until("attached", lambda: daemon.instance("raw")["attached"])
        second.socket.close()
        harness.until("not any more", lambda: not daemon.instance("raw")["attached"])
        self.assertEqual(daemon.post("/pause")[0], 409)
        first.socket.close()
        self.clean(daemon)

    def test_engines_split_otherwise_read_each_others_blocks(self):
        daemon = self.daemon()
        split = "--store-tp=2", "--fingerprint"
        a = self.engine(daemon, "a", "--tp=2", *split)
        b = self.engine(daemon, "b", *split)
        alone = self.engine(daemon, "alone", "--tp=2", "--fingerprint")
        self.named(daemon, "a", "b", "alone")
        put = judged(self, a.run(0, 10))
        self.assertGreater(put["stored"], 0)
        got = judged(self, b.run(0, 10))
        self.assertGreaterEqual(got["hits"], put["stored"])
        put = judged(self, b.run(20, 10))
        got = judged(self, a.run(20, 10))
        self.assertGreaterEqual(got["hits"] + got["local_hits"], put["stored"])
        self.assertGreater(got["hits"], 0)
        self.assertEqual(judged(self, alone.run(0, 30))["hits"], 0, "not the same bytes")
        # asleep and back: what the other one put meanwhile is there
        daemon.ok("/sleep?level=1&instance=a")
        put = judged(self, b.run(40, 10))
        daemon.ok("/wake_up?instance=a")
        self.named(daemon, "a")
        got = judged(self, a.run(40, 10))
        self.assertGreater(got["hits"], 0)
        self.clean(a, b, alone, daemon)

    def region_states(self, daemon, name):
        """Of each rank, how many regions are in which state; of those that are gone nothing is
        pinned, and the list over all ranks says the same."""
        ranks = daemon.instance(name)["rank_states"]
        listed = daemon.every(f"/v1/kvplane/regions?instance={name}&limit=3", "regions")
        self.assertEqual(listed, [{"instance": name, "rank": rank["rank"], **region}
                                  for rank in ranks
                                  for region in sorted(rank["regions"], key=lambda r: r["id"])])
        for region in listed:
            if region["state"] == "unregistered":
                self.assertEqual((region["pinned_bytes"], region["transfers"]), (0, 0), region)
            self.assertGreater(region["bytes"], 0)
        return [{state: sum(region["state"] == state for region in rank["regions"])
                 for state in ("registered", "unregistered")} for rank in ranks]

    def test_stages_and_ranks_go_through_every_form_of_sleep_together(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a", "--tp=2", "--pp=2", "--store-tp=4", "--fingerprint")
        pids = engine.stats()["rank_pids"]
        self.assertEqual(len(set(pids)), 4)
        self.named(daemon, "a")
        regions = daemon.settled("a", regions=8)["regions"]
        of_rank = {"registered": 2, "unregistered": 0}
        self.assertEqual(self.region_states(daemon, "a"), [of_rank] * 4)
        for down, up, gone in (("/sleep?level=1", "/wake_up", "kve-a"),
                               ("/release_kv_cache_memory", "/wake_up?tags=kv_cache",
                                "kve-a-kv_cache"),
                               ("/sleep?level=1&mode=keep", "/wake_up", "kve-a")):
            judged(self, engine.run(0, 10))
            daemon.ok(down)
            self.assertEqual(self.memfds(daemon, pids, gone), set(), down)
            held = int(gone == "kve-a-kv_cache") # the weights stay
            self.assertEqual(self.region_states(daemon, "a"),
                             [{"registered": held, "unregistered": 2 - held}] * 4, down)
            daemon.ok(up)
            self.assertEqual(daemon.instance("a")["regions"], regions)
            self.assertEqual(self.region_states(daemon, "a"), [of_rank] * 4)
            self.named(daemon, "a")
            judged(self, engine.run(0, 10, use_cache=False))
            self.assertGreater(judged(self, engine.run(0, 10, use_cache=False))["hits"], 0)
        self.clean(engine, daemon)

    def test_groups_of_layers_have_blocks_of_their_own_and_host_memory_stays(self):
        daemon = self.daemon()
        groups = harness.Process([daemon.socket], self.directory, "groups", program=GROUPS,
                                 stdin=subprocess.PIPE)
        self.processes.append(groups)
        groups.line("groups ok")
        for _ in range(3):
            view = daemon.instance("two")
            self.assertEqual(view["regions"]["registered"], 4)
            daemon.ok("/sleep?instance=two&level=2")
            self.assertEqual(daemon.instance("two")["regions"]["registered"], 2, "host-resident")
            daemon.ok("/wake_up?instance=two")
        self.assertEqual(daemon.instance("two")["regions"], view["regions"])
        self.assertEqual(daemon.instance("one")["regions"]["registered"], 2)
        groups.popen.stdin.close()
        self.assertEqual(groups.popen.wait(harness.DEADLINE_S), 0)
        self.clean(daemon)

    # Each rank is killed in each phase. The engine makes the phase last.
    PHASES = (("/sleep?level=1&mode=wait", "pause-late:30000", "pause"),
              ("/sleep?level=1&mode=wait", "release-late:30000", "offload"),
              ("/sleep?level=1&mode=wait", "release-late:4000", "release"),
              ("/release_kv_cache_memory", "release-late:30000", "release"),
              ("/wake_up", "restore-late:30000", "restore"),
              ("/wake_up", "resume-late:30000", "resume"))

    def test_a_rank_killed_in_each_phase_of_sleep_and_wake(self):
        daemon = self.daemon()
        for path, slow, step in self.PHASES:
            for victim in (0, 1):
                with self.subTest(path=path, step=step, victim=victim):
                    self.kill_in(daemon, path, slow, step, victim)
        engine = self.engine(daemon, "a", "--tp=2", "--fingerprint", name="a-last")
        self.named(daemon, "a")
        judged(self, engine.run(0, 10))
        self.clean(engine, daemon)

    def kill_in(self, daemon, path, slow, step, victim):
        name = f"a-{step}-{len(self.processes)}"
        engine = self.engine(daemon, "a", "--tp=2", "--fingerprint", "--misbehave", slow, name=name)
        pids = engine.stats()["rank_pids"]
        self.named(daemon, "a")
        judged(self, engine.run(0, 5))
        if path.startswith("/wake_up"):
            daemon.ok("/sleep?level=1")
        answer = []
        asking = threading.Thread(target=lambda: answer.append(daemon.taken(path)))
        asking.start()
        try:
            harness.until(f"{path} is at {step}", lambda: any(
                op["status"] == "running" and op.get("step") == step
                for op in daemon.get("/v1/kvplane/operations")[1]["operations"]))
            os.kill(pids[victim], signal.SIGKILL)
        finally:
            asking.join(harness.DEADLINE_S)
        self.assertTrue(answer, "answered")
        code, told = answer[0]
        self.assertIn(code, (409, 503), told)
        harness.until("disconnected", lambda: not daemon.instance("a")["attached"])
        self.assertEqual(daemon.get("/health")[0], 503)
        self.assertNotEqual(engine.popen.wait(harness.DEADLINE_S), 0, "an engine without a rank")
        for pid in pids:
            harness.until("every rank has ended", lambda p=pid: ended(p))
        harness.until("nothing of it is held", lambda: not self.memfds(daemon, (), "kve-a"))
        view = daemon.instance("a")
        self.assertEqual((view["regions"]["registered"], view["ready"]), (0, False))
        harness.until("nothing pending", lambda: daemon.pending() == 0)
        # and it is brought back
        again = self.engine(daemon, "a", "--tp=2", "--fingerprint", name=name + "-again")
        self.named(daemon, "a")
        view = daemon.instance("a")
        self.assertEqual(set(view["tags"].values()), {"resident"})
        self.assertEqual(view["ranks"], 2)
        judged(self, again.run(0, 5))
        daemon.ok("/sleep?level=1")
        daemon.ok("/wake_up")
        self.named(daemon, "a")
        judged(self, again.run(0, 5))
        self.clean(again)


if __name__ == "__main__":
    unittest.main()
