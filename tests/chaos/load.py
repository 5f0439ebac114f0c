# SPDX-License-Identifier: Apache-2.0
"""What runs while a cluster is hurt, and judges it: a trainer for each instance, an operator, and probes.

Every block that an engine reads is compared with the bytes that its tenant, key and weights stand for (engine/pattern.h): those of
other weights are stale, others are torn. That a reset has cleared bytes cannot say, as the weights are the same: a trainer puts a
request that nobody else uses, resets, and asks for it again, itself or of another instance: nothing may be there.
"""
import collections
import http.client
import queue
import random
import threading
import time

import harness
from stage import Broken

CALL_S = 40  # all bounds that a call may wait for (stage.DAEMON), with room for a busy machine
RUN_S = 300  # requests end by then, whatever happens
SERVES_S = 240  # from any state, and through any faults
PROBE_S = 5
WEIGHTS = 4
ANSWERS = (200, 404, 409, 500, 503, 504)


class Gone(Exception):
    """The process was killed meanwhile, by us."""


class Judge:
    """What was seen, by all threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.missed = collections.Counter()
        self.answers = collections.Counter()
        self.probes_ms = []
        self.calls_ms = []

    def add(self, who, counts):
        with self.lock:
            self.counts.update({k: v for k, v in counts.items() if isinstance(v, int)})
            self.missed.update(counts.get("missed", {}))
        wrong = {k: counts[k] for k in ("stale", "torn", "errors") if counts[k]}
        if wrong:
            raise Broken(f"engine {who.name}: {wrong}: {self.story_of(who)}")
        return counts

    @staticmethod
    def story_of(slot):
        try:
            return slot.process.stats()["story"]
        except (AssertionError, OSError):
            return "(it died with the story)"


class Calls:
    """REST calls to a daemon, each of which has to be answered within its bound while the daemon is well."""

    def __init__(self, judge, slot):
        self.judge, self.slot = judge, slot

    def __call__(self, method, path, body=None, bound_s=CALL_S):
        """Code and answer; 0 where there was none, as it was hurt."""
        began = time.monotonic_ns()
        try:
            code, answer = self.slot.process.request(method, path, body, timeout=bound_s + 30)
        except (OSError, http.client.HTTPException) as failure:
            if self.slot.well_since(began):
                raise Broken(f"{self.slot.name}: {method} {path}: no answer: {failure!r}") from None
            return 0, {}
        took_s = (time.monotonic_ns() - began) / 1e9
        if took_s > bound_s and self.slot.well_since(began):
            raise Broken(f"{self.slot.name}: {method} {path}: answered {code} after {took_s:.1f} s: {answer}")
        with self.judge.lock:
            self.judge.answers[path.split("?")[0].split("/")[-1], code] += 1
            self.judge.calls_ms.append(took_s * 1000)
        if code not in ANSWERS:
            raise Broken(f"{self.slot.name}: {method} {path} {body}: {code} {answer}")
        return code, answer


class Trainer:
    """Of one instance: the only one that talks to its engine."""

    def __init__(self, chaos, slot, number, others):
        self.chaos, self.slot, self.judge = chaos, slot, chaos.judge
        self.draw = random.Random(f"trainer {chaos.seed} {slot.name}")
        self.call = Calls(chaos.judge, slot.daemon)
        self.own = [chaos.load + number * chaos.own + i for i in range(chaos.own)]  # requests that nobody else uses
        self.blank = False  # it may have slept at level 2, which keeps no weights
        self.others = others  # trainers of its tenant
        self.box = queue.SimpleQueue()  # what others want asked: (request, why it may not be there, of which weights; None: any)

    def post(self, path, body=None, **kw):
        join = "&" if "?" in path else "?"
        return self.call("POST", f"{path}{join}instance={self.slot.name}", body, **kw)

    # ---- the engine ----

    def engine(self, what):
        """What it returns of the engine, which may go meanwhile."""
        engine = self.slot.process
        try:
            return what(engine)
        except (AssertionError, OSError, ValueError) as failure:
            with self.slot.lock:
                gone = self.slot.down or self.slot.process is not engine
            if gone:
                raise Gone from None
            raise Broken(f"engine {self.slot.name}: {failure}") from None

    def begin(self, indexes, **fields):
        return self.engine(lambda engine: (engine, engine.command("run", indexes=indexes, **fields)))

    def finish(self, begun):
        engine, number = begun

        def wait(now):
            if now is not engine:
                raise Gone
            return engine.wait(number, RUN_S)
        return self.judge.add(self.slot, self.engine(wait))

    # ---- what trainers do ----

    def paused(self):
        """Ranks take weights one after the other, so nothing may run meanwhile; one rank needs no pause."""
        if self.slot.ranks == 1:
            return True
        self.post(f"/pause?mode={self.draw.choice(('abort', 'keep'))}")
        return self.call("GET", f"/is_paused?instance={self.slot.name}")[1].get("is_paused", False)

    def update(self, weights):
        """True: it was done; else nobody knows."""
        name = self.slot.name
        if not self.paused():
            return False
        if self.draw.random() < 0.5:
            code, _ = self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_id": weights}})
            done = code == 200
        else:
            version = f"v{weights}"
            done = all(self.post(path, body)[0] == 200 for path, body in (
                ("/start_weight_update", None), ("/update_weights", {"update_info": {"weights_id": weights}}),
                ("/finish_weight_update", {"weight_version": version} if self.draw.random() < 0.5 else {})))
        if done:
            self.slot.weights, self.blank = weights, False
        self.chaos.story(f"{name}: weights {weights} {'written' if done else 'not written'}")
        return done

    def serve(self, weights=None):
        """From whatever state, until it takes requests again; the last wake resumes, so what is to be written is before it."""
        end = time.monotonic() + SERVES_S
        if weights is None and self.blank:
            weights = self.draw.randint(1, WEIGHTS)
        while not self.chaos.over.is_set():
            code, answer = (200, {}) if weights is None else self.post("/wake_up?tags=weights")
            if code == 200 and (weights is None or self.update(weights)):
                code, answer = self.post("/wake_up")
                code, answer = self.post("/resume") if code == 200 else (code, answer)
                if code == 200:
                    return
            if time.monotonic() > end and self.chaos.calm.is_set():
                raise Broken(f"{self.slot.name} does not serve again: {code} {answer}")
            self.chaos.over.wait(0.2)

    def sleeps(self):
        level = self.draw.choice((1, 1, 2))
        self.blank |= level == 2
        self.post(f"/sleep?level={level}&mode={self.draw.choice(('abort', 'keep', 'wait'))}")
        if self.draw.random() < 0.3:
            self.post("/sleep?level=1")  # again
        if not self.blank and self.draw.random() < 0.5:
            self.post(f"/wake_up?tags={self.draw.choice(('weights', 'kv_cache'))}")
        self.serve(self.draw.choice((None, self.draw.randint(1, WEIGHTS))))

    def releases(self):
        self.post("/pause?mode=abort")
        self.post(self.draw.choice(("/release_kv_cache_memory", "/release_memory_occupation")))
        self.serve()

    def pauses(self):
        self.post(f"/pause?mode={self.draw.choice(('abort', 'keep', 'wait'))}&clear_cache=true")
        self.serve(self.draw.choice((None, self.draw.randint(1, WEIGHTS))))

    def keeps(self):
        """Requests that a pause finds half done, and that go on with other weights."""
        indexes = self.draw.sample(range(self.chaos.load), 4)
        begun = self.begin(indexes, use_cache=False, stall=True)

        def ended(engine):
            if engine is not begun[0]:
                raise Gone
            engine.stats()  # comes after what came before it
            return any(event.get("id") == begun[1] and event["event"] == "done" for event in engine._events)
        self.post("/pause?mode=keep&clear_cache=false")
        self.serve(self.draw.randint(1, WEIGHTS))
        end = time.monotonic() + RUN_S
        while not self.engine(ended) and not self.chaos.over.wait(0.05):
            if time.monotonic() > end:
                raise Broken(f"{self.slot.name}: requests that a pause kept do not end")
            self.post("/pause?mode=keep&clear_cache=false")  # only a resume that follows one reaches the engine
            self.serve()
        self.finish(begun)
        self.finish(self.begin(indexes, use_cache=False))

    def updates(self):
        self.serve(self.draw.randint(1, WEIGHTS))

    def resets(self):
        """Of the instance or its tenant: what was put before is not there after."""
        if not self.own:
            return
        index = self.own.pop(0)
        asker = self
        try:
            asker = self.reset_of(index)
        finally:
            if asker is self:
                self.own.append(index)

    def reset_of(self, index):
        """Whose the request is then."""
        self.finish(self.begin([index], use_cache=False))
        life, weights = self.slot.life, self.slot.weights
        whole = self.draw.random() < 0.2
        if whole:
            code, answer = self.call("POST", f"/v1/kvplane/tenants/{self.slot.tenant}/reset")
        else:
            code, answer = self.post("/reset_prefix_cache?reset_external=true&reset_running_requests=true")
        done = code == 200 and answer.get("success") is not False
        if code != 200:
            return self
        other = self.draw.choice(self.others) if done and self.others and self.draw.random() < 0.5 else None
        why = f"{'tenant' if whole else 'instance'} reset of {self.slot.name} answered {answer}"
        if other is not None:
            other.box.put((index, why, None if whole else weights))
            return other
        left = done if whole else self.slot.life == life  # an engine that began anew has not shared it
        if left:
            self.asked(index, why)
        return self

    def asked(self, index, why):
        counts = self.finish(self.begin([index], use_cache=False))
        with self.judge.lock:
            self.judge.counts["cleared_checked"] += 1
        if counts["hits"]:
            raise Broken(f"{self.slot.name} got {counts['hits']} blocks of request {index} that were cleared: {why}")

    def resets_local(self):
        self.post("/reset_prefix_cache")

    def nothing(self):
        pass

    def turn(self):
        while not self.box.empty():
            index, why, weights = self.box.get()
            self.own.append(index)
            # An instance's reset clears what it shares: of other weights there may be some left, of a reset that was not done.
            if weights in (None, self.slot.weights):
                self.asked(index, why)
        indexes = self.draw.sample(range(self.chaos.load), self.draw.choice((8, 8, 32)))
        begun = self.begin(indexes, use_cache=self.draw.random() < 0.5)
        self.draw.choices((self.nothing, self.sleeps, self.releases, self.pauses, self.updates, self.resets,
                           self.resets_local, self.keeps), (7, 4, 2, 2, 3, 5, 1, 3))[0]()
        self.serve()
        self.finish(begun)
        # What was under way then, and should not have arrived, would be found now.
        self.finish(self.begin(indexes, use_cache=False))

    def loop(self):
        while not self.chaos.calm.is_set():
            try:
                self.turn()
            except Gone:
                self.chaos.over.wait(0.1)
            self.chaos.calm.wait(0.2)


class Operator:
    """Asks, and removes tenants and objects, of all daemons and nodes."""

    def __init__(self, chaos):
        self.chaos = chaos
        self.draw = random.Random(f"operator {chaos.seed}")

    def loop(self):
        stage = self.chaos.stage
        while not self.chaos.calm.wait(0.5):
            slot = self.draw.choice(stage.daemons + stage.stores)
            if slot.process is None or slot.down:
                continue
            call = Calls(self.chaos.judge, slot)
            paths = ["/metrics", "/livez", "/readyz", "/v1/kvplane/events"]
            if slot.role == "daemon":
                paths += [f"/v1/kvplane/{what}" for what in (
                    "instances", "nodes", "tenants", "operations", "queues", "regions", "cluster")] + ["/"]
            call("GET", self.draw.choice(paths))
            if slot.role == "daemon" and self.draw.random() < 0.05:
                call("POST", "/v1/kvplane/tenants/other/remove?force=true")


class Prober:
    """Liveness of one daemon or node, all the time; it answers whatever others do, unless it is hurt itself."""

    def __init__(self, chaos, slot):
        self.chaos, self.slot = chaos, slot

    def loop(self):
        while not self.chaos.calm.wait(0.25):
            began = time.monotonic_ns()
            try:
                code, answer = self.slot.process.request("GET", "/livez", timeout=PROBE_S)
            except (OSError, http.client.HTTPException) as failure:
                code, answer = 0, repr(failure)
            if not self.slot.well_since(began, 2):
                continue
            if code != 200:
                raise Broken(f"{self.slot.name}: /livez: {code} {answer} after {(time.monotonic_ns() - began) / 1e6:.0f} ms")
            with self.chaos.judge.lock:
                self.chaos.judge.probes_ms.append((time.monotonic_ns() - began) / 1e6)
