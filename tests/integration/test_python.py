# SPDX-License-Identifier: Apache-2.0
"""The Python package (api/python): the client of the REST interface, against real daemons and engines."""
import asyncio
import ctypes
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import unittest

import harness

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "api", "python")
sys.path.insert(0, PACKAGE)
import kvplane  # noqa: E402  # pylint: disable=wrong-import-position
from kvplane import link  # noqa: E402  # pylint: disable=wrong-import-position
import python_engine  # noqa: E402  # pylint: disable=wrong-import-position


class Rest(harness.Case):
    def client(self, daemon, **options):
        client = kvplane.Client(daemon.tap(), timeout_s=harness.DEADLINE_S, **options)
        self.addCleanup(client.close)
        return client

    def test_a_verb_returns_when_it_is_done(self):
        daemon = self.daemon()
        self.engine(daemon, "a")
        client = self.client(daemon)
        self.assertTrue(client.alive())
        harness.until("well", client.healthy)
        client.sleep(level=2)
        self.assertTrue(client.is_sleeping())
        client.wake_up(tags=["weights"])
        self.assertTrue(client.is_sleeping(), "a part is not all")
        client.wake_up(tags=["kv_cache"])
        self.assertFalse(client.is_sleeping() or client.is_paused())
        client.pause(mode="keep", clear_cache=False)
        self.assertTrue(client.is_paused())
        client.resume()
        self.assertTrue(client.reset_prefix_cache(reset_external=True)["success"])
        client.start_weight_update()
        client.update_weights({})
        client.finish_weight_update(weight_version="v7")
        self.assertEqual(client.weight_version(), "v7")
        self.assertIn("kvplane_build_info", client.metrics())
        self.assertEqual([one["instance"] for one in client.instances()], ["a"])
        self.assertEqual(client.instance("a")["scheduler"], "running")

    def test_what_is_refused_is_raised_with_its_reason(self):
        daemon = self.daemon()
        self.engine(daemon, "a")
        client = self.client(daemon)
        with self.assertRaises(kvplane.Refused) as refused:
            client.sleep(level=7)
        self.assertEqual((refused.exception.status, refused.exception.param), (400, "query.level"))
        self.assertNotIsInstance(refused.exception, kvplane.OperationFailed)
        self.assertTrue(refused.exception.request_id)
        with self.assertRaises(kvplane.Refused) as refused:
            client.instance("of/no such name")
        self.assertEqual(refused.exception.status, 404)

    def test_an_operation_that_fails_says_what_the_instance_is_in(self):
        daemon = self.daemon("--drain-bound", "1s")
        self.engine(daemon, "a", "--misbehave", "pause-never")
        client = self.client(daemon)
        with self.assertRaises(kvplane.OperationFailed) as failed:
            client.sleep()
        self.assertTrue(failed.exception.operation_id)
        self.assertEqual(failed.exception.state["instance"], "a")
        operation = client.begin("sleep")
        with self.assertRaises(kvplane.OperationFailed) as again:
            operation.result()
        self.assertEqual(again.exception.label, failed.exception.label)

    def test_an_operation_is_followed_and_cancelled(self):
        daemon = self.daemon("--drain-bound", "20s")
        self.engine(daemon, "a", "--misbehave", "pause-never")
        operation = self.client(daemon).begin("sleep", level=1)
        states = operation.progress(every_s=0.05)
        self.assertEqual(next(states)["status"], "running")
        operation.cancel()
        self.assertEqual(list(states)[-1]["status"], "failed")

    def test_lists_go_over_all_pages(self):
        daemon = self.daemon()
        self.engine(daemon, "a")
        client = self.client(daemon)
        for _ in range(130):
            client.pause()
        self.assertGreaterEqual(len({one["id"] for one in client.operations()}), 101)

    def test_events_go_on_where_they_were_when_the_daemon_is_back(self):
        port = harness.free_ports(1)[0]
        daemon = self.daemon(listen=f"127.0.0.1:{port}")
        engine = self.engine(daemon, "a")
        client = kvplane.Client(daemon.url, timeout_s=harness.DEADLINE_S)
        self.addCleanup(client.close)
        events = client.events(after=0)
        client.sleep()
        self.assertTrue(any(one["kind"] == "sleep" for one in events))
        daemon.kill(signal.SIGTERM)
        self.daemon(listen=f"127.0.0.1:{port}", name="again")
        engine.event("attached")  # again, by itself
        client.pause()
        self.assertTrue(any(one["kind"] == "pause" for one in events))
        events.close()

    def test_asyncio_waits_without_holding_up_others(self):
        daemon = self.daemon()
        self.engine(daemon, "a", "--misbehave", "pause-never")

        async def main():
            async with kvplane.AsyncClient(daemon.tap(), calls=4, timeout_s=harness.DEADLINE_S) as client:
                stuck = asyncio.create_task(client.sleep())
                while not (await client.instance("a")).get("operation"):
                    pass
                self.assertTrue(await client.alive())
                self.assertEqual([one["instance"] async for one in client.instances()], ["a"])
                begun = []
                streams = [asyncio.create_task(self.first(client.events(after=0), begun)) for _ in range(2)]
                while len(begun) < 2:
                    await asyncio.sleep(0.01)
                stuck.cancel()
                for stream in streams:
                    stream.cancel()
                # Threads of what was cancelled are free again: more calls than are left find one.
                await asyncio.wait_for(asyncio.gather(*(client.version() for _ in range(8))), harness.DEADLINE_S)
                with self.assertRaises(asyncio.CancelledError):
                    await stuck
                again = asyncio.create_task(client.pause())  # waits for its turn
                while len([one async for one in client.operations()]) < 2:
                    pass
            with self.assertRaises(kvplane.Unreachable):
                await again

        asyncio.run(main())

    @staticmethod
    async def first(events, begun):
        async for event in events:
            if event["kind"] == "attached":
                begun.append(event)

    def test_a_daemon_that_is_not_there_is_said_so(self):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            client = kvplane.Client(f"http://127.0.0.1:{nobody.getsockname()[1]}", timeout_s=harness.DEADLINE_S)
            for ask in (client.sleep, lambda: next(client.events())):
                with self.assertRaises(kvplane.Unreachable) as unreachable:
                    ask()
                self.assertFalse(unreachable.exception.sent)
            self.assertFalse(client.alive())

    def test_what_acts_is_never_sent_twice_and_what_asks_is(self):
        """A server that closes its connection after one answer, however it was told to keep it."""
        asked = []

        class Once(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                asked.append(self.command)
                self.close_connection = True
                if self.command == "POST":
                    return  # no answer
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_POST = do_GET

            def log_message(self, format, *args):  # noqa: A002
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Once)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        client = kvplane.Client(f"http://127.0.0.1:{server.server_port}", timeout_s=harness.DEADLINE_S)
        with client:
            for _ in range(3):
                client.get("/version")
            with self.assertRaises(kvplane.Unreachable) as unreachable:
                client.sleep()
            self.assertTrue(unreachable.exception.sent)
        self.assertEqual(asked, ["GET"] * 3 + ["POST"])

    def test_what_was_not_taken_is_asked_again_for_as_long_as_was_said(self):
        """By a server that is busy at first, and is not there before that."""
        answers = [(503, True, {"error": {"message": "too many"}}), (409, True, {"error": {"message": "busy"}}), (200, False, {}),
                   (503, True, {"error": {"message": "half of it"}, "operation_id": 4})]
        asked = []

        class Busy(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                status, again, document = answers[len(asked)]
                asked.append(status)
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if again:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format, *args):  # noqa: A002
                pass

        port = harness.free_ports(1)[0]
        client = kvplane.Client(f"http://127.0.0.1:{port}", timeout_s=harness.DEADLINE_S, retry_s=harness.DEADLINE_S)
        self.addCleanup(client.close)
        refused, connect = [], client._connect

        def counted(connection):
            try:
                connect(connection)
            except ConnectionRefusedError:
                refused.append(connection)
                raise

        client._connect = counted
        slept = []
        thread = threading.Thread(target=lambda: slept.append(client.sleep()))
        thread.start()
        harness.until("it has asked nobody twice", lambda: len(refused) > 1)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Busy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        thread.join(harness.DEADLINE_S)
        self.assertEqual((slept, asked), ([{}], [503, 409, 200]))
        with self.assertRaises(kvplane.OperationFailed):
            client.sleep()
        self.assertEqual(len(asked), 4, "what had begun is not begun again")

    def test_a_unix_socket_and_a_token_serve_as_well(self):
        path = os.path.join(self.directory, "http.sock")
        tokens = os.path.join(self.directory, "tokens")
        with open(tokens, "w", encoding="utf-8") as file:
            file.write("admin of-an-operator-0123456789abcdef\n")
        daemon = self.daemon("--http-socket", path, "--token-file", tokens)
        with kvplane.Client(f"unix://{path}", timeout_s=harness.DEADLINE_S) as client:
            with self.assertRaises(kvplane.Refused) as refused:
                list(client.instances())
            self.assertEqual(refused.exception.status, 401)
        with kvplane.Client(f"unix://{path}", token="of-an-operator-0123456789abcdef",
                            timeout_s=harness.DEADLINE_S) as client:
            self.assertEqual(list(client.instances()), [])
        self.assertTrue(daemon.url)

    def test_the_command_line_answers_with_json_and_exit_codes(self):
        daemon = self.daemon()
        self.engine(daemon, "a")

        def run(*words, url=daemon.tap()):
            done = subprocess.run([sys.executable, "-m", "kvplane", "--url", url, *words], text=True,
                                  env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, timeout=harness.DEADLINE_S)
            return done.returncode, done.stdout, done.stderr

        code, out, _ = run("sleep", "level=2", "instance=a")
        self.assertEqual((code, json.loads(out)["level"]), (0, 2))
        code, out, _ = run("get", "/is_sleeping")
        self.assertEqual((code, json.loads(out)["is_sleeping"]), (0, True))
        self.assertEqual(json.loads(run("is_sleeping")[1])["is_sleeping"], True, "a question by its name alone")
        self.assertIn("\nkvplane_build_info{", run("get", "/metrics")[1])
        self.assertEqual(run("wake_up", "tags=weights", "tags=kv_cache")[0], 0)
        code, _, err = run("sleep", "level=9")
        self.assertEqual(code, 1)
        self.assertIn("level", err)
        self.assertEqual(run("sleep", "level")[0], 2)
        self.assertEqual(run("sleep", url="ftp://x")[0], 2)
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            for words in (("sleep",), ("events",)):
                self.assertEqual(run(*words, url=f"http://127.0.0.1:{nobody.getsockname()[1]}")[0], 3)


class Link(harness.Case):
    """kvplane.link: engines in this process, over the shared library."""
    KEYS = [b"key\0%d" % i for i in range(6)]  # a NUL is a byte as any other

    def python_engine(self, daemon, name, **options):
        engine = python_engine.PythonEngine(daemon.socket, name, **options)
        self.addCleanup(engine.close)
        self.until(lambda: ("attached", link.Result.OK) in engine.calls, engine)
        return engine

    def until(self, condition, *engines):
        """The engines' loop, until it holds."""
        def turn():
            for engine in engines:
                engine.session.process()
            return condition()
        harness.until("the engines have done it", turn)

    def run_prompt(self, engine):
        return engine.run(self.KEYS, lambda condition: self.until(condition, engine))

    def aside(self, call, *engines):
        """An answer of the daemon, which asks these engines meanwhile."""
        thread = threading.Thread(target=lambda: answers.append(call()))
        answers = []
        thread.start()
        self.until(lambda: answers, *engines)
        thread.join()
        return answers[0]

    def shared(self, daemon, *engines):
        self.until(lambda: all(engine.joined and daemon.metric("kvplane_instance_open", instance=f"e{i}") == 1
                               for i, engine in enumerate(engines)), *engines)

    def test_structures_are_those_of_the_header(self):
        header = os.path.join(PACKAGE, "..")
        lines = []
        for name, kind in link.STRUCTURES.items():
            struct = name if name == "kvplane_token" else f"struct {name}"
            lines.append(f'printf("{name} %zu\\n", sizeof({struct}));')
            lines += [f'printf("{name}.{field[0]} %zu %zu\\n", offsetof({struct}, {field[0]}), sizeof((({struct} *)0)->{field[0]}));'
                      for field in kind._fields_]
        source = os.path.join(self.directory, "layout.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <kvplane.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\n}\n")
        program = os.path.join(self.directory, "layout")
        subprocess.run(["cc", "-I", header, source, "-o", program], check=True)
        compiled = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
        here = []
        for name, kind in link.STRUCTURES.items():
            here.append(f"{name} {ctypes.sizeof(kind)}")
            for field, *_ in kind._fields_:
                descriptor = getattr(kind, field)
                here.append(f"{name}.{field} {descriptor.offset} {descriptor.size}")
        self.assertEqual(compiled, here)
        with open(os.path.join(header, "kvplane.h"), encoding="utf-8") as file:
            text = file.read()
        for result in link.Result:
            name = "KVPLANE_OK" if result == link.Result.OK else f"KVPLANE_ERR_{result.name}"
            self.assertRegex(text, rf"{name}\s*=\s*{int(result)},")

    def test_only_what_lies_in_memory_that_is_handed_over_is_a_slice(self):
        memory = link.HostMemory(8192, region=3)
        self.addCleanup(memory.close)
        view = memoryview(memory.map)
        self.assertEqual(memory.slice(view[100:164]), link.Slice(3, 100, 64))
        self.assertEqual(memory.slice(view), link.Slice(3, 0, 8192))
        for part, why in ((bytearray(64), "not in region 3"), (view[0:0], "not in region 3"), (view[::2], "contiguous"),
                          (view.toreadonly(), "written"), (b"of nobody", "written")):
            with self.assertRaisesRegex(ValueError, why):
                memory.slice(part)
        with self.assertRaises(ValueError):
            link.HostMemory(0)
        view[:4] = b"kept"
        memory.close()
        self.assertEqual(view[:4], b"kept", "what refers to it keeps it")
        memory.discard()
        self.assertEqual(view[:4], bytes(4))

    def test_engines_share_blocks_over_a_sleep_and_a_wake(self):
        daemon = self.daemon()
        client = kvplane.Client(daemon.tap(), timeout_s=harness.DEADLINE_S)
        self.addCleanup(client.close)
        engines = [self.python_engine(daemon, name) for name in ("e0", "e1")]
        self.shared(daemon, *engines)
        self.assertEqual(self.run_prompt(engines[0]), 0)
        self.assertEqual(self.run_prompt(engines[1]), len(self.KEYS))
        self.aside(lambda: client.sleep(instance="e1", level=2), *engines)
        self.assertTrue(engines[1].asleep)
        self.assertEqual(os.stat(engines[1].memory.fd).st_blocks, 0, "its pages are the system's again")
        self.aside(lambda: client.wake_up(instance="e1"), *engines)
        self.shared(daemon, *engines)
        self.assertEqual(self.run_prompt(engines[1]), len(self.KEYS))
        # Other weights: nothing of before is got.
        self.aside(lambda: client.update_weights({"weights": "2"}, instance="e1"), *engines)
        self.aside(lambda: client.finish_weight_update(instance="e1", weight_version="2"), *engines)
        self.shared(daemon, *engines)
        self.assertEqual(self.run_prompt(engines[1]), 0)
        self.assertEqual(self.run_prompt(engines[1]), len(self.KEYS))
        self.assertEqual(self.run_prompt(engines[0]), len(self.KEYS))

    def test_an_exception_of_an_engine_is_an_answer_and_comes_out(self):
        daemon = self.daemon()
        engine = self.python_engine(daemon, "e0")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(daemon.post("/collective_rpc", {"method": "raise"})))
        thread.start()
        with self.assertRaisesRegex(RuntimeError, "an engine's own mistake"):
            self.until(lambda: answers, engine)
        self.until(lambda: answers, engine)
        thread.join()
        self.assertGreaterEqual(answers[0][0], 400)

    def test_what_is_not_allowed_is_refused_and_a_lost_daemon_is_found_again(self):
        daemon = self.daemon()
        with self.assertRaisesRegex(link.LinkError, "instance"):
            python_engine.PythonEngine(daemon.socket, "no such name!")
        engine = self.python_engine(daemon, "e0")
        with self.assertRaises(link.LinkError) as refused:
            engine.session.put([(link.Entry(b"", []), engine.session.token())])
        self.assertEqual(refused.exception.result, link.Result.INVALID)
        daemon.kill()
        lost = []
        try:
            engine.session.lookup(1, engine.session.token(), [link.Keys([b"a"])], lambda result, hits: lost.append(result))
            self.until(lambda: lost, engine)
        except link.LinkError as error:
            lost.append(error.result)
        self.assertIn(lost[0], (link.Result.DISCONNECTED, link.Result.BAD_STATE))
        engine.calls.clear()
        again = self.daemon(name="again")
        self.until(lambda: ("attached", link.Result.OK) in engine.calls, engine)
        self.assertEqual(self.run_prompt(engine), 0)
        self.assertTrue(again.url)
        engine.session.close()
        with self.assertRaises(ValueError):
            engine.session.process()


if __name__ == "__main__":
    unittest.main(verbosity=2)
