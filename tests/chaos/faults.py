# SPDX-License-Identifier: Apache-2.0
"""What chaos does to a cluster: rows of a plan that is drawn from a seed. Each begins, holds, and is mended; it says whether it
had an effect, for one that had none is not counted."""
import http.client
import json
import random
import resource
import signal
import socket
import threading
import time

from stage import Broken, limit

NET = ("drop", "half", "cut", "reset", "freeze-there", "freeze-back", "delay", "throttle", "pieces", "down")


def plan(seed, seconds, pace_s, kinds):
    """Rows {at_s, kind, pick, seconds, more}; the same for the same arguments. pick chooses among what there is then."""
    draw = random.Random(f"plan {seed}")
    names = [name for name, row in KINDS.items() for _ in range(row[1]) if name in kinds]
    at, rows = 1.0, []
    # Each kind once before any comes again, so that a short run sees as many as it can.
    while at < seconds:
        rest = names.copy()
        draw.shuffle(rest)
        for kind in rest:
            low, high = KINDS[kind][2]
            rows.append({"at_s": round(at, 2), "kind": kind, "pick": draw.randrange(1 << 20),
                         "seconds": round(draw.uniform(low, high), 2), "more": draw.randrange(1 << 20)})
            at += draw.uniform(0.4, 1.6) * pace_s
            if at >= seconds:
                break
    return rows


class Fault:
    """One that happens."""

    def __init__(self, chaos, row):
        self.stage, self.row, self.chaos = chaos.stage, row, chaos
        self.what = row["kind"]
        self.taken = []

    def take(self, things):
        """One of these that nothing happens to, or None."""
        start = self.row["pick"] % len(things)
        for thing in things[start:] + things[:start]:
            if thing.busy.acquire(blocking=False):
                self.taken.append(thing)
                return thing
        return None

    def hold(self):
        self.chaos.calm.wait(self.row["seconds"])

    def note(self, text):
        self.what = f"{self.row['kind']} {text}"
        self.chaos.story(f"begins: {self.what}, {self.row['seconds']} s")

    def run(self):
        """True: it had an effect."""
        try:
            return KINDS[self.row["kind"]][0](self)
        finally:
            for thing in self.taken:
                thing.busy.release()


def _mortal(fault, slots):
    return [slot for slot in slots if slot not in fault.stage.spared]


def _kill(fault, slot, signum=signal.SIGKILL):
    fault.note(slot.name)
    with slot.hurt():
        lived = slot.kill(signum)
        fault.hold()
        slot.start()
    return lived


def kill(fault):
    slot = fault.take(_mortal(fault, fault.stage.slots))
    return slot is not None and _kill(fault, slot)


def end(fault):
    """As its supervisor asks it: it has a while, and its exit code is judged."""
    slot = fault.take(_mortal(fault, fault.stage.daemons + fault.stage.stores + fault.stage.engines))
    if slot is None:
        return False
    fault.note(slot.name)
    with slot.hurt():
        with slot.lock:
            process, slot.down = slot.process, True
        process.popen.terminate()
        code = process.popen.wait(60)
        if code != 0:
            raise Broken(f"{slot.name} was asked to end, and ended with {code}")
        fault.hold()
        slot.start()
    return True


def stop(fault):
    slot = fault.take(fault.stage.slots)
    if slot is None:
        return False
    fault.note(slot.name)
    with slot.hurt():
        slot.signal(signal.SIGSTOP)
        fault.hold()
        stopped = slot.state() == "T"
        slot.signal(signal.SIGCONT)
    return stopped


def skew(fault):
    """Its next life has another clock."""
    slot = fault.take(_mortal(fault, fault.stage.slots))
    with open("/proc/uptime", encoding="utf-8") as up:
        back = -int(float(up.read().split()[0]) / 2)
    ahead = (86400, 400 * 86400, 61, back)[fault.row["more"] % 4]
    before = fault.stage.clock(ahead)
    if slot is None or before is None:
        return False
    slot.before = before
    fault.row["kind"] = f"skew {ahead:+d} s"
    return _kill(fault, slot)


def net(fault):
    link = fault.take(fault.stage.links)
    if link is None:
        return False
    how = NET[fault.row["more"] % len(NET)]
    fault.note(f"{how} {link.name}")
    after = fault.row["more"] % 60000
    fired, moved, accepted = link.total("fired"), link.total("there"), link.total("accepted")
    way = ("there", "back")[fault.row["pick"] % 2]
    cut = how in ("drop", "half", "cut", "reset", "freeze-there", "freeze-back")
    if how == "delay":
        link.rule(way, delay_ms=50 + fault.row["more"] % 400)
    elif how == "throttle":
        link.rule(way, bytes_per_s=20000 + fault.row["more"] % 400000)
    elif how == "pieces":
        link.rule(way, piece=1 + fault.row["more"] % 100)
    elif how == "down":
        link.tell("refuse", on=True)
        link.tell("reset")
    else:
        link.rule(how.split("-")[1] if "-" in how else way, after=after, then=how.split("-")[0])
    fault.hold()
    if how == "down":
        link.tell("refuse", on=False)
        return link.total("connections") == 0 or link.total("accepted") > accepted
    effect = link.total("fired") > fired if cut else link.total("there") > moved
    link.tell("clear")
    return effect


def _etcd_all(fault, begin, mend):
    members = [member for member in fault.stage.members if member.busy.acquire(blocking=False)]
    fault.taken += members
    if len(members) < 3:
        return False
    fault.note("all")
    effect = all([begin(member) for member in members])
    fault.hold()
    for thread in [threading.Thread(target=mend, args=(member,)) for member in members]:
        thread.start()
        fault.chaos.threads.append(thread)
    for member in members:  # alone none is ready
        while not (fault.stage.ending.is_set() or (not member.down and member.process.healthy())):
            time.sleep(0.05)
    return effect


def etcd_killed(fault):
    return _etcd_all(fault, lambda member: member.kill(), lambda member: member.start())


def etcd_frozen(fault):
    return _etcd_all(fault, lambda member: member.signal(signal.SIGSTOP), lambda member: member.signal(signal.SIGCONT))


def ask_etcd(member, path, body):
    port = int(member.process.url.rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException):
        return 0, {}
    finally:
        connection.close()


def etcd_compacted(fault):
    member = fault.take(fault.stage.members)
    if member is None or member.down:
        return False
    fault.note(member.name)
    code, answer = ask_etcd(member, "/v3/kv/range", {"key": "AA=="})
    if code != 200:
        return False
    code, _ = ask_etcd(member, "/v3/kv/compaction", {"revision": answer["header"]["revision"], "physical": True})
    ask_etcd(member, "/v3/maintenance/defragment", {})
    return code == 200


CROWD = 100
BODY_BYTES = 512 << 10


def crowd(slot):
    """Many connections at once, each of which has sent but the last byte of a request, to a daemon of a large one."""
    body_bytes = BODY_BYTES if slot.role == "daemon" else 0
    connections = []
    for _ in range(CROWD):
        connection = socket.socket()
        connections.append(connection)
        connection.settimeout(0.5)
        try:
            connection.connect((slot.process.host, slot.process.port))
            connection.sendall(b"POST /update_weights?instance=nobody HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n" % (body_bytes + 1) + b" " * body_bytes)
        except OSError:  # it takes no more
            break
    return connections


def _refused(connection):
    """It was closed, or answered before its end."""
    connection.setblocking(False)
    try:
        connection.recv(4096)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _limited(fault, what, room, had_effect):
    slot = fault.take(fault.stage.daemons + fault.stage.stores)
    if slot is None or slot.down:
        return False
    fault.note(slot.name)
    slot.suffered.add(fault.row["kind"])
    with slot.hurt():
        most = room(slot)
        old = limit(slot, what, most)
        connections = crowd(slot)
        effect, end = False, time.monotonic() + fault.row["seconds"]
        while time.monotonic() < end or not effect and time.monotonic() < end + 1:
            effect = effect or had_effect(slot, most, connections)
            time.sleep(0.05)
        resource.prlimit(slot.process.pid, what, old)
        for connection in connections:
            connection.close()
    return effect


def descriptors(fault):
    """It has as many as it may, and would have more: connections wait."""
    return _limited(fault, resource.RLIMIT_NOFILE, lambda slot: slot.process.fds() + fault.row["more"] % 4,
                    lambda slot, most, connections: slot.process.fds() >= most)


def memory(fault):
    """It would need more than it may have: it says so, or sends somebody away."""
    said = {}

    def room(slot):
        said[slot] = slot.process.stderr().count("emory")
        return (slot.process.status_kib("VmSize") + fault.row["more"] % 256) << 10
    return _limited(fault, resource.RLIMIT_AS, room, lambda slot, most, connections: slot.process.stderr().count("emory")
                    > said[slot] or any(_refused(connection) for connection in connections))


# kind: what it does, how often beside others, seconds
KINDS = {
    "kill": (kill, 5, (0, 3)),
    "end": (end, 1, (0, 1)),
    "stop": (stop, 5, (1, 12)),
    "skew": (skew, 2, (0, 1)),
    "net": (net, 7, (1, 8)),
    "etcd-killed": (etcd_killed, 1, (0, 6)),
    "etcd-frozen": (etcd_frozen, 1, (1, 8)),
    "etcd-compacted": (etcd_compacted, 1, (0, 0)),
    "descriptors": (descriptors, 1, (1, 4)),
    "memory": (memory, 1, (1, 4)),
}
