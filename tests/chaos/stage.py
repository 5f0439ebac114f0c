# SPDX-License-Identifier: Apache-2.0
"""The cluster that chaos happens to: an etcd of three, three store nodes, two daemons, their engines, and a proxy on every
connection between machines. A Slot is a place for a process: who stands in it is killed and begun anew."""
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
import harness  # noqa: E402

PARTS = 2  # ranks of the engine that has several; the others read its blocks
BLOCKS = 4  # of a request
STORE_MIB = 4  # little, so that it is always full
# Every bound of the daemon's that a call may wait for, so short that a minute sees many of them.
DAEMON = ("--lease", "3s", "--etcd-bound", "1s", "--node-bound", "1s", "--slot-wait", "5s",
          "--drain-bound", "10s", "--transfer-bound", "5s", "--retire-bound", "4s", "--forward-retry", "200ms",
          "--forward-tries", "5", "--name-grace", "5s")
STORE = ("--lease", "3s", "--etcd-bound", "1s", "--ticket", "5s", "--hold", "5s", "--drain-bound", "1s")
# (name, daemon, tenant, ranks)
ENGINES = (("a", 0, "default", 1), ("b", 0, "default", PARTS), ("c", 1, "default", 1), ("o", 0, "other", 1),
           ("p", 1, "other", 1))


class Broken(AssertionError):
    """What chaos was run to find."""


class Slot:
    """A process of the cluster, over all its lives."""

    def __init__(self, stage, name, role, start):
        self.stage, self.name, self.role = stage, name, role
        self._start = start
        self.process = None
        self.life = 0
        self.before = ()  # see harness.Process
        self.busy = threading.Lock()  # one fault at a time
        self.lock = threading.Lock()  # of what follows
        self.down = True  # by our hand
        self.hurt_ns = 0  # it was hurt then, or is (hurting), so nothing is promised of its answers
        self.hurting = 0
        self.suffered = set()  # kinds of faults that explain what it says

    def start(self):
        """Until it is ready; it may take until others are mended, and end for want of them, as its supervisor knows."""
        end = time.monotonic() + harness.DEADLINE_S
        while not self.stage.ending.is_set():
            try:
                process = self._start(self.before)
            except AssertionError:
                if time.monotonic() > end:
                    raise Broken(f"{self.name} does not start") from None
                continue
            with self.lock:
                self.process, self.down = process, False
                self.life += 1
            return

    def kill(self, signum=signal.SIGKILL):
        """True: it lived until now."""
        with self.lock:
            lived = not self.down and self.process.popen.poll() is None
            self.down = True
        if lived:
            harness.Process.kill(self.process, signum)  # whoever still listens to an engine sees the end of its stream
        return lived

    def signal(self, signum):
        with self.lock:
            if not self.down:
                self.process.popen.send_signal(signum)
            return not self.down

    def state(self):
        """Its letter in /proc; T: stopped."""
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0]
        return "X"

    @contextlib.contextmanager
    def hurt(self):
        with self.lock:
            self.hurting += 1
        try:
            yield
        finally:
            with self.lock:
                self.hurting -= 1
                self.hurt_ns = time.monotonic_ns()

    def well_since(self, began_ns, grace_s=1):
        """Nothing has happened to it since a moment before."""
        with self.lock:
            return not self.down and not self.hurting and self.hurt_ns < began_ns - int(grace_s * 1e9)

    def figures(self):
        process = self.process
        return {"rss_kib": process.status_kib("VmRSS"), "fds": process.fds(), "maps": process.maps(),
                "threads": process.threads()}


class Link:
    """All connections of one kind from one process to others."""

    def __init__(self, name, proxies, ends):
        self.name, self.proxies, self.ends = name, proxies, ends  # ends: slots that are cut off by it
        self.busy = threading.Lock()
        self.lock = threading.Lock()  # a proxy answers one at a time

    def rule(self, way, **fields):
        with self.lock:
            for proxy in self.proxies:
                proxy.rule(way, **fields)

    def tell(self, cmd, **fields):
        with self.lock:
            for proxy in self.proxies:
                proxy.tell(cmd, **fields)

    def total(self, field):
        with self.lock:
            return sum(proxy.stats()[field] for proxy in self.proxies)


class Etcd:
    """etcd as one process sees it."""

    def __init__(self, proxies):
        self.endpoints = ",".join(f"http://{proxy.address}" for proxy in proxies)


def launched(cls, before):
    return type(cls.__name__, (cls,), {"BEFORE": tuple(before)}) if before else cls


class Stage:
    def __init__(self, directory, seed, requests, fault=None):
        self.directory, self.seed, self.requests = directory, seed, requests
        self.fault = () if fault is None else ("--fault", fault)
        self.ending = threading.Event()
        self.proxies, self.links, self.slots = [], [], []
        self.clocks = {}
        self.spared = ()  # slots that are hurt, but not killed: whose figures can be compared over the whole run

    # ---- building ----

    def _proxy(self, target, name):
        proxy = harness.Proxy(self.directory, target, name=name)
        self.proxies.append(proxy)
        return proxy

    def _slot(self, name, role, start):
        slot = Slot(self, name, role, start)
        self.slots.append(slot)
        return slot

    def _view(self, name):
        """etcd through proxies of its own, whose slots are filled in by the caller."""
        proxies = [self._proxy(f"127.0.0.1:{port}", f"{name}-etcd-{i}") for i, port in enumerate(self.etcd_ports[:3])]
        link = Link(f"{name}~etcd", proxies, [])
        self.links.append(link)
        return Etcd(proxies), link

    def up(self):
        self.etcd_ports = ports = harness.free_ports(6)
        cluster = ",".join(f"etcd-{i}=http://127.0.0.1:{ports[3 + i]}" for i in range(3))
        self.members = [self._slot(f"etcd-{i}", "etcd", lambda before, i=i: launched(harness.EtcdMember, before)(
            self.directory, f"etcd-{i}", ports[i], ports[3 + i], cluster)) for i in range(3)]
        for member in self.members:
            member.start()
        for member in self.members:
            harness.until(f"{member.name} healthy", member.process.healthy)
        self.stores = [self._store(i) for i in range(3)]
        self.daemons = [self._daemon(i) for i in range(2)]
        for slot in self.stores + self.daemons:
            slot.start()
        self.engines = [self._engine(*row) for row in ENGINES]
        for slot in self.engines:
            slot.start()

    def _store(self, i):
        name = f"store-{i}"
        port = harness.free_ports(1)[0]
        net = self._proxy(f"127.0.0.1:{port}", f"{name}-net")
        etcd, link = self._view(name)
        slot = self._slot(name, "store", lambda before: launched(harness.StoreNode, before)(
            self.directory, etcd, "--advertise", net.address, *STORE, *self.fault, name=name, cluster_port=port,
            store_bytes=f"{STORE_MIB}MiB"))
        link.ends.append(slot)
        self.links.append(Link(f"{name}~daemons", [net], [slot]))
        return slot

    def _daemon(self, i):
        name = f"daemon-{i}"
        etcd, link = self._view(name)
        # One has a share, and is read by the other.
        share = ("--cluster-listen", f"127.0.0.1:{harness.free_ports(1)[0]}", "--node-name", name, "--shards", "1",
                 "--share-drain-bound", "1s") if i == 1 else ()
        slot = self._slot(name, "daemon", lambda before: launched(harness.Daemon, before)(
            self.directory, "--etcd", etcd.endpoints, *DAEMON, *share, *self.fault, name=name, socket_name=f"{name}.sock",
            store_bytes=f"{STORE_MIB}MiB" if share else "0"))
        link.ends.append(slot)
        return slot

    def _engine(self, name, daemon, tenant, ranks):
        above = self.daemons[daemon]
        slot = None

        def start(before):
            engine = launched(harness.Engine, before)(
                above.process, name, "--tenant", tenant, "--tp", str(ranks), "--store-tp", str(PARTS), "--fingerprint",
                "--block-bytes", "8192", "--blocks", "512", "--max-running", "4", "--weights-bytes", "65536",
                "--trace", self.trace, "--weights-id", str(slot.weights), requests=self.requests)
            engine.event("attached", deadline_s=2 * harness.DEADLINE_S)
            return engine
        slot = self._slot(name, "engine", start)
        slot.daemon, slot.tenant, slot.ranks, slot.weights = above, tenant, ranks, 1
        return slot

    # ---- clocks ----

    def clock(self, offset_s):
        """A command that starts a process whose monotonic clock is so far ahead; None: time namespaces need root."""
        if offset_s not in self.clocks:
            holder = subprocess.Popen(["unshare", "--time", "--monotonic", str(offset_s), "--fork", "--kill-child",
                                       "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL)
            pid = None
            if holder.stdout.readline() == b"ready\n":
                with open(f"/proc/{holder.pid}/task/{holder.pid}/children", encoding="utf-8") as children:
                    pid = int(children.read().split()[0])
            self.clocks[offset_s] = (holder, pid)
        pid = self.clocks[offset_s][1]
        return pid and ("nsenter", f"--time=/proc/{pid}/ns/time")

    # ---- the end ----

    def down(self):
        self.ending.set()
        for slot in reversed(self.slots):
            with contextlib.suppress(AssertionError, AttributeError):
                slot.signal(signal.SIGCONT)
                slot.kill()
        for proxy in self.proxies:
            proxy.kill()
        for holder, _ in self.clocks.values():
            holder.kill()
            holder.wait()
            holder.stdout.close()


def limit(slot, what, value):
    """Its soft limit; the one it had."""
    old = resource.prlimit(slot.process.pid, what)
    resource.prlimit(slot.process.pid, what, (value, old[1]))
    return old
