#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Minutes of load over a cluster of real processes to which things happen: ./dev chaos --minutes N [--seed S].

The plan of faults, and what trainers do, are drawn from the seed and the same each time; when which of them meets which is not,
so a seed repeats a run as far as processes can be repeated.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

import faults
import load
from stage import BLOCKS, ENGINES, PARTS, Broken, Stage, harness

LOAD = 240  # requests that all use
OWN = 24  # and those that only one trainer does
FINAL = 32  # and that nobody has used when all is over
WHOLE_S = 90  # everything is well again so long after the last fault
REST_S = 60  # and has given back what it took
# What a kind of fault explains of the errors that a process logs.
EXPLAINED = {"descriptors": "Too many open files", "memory": "Cannot allocate memory|no[ _]memory|out of memory"}
# What a process may have more than at the beginning, at rest: a few buffers and arenas, nothing that grows.
SLACK = {"rss_kib": lambda before: before // 4 + 8192, "fds": lambda before: 6, "maps": lambda before: before // 4 + 24,
         "threads": lambda before: 1}


class Chaos:
    def __init__(self, args, directory):
        self.seed, self.directory, self.quiet = args.seed, directory, args.quiet
        self.seconds, self.pace_s = args.minutes * 60, 60 / args.rate
        self.kinds = args.kinds
        self.load, self.own = LOAD, OWN
        self.final = LOAD + OWN * len(ENGINES)
        self.calm = threading.Event()  # nothing new begins
        self.over = threading.Event()  # nobody waits any longer
        self.judge = load.Judge()
        self.threads = []
        self.found = []
        self.faults = {}
        self.judged = {}  # how much of what was said
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.log = open(os.path.join(directory, "chaos.log"), "w", encoding="utf-8")
        self.stage = Stage(directory, args.seed, self.final + FINAL, args.fault)
        self.trainers = []

    struck = 1.0  # the part of its time in which things happen

    @staticmethod
    def more():
        """What else its last line says."""
        return ""

    # ---- telling ----

    def story(self, text):
        with self.lock:
            print(f"{time.monotonic() - self.began:8.2f}  {text}", file=self.log, flush=True)

    def say(self, text):
        self.story(text)
        if not self.quiet:
            print(text, flush=True)

    def fail(self, text):
        self.story(f"FOUND: {text}")
        with self.lock:
            self.found.append(text)
        self.calm.set()
        self.over.set()
        self.stage.ending.set()

    def thread(self, name, body):
        def guarded():
            try:
                body()
            except Broken as broken:
                self.fail(str(broken))
            except Exception:  # of the test itself: it has proven nothing
                if not self.over.is_set():
                    self.fail(traceback.format_exc())
        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    # ---- phases ----

    def trace(self):
        """Requests that share their beginnings, in groups of 8, and some that share nothing with anybody."""
        path = os.path.join(self.directory, "trace.jsonl")
        with open(path, "w", encoding="utf-8") as out:
            for i in range(self.final + FINAL):
                blocks = [10000 + i * BLOCKS + j for j in range(BLOCKS)]
                if i < LOAD:
                    blocks[:2] = [i // 8 * 2, i // 8 * 2 + 1]
                out.write(json.dumps({"timestamp": 0, "input_length": 512 * BLOCKS, "output_length": 1,
                                      "hash_ids": blocks}) + "\n")
        return path

    def set_up(self):
        self.stage.trace = self.trace()
        self.stage.up()
        self.trainers = [load.Trainer(self, slot, i, []) for i, slot in enumerate(self.stage.engines)]
        for trainer in self.trainers:
            trainer.others += [other for other in self.trainers
                               if other is not trainer and other.slot.tenant == trainer.slot.tenant]
        self.whole()

    def each(self, what):
        """All trainers at once."""
        self.join([self.thread(what.__name__, lambda t=trainer: what(t)) for trainer in self.trainers])

    def join(self, threads):
        """Until they have ended, or something was found: then who still waits ends with what it waits for."""
        for thread in threads:
            while thread.is_alive() and not self.found:
                thread.join(0.1)
        if self.found:
            raise Broken(self.found[0])

    def everything(self, trainer):
        """What a trainer does, once, with nothing in its way."""
        trainer.finish(trainer.begin(list(range(LOAD))))
        trainer.sleeps()
        trainer.updates()
        trainer.resets_local()
        trainer.finish(trainer.begin(list(range(LOAD)), use_cache=False))

    def warm_up(self):
        """So that a process has all that it takes at most and keeps."""
        self.each(self.everything)
        for slot in self.stage.daemons + self.stage.stores:
            for connection in faults.crowd(slot):
                connection.close()
        self.whole()

    def strike(self, seed, seconds):
        self.threads = []
        self.calm.clear()
        self.over.clear()
        rows = faults.plan(seed, seconds, self.pace_s, self.kinds)
        with open(os.path.join(self.directory, "plan.jsonl"), "a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
        for trainer in self.trainers:
            self.thread(f"trainer {trainer.slot.name}", trainer.loop)
        self.thread("operator", load.Operator(self).loop)
        for slot in self.stage.daemons + self.stage.stores:
            self.thread(f"prober {slot.name}", load.Prober(self, slot).loop)
        self.thread("watch", self.watch)
        began = time.monotonic()
        for row in rows:
            if self.calm.wait(max(0, began + row["at_s"] - time.monotonic())):
                break
            self.thread(f"fault {row['kind']}", lambda row=row: self.happen(row))
            self.progress(time.monotonic() - began)
        self.calm.wait(max(0, began + seconds - time.monotonic()))
        self.calm.set()
        self.join(self.threads)
        self.calm.clear()

    def progress(self, now_s):
        if not self.quiet and sys.stdout.isatty():
            print(f"\r{now_s:4.0f} of {self.seconds:.0f} s, {sum(self.faults.values())} faults, "
                  f"{self.judge.counts['hits']} gets ", end="", flush=True)

    def happen(self, row):
        kind = row["kind"]
        fault = faults.Fault(self, row)
        effect = fault.run()
        self.story(f"mended: {fault.what}{'' if effect else ', which had no effect'}")
        if effect:
            with self.lock:
                self.faults[kind] = self.faults.get(kind, 0) + 1

    def watch(self):
        """Nobody ends but by our hand."""
        while not self.over.wait(0.1) and not self.calm.is_set():
            for slot in self.stage.slots:
                with slot.lock:
                    code = None if slot.down else slot.process.popen.poll()
                if code is not None:
                    raise Broken(f"{slot.name} ended by itself, {code}: {slot.process.tail()}")
            for proxy in self.stage.proxies:
                if proxy.popen.poll() is not None:
                    raise RuntimeError(f"{proxy.name} ended")

    # ---- the end ----

    def until(self, what, condition, seconds):
        """Like harness.until, but what is not met has been found."""
        try:
            harness.until(what, condition, seconds)
        except AssertionError as late:
            raise Broken(str(late)) from None

    def well(self, trainer):
        view = trainer.slot.daemon.process.instance(trainer.slot.name)
        lineage = view and view["lineage"]
        return view and view["attached"] and lineage["open"] and lineage.get("weights_name")

    def nodes_up(self, daemon):
        code, answer = daemon.process.get("/v1/kvplane/nodes")
        return code == 200 and sum(node["state"] == "up" for node in answer["nodes"]) == len(self.stage.stores) + 1

    def whole(self):
        """All of one mind: the same weights, all nodes in use. A node that was left alone is used again once it is asked."""
        self.each(self.one_mind)
        for trainer in self.trainers:
            self.until(f"{trainer.slot.name} shares", lambda t=trainer: self.well(t), WHOLE_S)

        def used():
            self.each(self.ask)
            return all(self.nodes_up(daemon) for daemon in self.stage.daemons)
        self.until("all nodes are in use", used, WHOLE_S)

    @staticmethod
    def one_mind(trainer):
        trainer.serve(1)

    @staticmethod
    def ask(trainer):
        trainer.finish(trainer.begin(trainer.draw.sample(range(LOAD), 8), use_cache=False))

    def left_alone(self):
        """How often each daemon has left each node alone, and whether one is just now."""
        nodes = []
        for daemon in self.stage.daemons:
            code, answer = daemon.process.get("/v1/kvplane/nodes")
            nodes += answer["nodes"] if code == 200 else []
        return [node["sick_times"] for node in nodes], any(node["state"] != "up" for node in nodes)

    def undisturbed(self, check):
        """A node that is slow for a moment, on a busy machine, is left alone for a while, and what it has is missed until then:
        what was found meanwhile is looked at again."""
        end = time.monotonic() + WHOLE_S
        while True:
            before, _ = self.left_alone()
            try:
                return check()
            except Broken as found:
                after, now = self.left_alone()
                if (after == before and not now) or time.monotonic() > end:
                    raise
                self.story(f"once more, a node was left alone: {found}")
            self.whole()

    def share(self, tenant):
        self.undisturbed(lambda: self.share_once(tenant))

    def share_once(self, tenant):
        """What one of the tenant puts, each other gets whole."""
        of = [trainer for trainer in self.trainers if trainer.slot.tenant == tenant]
        indexes = list(range(self.final, self.final + FINAL))
        of[0].finish(of[0].begin(indexes, use_cache=False))
        for trainer in of[1:] + of[:1]:
            counts = trainer.finish(trainer.begin(indexes, use_cache=False))
            if counts["hits"] != counts["looked_up"] or counts["looked_up"] == 0:
                raise Broken(f"{trainer.slot.name} got {counts['hits']} of {counts['looked_up']} blocks that "
                             f"{of[0].slot.name} had put: {counts['missed']}")

    @staticmethod
    def good(answer, what):
        code, body = answer
        if code != 200 or body.get("success") is False or body.get("external") == "pending":
            raise Broken(f"when all was over, {what} answered {code} {body}")

    def sleep_and_reset(self, trainer):
        name = trainer.slot.name
        self.good(trainer.post("/sleep?level=1"), f"sleep of {name}")
        self.good(trainer.post("/wake_up"), f"wake of {name}")
        self.until(f"{name} shares", lambda: self.well(trainer), WHOLE_S)

    def reset(self, trainer):
        index = trainer.own[0] if trainer.own else self.final  # its own may all have gone to others; nobody asks for any now
        trainer.finish(trainer.begin([index], use_cache=False))
        path = "/reset_prefix_cache?reset_external=true&reset_running_requests=true"
        self.good(trainer.post(path), f"reset of {trainer.slot.name}")
        if trainer.finish(trainer.begin([index], use_cache=False))["hits"]:
            raise Broken(f"{trainer.slot.name} got blocks that its reset had cleared")

    def mended(self):
        self.whole()
        for tenant in ("default", "other"):
            self.share(tenant)
        self.each(self.sleep_and_reset)
        for tenant in ("default", "other"):
            self.share(tenant)
        for trainer in self.trainers:
            self.reset(trainer)
        self.whole()
        # Nobody else is touched: a tenant goes, and what others have is there.
        self.share("default")
        self.good(self.trainers[0].call("POST", "/v1/kvplane/tenants/other/remove?force=true"), "the removal of a tenant")
        self.undisturbed(self.others_left)
        self.whole()
        for trainer in self.trainers:
            stats = trainer.engine(lambda engine: engine.stats())
            wrong = {k: stats[k] for k in ("stale", "torn", "errors") if stats[k]}
            if wrong:
                raise Broken(f"engine {trainer.slot.name}: {wrong}: {stats['story']}")

    def others_left(self):
        for trainer in self.trainers:
            if trainer.slot.tenant != "default":
                continue
            counts = trainer.finish(trainer.begin(list(range(self.final, self.final + FINAL)), use_cache=False))
            if counts["hits"] != counts["looked_up"]:
                raise Broken(f"the removal of a tenant took blocks of another: {counts}")

    def figures(self):
        time.sleep(1)
        return {slot.name: slot.figures() for slot in self.stage.slots if slot.role != "etcd"}

    def baseline(self, before):
        """At rest everybody has what it had; what closes late is waited for."""
        end = time.monotonic() + REST_S
        while True:
            after = self.figures()
            more = [(name, field) for name, row in after.items() for field in row
                    if row[field] > before[name][field] + SLACK[field](before[name][field])]
            if not more or time.monotonic() > end:
                break
        fields = list(SLACK)
        self.say("process       lives  " + "".join(f"{field + ' before/after':>26}" for field in fields))
        for slot in self.stage.slots:
            if slot.name in after:
                self.say(f"{slot.name:12} {slot.life:6}  " + "".join(
                    f"{before[slot.name][f]:>17}/{after[slot.name][f]:<8}" for f in fields))
        if more:
            raise Broken("at rest, more than at the beginning: " + ", ".join(f"{n} {f}" for n, f in more))

    def judge_words(self):
        """Nobody has said anything, since it was asked last, that no fault explains."""
        bad, wrong = re.compile("Sanitizer|runtime error:|[Aa]ssertion"), re.compile(r"level=error\b")
        for slot in self.stage.slots:
            explained = re.compile("|".join(EXPLAINED[kind] for kind in slot.suffered) or "$^")
            errors = []
            with open(slot.process.stderr_path, "rb") as said:
                at = said.seek(self.judged.get(slot.process.stderr_path, 0))
                for raw in said:
                    if not raw.endswith(b"\n"):
                        break  # it is being said
                    at += len(raw)
                    line = raw.decode(errors="replace")
                    if bad.search(line):
                        raise Broken(f"{slot.name} said: {line}")
                    if slot.role != "etcd" and wrong.search(line) and not explained.search(line):
                        errors.append(line)
                self.judged[slot.process.stderr_path] = at
            if errors:
                raise Broken(f"{slot.name} said, among {len(errors)} errors: {errors[0]}")

    def farewell(self):
        """Each ends when it is asked."""
        for slot in self.stage.engines + self.stage.daemons + self.stage.stores:
            with slot.lock:
                slot.down = True
            slot.process.popen.terminate()
            code = slot.process.popen.wait(60)
            if code != 0:
                raise Broken(f"{slot.name} ended with {code}")
        self.judge_words()

    def run(self):
        self.set_up()
        self.warm_up()
        before = self.figures()
        self.say(f"chaos: seed {self.seed}, {len(self.stage.slots)} processes and {len(self.stage.proxies)} proxies, "
                 f"logs in {self.directory}")
        self.strike(self.seed, self.seconds)
        self.mended()
        self.baseline(before)
        self.farewell()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def options(name, text):
    parser = argparse.ArgumentParser(prog=f"./dev {name}", description=text)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("KVPLANE_SEED", random.randrange(1 << 32))))
    parser.add_argument("--rate", type=float, default=15, help="faults a minute that are planned (%(default)s)")
    parser.add_argument("--kinds", type=lambda given: given.split(","), default=list(faults.KINDS),
                        help="of faults, separated by commas: " + " ".join(faults.KINDS))
    parser.add_argument("--fault", help="take a protection out of the code, to see it found (kvplane rehearse --fault list)")
    parser.add_argument("--quiet", action="store_true", help="only the last line")
    parser.add_argument("--keep", action="store_true", help="the folder with the logs")
    args = parser.parse_args()
    for kind in args.kinds:
        if kind not in faults.KINDS:
            parser.error(f"no kind '{kind}'")
    return args


def play(name, chaos, args):
    """Runs it, and tells how it ended; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = None
    try:
        chaos.run()
    except Broken as broken:
        found = str(broken)
    finally:
        chaos.calm.set()
        chaos.over.set()
        chaos.stage.down()
    counts, minutes = chaos.judge.counts, (time.monotonic() - chaos.began) / 60
    total = sum(chaos.faults.values())
    chaos.say("faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(chaos.faults.items())))
    chaos.say(f"requests {counts['requests']}, blocks checked {counts['blocks_checked']}, caught {counts['caught']}, cleared and "
              f"asked for {counts['cleared_checked']}, calls {len(chaos.judge.calls_ms)}; p99: calls "
              f"{percentile(chaos.judge.calls_ms, .99):.0f} ms, probes {percentile(chaos.judge.probes_ms, .99):.0f} ms")
    chaos.story("answers: " + ", ".join(f"{what} {code}: {n}" for (what, code), n in sorted(chaos.judge.answers.items())))
    chaos.say("missed: " + ", ".join(f"{why} {n}" for why, n in sorted(chaos.judge.missed.items()) if n))
    line = (f"minutes={minutes:.1f} faults={total} gets={counts['hits']} stale={counts['stale']} torn={counts['torn']} "
            f"seed={chaos.seed}{chaos.more()}")
    # What a busy machine leaves of a plan is still seven a minute.
    if found is None and args.fault is None and args.rate >= 15 and total < int(7 * args.minutes * chaos.struck):
        found = f"only {total} faults had an effect: fewer than 7 a minute prove little"
    if found is not None:
        print(f"{name}: found after {minutes:.1f} minutes: {found}\nreplay: ./dev {name} --minutes {args.minutes:g} --seed "
              f"{chaos.seed} (the same plan; its timing differs)\nlogs: {chaos.directory}\n{name}: failed {line}", flush=True)
        return 1
    if args.keep:
        print(f"logs: {chaos.directory}")
    else:
        shutil.rmtree(chaos.directory)
    print(f"{name}: ok {line}", flush=True)
    return 0


def main():
    args = options("chaos", __doc__)
    return play("chaos", Chaos(args, tempfile.mkdtemp(prefix="kvplane-chaos-")), args)


if __name__ == "__main__":
    sys.exit(main())
