# SPDX-License-Identifier: Apache-2.0
"""The status page in a headless Chromium (tests/npm/browser.mjs), against real daemons and engines.

An error on the page's console, an exception, a violation of its policy or a request to another
server fails the test in which it happened.
"""
import http.server
import json
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import harness
import recording

ROOT = pathlib.Path(__file__).resolve().parents[2]
NPM = ROOT / "tests" / "npm"
NODE = shutil.which("node") or shutil.which("nodejs")
STARTS_S = 120  # a browser, on a machine that has other things to do
SHOTS = None  # a folder: screenshots go there (./test_page.py --shots FOLDER)
HOSTILE = "<img src=x onerror=\"window.hacked=1\">'&amp;<script>window.hacked=1</script>"
AXE_STATES = (("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360))


class Browser:
    """One browser for all tests; open() gives each a page that knows nothing of the others."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="kvplane-browser-")
        self._node = subprocess.Popen([NODE, str(NPM / "browser.mjs"), self._profile],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=NPM)
        self._read()

    def _read(self):
        if not select.select([self._node.stdout], [], [], STARTS_S)[0]:
            raise AssertionError("the browser does not answer")
        line = self._node.stdout.readline()
        answer = json.loads(line) if line else {"error": "the browser's driver has ended"}
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def tell(self, cmd, **fields):
        self._node.stdin.write(json.dumps({"cmd": cmd, **fields}).encode() + b"\n")
        self._node.stdin.flush()
        return self._read()

    def close(self):
        self._node.stdin.close()
        try:
            self._node.wait(STARTS_S)
        except subprocess.TimeoutExpired:
            self._node.kill()
            self._node.wait()
        self._node.stdout.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    # ---- what a test says ----

    def open(self, daemon, **kw):
        self.tell("open", url=f"http://localhost:{daemon.port}/", test=recording.test(), **kw)

    def js(self, js):
        return self.tell("eval", js=js)

    def until(self, what, js, deadline_s=harness.DEADLINE_S):
        try:
            return harness.until(what, lambda: self.js(js), deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.js('document.body.innerText')}") from None

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector):
        # What it is may be drawn anew while the mouse is on its way: by the element itself.
        self.until(selector, f"document.querySelector({json.dumps(selector)})?.matches(':enabled, summary')")
        self.js(f"(document.querySelector({json.dumps(selector)}).focus(),"
                f" document.querySelector({json.dumps(selector)}).click())")

    def verb(self, name, instance):
        """Clicks a verb's button, and the one in the dialog that does it."""
        self.click(f"button[data-do={name}][data-instance='{instance}']")
        self.until("the dialog", "document.querySelector('#confirm').open")
        self.click("#confirm-yes")
        self.until("the dialog has closed", "!document.querySelector('#confirm').open")

    def state(self, instance, *states, deadline_s=harness.DEADLINE_S):
        self.until(f"{instance} {states}",
                   f"{json.dumps(states)}.includes(document.querySelector("
                   f"\"article[data-instance='{instance}']\")?.dataset.state)", deadline_s)

    def told(self, part):
        self.until(f"told: {part}", f"heard.includes({json.dumps(part)})")

    def shot(self, name, **media):
        if SHOTS is not None:
            if media:
                self.tell("media", **media)
            self.tell("shot", path=f"{SHOTS}/{name}.png")


class PageCase(harness.Case):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        super().setUp()
        self.expected = []  # of the page's problems: regular expressions

    def open(self, daemon, **kw):
        self.browser.open(daemon, **kw)

    def nothing_wrong(self):
        for problem in self.browser.tell("problems"):
            if not any(re.search(one, problem) for one in self.expected):
                self.fail(f"the page: {problem}")

    def live(self):
        self.browser.until("live", "document.querySelector('#link').innerText.includes('live')")

    def accessible(self, what):
        """By axe's rules, and without a scroll bar below, in both schemes, wide and narrow."""
        for scheme, width in AXE_STATES:
            self.browser.tell("media", width=width, scheme=scheme)
            found = self.browser.tell("axe")
            self.assertGreater(found["checked"], 10)
            self.assertEqual(found["violations"], [], f"{what}, {scheme}, {width}")
            over = self.browser.js("""[...document.querySelectorAll('body *')].filter((one) =>
                one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll'))
                .map((one) => one.outerHTML.slice(0, 80))""")
            self.assertEqual(over, [], f"{what}, {width}")
            self.assertFalse(self.browser.js(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"))
        self.browser.tell("media", width=1280)


class Life(PageCase):
    def test_through_a_sleep_and_a_wake_by_its_buttons(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "engine-0", "--fingerprint")
        self.named(daemon, "engine-0")  # what it puts before that, is dropped
        engine.run(0, 20)
        self.open(daemon)
        self.live()
        self.browser.state("engine-0", "awake")
        for what, words in ((".chips", "kv_cache resident"), (".memory", "[1-9][0-9.]* MiB awake"),
                            (".shared", "shares as fingerprint:")):
            self.browser.until(words, f"/{words}/.test(document.querySelector('article {what}')?.innerText)")
        self.browser.until("fill", "document.querySelector('[data-node] meter')?.value > 0")
        self.browser.until("tenant", "document.querySelector('[data-tenant=default]')?.innerText"
                                     ".includes('1 member')")
        self.browser.click("article summary")
        self.browser.until("regions", "/kv_cache host registered [^]* put 0 queued/.test(document"
                                      ".querySelector('.rank')?.innerText.replace(/\\s+/g, ' '))")
        self.browser.shot("rest")

        # Escape does nothing, and gives the focus back.
        self.browser.click("button[data-do=sleep1][data-instance='engine-0']")
        self.browser.until("the dialog", "document.querySelector('#confirm').open")
        self.assertIn("Sleep, level 1: engine-0", self.browser.text("#confirm"))
        self.assertIn("leaves its lineage", self.browser.text("#confirm"))
        self.browser.tell("press", key="Escape")
        self.browser.until("the dialog has closed", "!document.querySelector('#confirm').open")
        self.browser.until("the focus is back", "document.activeElement.dataset.do === 'sleep1'")
        self.assertEqual(daemon.get("/v1/kvplane/operations")[1]["operations"], [])

        # By keyboard alone. It is held where it asks the engine, so that it is seen on its way.
        engine.popen.send_signal(signal.SIGSTOP)
        self.browser.tell("press", key="Enter")
        self.browser.until("the dialog", "document.querySelector('#confirm').open")
        self.browser.js("document.querySelector('#confirm-yes').focus()")
        self.browser.tell("press", key="Enter")
        self.browser.state("engine-0", "pausing")
        for where in ("#ops", "article"):
            self.browser.until(f"progress in {where}", f"document.querySelector('{where} .running')"
                               "?.innerText.includes('at most') &&"
                               f"document.querySelector('{where} progress') !== null")
        self.browser.shot("sleeping")
        engine.popen.send_signal(signal.SIGCONT)
        self.browser.state("engine-0", "asleep")
        self.browser.told("Sleep, level 1 of engine-0: done")
        self.assertEqual(daemon.get("/is_sleeping")[1], {"is_sleeping": True})
        self.browser.until("chips", "document.querySelector('article .chips').innerText"
                                    ".includes('weights offloaded')")
        self.browser.until("memory", "/^0 B awake[^]*[1-9][0-9.]* MiB asleep/.test("
                                     "document.querySelector('article .memory').innerText)")
        self.browser.until("regions", "/kv_cache host unregistered/.test(document"
                                      ".querySelector('.rank').innerText.replace(/\\s+/g, ' '))")
        self.browser.until("who left", "document.querySelector('[data-tenant=default]').innerText"
                                       ".includes('for sleep')")
        self.browser.until("the focus is back", "document.activeElement.dataset.do === 'sleep1'")

        engine.popen.send_signal(signal.SIGSTOP)
        self.browser.verb("wake", "engine-0")
        self.browser.state("engine-0", "waking")
        engine.popen.send_signal(signal.SIGCONT)
        self.browser.state("engine-0", "awake")
        self.assertEqual(daemon.get("/is_sleeping")[1], {"is_sleeping": False})
        self.browser.until("ended", "document.querySelectorAll('#ops tbody tr').length === 2")
        self.browser.until("events", "document.querySelector('#events').innerText"
                                     ".includes('kv_cache discarded')")
        self.nothing_wrong()

    def test_every_verb_of_one_and_of_all(self):
        daemon = self.daemon()
        for name in ("a", "b"):
            self.engine(daemon, name)
        self.open(daemon)
        self.browser.state("b", "awake")
        # Closed and opened again at once: the old answer is not the new one's.
        self.browser.click("button[data-do=pause][data-instance=b]")
        self.browser.until("the dialog", "document.querySelector('#confirm').open")
        self.browser.js("""document.querySelector('#confirm').close(''),
            document.querySelector('button[data-do=pause][data-instance=b]').click(),
            new Promise((resolve) => setTimeout(resolve, 100))""")
        self.browser.click("#confirm-yes")
        self.browser.state("b", "paused")
        self.browser.verb("resume", "b")
        self.browser.state("b", "awake")
        self.browser.verb("reset", "b")
        self.browser.told("Reset the prefix cache of b: done")
        self.browser.verb("release", "b")
        self.browser.state("b", "asleep")
        self.browser.until("in part", "document.querySelector('article[data-instance=b] .state').innerText.includes('in part')")
        self.browser.verb("wake", "b")
        self.browser.state("b", "awake")
        self.browser.verb("sleep2", "b")
        self.browser.state("b", "asleep")
        self.assertEqual(daemon.instance("b")["tags"],
                         {"kv_cache": "discarded", "weights": "discarded"})
        self.browser.verb("wake", "b")
        self.browser.state("b", "awake")
        self.browser.click("#fleet button[data-do=sleep1]")
        self.browser.until("the dialog", "document.querySelector('#confirm').open")
        self.assertIn("all 2 instances", self.browser.text("#confirm h2"))
        self.browser.click("#confirm-yes")
        for name in ("a", "b"):
            self.browser.state(name, "asleep")
        self.browser.told("Sleep, level 1 of all instances: done")
        self.browser.click("article[data-instance=a] summary")
        self.browser.until("ranks", "document.querySelector('article[data-instance=a] .rank')"
                                    "?.innerText.includes('Rank 0')")
        self.nothing_wrong()

    def test_what_failed_says_why_and_what_to_do(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "engine-0")
        self.engine(daemon, "engine-1")
        self.open(daemon)
        self.browser.state("engine-0", "awake")
        engine.popen.send_signal(signal.SIGSTOP)
        self.browser.verb("pause", "engine-0")
        self.browser.until("progress", "document.querySelector('#ops .running')?.innerText"
                                       ".includes('at most')")
        self.browser.state("engine-0", "pausing")
        self.browser.state("engine-1", "awake")
        engine.kill()
        self.browser.state("engine-0", "disconnected")
        self.browser.until("the failure", "document.querySelector('#failed')?.innerText"
                                          ".includes('repeat when it has attached again')")
        self.browser.told("Pause of engine-0 failed")
        self.browser.until("in trouble", "document.querySelector('#summary').innerText.includes('in trouble')")
        self.browser.shot("failed")
        self.accessible("a failure")
        self.nothing_wrong()

    def test_a_daemon_that_goes_and_comes_back(self):
        port = harness.free_ports(1)[0]
        daemon = self.daemon(listen=f"127.0.0.1:{port}")
        self.engine(daemon, "engine-0")
        self.open(daemon)
        self.live()
        self.browser.state("engine-0", "awake")
        daemon.kill()
        self.expected = ["net::ERR_"]
        self.browser.until("away", "/disconnected since \\d/.test("
                                   "document.querySelector('#link').innerText)")
        daemon = self.daemon(listen=f"127.0.0.1:{port}")
        self.browser.js("document.querySelector('button[data-do=retry]')?.click()")
        self.live()
        self.browser.until("said", "document.querySelector('#events').innerText"
                                   ".includes('restarted')")
        self.browser.state("engine-0", "awake")
        self.browser.verb("pause", "engine-0")
        self.browser.state("engine-0", "paused")
        self.nothing_wrong()

    def test_nothing_is_asked_while_it_is_hidden(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0")
        self.open(daemon)
        self.live()
        self.browser.state("engine-0", "awake")
        hide = """Object.defineProperty(document, 'hidden', {configurable: true, value: %s});
                  document.dispatchEvent(new Event('visibilitychange'))"""
        self.browser.js(hide % "true")
        daemon.ok("/pause")
        before = self.browser.js("asked")
        self.browser.js("new Promise((resolve) => setTimeout(resolve, 1000))")
        self.assertEqual(self.browser.js("asked"), before)
        self.browser.js(hide % "false")
        self.browser.state("engine-0", "paused")
        self.live()
        self.nothing_wrong()

    def test_it_is_accessible_and_fits_a_phone(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0", "--fingerprint", "--tp", "2", "--store-tp", "2")
        self.engine(daemon, "n" * 63,
                    "--tenant", "research")
        self.open(daemon)
        self.live()
        self.browser.state("engine-0", "awake")
        self.browser.until("tenants", "document.querySelectorAll('.tenant').length === 2")
        self.browser.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        self.browser.until("ranks", "document.querySelectorAll('.rank').length === 3")
        self.accessible("at rest")
        self.browser.click("button[data-do=pause][data-instance='engine-0']")
        self.browser.until("the dialog", "document.querySelector('#confirm').open")
        self.accessible("a dialog")
        self.nothing_wrong()


class Tokens(PageCase):
    def setUp(self):
        super().setUp()
        # The browser itself says on the console what was refused.
        self.expected = [r"status of 40[13]"]

    def enter(self, token):
        self.browser.until("the token's dialog", "document.querySelector('#token').open")
        self.browser.tell("type", selector="#token-text", text=token)
        self.browser.click("#token-yes")

    def test_a_token_is_asked_for_kept_in_the_tab_and_may_only_read(self):
        path = pathlib.Path(self.directory, "tokens")
        path.write_text("admin-secret\nread read-secret\n", encoding="utf-8")
        path.chmod(0o600)
        daemon = self.daemon("--token-file", str(path))
        self.engine(daemon, "engine-0")
        self.open(daemon)
        self.browser.until("asked", "document.querySelector('#token').open")
        self.assertNotIn("engine-0", self.browser.text("body"))
        self.accessible("the token's dialog")
        self.enter("wrong")
        self.browser.until("asked again", "document.querySelector('#token').open &&"
                                          "document.querySelector('#token').innerText"
                                          ".includes('does not know')")
        self.enter("read-secret")
        self.browser.state("engine-0", "awake")
        self.live()
        self.browser.verb("pause", "engine-0")
        self.browser.told("read only")
        self.browser.until("read only", "document.querySelector('#link').innerText"
                                        ".includes('read only')")
        self.assertEqual(daemon.get("/is_paused")[1], {"is_paused": False})
        streams = self.browser.js("streams")
        self.browser.click("#token-button")
        self.enter("admin-secret")
        self.browser.until("another stream", f"streams > {streams}")
        self.live()
        self.browser.verb("pause", "engine-0")
        self.browser.state("engine-0", "paused")
        self.assertEqual(self.browser.js("[localStorage.length, document.cookie,"
                                         " Object.values(sessionStorage).join()]"),
                         [0, "", "admin-secret"])
        self.browser.click("#token-button")
        self.browser.until("the dialog", "document.querySelector('#token').open")
        self.browser.click("#token-forget")
        self.browser.until("asked", "document.querySelector('#token').open")
        self.assertEqual(self.browser.js("sessionStorage.length"), 0)
        self.nothing_wrong()


class Hostile(PageCase):
    def test_a_text_never_becomes_html(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0")
        daemon.ok("/update_weight_version", {"new_version": HOSTILE[:60]})
        self.open(daemon)
        self.browser.until("the version", "document.querySelector('article')?.innerText"
                                          f".includes({json.dumps(HOSTILE[:60])})")

        def spoiled(value):
            if isinstance(value, str):
                return HOSTILE
            if isinstance(value, list):
                return [spoiled(one) for one in value]
            if isinstance(value, dict):
                return {key: spoiled(one) for key, one in value.items()}
            return value

        daemon.ok("/sleep?level=1")
        documents = {path: spoiled(daemon.get(path)[1]) for path in (
            "/v1/kvplane/instances", "/v1/kvplane/operations", "/v1/kvplane/nodes",
            "/v1/kvplane/tenants", "/v1/kvplane/cluster")}
        documents["/v1/kvplane/instances"]["instances"][0]["degraded"] = True
        documents["/v1/kvplane/instances"]["instances"][0]["message"] = HOSTILE
        documents["/v1/kvplane/operations"]["operations"].append(
            {"id": 99, "operation": HOSTILE, "instance": HOSTILE, "status": "failed",
             "result": HOSTILE, "message": HOSTILE, "elapsed_ms": 1})
        documents["/v1/kvplane/operations"]["operations"].append(
            {"id": 100, "operation": HOSTILE, "instance": HOSTILE, "status": "running",
             "step": HOSTILE, "drain": {"queued": 1, "running": 0, "bytes_left": 10}})
        self.browser.tell("fake", documents=documents)
        for selector in ("#cards h3", "#failed", "#ops .running", "#store", "#lineages"):
            self.browser.until(selector, f"document.querySelector('{selector}')?.innerText"
                                         f".includes({json.dumps(HOSTILE)})")
        self.browser.click("#cards button[data-do=pause]")
        self.browser.until("the dialog", "document.querySelector('#confirm').innerText"
                                         f".includes({json.dumps(HOSTILE)})")
        self.assertEqual(self.browser.js("document.querySelectorAll('img').length"), 1)
        self.assertEqual(self.browser.js("document.querySelectorAll('script').length"), 1)
        self.assertFalse(self.browser.js("'hacked' in window"))
        self.nothing_wrong()

    def test_what_another_version_says_is_shown_as_well_as_can_be(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0")
        self.open(daemon)
        self.browser.state("engine-0", "awake")
        instance = {"instance": "z", "attached": True, "scheduler": "dancing", "stopped_by": ["x"],
                    "tags": {"kv_cache": "elsewhere"}, "degraded": False}
        self.browser.tell("fake", documents={
            "/v1/kvplane/instances": {"instances": [instance], "next": None},
            "/v1/kvplane/nodes": {"nodes": [{"name": "n", "state": "odd", "used_bytes": 1,
                                             "capacity_bytes": 0, "objects": 1}]}})
        self.browser.until("it", "document.querySelector('article h3').innerText === 'z'")
        self.browser.until("the node", "document.querySelector('#store').innerText.includes('odd')")
        self.nothing_wrong()

    def test_the_page_of_another_site_cannot_act(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0")
        target = f"http://localhost:{daemon.port}"
        page = f"""<!doctype html><title>evil</title><form method=post action="{target}/pause">
            <button>win</button></form><img src="{target}/release_memory_occupation">""".encode()

        class Evil(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *args):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as evil:
            threading.Thread(target=evil.serve_forever, daemon=True).start()
            for host in ("localhost", "127.0.0.1"):  # the same site, and another
                self.browser.tell("open", url=f"http://{host}:{evil.server_address[1]}/")
                self.assertEqual(self.browser.js(
                    f"fetch('{target}/sleep?level=2', {{method: 'POST', mode: 'no-cors',"
                    " body: '{}'}).then((answer) => answer.type)"), "opaque")
                self.assertFalse(self.browser.js(
                    f"fetch('{target}/v1/kvplane/instances').then((a) => a.text(), () => false)"))
                self.browser.js("document.querySelector('button').click()")
                self.browser.until("the form was sent", "location.port === "
                                                        f"'{daemon.port}'")
                self.browser.until("it was refused", "document.body?.innerText.includes('page of another site')")
            evil.shutdown()
        self.assertEqual(daemon.get("/v1/kvplane/operations")[1]["operations"], [])
        state = daemon.instance("engine-0")
        self.assertEqual((state["scheduler"], state["is_sleeping"]), ("running", False))


class Parts(PageCase):
    """Of the page's own code, what a daemon cannot be held at."""

    def setUp(self):
        super().setUp()
        self.open(self.daemon())

    def part(self, file, js):
        return self.browser.js(f"import('/page/{file}').then((it) => {{ {js} }})")

    def test_each_state_of_an_instance_has_its_place(self):
        def place(operation=None, step=None, **fields):
            return {"attached": True, "degraded": False, "scheduler": "running", "stopped_by": [],
                    "tags": {"weights": "resident", "kv_cache": "resident"},
                    "operation": operation and {"operation": operation, "step": step}, **fields}

        paused = {"scheduler": "paused"}
        cases = [
            ("awake", place()), ("awake", place("reset_prefix_cache", "reset_local")),
            ("pausing", place("pause", "pause", scheduler="pausing")),
            ("pausing", place("sleep", "pause", scheduler="pausing")),
            ("paused", place(**paused)), ("paused", place("sleep", "leave", **paused)),
            ("draining", place("sleep", "drain", **paused)),
            ("draining", place("release_kv_cache_memory", "drain", **paused)),
            ("sleeping", place("sleep", "unregister", **paused)),
            ("sleeping", place("sleep", "offload", **paused)),
            ("sleeping", place("release_memory_occupation", "release", **paused)),
            ("asleep", place(tags={"weights": "offloaded", "kv_cache": "discarded"}, **paused)),
            ("asleep", place(tags={"weights": "resident", "kv_cache": "discarded"}, **paused)),
            ("waking", place("wake", "restore", tags={"kv_cache": "discarded"}, **paused)),
            ("waking", place("sleep", "restore", **paused)),  # it is undone
            ("degraded", place(degraded=True, tags={"kv_cache": "unknown"}, **paused)),
            ("disconnected", place(attached=False, degraded=True)),
        ]
        self.assertEqual(self.part("diagram.js", f"""
            return {json.dumps([one for _, one in cases])}.map((one) => {{
                const state = it.stateOf(one);
                const lit = it.diagram('x', state).querySelectorAll('.lit');
                return [state, lit.length, [...lit].map((one) => one.textContent).join()];
            }});"""), [[want, 0, ""] if want in ("degraded", "disconnected") else [want, 1, want]
                       for want, _ in cases])

    def test_events_are_read_wherever_they_are_cut(self):
        text = ": \n\nid: 1\nevent: a\ndata: {\"id\":1}\n\n: \n\nid: 2\ndata: {\"id\":\ndata: 2}\n\ndata: no\n\n"
        self.assertTrue(self.part("client.js", f"""
            const text = {json.dumps(text)};
            for (let i = 0; i <= text.length; i++) {{
                const reader = new it.EventReader();
                const got = [text.slice(0, i), text.slice(i)].flatMap((piece) => reader.add(piece));
                if (JSON.stringify(got) !== '[{{"id":1}},{{"id":2}}]') return i;
            }}
            const reader = new it.EventReader();
            try {{ for (let i = 0; i < 100; i++) reader.add('x'.repeat(1000)); }} catch {{ return true; }}"""))

    def test_nothing_that_is_kept_grows(self):
        self.assertEqual(self.part("panels.js", """
            const log = new it.EventLog(200);
            for (let i = 1; i <= 1000; i++) log.add({id: i, at_ms: i, kind: 'state', instance: 'e' + i,
                state: {scheduler: 'running', attached: true, tags: {}, stopped_by: []}});
            return [log.rows.length, log.rows[0].instance];"""), [200, "e1000"])
        self.assertEqual(self.part("series.js", """
            const memory = new it.Memory();
            const one = (bytes) => ({attached: true, tags: {kv: 'resident'}, regions: {bytes}});
            for (let i = 0; i < 5000; i++) memory.add(one(i), i * 1000);
            return memory.samples.length;"""), 600)

    def test_what_is_drawn_anew_stays_the_same_node(self):
        self.assertEqual(self.part("dom.js", """
            const root = it.h('div');
            document.body.append(root);
            const list = (...keys) => it.show(root, keys.map((key) => it.h('details', {'data-key': key, class: key + keys.length}, key)));
            list('a', 'b', 'c');
            const b = root.children[1];
            b.open = true;
            list('x', 'b', 'y', 'c');
            const text = root.innerText;
            list('b');
            return [b === root.firstChild, root.children.length, b.open, b.className, b.innerText];
            """), [True, 1, True, "b1", "b"])


def main():
    global SHOTS
    if NODE is None or not (NPM / "node_modules" / ".installed").exists():
        print("SKIP: it_page: what it uses from npm is not installed (./dev test installs it)")
        sys.exit(77)
    if "--shots" in sys.argv:
        at = sys.argv.index("--shots")
        SHOTS = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()


if __name__ == "__main__":
    main()
