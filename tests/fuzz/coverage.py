#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./dev fuzz --coverage: replays the corpora and says what of each parser they reach.

coverage.py BUILD [TARGET...]: a line a parser's file: regions and lines that ran under its target, and below it
what did not: functions that were never entered, and lines of the others.
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINES_SHOWN = 8


def tool(name):
    """Debian names them with the version; the newest one that reads clang's profiles is plain."""
    for candidate in (name, name + "-14"):
        if subprocess.run(["sh", "-c", f"command -v {candidate}"], capture_output=True, check=False).returncode == 0:
            return candidate
    sys.exit(f"fuzz: there is no {name}: ./dev deps fuzz")


def targets(build, wanted):
    found = {}
    with open(os.path.join(build, "fuzz_parsers.txt"), encoding="utf-8") as lines:
        for line in lines:
            name, *files = line.split()
            found[name] = files
    for name in wanted:
        if name not in found:
            sys.exit(f"fuzz: there is no target '{name}'; there are: {' '.join(found)}")
    return {name: files for name, files in found.items() if not wanted or name in wanted}


def replay(build, name):
    """The profile of one target over its corpus."""
    raw = os.path.join(build, f"{name}.profraw")
    data = os.path.join(build, f"{name}.profdata")
    corpora = [os.path.join(ROOT, "tests/fuzz/corpus", name)]
    environment = dict(os.environ, LLVM_PROFILE_FILE=raw)
    run = subprocess.run([os.path.join(build, name), *corpora], env=environment, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.stdout.write(run.stdout + run.stderr)
        sys.exit(f"fuzz: the corpus of {name} fails; replay: {build}/{name} {corpora[0]}")
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", raw, "-o", data], check=True)
    return data


def export(build, name, data):
    command = [tool("llvm-cov"), "export", os.path.join(build, name), f"-instr-profile={data}"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["data"][0]


def lines_of(segments):
    """Lines with a count, from llvm's segments: the most of those that begin or lie in it."""
    counts = {}
    for one, following in zip(segments, segments[1:] + [None]):
        line, _, count, has_count, _, is_gap = one
        if not has_count or is_gap:
            continue
        last = following[0] if following else line
        for at in range(line, last + 1):
            if at == last and at != line and following and following[1] == 1:
                continue
            counts[at] = max(counts.get(at, 0), count)
    return counts


def ranges(numbers):
    out = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return [str(a) if a == b else f"{a}-{b}" for a, b in out]


def functions_not_entered(data, path):
    never = []
    for function in data.get("functions", []):
        if path in function["filenames"][:1] and function["count"] == 0:
            first = min(region[0] for region in function["regions"])
            last = max(region[2] for region in function["regions"])
            never.append((first, last, function["name"].split(":")[-1]))
    entered = {name for f in data.get("functions", []) if path in f["filenames"][:1] and f["count"] > 0
               for name in [f["name"].split(":")[-1]]}
    return sorted(set(entry for entry in never if entry[2] not in entered))


def main():
    build = sys.argv[1]
    total = [0, 0]
    chosen = targets(build, sys.argv[2:])
    print(f"{'parser':<44} {'target':<18} {'regions':>16} {'lines':>16}")
    for name, files in chosen.items():
        data = export(build, name, replay(build, name))
        by_path = {os.path.realpath(file["filename"]): file for file in data["files"]}
        for shown in files:
            path = os.path.realpath(os.path.join(ROOT, shown))
            if path not in by_path:
                sys.exit(f"fuzz: {name} does not have {shown}, which it should parse with (tests/fuzz/CMakeLists.txt)")
            file = by_path[path]
            path = file["filename"]
            summary = file["summary"]
            total[0] += summary["lines"]["covered"]
            total[1] += summary["lines"]["count"]
            columns = [
                f"{part['covered']}/{part['count']} {part['percent']:4.0f} %"
                for part in (summary["regions"], summary["lines"])
            ]
            print(f"{shown:<44} {name:<18} {columns[0]:>16} {columns[1]:>16}")
            never = functions_not_entered(data, path)
            inside = {line for first, last, _ in never for line in range(first, last + 1)}
            missed = {line for line, count in lines_of(file["segments"]).items() if count == 0} - inside
            if never:
                print("    never entered: " + " ".join(entry[2] for entry in never))
            if missed:
                shown_ranges = ranges(missed)
                more = f" and {len(shown_ranges) - LINES_SHOWN} more" if len(shown_ranges) > LINES_SHOWN else ""
                print("    lines not run: " + " ".join(shown_ranges[:LINES_SHOWN]) + more)
    percent = 100 * total[0] // max(total[1], 1)
    print(f"fuzz: ok targets={len(chosen)} lines={total[0]}/{total[1]} percent={percent}")


main()
