#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The client commands, as people and scripts use them."""
import codecs
import fcntl
import http.server
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import threading
import unittest

import harness


class Commands(harness.Case):
    def kvplane(self, daemon, *args, **kw):
        env = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        if daemon is not None:
            env["KVPLANE_URL"] = daemon.tap()
        return subprocess.run([harness.PROGRAM, *args], capture_output=True, text=True, env=env,
                              timeout=harness.DEADLINE_S, **kw)


class Cli(Commands):
    def test_help_is_short_and_each_command_has_its_own(self):
        short = self.kvplane(None, "help")
        self.assertEqual((short.returncode, short.stderr), (0, ""))
        self.assertLess(len(short.stdout.splitlines()), 40)
        commands = re.findall(r"(?m)^  (\w+) ", short.stdout)
        self.assertIn("events", commands)
        self.assertNotIn("cuda-helper", commands)
        for command in commands:
            by_help = self.kvplane(None, "help", command)
            by_option = self.kvplane(None, command, "--help")
            self.assertEqual(by_help.returncode, 0, command)
            self.assertTrue(by_help.stdout.startswith(f"usage: kvplane {command}"), command)
            self.assertEqual(by_help.stdout, by_option.stdout, command)
        self.assertIn("--store-bytes", self.kvplane(None, "help", "serve").stdout)
        self.assertIn("--model", self.kvplane(None, "engine", "--help").stdout)
        self.assertNotIn("--level", self.kvplane(None, "help", "wake").stdout)
        self.assertIn("Exit codes", self.kvplane(None, "help", "sleep").stdout)
        self.assertEqual(self.kvplane(None, "help", "nonsense").returncode, 2)
        self.assertEqual(self.kvplane(None).returncode, 2)

    def test_a_configuration_is_checked_or_shown(self):
        for store in ([], ["store", ]):
            good = self.kvplane(None, "config", *store, "check", "--store-bytes", "8MiB",
                                *(["--etcd", "http://127.0.0.1:2379"] if store else []))
            self.assertEqual((good.returncode, good.stdout), (0, "ok\n"), good)
            bad = self.kvplane(None, "config", *store, "check", "--store-bytes", "many")
            self.assertEqual((bad.returncode, bad.stdout), (2, ""), bad)
            self.assertIn("store-bytes", bad.stderr)
        shown = self.kvplane(None, "config", "show", "--store-bytes", "8MiB")
        self.assertIn("store-bytes", shown.stdout)

    def test_all_instances_at_once(self):
        daemon = self.daemon()
        engines = [self.engine(daemon, "a"), self.engine(daemon, "b"),
                   self.engine(daemon, "c", "--misbehave", "release-refuse:1")]
        refused = self.kvplane(daemon, "sleep", "--instance", "*")
        self.assertEqual(refused.returncode, 1, refused)
        for name in "abc":
            self.assertTrue(daemon.instance(name)["ready"], name)
        engines.pop().kill()
        harness.until("c is gone", lambda: not daemon.instance("c")["attached"])
        engines.append(self.engine(daemon, "c", "--misbehave", "release-refuse:1", name="c2"))
        some = self.kvplane(daemon, "sleep", "--instance", "*", "--all-or-nothing=false")
        self.assertEqual(some.returncode, 1, "not everywhere")
        self.assertIn("success: false", some.stdout)
        self.assertEqual([daemon.instance(name)["is_sleeping"] for name in "ab"], [True] * 2)
        woken = self.kvplane(daemon, "wake", "--instance", "*", "--json")
        self.assertEqual(woken.returncode, 0, woken)
        self.assertEqual(set(json.loads(woken.stdout)["instances"]), set("abc"))
        self.clean(engines.pop(), daemon)

    def test_operations_are_listed_waited_for_and_canceled(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        self.assertEqual(self.kvplane(daemon, "sleep").returncode, 0)
        self.assertEqual(self.kvplane(daemon, "wake").returncode, 0)
        listed = self.kvplane(daemon, "ops")
        self.assertRegex(listed.stdout, r"(?m)^ID +OPERATION +INSTANCE +STATUS +RESULT +STEP +TOOK$")
        self.assertRegex(listed.stdout, r"(?m)^\d+ +sleep +a +succeeded +ok +- +\d+\.\d+ s$")
        self.assertNotIn("sleep", self.kvplane(daemon, "ops", "--instance", "b").stdout)
        daemon.ok("/v1/kvplane/tenants/default/reset")
        reset = re.search(r"(?m)^(\d+) +tenant_reset +default +succeeded +ok ",
                          self.kvplane(daemon, "ops").stdout)
        daemon.says(f" op={reset[1]} msg=\"operation ended\" operation=tenant_reset tenant=default")
        number = re.search(r"(?m)^(\d+) +sleep ", listed.stdout)[1]
        self.assertEqual(self.kvplane(daemon, "ops", number, "--wait", "1").returncode, 0)
        self.assertEqual(self.kvplane(daemon, "ops", number, "--cancel").returncode, 1, "it ended")
        self.assertEqual(self.kvplane(daemon, "ops", "99999999").returncode, 1)
        for wrong in (["x"], ["1", "2"], ["--wait", "1"], ["--cancel"], ["--level", "1"]):
            self.assertEqual(self.kvplane(daemon, "ops", *wrong).returncode, 2, wrong)

        engine.popen.send_signal(signal.SIGSTOP)  # so its sleep lasts
        code, started = daemon.post("/sleep", headers={"Prefer": "respond-async"})
        self.assertEqual(code, 202, started)
        number = str(started["operation_id"])
        lasts = self.kvplane(daemon, "ops", number, "--wait", "0.1", "--json")
        self.assertEqual((lasts.returncode, json.loads(lasts.stdout)["status"]), (4, "running"))
        self.assertEqual(self.kvplane(daemon, "ops", number, "--cancel").returncode, 0)
        engine.popen.send_signal(signal.SIGCONT)
        ended = self.kvplane(daemon, "ops", number, "--cancel", "--wait", "20")
        self.assertIn(ended.returncode, (0, 1))  # 1: it had ended, so that could not be done
        code, shown = daemon.get(f"/v1/kvplane/operations/{number}?timeout=20")
        self.assertEqual(shown["result"], "canceled")
        self.assertEqual(self.kvplane(daemon, "ops", number, "--wait", "1").returncode, 1)
        self.assertTrue(daemon.instance("a")["ready"])
        self.clean(engine, daemon)

    def test_regions_queues_and_objects_are_listed(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        self.engine(daemon, "b")
        self.assertGreater(engine.run(0, 20)["stored"], 3)
        daemon.settled("b")
        regions = self.kvplane(daemon, "regions", "--instance", "a")
        self.assertEqual(regions.returncode, 0, regions.stderr)
        self.assertRegex(regions.stdout, r"(?m)^INSTANCE +RANK +REGION +TAG +KIND +STATE ")
        self.assertRegex(regions.stdout,
                         r"(?m)^a +0 +\d+ +kv_cache +host +registered +yes +\d+ +[\d.]+ [KM]iB ")
        self.assertNotRegex(regions.stdout, "(?m)^b ")
        self.assertRegex(self.kvplane(daemon, "regions").stdout, "(?m)^b +0 ")
        queues = self.kvplane(daemon, "queues").stdout
        for queue in ("get", "lookup", "put"):
            self.assertRegex(queues, rf"(?m)^a +0 +{queue} +\d+ +\d+ ")
        self.assertEqual(
            {row["queue"] for row in json.loads(
                self.kvplane(daemon, "queues", "--json", "--instance", "b").stdout)["queues"]},
            {"get", "lookup", "put"})
        self.assertEqual(self.kvplane(daemon, "queues", "--instance", "nobody").returncode, 1)
        stored = json.loads(self.kvplane(daemon, "objects", "--namespace", "default", "--json",
                                         "--limit", "1000").stdout)["objects"]
        self.assertGreater(len(stored), 3)
        page = self.kvplane(daemon, "objects", "--namespace", "default", "--limit", "2")
        self.assertEqual(len(page.stdout.splitlines()), 3, page.stdout)
        self.assertIn(stored[0]["key"], page.stdout)
        cursor = re.search(r"there is more: --cursor (\S+)", page.stderr)
        rest = self.kvplane(daemon, "objects", "--namespace", "default", "--limit", "1000",
                            "--cursor", cursor[1])
        self.assertEqual(len(rest.stdout.splitlines()), len(stored) - 1)
        self.assertEqual(rest.stderr, "")
        self.assertIn("namespace", self.kvplane(daemon, "objects").stderr)

    def test_events_are_listed_on_as_many_pages_as_there_are(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        for _ in range(80):
            daemon.ok("/pause")
            daemon.ok("/resume")
        lines = self.kvplane(daemon, "events", "--json").stdout.splitlines()
        events = [json.loads(line) for line in lines]
        self.assertGreater(len(events), 256)
        first = events[0]["id"]
        self.assertEqual([event["id"] for event in events], list(range(first, first + len(events))))
        after = self.kvplane(daemon, "events", "--after", str(events[-4]["id"])).stdout
        self.assertEqual(len(after.splitlines()), 3)
        text = self.kvplane(daemon, "events").stdout
        self.assertRegex(text, r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  a +pause +ok$")
        self.assertRegex(text, r"(?m) a +state +paused \(pause\), kv_cache resident, ")
        self.assertEqual(self.kvplane(daemon, "events", "--after", "x").returncode, 2)
        self.clean(engine, daemon)
        self.assertEqual(self.kvplane(daemon, "events", "--follow").returncode, 3)

    def test_follow_shows_what_happens(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        follow = harness.Process(["events", "--follow", "--json", "--url", daemon.tap()],
                                 self.directory, "follow")
        self.processes.append(follow)
        follow.line('{"id":')
        daemon.ok("/pause")
        harness.until("the pause", lambda: json.loads("{" + follow.line("{"))["kind"] == "pause")
        follow.kill()
        self.clean(engine, daemon)

    def test_follow_over_a_restart_of_the_daemon_says_so_and_shows_all_of_the_next(self):
        port = harness.free_ports(1)[0]
        daemon = self.daemon(listen=f"127.0.0.1:{port}")
        follow = harness.Process(["events", "--follow", "--json", "--url", daemon.url],
                                 self.directory, "follow")
        self.processes.append(follow)
        engine = self.engine(daemon, "a")
        first = json.loads("{" + follow.line("{"))["id"]
        daemon.ok("/pause")
        seen = first
        while True:
            event = json.loads("{" + follow.line("{"))
            self.assertEqual(event["id"], seen + 1)
            seen = event["id"]
            if event["kind"] == "pause":
                break
        daemon.kill()
        engine.kill()
        again = self.daemon(listen=f"127.0.0.1:{port}", name="again")
        self.engine(again, "b", name="engine-b")
        for _ in range(5):  # more than the first daemon told, or not: it makes no difference
            again.ok("/pause?instance=b")
            again.ok("/resume?instance=b")
        event = json.loads("{" + follow.line("{"))
        while event["kind"] != "restarted":  # what was told before its end
            self.assertEqual((event["id"], event["instance"]), (seen + 1, "a"))
            seen = event["id"]
            event = json.loads("{" + follow.line("{"))
        page = again.get(f"/v1/kvplane/events?after={seen}")[1]
        self.assertTrue(page["restarted"])
        self.assertGreater(page["events"][0]["id"], seen)
        for told in page["events"]:
            self.assertEqual(json.loads("{" + follow.line("{")), told)
        shown = self.kvplane(again, "events", "--after", str(seen)).stdout.splitlines()
        self.assertIn("the daemon was started anew", shown[0])
        follow.kill()

    def test_follow_goes_on_where_it_was_when_the_connection_breaks(self):
        asked = []

        class Breaks(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers.get("Last-Event-ID"),
                              self.headers.get("Accept")))
                self.send_response(200 if len(asked) < 4 else 401)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                if len(asked) == 1:
                    self.wfile.write(b'id: 41\nevent: x\ndata: {"id":41}\n\nid: 42\ndata: {"id":4')
                elif len(asked) == 2:
                    self.wfile.write(b'id: 42\ndata: {"id":42}\n\n')

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Breaks)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        done = self.kvplane(None, "events", "--follow", "--json", "--after", "40", "--url",
                            f"http://127.0.0.1:{server.server_port}")
        self.assertEqual(done.returncode, 1, "401 ends it")
        self.assertEqual(done.stdout, '{"id":41}\n{"id":42}\n')
        self.assertEqual([last for _, last, _ in asked], ["40", "41", "42", "42"])
        self.assertEqual({accept for _, _, accept in asked}, {"text/event-stream"})


    def test_what_an_engine_says_moves_no_cursor(self):
        said = "\x1b[2J\x9b1m\x07 ü \x7f"

        class Says(http.server.BaseHTTPRequestHandler):
            def answer(self, code):
                data = json.dumps({"message": said, "error": {"message": said}, "more": [said]},
                                  ensure_ascii=False).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.answer(200)

            def do_POST(self):
                self.answer(503)

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Says)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}"
        for command in (["status", "--instance", "a"], ["ops", "1"], ["sleep"]):
            done = self.kvplane(None, *command, "--url", url)
            text = done.stdout + done.stderr
            self.assertIn("?[2J??1m? ü ?", text, command)
            self.assertNotRegex(text.replace("\n", ""), "[\x00-\x1f\x7f-\x9f]", command)


class Terminal:
    """A client command on a terminal of its own; what it wrote there is in text."""

    def __init__(self, case, daemon, *args, rows=40, columns=120, env=None, program=None):
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.master = master
        self.before = termios.tcgetattr(terminal)
        self.text = ""
        self.decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may end within a character
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        environment.update({"TERM": "xterm", "KVPLANE_URL": daemon.tap() if daemon else ""}, **(env or {}))
        self.popen = subprocess.Popen([program or harness.PROGRAM, *args], stdin=terminal, stdout=terminal,
                                      stderr=terminal, env=environment, start_new_session=True,
                                      preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)
        case.addCleanup(self.end)

    def read(self):
        """All there is by now; False: the other end is closed."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            if not data:
                return False
            self.text += self.decode(data)
        return True

    def await_text(self, pattern):
        harness.until(pattern, lambda: (self.read(), re.search(pattern, self.text))[1])

    def type(self, keys):
        os.write(self.master, keys)

    def code(self):
        harness.until("its end", lambda: (self.read(), self.popen.poll() is not None)[1])
        self.read()
        return self.popen.returncode

    def end(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        os.close(self.master)


class Progress(Commands):
    def test_a_sleep_shows_its_progress_on_a_terminal(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        engine.popen.send_signal(signal.SIGSTOP)
        sleep = Terminal(self, daemon, "sleep", columns=30)
        sleep.await_text(r"\r\x1b\[Ksleep a: \w+  \d+\.\d s, at m")
        ages = lambda: set(re.findall(r"sleep a: \w+  (\d+\.\d) s", sleep.text))
        harness.until("it goes on", lambda: (sleep.read(), len(ages()) > 2)[1])
        engine.popen.send_signal(signal.SIGCONT)
        self.assertEqual(sleep.code(), 0, sleep.text)
        self.assertRegex(sleep.text, r"\r\x1b\[Ksleep of a: done in \d+\.\d s \(operation \d+\)\r\n$")
        self.assertTrue(daemon.instance("a")["is_sleeping"])
        for line in re.findall(r"\r\x1b\[K([^\r]*)", sleep.text)[:-1]:
            self.assertLess(len(line), 30, "a line that wraps is never erased")
        resume = Terminal(self, daemon, "resume")
        self.assertEqual(resume.code(), 1, resume.text)
        self.assertIn("memory is not resident", resume.text)
        self.clean(engine, daemon)

    def test_ctrl_c_ends_the_watching_and_not_the_operation(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        engine.popen.send_signal(signal.SIGSTOP)
        sleep = Terminal(self, daemon, "sleep", "--level", "2")
        sleep.await_text("sleep a: ")
        sleep.type(b"\x03")
        self.assertEqual(sleep.code(), -signal.SIGINT, "a shell's loop ends, too")
        number = re.search(r"operation (\d+) goes on: kvplane ops (\d+) --wait 60 waits", sleep.text)
        self.assertEqual(number[1], number[2])
        wait = Terminal(self, daemon, "ops", number[1], "--wait", "0.6")
        self.assertEqual(wait.code(), 4, wait.text)
        self.assertIn("sleep a: ", wait.text)
        wait = Terminal(self, daemon, "ops", number[1], "--wait", "30")
        wait.await_text("sleep a: ")
        engine.popen.send_signal(signal.SIGCONT)
        self.assertEqual(wait.code(), 0, wait.text)
        self.assertTrue(daemon.instance("a")["is_sleeping"])
        self.clean(engine, daemon)

    def test_what_fails_says_so_and_what_is_canceled_too(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        engine.popen.send_signal(signal.SIGSTOP)
        sleep = Terminal(self, daemon, "sleep")
        sleep.await_text("sleep a: ")
        cancel = self.kvplane(daemon, "ops", "1", "--cancel")
        self.assertEqual(cancel.returncode, 0, cancel)
        engine.popen.send_signal(signal.SIGCONT)
        self.assertEqual(sleep.code(), 1, sleep.text)
        self.assertRegex(sleep.text, r"kvplane: sleep of a: failed after \d+\.\d s \(operation 1\): canceled \(client\)")
        self.assertTrue(daemon.instance("a")["ready"])
        dumb = Terminal(self, daemon, "sleep", env={"TERM": "dumb"})
        self.assertEqual(dumb.code(), 0)
        self.assertNotIn("\x1b", dumb.text)
        self.assertIn("status: sleeping", dumb.text)
        self.clean(engine, daemon)


    def test_all_instances_a_reset_and_a_release_show_theirs_too(self):
        daemon = self.daemon()
        engines = [self.engine(daemon, name) for name in "ab"]
        held = engines[1].popen
        for verb, label, done in (("sleep", "sleep", "sleeping"), ("wake", "wake", "awake"),
                                  ("reset", "reset_prefix_cache", "done"),
                                  ("release", "release_kv_cache_memory", "kv_cache_released")):
            held.send_signal(signal.SIGSTOP)
            shown = Terminal(self, daemon, verb, "--instance", "*")
            shown.await_text(rf"\r\x1b\[K{label} \*: [\w ]+ on b, 1 of 2 done  \[#{{10}}\.{{10}}\]  \d")
            held.send_signal(signal.SIGCONT)
            self.assertEqual(shown.code(), 0, shown.text)
            self.assertRegex(shown.text, rf"{label} of \*: done in \d+\.\d s \(operation \d+\)\r\n  a: {done}\r\n"
                                         rf"  b: {done}\r\n$")
        self.assertEqual(self.kvplane(daemon, "wake", "--instance", "*").returncode, 0)
        for verb, label in (("reset", "reset_prefix_cache"), ("release", "release_kv_cache_memory")):
            held.send_signal(signal.SIGSTOP)
            shown = Terminal(self, daemon, verb, "--instance", "b")
            shown.await_text(rf"{label} b: \w+  \d+\.\d s")
            held.send_signal(signal.SIGCONT)
            self.assertEqual(shown.code(), 0, shown.text)
        self.assertEqual(self.kvplane(daemon, "wake", "--instance", "*").returncode, 0)
        run = engines[1].command("run", first=0, count=8, stall=True)
        engines[1].event("stalled", id=run)
        shown = Terminal(self, daemon, "reset", "--instance", "*")
        self.assertEqual(shown.code(), 1, shown.text)
        self.assertRegex(shown.text, r"reset_prefix_cache of \*: failed after .*: busy \(engine b/0\): b: \d+ blocks")
        self.assertRegex(shown.text, r"  b: \d+ blocks are held")
        daemon.ok("/pause?mode=keep&clear_cache=false&instance=b")
        daemon.ok("/resume?instance=b")
        engines[1].wait(run)

        # One that fails: the others are brought back, and who watches is told of each.
        self.engine(daemon, "c", "--misbehave", "release-refuse:1")
        shown = Terminal(self, daemon, "sleep", "--instance", "*")
        self.assertEqual(shown.code(), 1, shown.text)
        self.assertRegex(shown.text, r"  a: sleeping, taken back\r\n  b: sleeping, taken back\r\n  c: rank 0 answered")
        number = re.search(r"\(operation (\d+)\)", shown.text)[1]
        again = self.kvplane(daemon, "ops", number, "--wait", "1")
        self.assertEqual(again.returncode, 1, again)
        self.assertIn("instances_all: 3", again.stdout)
        self.assertRegex(self.kvplane(daemon, "ops").stdout, rf"(?m)^{number} +sleep +\* +failed ")
        self.clean(*engines, daemon)


class Top(Commands):
    ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

    def top(self, *args, **kw):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        top = Terminal(self, daemon, "top", "--interval", "0.1", *args, **kw)
        top.await_text(r"coordinator embedded, 1 of 1 nodes up")
        return daemon, engine, top

    def settings(self, terminal):
        return termios.tcgetattr(terminal.master)  # of the one terminal there is

    def assert_restored(self, top):
        self.assertEqual(self.settings(top), top.before)
        self.assertEqual(top.text.count(self.ENTER), top.text.count(self.LEAVE))
        self.assertNotIn("\x1b", top.text[top.text.rindex(self.LEAVE) + len(self.LEAVE):])

    @staticmethod
    def screen(top):
        """The lines of the last screen that is whole."""
        screens = top.text.split("\x1b[H")
        last = [screen for screen in screens if screen.endswith("\x1b[J")][-1]
        return [re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", line) for line in re.split(r"\r+\n", last)]

    def test_once_where_there_is_no_terminal(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        daemon.ok("/sleep")
        once = self.kvplane(daemon, "top")
        self.assertEqual((once.returncode, once.stderr), (0, ""))
        self.assertNotIn("\x1b", once.stdout)
        self.assertRegex(once.stdout, r"(?m)^a +default +paused by sleep +kv_cache discarded, weights offloaded ")
        self.assertRegex(once.stdout, r"(?m)^local +up +local +64 MiB +0 B 0% ")
        self.assertRegex(once.stdout, r"(?m)^\d+ +sleep +a +ok +\d+\.\d{3} s +-")
        self.assertRegex(once.stdout, r"(?m)^transfers: put 0 queued, 0 running; get 0 queued, ")
        as_json = json.loads(self.kvplane(daemon, "top", "--json").stdout)
        self.assertEqual({"own_instances", "nodes", "cluster", "operations"} - set(as_json), set())
        self.clean(engine, daemon)
        self.assertEqual(self.kvplane(daemon, "top").returncode, 3)

    def test_it_is_live_and_q_ends_it(self):
        daemon, engine, top = self.top()
        self.assertNotEqual(self.settings(top)[3] & termios.ECHO, top.before[3] & termios.ECHO)
        top.await_text(r"a +default +running +kv_cache resident, weights resident")
        engine.popen.send_signal(signal.SIGSTOP)
        code, started = daemon.post("/sleep", headers={"Prefer": "respond-async"})
        self.assertEqual(code, 202)
        top.await_text(r"sleep a: \w+  \d+\.\d s, at most \d+ s")
        engine.popen.send_signal(signal.SIGCONT)
        top.await_text(r"a +default +paused by sleep +kv_cache discarded, weights offloaded")
        engine.kill()
        top.await_text(r"a +default +GONE")
        self.clean(daemon)
        top.await_text("NOT ANSWERED: http")
        self.assertIn("a  ", "\n".join(self.screen(top)), "what was known last is still shown")
        self.assertNotIn("kvplane: ", top.text, "that would be anywhere on the screen")
        top.type(b"q")
        self.assertEqual(top.code(), 0)
        self.assert_restored(top)

    def test_it_follows_the_size_of_its_terminal(self):
        daemon, engine, top = self.top(rows=30, columns=100)
        for rows, columns in ((5, 40), (3, 10), (50, 300), (1, 1), (24, 80)):
            fcntl.ioctl(top.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            top.text = top.text[:len(self.ENTER)]

            def fits(rows=rows, columns=columns):
                top.read()  # of screens that were drawn before, too
                if "\x1b[J" not in top.text:
                    return False
                screen = self.screen(top)
                return max(map(len, screen)) <= columns and (
                    len(screen) <= rows if rows >= 24 else len(screen) == rows)  # as much as there is room for
            harness.until(f"a screen of {rows} rows and {columns} columns", fits)
            drawn = top.text.count("\x1b[J")
            harness.until("some more", lambda n=drawn: (top.read(), top.text.count("\x1b[J") > n + 3)[1])
            self.assertTrue(fits(), self.screen(top))
        top.type(b"q")
        self.assertEqual(top.code(), 0)
        self.clean(engine, daemon)

    def test_the_terminal_is_as_it_was_however_it_ends(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "a")
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT,
                       signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE):
            if harness.SANITIZED and signum in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE):
                continue
            with self.subTest(signum=signum):
                top = Terminal(self, daemon, "top")
                top.await_text("1 of 1 nodes up")
                if signum == signal.SIGINT:
                    top.type(b"\x03")
                else:
                    top.popen.send_signal(signum)
                self.assertEqual(top.code(), -signum)
                self.assert_restored(top)
        daemon.popen.send_signal(signal.SIGSTOP)  # q also while nothing answers
        top = Terminal(self, daemon, "top")
        daemon.popen.send_signal(signal.SIGCONT)
        top.await_text("1 of 1 nodes up")
        daemon.popen.send_signal(signal.SIGSTOP)
        top.type(b"q")
        self.assertEqual(top.code(), 0)
        self.assert_restored(top)
        daemon.popen.send_signal(signal.SIGCONT)
        self.clean(engine, daemon)

    def test_stopped_it_gives_the_terminal_back_and_takes_it_again(self):
        daemon, engine, top = self.top()
        top.popen.send_signal(signal.SIGTSTP)
        stands = lambda: os.waitid(os.P_PID, top.popen.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        harness.until("it stands", lambda: (top.read(), stands())[1])
        top.read()
        self.assert_restored(top)
        top.popen.send_signal(signal.SIGCONT)
        harness.until("it is back", lambda: (top.read(), top.text.count(self.ENTER) == 2)[1])
        top.type(b"q")
        self.assertEqual(top.code(), 0)
        self.assert_restored(top)
        self.clean(engine, daemon)

    def test_no_colors_where_none_are_wanted(self):
        daemon, engine, top = self.top()
        top.await_text(r"\x1b\[1mINSTANCE")
        plain = Terminal(self, daemon, "top", env={"NO_COLOR": "1"})
        plain.await_text("1 of 1 nodes up")
        plain.await_text("ENDED")
        self.assertNotIn("\x1b[1m", plain.text)
        self.clean(engine, daemon)


class Documents(Commands):
    """Completions and manual pages say what help says."""

    def setUp(self):
        super().setUp()
        short = self.kvplane(None, "help").stdout
        self.commands = re.findall(r"(?m)^  (\w+) ", short)
        self.options = {command: re.findall(r"(?m)^  --([a-z0-9-]+)",
                                            self.kvplane(None, "help", command).stdout)
                        for command in self.commands}
        self.assertIn("level", self.options["sleep"])
        done = self.kvplane(None, "man", "--write", os.path.join(self.directory, "documents"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def script(self, name):
        return os.path.join(self.directory, "documents", "completions", name)

    def test_bash_completes_commands_options_and_values(self):
        asked = [["kvplane", ""]]
        asked += [["kvplane", command, "--"] for command in self.commands]
        asked += [["kvplane", "sleep", "--level", ""], ["kvplane", "sleep", "--level", "=", "2"],
                  ["kvplane", "serve", "--config", harness.__file__[:-1]],
                  ["kvplane", "completion", ""], ["kvplane", "sleep", "--url", ""]]
        script = f"source {self.script('kvplane')}\n" + "".join(
            f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
            f"_kvplane; echo \"${{COMPREPLY[*]}}\"\n" for words in asked)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True,
                              timeout=harness.DEADLINE_S)
        self.assertEqual(done.stderr, "")
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[0], self.commands)
        for command, line in zip(self.commands, lines[1:]):
            self.assertEqual(line, ["--" + name for name in self.options[command]] + ["--help"],
                             command)
        rest = lines[1 + len(self.commands):]
        self.assertEqual(rest, [["0", "1", "2"], ["2"], [harness.__file__], ["bash", "zsh", "fish", "--help"],
                                []])

    @unittest.skipUnless(shutil.which("fish"), "there is no fish")
    def test_fish_completes_them_too(self):
        def ask(line):
            done = subprocess.run(["fish", "--no-config", "-c",
                                   f"source {self.script('kvplane.fish')}; complete -C '{line}'"],
                                  capture_output=True, text=True, timeout=harness.DEADLINE_S,
                                  env={**os.environ, "HOME": self.directory})
            self.assertEqual(done.stderr, "")
            return {word.split("\t")[0] for word in done.stdout.splitlines()}

        self.assertEqual(ask("kvplane "), set(self.commands))
        self.assertEqual(ask("kvplane sleep --"), {"--" + name for name in self.options["sleep"]})
        self.assertEqual(ask("kvplane sleep --level "), {"0", "1", "2"})
        self.assertEqual(ask("kvplane completion "), {"bash", "zsh", "fish"})

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh_completes_them_too(self):
        zsh = Terminal(self, None, "-f", "-i", program="zsh", columns=200)
        zsh.type(b"PS1=READY; autoload -U compinit; compinit -u -D; "
                 b"source " + self.script("_kvplane").encode() + b"; echo SOUR'CED'\n")
        zsh.await_text("SOURCED")
        zsh.type(b"echo kvpl'ane' $_comps[kvplane]\n")
        zsh.await_text("kvplane _kvplane")
        zsh.type(b"kvplane sle\t")
        zsh.await_text("kvplane sleep")
        zsh.type(b"--lev\t")
        zsh.await_text(r"kvplane sleep.*--level.*=")
        zsh.type(b"\x15kvplane sleep --mode ret\t")
        zsh.await_text("--mode.* retract")
        self.assertNotIn("_arguments", zsh.text)

    def test_manual_pages_are_clean_and_whole(self):
        folder = os.path.join(self.directory, "documents", "man1")
        self.assertEqual(set(os.listdir(folder)),
                         {"kvplane.1"} | {f"kvplane-{command}.1" for command in self.commands})
        for name in sorted(os.listdir(folder)):
            done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-P-cbou",
                                   os.path.join(folder, name)], capture_output=True, text=True,
                                  timeout=harness.DEADLINE_S)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            command = name[len("kvplane-"):-len(".1")]
            for option in self.options.get(command, []):
                self.assertRegex(done.stdout, rf"(?m)^ +--{option}\b", name)
            if command not in self.options:
                for one in self.commands:
                    self.assertIn(f"kvplane-{one}(1)", done.stdout)
            with open(os.path.join(folder, name), encoding="utf-8") as page:
                of = [command] if command in self.options else []
                self.assertEqual(self.kvplane(None, "man", *of).stdout, page.read())
        self.assertEqual(self.kvplane(None, "man", "nonsense").returncode, 2)
        self.assertEqual(self.kvplane(None, "completion", "tcsh").returncode, 2)
        nowhere = self.kvplane(None, "man", "--write", "/proc/nowhere")
        self.assertEqual(nowhere.returncode, 1)
        self.assertIn("/proc/nowhere", nowhere.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
