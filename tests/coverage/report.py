#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tests ran: reads the counters of a build with the preset `coverage` (gcov's JSON), prints lines and branches
of each layer, and lists what of the judged layers did not run. report.py BUILD

What counts: every line that gcc made code for, and every branch of the source (each side of each condition, each && and
||, each case of a switch). Rules for what does not:

- The branches of an assertion (kvb_assert, kvb_assert_slow, kvb_mutex_assert_held) and the line of KVB_UNREACHABLE: our
  own mistakes, which no test can make.
- The branches of validators (validate.c, *_validate) on what they found wrong: assertions, too.
- The branches of KVB_LOG and KVB_LOG_LIMITED: whether a line is written is decided, and tested, in base/log.c.

explained.md says why what cannot be reached cannot; it counts all the same. An error path of a judged layer that no test
ran and that has no line there fails the report, as does a judged layer below its percentages."""

import collections
import concurrent.futures
import fnmatch
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# name, folder, judged. The first folder that fits takes a file.
LAYERS = (
    ("base", "base/", True),
    ("store", "store/", True),
    ("tcp", "transport/tcp/", True),
    ("connector", "server/connector/", True),
    ("transport", "transport/", False),
    ("link", "server/link/", False),
    ("http", "server/http/", False),
    ("control", "server/control/", False),
    ("node", "server/node/", False),
    ("server", "server/", False),
    ("engine", "engine/", False),
)
LINES_PERCENT = 90
BRANCHES_PERCENT = 80

UNCOUNTED = re.compile(r"\b(kvb_assert|kvb_assert_slow|kvb_mutex_assert_held|KVB_UNREACHABLE|KVB_LOG|KVB_LOG_LIMITED)\(")
# What an error path answers to, from the words of its condition and of what it does.
KINDS = (
    ("memory", r"\b\w*alloc\(|\bstrdup\(|NO_MEMORY|no_memory|== NULL\) \{\n"),
    ("the system", r"ERR_IO|ERR_LIMIT|ERR_INTERNAL|\berrno\b|\bfd < 0|\bE[A-Z]{3,}\b:"),
    ("the peer", r"ERR_PROTOCOL|ERR_DISCONNECTED|ERR_UNAVAILABLE|ERR_REFUSED|ERR_CHECKSUM|ERR_TIMEOUT"),
    ("the request", r"ERR_INVALID|ERR_TOO_LARGE|ERR_NOT_FOUND|ERR_EXISTS|ERR_UNSUPPORTED|ERR_BAD_STATE|ERR_BUSY|ERR_AGAIN"
     r"|ERR_NO_SPACE|ERR_QUOTA|ERR_FENCED|ERR_CLOSED|ERR_TICKET|ERR_GENERATION|ERR_DRAINING|ERR_CANCELED"),
    ("a status handed on", r"!= KVB_OK\) \{\n|goto err|return status"),
)
OTHER = "no error path"


def gcov(arguments):
    directory, notes = arguments
    told = subprocess.run(["gcov", "--json-format", "--stdout", "-b", *notes], cwd=directory, capture_output=True,
                          check=False)
    if told.returncode != 0:  # counters of another build of a file, say
        print(f"coverage: {directory}: {told.stderr.decode().strip()}", file=sys.stderr)
    return [json.loads(line) for line in told.stdout.splitlines() if line.startswith(b"{")]


def layer_of(path):
    return next((name for name, folder, _ in LAYERS if path.startswith(folder)), None)


def uncounted_lines(text):
    """Lines whose branches do not count, and those that are KVB_UNREACHABLE."""
    found, unreachable = set(), set()
    for match in UNCOUNTED.finditer(text):
        depth, at = 0, match.end() - 1
        while at < len(text):  # up to its closing parenthesis
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        lines = range(text.count("\n", 0, match.start()) + 1, text.count("\n", 0, at) + 2)
        found.update(lines)
        if match[1] == "KVB_UNREACHABLE":
            unreachable.update(lines)
    return found, unreachable


class Source:
    def __init__(self, path):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        self.path = path
        self.text = text.splitlines()
        self.uncounted, self.unreachable = uncounted_lines(text)
        self.lines = {}  # number: how often
        self.function = {}  # number: whose
        self.branches = {}  # (number, function): how often each

    def take(self, line):
        number, function = line["line_number"], line.get("function_name", "")
        if number in self.unreachable:
            return
        self.lines[number] = self.lines.get(number, 0) + line["count"]
        if not function:  # within another one, in a program that is optimised: its own branches count
            self.function.setdefault(number, function)
            return
        self.function[number] = function
        if number in self.uncounted or not line["branches"]:
            return
        validates = os.path.basename(self.path) == "validate.c" or function.endswith("_validate")
        if validates and re.search(r"\b(wrong|broken|holds)\b", self.text[number - 1]):
            return
        counts = [branch["count"] for branch in line["branches"]]
        had = self.branches.get((number, function))
        if had is None:
            self.branches[number, function] = counts
        elif len(had) == len(counts):  # else: compiled otherwise elsewhere
            self.branches[number, function] = [a + b for a, b in zip(had, counts)]

    def spots(self):
        """What did not run: (first line, last line, what is said of it)."""
        spots = []
        for number in sorted(self.lines):
            sides = [count for (line, _), counts in self.branches.items() if line == number for count in counts]
            if self.lines[number] == 0:
                if spots and spots[-1][3] and spots[-1][4] == self.function[number]:
                    spots[-1][1] = number
                else:
                    spots.append([number, number, "", True, self.function[number]])
            elif 0 in sides:
                said = f"{sides.count(0)} of {len(sides)} branches"
                # A condition, and what it leads to, are one.
                spots.append([number, number, said, True, self.function[number]])
            elif spots:
                spots[-1][3] = False
        return [(first, last, said, function) for first, last, said, _, function in spots]


def read(build):
    by_folder = collections.defaultdict(list)
    for folder, _, names in os.walk(build):
        for name in names:
            if name.endswith(".gcno"):
                by_folder[folder].append(name)
    # The layers' own objects first: how a branch is made there is how it counts.
    own = tuple(os.path.join(build, name) + os.sep for name in ("base", "transport", "store", "server", "engine"))
    folders = sorted(by_folder, key=lambda folder: (not folder.startswith(own), folder))
    sources = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for reports in pool.map(gcov, ((folder, by_folder[folder]) for folder in folders)):
            for report in reports:
                for file in report["files"]:
                    path = os.path.relpath(os.path.join(report["current_working_directory"], file["file"]), ROOT)
                    if layer_of(path) is None or not os.path.exists(os.path.join(ROOT, path)):
                        continue
                    if path not in sources:
                        sources[path] = Source(path)
                    for line in file["lines"]:
                        sources[path].take(line)
    return sources


def percent(part, whole):
    return 100.0 * part / whole if whole else 100.0


def explained():
    """explained.md's table: (file, function, text of the line, why)."""
    rows = []
    with open(os.path.join(ROOT, "tests/coverage/explained.md"), encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
            if len(cells) == 6 and "/" in cells[1]:
                rows.append(tuple(cells[1:5]))
    return rows


def main():
    sources = read(sys.argv[1])
    rows, used = explained(), set()
    total = collections.defaultdict(lambda: [0, 0, 0, 0])
    listed = collections.defaultdict(lambda: collections.defaultdict(list))
    for path, source in sorted(sources.items()):
        layer = layer_of(path)
        sides = [count for counts in source.branches.values() for count in counts]
        for name in (layer, "all"):
            total[name][0] += sum(count > 0 for count in source.lines.values())
            total[name][1] += len(source.lines)
            total[name][2] += sum(count > 0 for count in sides)
            total[name][3] += len(sides)
        for first, last, said, function in source.spots():
            text = "\n".join(source.text[first - 1:last])
            kind = next((kind for kind, words in KINDS if re.search(words, text)), OTHER)
            why = ""
            for at, (file, where, words, reason) in enumerate(rows):
                if file == path and fnmatch.fnmatch(function, where) and words in text:
                    used.add(at)
                    why = reason
            listed[layer]["explained" if why else kind].append(
                (f"{path}:{first}" + (f"-{last}" if last > first else ""), function, said,
                 source.text[first - 1].strip(), why))

    unexplained = 0
    for name, _, judged in LAYERS:
        if not judged:
            continue
        for kind in [kind for kind, _ in KINDS] + [OTHER, "explained"]:
            spots = listed[name].get(kind, [])
            if not spots:
                continue
            if kind not in (OTHER, "explained"):
                unexplained += len(spots)
            print(f"{name}, {'explained' if kind == 'explained' else kind if kind == OTHER else 'error paths of ' + kind}: {len(spots)}")
            for place, function, said, text, why in spots:
                print(f"  {place} {function}: {text}" + (f"  [{said}]" if said else "") + (f"  -- {why}" if why else ""))
    for at, (file, function, words, _) in enumerate(rows):
        if at not in used:
            print(f"coverage: explained.md explains what runs or is not there: {file} {function} `{words}`")

    print(f"{'layer':<12}{'lines':>16}{'%':>7}{'branches':>16}{'%':>7}")
    low, said = [], {}
    for name, _, judged in LAYERS + (("all", "", False),):
        lines, of_lines, sides, of_sides = total[name]
        line_percent, branch_percent = percent(lines, of_lines), percent(sides, of_sides)
        said[name] = f"{line_percent:.1f}/{branch_percent:.1f}"
        print(f"{name:<12}{f'{lines}/{of_lines}':>16}{line_percent:>7.1f}{f'{sides}/{of_sides}':>16}{branch_percent:>7.1f}")
        if judged and (line_percent < LINES_PERCENT or branch_percent < BRANCHES_PERCENT):
            low.append(name)
    if low:
        sys.exit(f"coverage: {', '.join(low)} below {LINES_PERCENT} % of lines, {BRANCHES_PERCENT} % of branches")
    if unexplained:
        sys.exit(f"coverage: {unexplained} error paths, listed above, were not run: each needs a test that takes it, or a line in "
                 "tests/coverage/explained.md (a path that timing alone leads to: `./dev coverage --add` runs all once more)")
    lines, of_lines, sides, of_sides = total["all"]
    print(f"coverage: ok lines={percent(lines, of_lines):.1f} branches={percent(sides, of_sides):.1f}"
          + "".join(f" {name}={said[name]}" for name, _, judged in LAYERS if judged) + f" unexplained={unexplained}")


if __name__ == "__main__":
    main()
