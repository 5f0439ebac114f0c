#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command while its processes, and single threads of them, are held up at random, so that what only
holds on a fast and idle machine shows: tests/jitter.py [--seed N] [--core K] [--busy N] COMMAND...

They are held by ptrace, not by SIGSTOP, which tests use themselves: who is stopped by a test stays stopped, who is
continued goes on. (LeakSanitizer wants ptrace for itself: not with a sanitized build, there --busy alone: --hold-ms 0.)
--core binds all of it to one core; --busy adds processes that do nothing else but take it. Ends as the command ends.
"""
import argparse
import contextlib
import ctypes
import os
import random
import subprocess
import sys
import time

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
PTRACE_EVENT_STOP = 128
WALL = 0x40000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SPARED = ("ctest",)  # it only waits

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, tid, data=0):
    return libc.ptrace(request, tid, None, data) == 0


def threads(pid):
    with contextlib.suppress(OSError):
        return [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
    return []


def descendants(pid):
    found = []
    for tid in threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/children", encoding="ascii") as children:
            for child in map(int, children.read().split()):
                found += [child, *descendants(child)]
    return found


def name(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
        return comm.read().strip()
    return ""


def hold(tid):
    """The signal that it must be let go with, once it stands still; None: it is gone, or somebody else's."""
    if not ptrace(PTRACE_SEIZE, tid):
        return None
    ptrace(PTRACE_INTERRUPT, tid)
    try:
        _, status = os.waitpid(tid, WALL)
    except ChildProcessError:
        return None
    if not os.WIFSTOPPED(status):
        return None
    return 0 if status >> 16 == PTRACE_EVENT_STOP else os.WSTOPSIG(status)


def disturb(command, draw, hold_ms, skip):
    """Holds some threads of one process, for a moment. How many."""
    pids = [pid for pid in descendants(os.getpid()) if pid not in skip and name(pid) not in SPARED]
    if not pids:
        return 0
    tids = threads(draw.choice(pids))
    if tids and draw.random() < 0.5:
        tids = [draw.choice(tids)]
    held = {}
    for tid in tids:
        signum = hold(tid)
        if signum is not None:
            held[tid] = signum
    time.sleep(hold_ms / 1000)
    for tid, signum in sorted(held.items(), reverse=True):  # a process's first thread ends when all others have
        if not ptrace(PTRACE_DETACH, tid, signum):  # killed meanwhile: its parent hears of it after us
            with contextlib.suppress(ChildProcessError):
                os.waitpid(tid, WALL)
    return len(held)


def reap(spared):
    """Whom their parents left, and who has ended: as init would."""
    for tid in threads(os.getpid()):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{tid}/children", encoding="ascii") as children:
            for child in set(map(int, children.read().split())) - spared:
                os.waitpid(child, os.WNOHANG)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--core", type=int, help="all of it on this core")
    parser.add_argument("--busy", type=int, default=0, help="so many processes that spin beside it")
    parser.add_argument("--hold-ms", type=int, default=200, help="at most so long; 0: never")
    parser.add_argument("--pause-ms", type=int, default=60, help="at most so long between two")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("which command?")
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    draw = random.Random(args.seed)
    spin = [sys.executable, "-c", "import ctypes\nctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"]
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(subprocess.Popen(spin)) for _ in range(args.busy)]
        stack.callback(lambda: [one.kill() for one in busy])
        command = stack.enter_context(subprocess.Popen(args.command))
        skip = {one.pid for one in busy}
        ours = skip | {command.pid}
        times = held = 0
        while command.poll() is None:
            if args.hold_ms > 0:
                longest = draw.choice((10, 50, args.hold_ms))
                count = disturb(command, draw, draw.uniform(min(5, longest), longest), skip)
                times += count > 0
                held += count
            reap(ours)
            time.sleep(draw.uniform(0, args.pause_ms) / 1000)
    print(f"jitter: seed={args.seed} times={times} threads={held}", flush=True)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


if __name__ == "__main__":
    sys.exit(main())
