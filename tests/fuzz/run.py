#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./dev fuzz: runs fuzz targets until each has had so many seconds of a processor.

A target that is held up by what else the machine does is not done earlier for it: it runs in slices until its own
processor time is reached, and a wall clock (--wall) bounds that. What is found is kept in BUILD/found, what was new in
BUILD/corpus, and how far each target has come in BUILD/progress.json: a run that was broken off goes on where it was.
--merge takes what of the new reaches more into tests/fuzz/corpus.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CORPORA = "tests/fuzz/corpus"
SLICE_S = (2, 120)  # wall clock: what a run that is killed outright loses at most
# Limits are wide: a machine may be slow, and what is wrong is far beyond them.
LIMITS = ["-timeout=120", "-rss_limit_mb=3072", "-malloc_limit_mb=512", "-print_final_stats=1"]
INTERRUPTED = 72  # libFuzzer's exit status then
NAMED_BY_FUZZER = re.compile(r"[0-9a-f]{40}")


class Progress:
    """Seconds and executions of each target, in a file; a program that was built anew begins anew."""

    def __init__(self, path, seconds):
        self.path, self.lock = path, threading.Lock()
        self.of = {}
        try:
            with open(path, encoding="utf8") as file:
                kept = json.load(file)
            self.of = kept["targets"] if kept["seconds"] == seconds else {}
        except (OSError, ValueError, KeyError):
            pass
        self.seconds = seconds

    def get(self, target):
        kept = self.of.get(target.name, {})
        return kept if kept.get("built") == target.built else {"built": target.built, "cpu": 0.0, "wall": 0.0, "execs": 0}

    def put(self, target, spent):
        with self.lock:
            self.of[target.name] = spent
            self.write()

    def forget(self, names):
        for name in names:
            self.of.pop(name, None)
        self.write()

    def write(self):
        with open(self.path + ".new", "w", encoding="utf8") as file:
            json.dump({"seconds": self.seconds, "targets": self.of}, file, indent=1, sort_keys=True)
        os.replace(self.path + ".new", self.path)


class Target:
    def __init__(self, build, name):
        self.name, self.build = name, build
        self.program = os.path.join(build, name)
        self.log = os.path.join(build, "fuzz-logs", name)
        self.corpus = os.path.join(build, "corpus", name)
        self.built = os.stat(self.program).st_mtime_ns
        self.process = None
        os.makedirs(self.corpus, exist_ok=True)

    def slice(self, wall_s, again):
        """One run; its exit status, its processor seconds and its executions."""
        command = [self.program, f"-max_total_time={wall_s}", *LIMITS, f"-artifact_prefix={self.build}/found/{self.name}-"]
        words = os.path.join("tests/fuzz/dictionaries", self.name)
        if os.path.exists(words):
            command.append(f"-dict={words}")
        command += [self.corpus, os.path.join(CORPORA, self.name)]
        with open(self.log, "ab" if again else "wb") as log:
            began = log.tell()
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT) as self.process:
                _, status, usage = os.wait4(self.process.pid, 0)
                self.process.returncode = os.waitstatus_to_exitcode(status)
        with open(self.log, "rb") as log:
            log.seek(began)
            execs = re.findall(rb"^stat::number_of_executed_units: *(\d+)", log.read(), re.M)
        return self.process.returncode, usage.ru_utime + usage.ru_stime, int(execs[-1]) if execs else 0

    def tell(self):
        """What was found."""
        with open(self.log, encoding="utf8", errors="replace") as file:
            text = file.read()
        found = re.findall(r"Test unit written to (\S+)", text)
        print(f"== {self.name}")
        for line in re.findall(r".*(?:assertion failed|ERROR: |runtime error|SUMMARY: ).*", text)[:5]:
            print(line)
        for path in found[:1]:
            print(f"kept:   {path}\nreplay: {self.program} {path}")
        print(f"log:    {self.log}")


class Run:
    def __init__(self, options, targets):
        self.seconds, self.wall, self.targets = options.seconds, options.wall or 10 * options.seconds + 60, targets
        self.progress = Progress(os.path.join(options.build, "progress.json"), options.seconds)
        self.stopping = False
        self.failed, self.late = [], []

    def stop(self, *_):
        self.stopping = True
        for target in self.targets:
            if target.process is not None and target.process.returncode is None:
                os.kill(target.process.pid, signal.SIGTERM)  # Popen's own would reap it

    def one(self, target):
        spent, share, first = dict(self.progress.get(target)), 1.0, True
        while spent["cpu"] < self.seconds and not self.stopping:
            if spent["wall"] >= self.wall:
                self.late.append(target)
                return
            wanted = (self.seconds - spent["cpu"]) / share
            wall_s = int(min(max(wanted, SLICE_S[0]), SLICE_S[1], max(self.wall - spent["wall"], 1)) + 0.999)
            began = time.monotonic()
            status, cpu, execs = target.slice(wall_s, not first)
            took = time.monotonic() - began
            spent = dict(spent, cpu=spent["cpu"] + cpu, wall=spent["wall"] + took, execs=spent["execs"] + execs)
            share, first = max(cpu / max(took, 0.01), 0.05), False
            self.progress.put(target, spent)
            if status != 0 and not (self.stopping and status in (INTERRUPTED, -signal.SIGTERM)):
                self.failed.append(target)
                return

    def table(self):
        print(f"{'target':<20} {'cpu s':>8} {'wall s':>8} {'execs':>12} {'a second':>9}")
        for target in self.targets:
            spent = self.progress.get(target)
            a_second = spent["execs"] / spent["cpu"] if spent["cpu"] > 0 else 0
            print(f"{target.name:<20} {spent['cpu']:>8.0f} {spent['wall']:>8.0f} {spent['execs']:>12} {a_second:>9.0f}")


def merge(targets):
    """What has a name of its own stays; what the fuzzers named is replaced by the least that reaches as much."""
    for target in targets:
        kept = os.path.join(CORPORA, target.name)
        named = [name for name in os.listdir(kept) if not NAMED_BY_FUZZER.fullmatch(name)]
        with tempfile.TemporaryDirectory() as merged, open(target.log + ".merge", "wb") as log:
            for name in named:
                shutil.copy(os.path.join(kept, name), merged)
            subprocess.run([target.program, "-merge=1", "-set_cover_merge=1", "-use_counters=0", "-timeout=120", merged, kept,
                            target.corpus], stdout=log, stderr=subprocess.STDOUT, check=True)
            for name in set(os.listdir(kept)) - set(named):
                os.remove(os.path.join(kept, name))
            for name in os.listdir(merged):
                shutil.copy(os.path.join(merged, name), kept)
    files = [os.path.join(folder, name) for folder, _, names in os.walk(CORPORA) for name in names]
    print(f"fuzz: the corpora have {len(files)} files, {sum(map(os.path.getsize, files)) >> 10} KiB")


def at_least_one(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def chosen(options):
    with open(os.path.join(options.build, "fuzz_parsers.txt"), encoding="utf8") as lines:
        there = [line.split()[0] for line in lines]
    for name in options.targets:
        if name not in there:
            sys.exit(f"fuzz: there is no target '{name}'; there are: {' '.join(there)}")
    return [Target(options.build, name) for name in options.targets or there]


def main():
    parser = argparse.ArgumentParser(prog="dev fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default="build/fuzz", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=at_least_one, default=30, metavar="N", help="processor time of each target (30)")
    parser.add_argument("--wall", type=at_least_one, metavar="N", help="wall clock of each at most (10 times that, and a minute)")
    parser.add_argument("--jobs", type=at_least_one, default=os.cpu_count(), metavar="N", help="so many at a time (one a core)")
    parser.add_argument("--merge", action="store_true", help="take what reaches more into tests/fuzz/corpus")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    os.chdir(ROOT)
    for folder in ("found", "fuzz-logs"):
        os.makedirs(os.path.join(options.build, folder), exist_ok=True)
    run = Run(options, chosen(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, run.stop)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run.one, run.targets))
    run.table()
    for target in run.failed:
        target.tell()
    if run.failed:
        run.progress.forget(target.name for target in run.failed)
        print(f"fuzz: found by {' '.join(t.name for t in run.failed)}: see above; once mended, keep the input in {CORPORA}/TARGET")
        return 1
    if run.stopping:
        print("fuzz: broken off; the same command goes on from here")
        return 1
    if run.late:
        print(f"fuzz: {' '.join(t.name for t in run.late)} had less than {run.seconds} s of a processor in {run.wall} s; "
              "the same command goes on from here with a larger --wall")
        return 1
    execs = sum(run.progress.get(target)["execs"] for target in run.targets)
    run.progress.forget([target.name for target in run.targets])
    if options.merge:
        merge(run.targets)
    print(f"fuzz: ok targets={len(run.targets)} seconds={run.seconds} execs={execs}")
    return 0


sys.exit(main())
