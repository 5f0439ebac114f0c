# SPDX-License-Identifier: Apache-2.0
"""Real processes for the integration tests: a daemon, reference engines, a raw link client.

Everything runs in a directory of its own, on free ports, and is waited for by condition and
deadline. $KVPLANE_PROGRAM names the program. A failing test leaves its directory and says where.
"""
import contextlib
import http.client
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

import recording

PROGRAM = os.environ.get("KVPLANE_PROGRAM", "build/debug/kvplane")
PROXY = os.environ.get("KVPLANE_PROXY", "build/debug/kvplane_proxy")
SANITIZED = os.environ.get("KVPLANE_SANITIZED") == "1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
API = os.path.join(ROOT, "api")
NPM = os.path.join(ROOT, "tests", "npm")
NODE = shutil.which("node") or shutil.which("nodejs")
SKIPPED = 77  # what tests/npm/run.mjs ends with where nothing is installed
DEADLINE_S = 120  # for anything that should be quick: only a broken program needs it


def until(what, condition, deadline_s=DEADLINE_S):
    """The first true value of condition(); fails, naming what, at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.01)


class Process:
    """A process of the program, or of another; stdout is read by line, stderr goes to a file."""
    BEFORE = ()  # a command that becomes it by exec, as `nsenter`

    def __init__(self, args, directory, name, pass_fds=(), env=None, program=None,
                 stdin=subprocess.DEVNULL):
        self.name = name
        self.stderr_path = os.path.join(directory, name + ".err")
        self._buffer = b""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        environment.update(env or {})
        with open(self.stderr_path, "ab") as err:
            self.popen = subprocess.Popen(
                [*self.BEFORE, program or PROGRAM, *args], stdin=stdin, stdout=subprocess.PIPE, stderr=err,
                pass_fds=pass_fds, env=environment)

    @property
    def pid(self):
        return self.popen.pid

    def line(self, prefix, deadline_s=DEADLINE_S):
        """What follows prefix on the first line that begins with it."""
        end = time.monotonic() + deadline_s
        out = self.popen.stdout.fileno()
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                if line.startswith(prefix.encode()):
                    return line[len(prefix):].decode()
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise AssertionError(f"{self.name}: no line `{prefix}…`\n{self.tail()}")
            data = os.read(out, 65536)
            if not data:
                raise AssertionError(f"{self.name} ended: {self.popen.wait()}\n{self.tail()}")
            self._buffer += data

    def stderr(self):
        """All that it has said there by now; what it says of an answer may come after the answer."""
        with open(self.stderr_path, encoding="utf-8", errors="replace") as err:
            return err.read()

    def tail(self):
        """Enough of it for a person."""
        return self.stderr()[-4000:]

    def says(self, text, times=1):
        """Waits until it has said so on stderr, that often; then all that it has said there."""
        until(f"{self.name} says {times} times: {text}", lambda: self.stderr().count(text) >= times)
        return self.stderr()

    def kill(self, signum=signal.SIGKILL, deadline_s=DEADLINE_S):
        """Ends it; its exit code. Idempotent."""
        if self.popen.poll() is None:
            self.popen.send_signal(signum)
        try:
            code = self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.name} did not end: {self.tail()}") from None
        self.popen.stdout.close()
        return code

    def storm(self, *signums):
        """These signals without end until it is gone; its exit code."""
        end = time.monotonic() + DEADLINE_S
        while self.popen.poll() is None and time.monotonic() < end:
            for signum in signums:
                self.popen.send_signal(signum)
        return self.kill()

    # What the kernel says of it.
    def blocks(self, signum):
        return int(self._status("SigBlk"), 16) >> (signum - 1) & 1 == 1

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def maps(self, text=""):
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as maps:
            return sum(text in line for line in maps)

    def status_kib(self, field):
        return int(self._status(field))

    def _status(self, field):
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
            for line in status:
                if line.startswith(field + ":"):
                    return line.split()[1]
        raise KeyError(field)


class Server(Process):
    """A process with a REST API."""
    READY = "kvplane ready "
    KIND = "daemon"  # whose contract its answers keep
    _tap = None
    context = None  # ssl.SSLContext, of one that serves by TLS

    def await_ready(self):
        self.url = self.line(self.READY).rsplit(" ", 1)[-1]
        self.host, port = self.url.split("://", 1)[1].rsplit(":", 1)
        self.port = int(port)
        recording.server(self.port, self.KIND)

    def tap(self):
        """The url for other clients, whose answers are recorded as well (recording.py), while it lives."""
        if not recording.DIRECTORY or self.popen.poll() is not None or self.url.startswith("https:"):
            return self.url
        if self._tap is None:
            self._tap = recording.Tap(self.host, self.port)
        return f"http://127.0.0.1:{self._tap.port}"

    def tapped(self):
        """The same, as host and port."""
        host, port = self.tap().removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def kill(self, signum=signal.SIGKILL, deadline_s=DEADLINE_S):
        code = super().kill(signum, deadline_s)
        recording.server(getattr(self, "port", None), None)
        if self._tap is not None:
            self._tap.close()
            self._tap = None
        return code

    def request(self, method, path, body=None, headers=None, timeout=DEADLINE_S):
        """Status and JSON (or text) of the answer."""
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.context)
        with contextlib.closing(connection):
            data = json.dumps(body).encode() if body is not None else None
            head = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, {**head, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode()
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.request("POST", path, body, **kw)

    def taken(self, path, body=None):
        """A POST that the engine's load does not keep away: that it is idle it reports a moment after its last answer, and
        only then memory is given up without a pause."""
        answer = []

        def is_taken():
            answer[:] = self.post(path, body)
            return answer[0] != 409 or "needs a completed pause first" not in str(answer[1])
        until(f"{path} is taken", is_taken)
        return tuple(answer)

    def ok(self, path, body=None):
        """Answer of a POST that must succeed."""
        code, answer = self.taken(path, body)
        if code != 200:
            raise AssertionError(f"{path}: {code} {answer}\n{self.tail()}")
        return answer

    def metric(self, name, **labels):
        """Value of one series (0 if there is none yet)."""
        code, text = self.get("/metrics")
        assert code == 200, text
        for line in text.splitlines():
            if line.startswith(name) and line[len(name)] in " {":
                if all(f'{k}="{v}"' in line for k, v in labels.items()):
                    return float(line.rsplit(" ", 1)[1])
        return 0.0


class Daemon(Server):
    def __init__(self, directory, *args, listen="127.0.0.1:0", env=None, name="daemon",
                 store_bytes="64MiB", socket_name="engine.sock"):
        self.directory = directory
        self.socket = os.path.join(directory, socket_name)
        super().__init__(["serve", "--listen", listen, "--engine-socket", self.socket,
                          "--store-bytes", store_bytes, *args], directory, name, env=env)
        self.await_ready()

    def every(self, path, name):
        """All rows of a list, a page at a time."""
        rows, cursor = [], ""
        while cursor is not None:
            code, page = self.get(path + cursor)
            assert code == 200, page
            rows += page[name]
            mark = "&" if "?" in path else "?"
            cursor = page["next"] and f"{mark}cursor={page['next']}"
        return rows

    def instance(self, name):
        code, answer = self.get(f"/v1/kvplane/instances/{name}")
        return answer.get("instance_view", answer) if code == 200 else None

    def settled(self, name, regions=2):
        """The instance when its engine has said that nothing is in its hands, and has handed over so many regions."""
        def view():
            seen = self.instance(name)
            return seen if seen and seen["regions"]["registered"] == regions and "load" in seen and not any(
                seen["load"].values()) else None
        return until(f"{name} is settled", view)

    def pending(self):
        return sum(self.metric(f"kvplane_tasks_{state}", queue=queue)
                   for state in ("queued", "running") for queue in ("put", "get", "lookup"))


class StoreNode(Server):
    """A node of the cluster; its share is reached at cluster_port, or by what --advertise says."""
    READY = "kvplane store ready "
    KIND = "store"

    def __init__(self, directory, etcd, *args, name="store-0", cluster_port=0,
                 store_bytes="64MiB"):
        super().__init__(["store", "--node-name", name, "--listen", "127.0.0.1:0",
                          "--cluster-listen", f"127.0.0.1:{cluster_port}",
                          "--store-bytes", store_bytes, "--etcd", etcd.endpoints, *args],
                         directory, name)
        self.await_ready()


class Engine(Process):
    """A reference engine that obeys JSON lines (engine/control.h)."""

    def __init__(self, daemon, instance, *args, requests=200, name=None):
        self.instance = instance
        self._control, theirs = socket.socketpair()
        self._events = []
        self._text = b""
        self._id = 0
        with theirs:
            super().__init__(
                ["engine", "--socket", daemon.socket, "--instance", instance,
                 "--requests", str(requests), "--control", str(theirs.fileno()), *args],
                daemon.directory, name or instance, pass_fds=(theirs.fileno(),))

    def event(self, name, deadline_s=DEADLINE_S, **match):
        """The next event of that name (and fields)."""
        end = time.monotonic() + deadline_s
        while True:
            for i, event in enumerate(self._events):
                if event.get("event") == name and match.items() <= event.items():
                    return self._events.pop(i)
                if event.get("event") == "error" and match.items() <= event.items():
                    raise AssertionError(f"{self.name}: {event}")
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._control], [], [], left)[0]:
                raise AssertionError(f"{self.name}: no event {name} {match}: {self._events}\n"
                                     f"{self.tail()}")
            data = self._control.recv(65536)
            if not data:
                raise AssertionError(f"{self.name} is gone\n{self.tail()}")
            *lines, self._text = (self._text + data).split(b"\n")
            self._events += [json.loads(line) for line in lines]

    def command(self, cmd, **fields):
        self._id += 1
        line = json.dumps({"cmd": cmd, "id": self._id, **fields})
        self._control.sendall(line.encode() + b"\n")
        return self._id

    def run(self, first, count, **fields):
        """Runs requests of the trace; what became of their blocks."""
        return self.wait(self.command("run", first=first, count=count, **fields))

    def wait(self, number, deadline_s=DEADLINE_S):
        return self.done(number, deadline_s)["counts"]

    def done(self, number, deadline_s=DEADLINE_S):
        return self.event("done", id=number, deadline_s=deadline_s)

    def generate(self, prompts, max_tokens, **fields):
        """An engine with --model continues these prompts; all that it tells of it."""
        return self.done(self.command("generate", prompts=prompts, max_tokens=max_tokens, **fields))

    def stats(self):
        return self.event("stats", id=self.command("stats"))["stats"]

    def kill(self, signum=signal.SIGKILL, deadline_s=DEADLINE_S):
        code = super().kill(signum, deadline_s)
        self._control.close()
        return code


class Proxy(Process):
    """A network that misbehaves on request (tests/lib/proxy.c) in front of HOST:PORT."""

    def __init__(self, directory, target, name="proxy", port=0):
        super().__init__([str(port), target], directory, name, program=PROXY,
                         stdin=subprocess.PIPE)
        self.address = self.line("ready ")

    def tell(self, cmd, **fields):
        self.popen.stdin.write(json.dumps({"cmd": cmd, **fields}).encode() + b"\n")
        self.popen.stdin.flush()
        answer = json.loads(self.line(""))
        assert "error" not in answer, answer
        return answer

    def rule(self, way, **fields):
        return self.tell("rule", way=way, **fields)

    def stats(self):
        return self.tell("stats")

    def kill(self, signum=signal.SIGKILL, deadline_s=DEADLINE_S):
        if not self.popen.stdin.closed:
            self.popen.stdin.close()  # it ends with its commands
        code = super().kill(signum, deadline_s)
        return code


CLAIMED = []  # for as long as this process lives


def claimed(port):
    """Whether it is ours alone among all that claim ports so, also while nobody listens there (etcd_server.c does)."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0kvplane-test-port-{port}")
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    CLAIMED.append(claim)
    return True


def free_ports(n):
    """TCP ports that are free now, and that neither the kernel nor another test gives to others while this one runs."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="utf-8") as given:
        first, last = map(int, given.read().split())
    others = [port for port in range(10000, 65536) if not first <= port <= last] or range(10000, 65536)
    ports = []
    while len(ports) < n:
        port = random.choice(others)
        ports += [port] * claimed(port)
    return ports


class EtcdMember(Process):
    def __init__(self, directory, name, client, peer, cluster):
        self.url = f"http://127.0.0.1:{client}"
        self._port = client
        super().__init__([
            f"--name={name}", f"--data-dir={directory}/{name}",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster={cluster}", "--logger=zap", "--log-level=error",
            "--log-outputs=stderr"], directory, name, program="etcd")

    def healthy(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False


class Etcd:
    """A cluster of n members, whole when this returns. Their data stays while the test runs."""

    def __init__(self, case, n=1):
        ports = free_ports(2 * n)
        cluster = ",".join(f"etcd-{i}=http://127.0.0.1:{ports[n + i]}" for i in range(n))
        self._case = case
        self._args = [(case.directory, f"etcd-{i}", ports[i], ports[n + i], cluster)
                      for i in range(n)]
        self.members = [self._start(args) for args in self._args]
        self.endpoints = ",".join(member.url for member in self.members)
        self.await_healthy()

    def _start(self, args):
        member = EtcdMember(*args)
        self._case.processes.append(member)
        return member

    def await_healthy(self):
        for member in self.members:
            until(f"{member.name} healthy", member.healthy)

    def kill(self):
        for member in self.members:
            member.kill()

    def restart(self):
        """What was killed, with the data it had."""
        self.members = [member if member.popen.poll() is None else self._start(args)
                        for member, args in zip(self.members, self._args)]
        self.await_healthy()

    def freeze(self, frozen=True):
        for member in self.members:
            member.popen.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)


class Case(unittest.TestCase):
    """Processes end with the test, a test that failed leaves its directory."""

    def setUp(self):
        recording.testing(self.id())
        self.directory = tempfile.mkdtemp(prefix="kvplane-it-")
        self.processes = []

    def tearDown(self):
        for process in reversed(self.processes):
            process.kill()
        outcome = self._outcome
        result = getattr(outcome, "result", None)
        failed = result is not None and any(
            test is self for test, _ in result.failures + result.errors)
        if failed:
            print(f"left for you: {self.directory}")
            for process in self.processes:
                print(f"---- {process.name}\n{process.tail()}")
        else:
            shutil.rmtree(self.directory)

    def daemon(self, *args, **kw):
        daemon = Daemon(self.directory, *args, **kw)
        self.processes.append(daemon)
        return daemon

    def etcd(self, n=1):
        return Etcd(self, n)

    def store_node(self, etcd, *args, **kw):
        node = StoreNode(self.directory, etcd, *args, **kw)
        self.processes.append(node)
        return node

    def proxied_node(self, etcd, *args, name="store-0", **kw):
        """A node that daemons reach through a proxy only: both."""
        port = free_ports(1)[0]
        proxy = self.proxy(f"127.0.0.1:{port}", name=f"{name}-net")
        return self.store_node(etcd, "--advertise", proxy.address, *args, name=name,
                               cluster_port=port, **kw), proxy

    def cluster_daemon(self, etcd, *args, name="daemon", **kw):
        """A daemon without a share of its own."""
        return self.daemon("--etcd", etcd.endpoints, *args, name=name, store_bytes="0",
                           socket_name=f"{name}.sock", **kw)

    def trace(self, requests, name="trace.jsonl"):
        """A file of requests, each a list of blocks; what an engine reads as --trace."""
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as out:
            for blocks in requests:
                out.write(json.dumps({"timestamp": 0, "input_length": 512 * len(blocks),
                                      "output_length": 1, "hash_ids": blocks}) + "\n")
        return path

    def proxy(self, target, **kw):
        proxy = Proxy(self.directory, target, **kw)
        self.processes.append(proxy)
        return proxy

    def engine(self, daemon, instance, *args, attach=True, **kw):
        engine = Engine(daemon, instance, *args, **kw)
        self.processes.append(engine)
        if attach:
            engine.event("attached")
        return engine

    def named(self, daemon, *names):
        """These instances share under the name of their weights."""
        for name in names:
            for state in ("shared", "open"):
                until(f"{name} {state}", lambda n=name, s=state: daemon.metric(
                    f"kvplane_instance_{s}", instance=n) == 1)

    def clean(self, *processes):
        """They end as they should: exit 0, nothing on stderr from a sanitizer."""
        for process in processes:
            self.assertEqual(process.kill(signal.SIGTERM), 0, process.tail())
            self.assertNotIn("Sanitizer", process.stderr())


def node(case, test, *args):
    """Runs tests/npm/TEST, or skips the test of ours, visibly, where it cannot."""
    if NODE is None:
        print(f"SKIP: {test}: there is no node")
        case.skipTest("there is no node")
    run = subprocess.run([NODE, os.path.join(NPM, "run.mjs"), test, *args], capture_output=True, text=True,
                         timeout=600, check=False)
    if run.returncode == SKIPPED:
        print(run.stdout)
        case.skipTest(run.stdout)
    case.assertEqual(run.returncode, 0, run.stdout + run.stderr)


# ---- the link, byte by byte (base/frame.h, base/link.h) ----

def _rotate(value, bits):
    return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF


def xxh32(data):
    """XXH32 with seed 0."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF
    at = 0
    if len(data) >= 16:
        lanes = [(p1 + p2) & mask, p2, 0, (-p1) & mask]
        while at + 16 <= len(data):
            for i, word in enumerate(struct.unpack_from("<4I", data, at)):
                lanes[i] = _rotate((lanes[i] + word * p2) & mask, 13) * p1 & mask
            at += 16
        value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & mask
    else:
        value = p5
    value = (value + len(data)) & mask
    while at + 4 <= len(data):
        value = _rotate((value + struct.unpack_from("<I", data, at)[0] * p3) & mask, 17) * p4 & mask
        at += 4
    for byte in data[at:]:
        value = _rotate((value + byte * p5) & mask, 11) * p1 & mask
    for shift, prime in ((15, p2), (13, p3), (16, 1)):
        value = ((value ^ (value >> shift)) * prime) & mask
    return value


def frame(kind, seq, payload=b"", flags=0, length=None):
    head = struct.pack("<IHHQI", 0x3150564B, kind, flags, seq,
                       len(payload) if length is None else length)
    return head + struct.pack("<I", xxh32(head)) + payload


class RawLink:
    """A connection on the engine socket that says whatever it likes."""

    def __init__(self, daemon):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(daemon.socket)

    def send(self, data):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def closed_by_peer(self):
        """Reads to the end; fails if it does not come."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        self.socket.close()
        return True
