# SPDX-License-Identifier: Apache-2.0
"""What the README shows is what a user sees: its session, its trainer's loop, its tables."""
import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = "localhost:8100"  # the address the README uses


def chapter(title, level="##"):
    """Without the chapters below it."""
    return re.split(r"\n###? ", README.split(f"\n{level} {title}\n")[1])[0]


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def commands(block):
    """Pairs of a command and the lines shown as its output."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in found]


def matches(shown, seen):
    """`…` in what is shown stands for anything."""
    return re.fullmatch(".*?".join(map(re.escape, shown.split("…"))), seen, re.S) is not None


def alive(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


class Readme(harness.Case):
    def setUp(self):
        super().setUp()
        self.plane = self.daemon()
        self.engine(self.plane, "engine-0")
        self.address = self.plane.tap().removeprefix("http://")

    def test_the_session_prints_what_is_shown(self):
        session, = blocks("console", chapter("A session"))
        self.assertGreater(len(commands(session)), 8)
        for command, shown in commands(session):
            run = subprocess.run(["bash", "-c", command.replace(SHOWN, self.address)],
                                 capture_output=True, text=True, timeout=harness.DEADLINE_S,
                                 check=True)
            self.assertTrue(matches(shown, run.stdout.strip()),
                            f"{command}\nREADME: {shown}\nseen:   {run.stdout}")

    def test_the_trainers_loop_runs(self):
        loop, = blocks("python", chapter("A trainer's step"))
        client, = blocks("python", chapter("From Python", "###"))
        self.assertLessEqual(len(loop.splitlines()), 20)
        run = subprocess.run([sys.executable, "-c", loop.replace("127.0.0.1:8100", self.address)],
                             capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.count("'status': 'awake'"), 3, run.stdout)
        # And its versions named the weights: from the second on (the first is seen to change then).
        self.assertEqual(self.plane.instance("engine-0")["lineage"]["weights_name"], "step-3")
        # The client's few lines, too; it is the one of this checkout.
        run = subprocess.run([sys.executable, "-c", client.replace("127.0.0.1:8100", self.address)],
                             capture_output=True, text=True, timeout=600, check=False,
                             env={**os.environ, "PYTHONPATH": os.path.join(harness.ROOT, "api", "python")})
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.plane.instance("engine-0")["tags"]["weights"], "resident")


class MoreThanOneMachine(harness.Case):
    """The chapter's commands as they stand, but for the ports, and what it shows of the cluster."""

    def setUp(self):
        super().setUp()
        ports = sorted(set(re.findall(r"\b12[34]\d\d\b", self.chapter())))
        # Each of them begins a row of three.
        free = iter(harness.free_ports(3 * len(ports)))
        self.ports = {}
        for port in ports:
            if port not in self.ports:
                self.ports.update({str(int(port) + i): str(next(free)) for i in range(3)})

    @staticmethod
    def chapter():
        return chapter("More than one machine")

    def elsewhere(self, text):
        text = re.sub(r"\$\(\((12\d\d\d) \+ i\)\)", lambda m: "${P%s[i]}" % m[1], text)
        return re.sub(r"(?<![P\d])12[34]\d\d(?!\d)", lambda m: self.ports[m[0]], text)

    def test_followed_literally_it_is_a_cluster(self):
        script, = re.findall(r"^```sh\n(.*?)^```$", self.chapter(), re.M | re.S)
        shown, = re.findall(r"^```text\n(.*?)^```$", self.chapter(), re.M | re.S)
        arrays = "".join(f"P{port}=({' '.join(self.ports[str(int(port) + i)] for i in range(3))})\n"
                         for port in re.findall(r"\(\((12\d\d\d) \+ i", script))
        os.symlink(os.path.abspath(harness.PROGRAM), f"{self.directory}/kvplane")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        environment["PATH"] = f"{self.directory}:{environment['PATH']}"
        shell = subprocess.Popen(["bash", "-ec", arrays + self.elsewhere(script)],
                                 cwd=self.directory, env=environment, start_new_session=True)
        try:
            self.assertEqual(shell.wait(harness.DEADLINE_S), 0)
            (command, output), = commands(shown)

            def run():
                return subprocess.run(self.elsewhere(command).split(), cwd=self.directory,
                                      env=environment, capture_output=True, text=True,
                                      timeout=harness.DEADLINE_S).stdout
            output = re.sub(r"\b12[34]\d\d\b|\d+\.\d s ago", "…", output)
            harness.until("what the README shows", lambda: matches(output, run().strip()))
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # the group of what was started here
            harness.until("all of it has ended", lambda: not alive(shell.pid))


class Shell(harness.Case):
    """A chapter's commands as they stand, in a folder of their own: what is started lies on $PATH as what stands in for it."""
    PORTS = r"\b(?:8[012]\d\d|30\d\d\d)\b"

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.directory, "bin")
        self.work = os.path.join(self.directory, "work")
        os.mkdir(self.path)
        os.mkdir(self.work)
        os.symlink(os.path.abspath(harness.PROGRAM), f"{self.path}/kvplane")
        self.modules = ""  # more of Python
        self.shells = []

    def stand_in(self, name, *command):
        """A program of that name, which is this command."""
        at = os.path.join(self.path, name)
        with open(at, "w", encoding="utf-8") as script:
            script.write(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        os.chmod(at, 0o755)

    def follow(self, title, level="##"):
        """Does what the chapter says and sees what it shows."""
        text = chapter(title, level)
        names = sorted(set(re.findall(self.PORTS, text)))
        ports = dict(zip(names, map(str, harness.free_ports(len(names)))))
        text = re.sub(self.PORTS, lambda port: ports[port[0]], text)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        environment.update({name: os.environ[name] for name in ("KVPLANE_LIBRARY",) if name in os.environ})
        environment.update(PATH=f"{self.path}:{environment['PATH']}", PYTHONPATH=os.path.join(harness.ROOT, "api", "python") + ":" + self.modules)
        for language, block in re.findall(r"^```(sh|console|python)\n(.*?)^```$", text, re.M | re.S):
            if language == "sh":
                shell = subprocess.Popen(["bash", "-ec", block], cwd=self.work, env=environment, start_new_session=True)
                self.shells.append(shell.pid)
                self.assertEqual(shell.wait(harness.DEADLINE_S), 0, block)
            elif language == "python":
                run = subprocess.run([sys.executable, "-c", block], cwd=self.work, env=environment, capture_output=True, text=True,
                                     timeout=harness.DEADLINE_S, check=False)
                self.assertEqual(run.returncode, 0, run.stderr)
            else:
                for command, shown in commands(block):
                    run = subprocess.run(["bash", "-c", command], cwd=self.work, env=environment, capture_output=True, text=True,
                                         timeout=harness.DEADLINE_S, check=True)
                    self.assertTrue(matches(shown.strip(), run.stdout.strip()), f"{command}\nREADME: {shown}\nseen:   {run.stdout}")

    def tearDown(self):
        for shell in reversed(self.shells):  # the groups of what was started here
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell, signal.SIGTERM)
        for shell in self.shells:
            harness.until("all of it has ended", lambda pid=shell: not alive(pid))
        super().tearDown()


class Engines(Shell):
    """The chapters of engines that know nothing of kvplane, with servers that stand in for theirs."""

    def setUp(self):
        super().setUp()
        here = os.path.join(harness.ROOT, "tests", "integration")
        self.stand_in("vllm", sys.executable, os.path.join(here, "stand_in.py"), "vllm")
        module = os.path.join(self.directory, "modules", "sglang")
        os.makedirs(module)
        with open(os.path.join(module, "launch_server.py"), "w", encoding="utf-8") as file:
            file.write(f"import sys\nsys.path.insert(0, {here!r})\nimport stand_in\nstand_in.main('sglang', sys.argv[1:])\n")
        self.modules = os.path.dirname(module)

    def test_with_vllm(self):
        self.follow("With vLLM")

    @unittest.skipIf(harness.SANITIZED, "Python does not load a sanitized library")
    def test_vllm_servers_that_share_kv(self):
        self.follow("KV between vLLM servers", "###")

    def test_with_sglang(self):
        self.follow("With SGLang")

    def test_a_fleet(self):
        self.follow("A fleet")


class Tables(unittest.TestCase):
    def test_every_config_key_is_in_the_table_as_the_program_prints_it(self):
        for which in (["table"], ["store", "table"], ["gate"], ["mooncake"], ["metrics"]):
            table = subprocess.run([harness.PROGRAM, "config", *which],
                                   capture_output=True, text=True, check=True).stdout
            for line in table.splitlines():
                self.assertIn(line, README.splitlines())

    def test_every_route_is_named(self):
        contract = (ROOT / "api" / "openapi.yaml").read_text(encoding="utf-8")
        paths = re.findall(r"^  ['\"]?(/[^'\":]*)['\"]?:", contract, re.M)
        self.assertGreater(len(paths), 20)
        for path in paths:
            self.assertIn(path, README, f"{path} is not in the README's table")


if __name__ == "__main__":
    unittest.main()
