#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes out, one at a time, each rule of table.py, and demands that a test fails; plants each bug of its second part, and
demands that a tool that was not written for it finds it.

Nothing in the tree is touched: the changed file is compiled beside it and linked before the library that has the original; of the
Python package the tests get a copy. A mutant that was killed is not run again until its row, its file or its tests change, so that a run that was broken off goes on
where it was. What a mutant makes fail must hold without it.
"""
import argparse
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.realpath(__file__))
PACKAGE = "api/python/"
ROOT = os.path.dirname(os.path.dirname(HERE))
DOC = os.path.join(ROOT, "docs/mutants.md")
SEEDS = os.environ.get("KVPLANE_SEEDS", "120")
# What runs in the optimised build, and the arguments and environment that it takes. All else is of the debug build.
TOOLS = {
    "simulate": ["--seeds", SEEDS, "--no-shrink"],
    "lineage_explorer": [],
    "connector_explorer": [],
    "ticket_explorer": [],
}
# A fuzzer (fuzz_NAME) is of the build that fuzzes; it begins with its corpus.
FUZZ_S = 120
ENVIRONMENT = {"KVPLANE_STATES": os.environ.get("KVPLANE_STATES", "700000"), "LC_ALL": "C"}
LIMIT_S = {"simulate": 900, "it": 300, "fuzz": FUZZ_S + 120, "": 300}

sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
from table import PLANTED, ROWS  # noqa: E402 (it lies beside this file)


class Bad(Exception):
    """The table is wrong: the text is not there once, or the mutant does not compile or link."""


def read(path):
    with open(path, encoding="utf8") as file:
        return file.read()


def digest(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def changed_text(row):
    """The row's file with its rule taken out."""
    path = row.file.split(":")[0]
    text = read(os.path.join(ROOT, path))
    if text.count(row.old) != 1:
        raise Bad(f"its text is {text.count(row.old)} times in {path}, not once")
    text = text.replace(row.old, row.new)
    if path.endswith(".py"):
        try:
            compile(text, path, "exec")
        except SyntaxError as error:
            raise Bad(f"does not compile: {error}") from error
    return text


class Build:
    """What ninja knows of a build folder."""

    def __init__(self, folder):
        self.folder = folder
        self.links = {}
        out = subprocess.run(["ninja", "-C", folder, "-t", "compdb"], check=True, capture_output=True, text=True).stdout
        self.compiles, self.sources = {}, {}
        for entry in json.loads(out):
            if " -c " in entry["command"]:
                source = os.path.relpath(entry["file"], ROOT)
                self.compiles.setdefault(source, entry["command"])
                self.sources[entry["output"]] = source

    def link_of(self, program):
        if program not in self.links:
            out = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", program], capture_output=True, text=True)
            if out.returncode != 0:
                raise Bad(f"there is no program {program}")
            self.links[program] = out.stdout.splitlines()[-1]
        return self.links[program]

    def own_sources(self, program):
        """Those that a program is linked with by name: a test's."""
        return [self.sources[word] for word in self.link_of(program).split() if word in self.sources]

    def compile(self, source, text_at, includes, object_at):
        command = self.compiles.get(source)
        if command is None:
            raise Bad(f"{source} is compiled into nothing")
        command = re.sub(r" -MD -MT \S+ -MF \S+| -o \S+ -c .*|^(\S*/)?ccache ", "", command)
        run_tool(f"{command} -iquote {includes} -iquote {os.path.join(ROOT, os.path.dirname(source))} -w -o {object_at} "
                 f"-c {text_at}", self.folder, "does not compile")

    def link(self, program, objects, at):
        words = [w for w in self.link_of(program).split(" ") if self.sources.get(w) not in objects]
        command = " ".join(words).replace(f" -o {program} ", f" -o {at} {' '.join(objects.values())} ")
        run_tool(command, self.folder, f"does not link into {program}")


def run_tool(command, folder, what):
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise Bad(f"{what}:\n{(done.stdout + done.stderr)[:2000]}")


class Test:
    """`program[/filter] arguments…`: a Criterion program, `it_NAME[:Class.test]`, or a tool."""

    def __init__(self, text, builds):
        self.text = text
        self.name, *self.arguments = shlex.split(text)
        self.name, _, self.filter = self.name.partition("/")
        self.integration = self.name.startswith("it_")
        self.fuzzer = self.name.startswith("fuzz_")
        self.tool = self.name in TOOLS or self.fuzzer
        self.program = "kvplane" if self.integration else self.name
        self.build = builds["fuzz" if self.fuzzer else "tools" if self.tool else "tests"]

    def script(self):
        return os.path.join(ROOT, "tests/integration", "test_" + self.name[3:].split(":")[0] + ".py")

    def sources(self):
        own = [os.path.join(ROOT, path) for path in self.build.own_sources(self.program)]
        if self.integration:
            own = [self.script()]
            if self.name.startswith(("it_vllm", "it_python")):  # what is not in the program
                own += sorted(glob.glob(os.path.join(ROOT, PACKAGE, "**/*.py"), recursive=True))
                own += sorted(glob.glob(os.path.join(ROOT, "tests/vllm_double/**/*.py"), recursive=True))
        return "\0".join(read(path) for path in own)

    def run(self, program, sound=False, more=None):
        """None: it held. Else what failed. sound: as it should hold, so that a fuzzer only replays its corpus. more: environment."""
        environment = {**os.environ, **ENVIRONMENT, **(more or {})}
        found = tempfile.TemporaryDirectory()
        if self.fuzzer:
            corpus = os.path.join(ROOT, "tests/fuzz/corpus", self.name)
            command = [program, "-seed=1", "-print_final_stats=1", f"-artifact_prefix={found.name}/",
                       "-runs=0" if sound else f"-max_total_time={FUZZ_S}", found.name, corpus]
        elif self.integration:
            one = self.name.split(":")[1:]
            command = [sys.executable, self.script(), *one]
            environment.update(KVPLANE_PROGRAM=program, KVPLANE_PROXY=os.path.join(self.build.folder, "kvplane_proxy"),
                               KVPLANE_GROUPS=os.path.join(self.build.folder, "kvplane_groups"),
                               KVPLANE_LIBRARY=os.path.join(self.build.folder, "engine/libkvplane/libkvplane.so"))
        elif self.tool:
            command = [program, *(self.arguments or TOOLS[self.name])]
        else:
            command = [program, "--fail-fast", *([f"--filter={self.filter}"] if self.filter else [])]
        limit = LIMIT_S["it" if self.integration else "fuzz" if self.fuzzer else self.name if self.name in LIMIT_S else ""]
        with found, tempfile.TemporaryFile("w+", errors="replace") as out:
            process = subprocess.Popen(command, cwd=self.build.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                return "(did not end)"
            out.seek(0)
            text = out.read()
        if self.fuzzer:
            return None if status == 0 else what_a_fuzzer_found(text)
        if status == 0:
            if not self.tool and not self.integration and "Tested: 0 " in text:
                return "(tested nothing)"
            return None
        found = re.search(r"(?:FAIL|CRASH)\S*\] (\w+::\w+)|^(?:FAIL|ERROR): (\w+)|^(seed \d+[,:] .*)|^simulate: failed (seed=\d+)|^.*(VIOLATION.*)", text, re.M)
        return next(group for group in found.groups() if group)[:150] if found else f"(status {status})"


def what_a_fuzzer_found(text):
    """And after how many executions, those of its corpus among them."""
    what = re.search(r'ERROR: (AddressSanitizer: \S+|LeakSanitizer|libFuzzer: out-of-memory)|assertion failed" expression="(.*)" function|runtime error: (.*)', text)
    execs = re.search(r"^stat::number_of_executed_units: *(\d+)", text, re.M)
    said = next((group for group in what.groups() if group), "") if what else text.strip().splitlines()[-1]
    return f"{said[:110]}, {execs.group(1) if execs else '?'} executions"


class Results:
    """What was killed, in a file."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        try:
            self.all = json.loads(read(path))
        except (OSError, ValueError):
            self.all = {}

    def put(self, name, result):
        with self.lock:
            self.all[name] = result
            with open(self.path + ".new", "w", encoding="utf8") as file:
                json.dump(self.all, file, indent=1, sort_keys=True)
            os.replace(self.path + ".new", self.path)


class Run:
    def __init__(self, options, rows):
        self.builds = {"tests": Build(options.tests), "tools": Build(options.tools)}
        if any(row.tests.startswith("fuzz_") for row in rows):
            self.builds["fuzz"] = Build(options.fuzz)
        folder = os.path.join(ROOT, "build/mutants")
        os.makedirs(folder, exist_ok=True)
        self.results = Results(os.path.join(folder, "results.json"))
        self.sound = {}
        self.lock = threading.Lock()
        self.counts = {"killed": 0, "survived": 0, "wrong": 0, "remembered": 0}

    def hold_without(self, test):
        """A test that fails anyhow kills nothing."""
        with self.lock:
            mine = self.sound.setdefault(test.text, {"lock": threading.Lock()})
        with mine["lock"]:
            if "failed" not in mine:
                program = os.path.join(test.build.folder, test.program)
                if not os.path.exists(program):
                    raise Bad(f"{program} is not built")
                with open(program, "rb") as file:
                    key = digest(hashlib.sha256(file.read()).hexdigest(), test.sources(), SEEDS)
                old = self.results.all.get("without:" + test.text, {})
                mine["failed"] = None if old.get("key") == key else test.run(program, sound=True)
                if mine["failed"] is None:
                    self.results.put("without:" + test.text, {"key": key})
        if mine["failed"] is not None:
            raise Bad(f"{test.text} fails without it, too: {mine['failed']}")

    def make(self, row, text, tests, folder):
        """The programs with the rule taken out, and the environment in which they run."""
        path, _, sources = row.file.partition(":")
        if path.startswith(PACKAGE):
            copy = os.path.join(folder, "python")
            shutil.copytree(os.path.join(ROOT, PACKAGE), copy, ignore=shutil.ignore_patterns("__pycache__"))
            with open(os.path.join(copy, path.removeprefix(PACKAGE)), "w", encoding="utf8") as file:
                file.write(text)
            for program, test in {test.program: test for test in tests}.items():
                os.symlink(os.path.join(test.build.folder, program), os.path.join(folder, program))
            return {"KVPLANE_PACKAGE": copy}
        includes = os.path.join(folder, "inc")
        # A header is found by the name that it is included by.
        inner = re.sub(r"^(server|(base|transport|store|engine)/include)/", "", path) if path.endswith(".h") else \
            os.path.basename(path)
        changed = os.path.join(includes, inner)
        os.makedirs(os.path.dirname(changed), exist_ok=True)
        with open(changed, "w", encoding="utf8") as file:
            file.write(text)
        objects = {}
        for build in {id(t.build): t.build for t in tests}.values():
            for i, source in enumerate(sources.split(",") if sources else [path]):
                at = os.path.join(folder, f"{os.path.basename(build.folder)}-{i}.o")
                build.compile(source, changed if source == path else os.path.join(ROOT, source), includes, at)
                objects.setdefault(build, {})[source] = at
        for test in tests:
            at = os.path.join(folder, test.program)
            if not os.path.exists(at):
                test.build.link(test.program, objects[test.build], at)
        return {}

    def try_one(self, row):
        try:
            text = changed_text(row)
            tests = [Test(part.strip(), self.builds) for part in row.tests.split(",")]
            key = digest(row.tests, row.file, text, *(test.sources() for test in tests))
            old = self.results.all.get(row.name, {})
            if old.get("key") == key:
                return self.tell("remembered", row, old)
            for test in tests:
                self.hold_without(test)
            with tempfile.TemporaryDirectory() as folder:
                environment = self.make(row, text, tests, folder)
                for test in tests:
                    began = time.monotonic()
                    failed = test.run(os.path.join(folder, test.program), more=environment)
                    if failed is not None:
                        result = {"key": key, "by": test.text, "failed": failed,
                                  "seconds": round(time.monotonic() - began, 1)}
                        self.results.put(row.name, result)
                        return self.tell("killed", row, result)
            return self.tell("survived", row, {"by": row.tests})
        except Bad as bad:
            return self.tell("wrong", row, {"failed": str(bad)})

    def tell(self, how, row, result):
        with self.lock:
            self.counts[how] += 1
            if how == "survived":
                print(f"SURVIVED {row.name} ({result['by']})", flush=True)
            elif how == "wrong":
                print(f"WRONG    {row.name}: {result['failed']}", flush=True)
            else:
                print(f"{'killed  ' if how == 'killed' else 'was     '} {row.name}: {result['by']} {result['failed']} "
                      f"({result['seconds']} s)", flush=True)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def doc_rows():
    return [f"| `{r.name}` | {r.promise} | {cell(r.rule)} | `{r.file.split(':')[0]}` | {cell(r.tests)} |" for r in ROWS]


def doc_planted():
    return [f"| {p.bug} | {cell(p.kind)} | `{p.name}`: {cell(p.how)} | `{p.file.split(':')[0]}` | {p.tests.split()[0]} |" for p in PLANTED]


def write_doc(results):
    measured = read(DOC).splitlines() if os.path.exists(DOC) else []
    planted = []
    for bug, line in zip(PLANTED, doc_planted()):
        result = results.all.get(bug.name)
        kept = next((old for old in measured if old.startswith(line)), f"{line} – | – |")
        planted.append(f"{line} {cell(result['failed'])} | {result['seconds']} |" if result else kept)
    promises = ", ".join(f"{p} {sum(r.promise == p for r in ROWS)}" for p in sorted({r.promise for r in ROWS}))
    lines = ["# Rules taken out, and bugs planted", "",
             "Made by `./dev mutants` from `tests/mutants/table.py`: each rule is taken out of the code, alone, and one of the tests",
             "beside it must fail, which holds with the rule. Promises are those of the design: P1 never stale, P2 never torn, P3 no pin",
             "outlives its mapping, P4 all or nothing, P5 bounded, P6 probes never wait, P7 nobody else is touched.", "",
             "## Bugs planted", "",
             "Bugs of kinds that others have shipped (`tests/README.md` has the cases), found by a tool that was written for none of them.",
             "Seconds are those of a shared machine with two cores.", "",
             "| case | kind | planted how | where | found by | what it said | seconds |", "|---|---|---|---|---|---|---|",
             *planted, "", f"## Rules taken out ({len(ROWS)}: {promises})", "",
             "| mutant | promise | rule that it takes out | where | tests that must fail |", "|---|---|---|---|---|", *doc_rows(), ""]
    with open(DOC, "w", encoding="utf8") as file:
        file.write("\n".join(lines))


def check(sources):
    """The page is of the table, and the table fits the sources (nothing is built)."""
    bad = []
    names = [r.name for r in ROWS + PLANTED]
    bad += [f"{name} is there twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for row in ROWS + PLANTED if sources else []:
        try:
            changed_text(row)
        except (Bad, OSError) as error:
            bad.append(f"{row.name}: {error}: its row in tests/mutants/table.py follows the code")
    page = read(DOC).splitlines()
    of_page = [line for line in page if line.startswith(("| `", "| B"))]
    # What was measured is not compared.
    if [line for line in of_page if line.startswith("| `")] != doc_rows() or \
            [" |".join(line.split(" |")[:5]) + " |" for line in of_page if line.startswith("| B")] != doc_planted():
        bad.append("docs/mutants.md is not of this table: ./dev mutants --doc writes it anew")
    for line in bad:
        print(line)
    print(f"mutants_table: {'failed' if bad else 'ok'} rows={len(ROWS)} planted={len(PLANTED)}")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(prog="dev mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="those whose name, file or tests match")
    parser.add_argument("--list", action="store_true", help="print the table; nothing is run")
    parser.add_argument("--check", action="store_true", help="the table fits the sources and the page; nothing is run")
    parser.add_argument("--check-page", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--doc", action="store_true", help="write docs/mutants.md from what is remembered, or was written before; nothing is run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="so many at a time (one a core)")
    parser.add_argument("--tests", default=os.path.join(ROOT, "build/debug"), help=argparse.SUPPRESS)
    parser.add_argument("--tools", default=os.path.join(ROOT, "build/faults"), help=argparse.SUPPRESS)
    parser.add_argument("--fuzz", default=os.path.join(ROOT, "build/fuzz"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check or options.check_page:
        return check(options.check)
    rows = [r for r in ROWS + PLANTED if re.search(options.only, f"{r.name} {r.file} {r.tests}")]
    if options.list:
        for row in rows:
            print(f"{row.name}\t{row.promise}\t{row.rule}\t{row.file}\t{row.tests}")
        return 0
    began = time.monotonic()
    run = Run(options, [] if options.doc else rows)
    if options.doc:
        write_doc(run.results)
        return 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run.try_one, rows))
    counts = run.counts
    killed = counts["killed"] + counts["remembered"]
    if counts["survived"] or counts["wrong"] or not rows:
        print(f"mutants: failed killed={killed} survived={counts['survived']} wrong={counts['wrong']}; again: "
              f"./dev mutants --only NAME")
        return 1
    if not options.only:
        write_doc(run.results)
    planted = sum(row in PLANTED for row in rows)
    print(f"mutants: ok killed={killed} survived=0 planted={planted} remembered={counts['remembered']} "
          f"took_s={round(time.monotonic() - began)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
