# SPDX-License-Identifier: Apache-2.0
"""A vLLM and an SGLang server as their clients see them, written from reference/vllm-behaviour.md
(sections 1.3 to 1.11 and 6) and reference/trainers.md (section 2): routes, status codes and bodies
of several versions, and what is unsafe about them. Nothing is computed.

What must never happen to a real one is kept in `unsafe`: work scheduled onto memory that is not
there, a transition that meets another one, a cache of other weights that is served. A test can make
any route answer 500, hang, break off or die, at its n-th call.

    python3 fake_servers.py vllm|sglang [--port N] [--version new|aug|old]
"""
import argparse
import collections
import http.server
import json
import socket
import threading
import urllib.parse

TAGS = ("weights", "kv_cache")


class Fault:
    """What becomes of calls of a route: from the `first`-th on, `times` of them."""

    def __init__(self, kind, first=1, times=1):
        self.kind = kind  # error, hang, late (done, then it hangs), break (done, then no answer), die
        self.first, self.times = first, times
        self.calls = 0

    def strikes(self):
        self.calls += 1
        return self.first <= self.calls < self.first + self.times


class Server:
    """What both have in common; `self.lock` guards all of it and is told of every change."""
    ROUTES = {}
    WORK_S = 0.0  # of a request

    def __init__(self, port=0, version="new", name="fake", tls=None):
        self.version, self.name, self.tls = version, name, tls
        self.lock = threading.Condition()
        self.faults = {}
        self.unsafe = []
        self.calls = collections.Counter()
        self.log = []
        self.hung = 0  # calls that hang now
        self.released = threading.Event()  # lets go of what hangs
        self.healthy = 200
        self.connections = set()
        self.authorizations = set()
        self.port = port
        self.generated = 0
        self.boots = 0
        self.death = None
        self.start()

    # ---- its process ----

    connector = None  # it shares KV by one: True, or False where that cannot be reset

    def boot(self):
        """State as after a start."""
        self.boots += 1
        self.paused = False
        self.mode = None
        self.asleep = {}  # tag -> how deep
        self.running = 0
        self.waiting = 0
        self.aborted = 0  # goes up with every abort
        self.moving = None
        self.weights = 0
        self.version_name = "default"
        self.cache = None  # the weights that it was computed with
        self.shared = None  # the same, of what it has put where others find it

    def start(self):
        """Again: when it is dead."""
        if self.death is not None:
            self.death.join()
        self.boot()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                server.connections.add(self.connection)

            def finish(self):
                server.connections.discard(self.connection)
                try:
                    super().finish()
                except OSError:
                    pass

            def log_message(self, *_):
                pass

            def do_GET(self):
                server.handle(self)

            do_POST = do_GET

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass

        self.listener = Listener(("127.0.0.1", self.port), Handler)
        self.port = self.listener.server_address[1]
        if self.tls is not None:
            self.listener.socket = self.tls.wrap_socket(self.listener.socket, server_side=True)
        self.alive = True
        threading.Thread(target=self.listener.serve_forever, args=(0.02,), daemon=True).start()

    def doom(self):
        """It is dead from here on, which the caller need not wait for."""
        with self.lock:
            if self.alive:
                self.alive = False
                self.death = threading.Thread(target=self.fall, daemon=True)
                self.death.start()

    def die(self):
        """As by SIGKILL: every connection is reset, nobody listens, all state is gone."""
        self.doom()
        self.death.join()

    def fall(self):
        self.listener.shutdown()
        self.listener.server_close()
        self.released.set()
        for connection in list(self.connections):
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self.lock:
            self.boot()
            self.lock.notify_all()
        self.released = threading.Event()

    def close(self):
        self.die()

    @property
    def url(self):
        return f"http{'' if self.tls is None else 's'}://127.0.0.1:{self.port}"

    def fault(self, route, kind, first=1, times=1):
        self.faults[route] = Fault(kind, first, times)

    def heal(self):
        """No faults any more, and what hangs goes on."""
        self.faults = {}
        released, self.released = self.released, threading.Event()
        released.set()

    def wrong(self, what):
        self.unsafe.append(f"{self.name}: {what}")

    # ---- requests ----

    def handle(self, handler):
        boot = self.boots
        url = urllib.parse.urlsplit(handler.path)
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        query = urllib.parse.parse_qs(url.query)
        path = url.path.rstrip("/") or "/"
        method = handler.command
        routes = {p: (m, f) for p, m, f, since in self.ROUTES if self.has(since)}
        self.calls[path] += 1
        self.authorizations.add(handler.headers.get("Authorization"))
        if path not in ("/health", "/metrics", "/get_load"):
            self.log.append(handler.path)
        fault = self.faults.get(path)
        kind = fault.kind if fault is not None and fault.strikes() else None
        if path not in routes:
            status, answer = 404, {"detail": "Not Found"}
        elif method not in routes[path][0]:
            status, answer = 405, {"detail": "Method Not Allowed"}
        elif kind == "die":
            self.doom()
            self.hang()
            return
        elif kind == "hang":
            self.hang()
            status, answer = self.failure("it hung")
        elif kind == "error":
            status, answer = self.failure("injected")
        else:
            try:
                status, answer = routes[path][1](self, query, self.parsed(body))
            except ValueError as e:
                status, answer = 400, self.error(str(e), 400)
            if kind == "late":
                self.hang()
            if kind == "break" or self.boots != boot:
                handler.connection.shutdown(socket.SHUT_RDWR)
                handler.close_connection = True
                return
        self.reply(handler, status, answer)

    def hang(self):
        with self.lock:
            self.hung += 1
            self.lock.notify_all()
        self.released.wait(600)
        with self.lock:
            self.hung -= 1

    @staticmethod
    def parsed(body):
        try:
            return json.loads(body) if body else {}
        except ValueError:
            raise ValueError("Invalid JSON format") from None

    def reply(self, handler, status, answer):
        data = b"" if answer is None else answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:
            handler.close_connection = True

    def error(self, text, code):
        return {"error": {"message": text, "type": "InternalServerError", "param": None, "code": code}}

    def failure(self, text):
        return 500, self.error(text, 500)

    def has(self, since):
        return since is None or self.version in since

    # ---- its scheduler ----

    def transition(self, what):
        """Nothing of the kind may meet another; real servers do not look."""
        if self.moving is not None:
            self.wrong(f"{what} meets {self.moving}")
        self.moving = what

    def generate(self, query, body):
        """Waits as a queued request does while paused, then runs."""
        with self.lock:
            aborts, boot = self.aborted, self.boots
            self.waiting += 1
            while self.paused and self.boots == boot:
                self.lock.wait(60)
                if self.aborted != aborts:
                    self.waiting -= 1
                    return 200, self.finished("abort")
            if self.boots != boot:
                return 503, None
            self.waiting -= 1
            if self.asleep:
                self.wrong(f"scheduled while {sorted(self.asleep)} asleep")
            if self.cache not in (None, self.weights):
                self.wrong(f"cache of weights {self.cache} served with {self.weights}")
            if self.connector is not None and self.shared not in (None, self.weights):
                self.wrong(f"shared KV of weights {self.shared} got with {self.weights}")
            self.cache = self.shared = self.weights
            self.running += 1
            hold = body.get("hold")
            if hold or self.WORK_S:
                self.lock.wait_for(lambda: self.aborted != aborts or self.boots != boot or
                                   (not self.holding if hold else False), 60 if hold else self.WORK_S)
            if self.boots != boot:
                return 503, None
            self.running -= 1
            self.generated += 1
            self.lock.notify_all()
            return 200, self.finished("abort" if self.aborted != aborts else "stop")

    holding = False

    def finished(self, why):
        return {"id": "x", "object": "text_completion", "model": "fake", "server": self.name,
                "choices": [{"index": 0, "text": str(self.weights), "finish_reason": why}]}

    def health(self, query, body):
        return self.healthy, None

    def loads(self, what):
        """A call that writes weights."""
        with self.lock:
            if "weights" in self.asleep:
                self.wrong("weights written while asleep")
            self.weights += 1


class Vllm(Server):
    """Versions: new (JSON bodies), aug (empty ones, no /release_kv_cache_memory), old (no /pause either, and a reset
    that does not say how it went)."""

    sleep_mode = True

    def json(self, answer):
        return answer if self.version == "new" else None

    def pause(self, query, body):
        mode = query.get("mode", ["abort"])[0]
        if mode not in ("abort", "wait", "keep"):
            return 400, {"error": {"message": "bad mode", "type": "Bad Request", "param": "query.mode", "code": 400}}
        clear = query.get("clear_cache", ["true"])[0] != "false"
        with self.lock:
            self.stop(mode)
            if clear:
                self.cache = None
        return 200, {"status": "paused"}

    def stop(self, mode):
        boot = self.boots
        self.paused, self.mode = True, mode
        if mode == "abort":
            self.aborted += 1
            self.lock.notify_all()
        if mode != "keep":
            self.lock.wait_for(lambda: self.running == 0 or not self.paused or self.boots != boot, 60)

    def resume(self, query, body):
        with self.lock:
            if self.asleep:
                self.wrong(f"/resume while {sorted(self.asleep)} asleep")
            self.paused = False
            self.lock.notify_all()
        return 200, {"status": "resumed"}

    def is_paused(self, query, body):
        return 200, {"is_paused": self.paused}

    def is_sleeping(self, query, body):
        return 200, {"is_sleeping": self.paused or bool(self.asleep)}

    def sleep(self, query, body):
        level = int(query.get("level", ["1"])[0])
        if self.version == "new" and not 0 <= level <= 2:
            return 400, {"error": {"message": "bad level", "type": "Bad Request", "param": "query.level", "code": 400}}
        with self.lock:
            self.transition("sleep")
            if not self.paused and self.version != "old":
                self.wrong("/sleep while running")
            self.stop(query.get("mode", ["abort"])[0])
            self.cache = None
            deep = {"weights": "offloaded" if level == 1 else "discarded", "kv_cache": "discarded"}
            if not self.asleep or (self.version == "new" and len(self.asleep) == 1):
                deep.update(self.asleep)  # escalates nothing
                self.asleep = deep
                self.gauge = "weights_offloaded" if level == 1 else "discard_all"
            self.moving = None
        return 200, self.json({"status": "sleeping", "level": level})

    def wake_up(self, query, body):
        tags = query.get("tags")
        with self.lock:
            self.transition("wake")
            wanted = [t for t in tags or self.asleep if t != "scheduling"]
            if all(t in self.asleep for t in wanted):
                for tag in list(wanted):
                    del self.asleep[tag]
                    if tag == "weights":
                        pass
            if not self.asleep:
                self.paused = False
                self.gauge = "awake"
            elif self.version != "new":
                self.gauge = "awake"  # the bug: after any wake
            self.moving = None
            self.lock.notify_all()
        return 200, self.json({"status": "sleeping" if self.asleep else "awake", "tags_woken": tags})

    def release_kv(self, query, body):
        with self.lock:
            if not self.paused or self.running:
                return self.failure("release_kv_cache_memory() requires a completed pause first")
            if self.asleep:
                return self.failure("requires all executor memory to be resident")
            self.transition("release")
            self.cache = None
            self.asleep["kv_cache"] = "discarded"
            self.moving = None
        return 200, {"status": "kv_cache_released"}

    def reset(self, query, body):
        preempt = query.get("reset_running_requests", ["false"])[0] == "true"
        external = query.get("reset_external", ["false"])[0] == "true"
        with self.lock:
            ok = self.running == 0 or preempt
            if ok:
                self.cache = None
            if external and self.connector:
                self.shared = None
            if external and not self.connector:  # none, of older ones, too
                ok = ok and self.connector is None and self.version == "new"
        return 200, {"success": ok} if self.version != "old" else None

    def metrics(self, query, body):
        lines = [f'vllm:num_requests_running{{engine="0",model_name="fake"}} {self.running}.0',
                 f'vllm:num_requests_waiting{{engine="0",model_name="fake"}} {self.waiting}.0']
        lines += [f'vllm:engine_sleep_state{{engine="0",sleep_state="{s}"}} {float(s == self.gauge)}'
                  for s in ("awake", "weights_offloaded", "discard_all")]
        return 200, "\n".join(lines) + "\n"

    def boot(self):
        super().boot()
        self.gauge = "awake"
        self.bracket = False

    def init_transfer(self, query, body):
        if not isinstance(body.get("init_info"), dict):
            return 400, self.error("init_info is missing", 400)
        return 200, {"message": "Weight transfer initialized"}

    def start_update(self, query, body):
        self.bracket = True
        return 200, {"message": "Weight update started"}

    def update(self, query, body):
        if not body:
            return 400, self.error("update_info is missing", 400)
        self.loads("update")
        return 200, {"message": "Weights updated"}

    def update_xccl(self, query, body):
        self.loads("update")  # what was told before: its body is {}
        return 200, {"message": "Weights updated"}

    def finish_update(self, query, body):
        self.bracket = False
        self.version_name = body.get("weight_version") or self.version_name
        return 200, {"message": "Weight update finished"}

    def set_version(self, query, body):
        self.version_name = body["new_version"]
        return 200, {"success": True, "new_version": self.version_name}

    def rpc(self, query, body):
        if not body.get("method"):
            return 400, self.error("missing method", 400)
        if "weight" in body["method"]:
            self.loads("rpc")
        return 200, {"results": [None]}

    def abort(self, query, body):
        with self.lock:
            n = self.running
            self.aborted += 1
            self.lock.notify_all()
        return 200, {"status": "aborted", "aborted": n}

    def message(self, query, body):
        return 200, {"message": "done"}

    def empty(self, query, body):
        return 200, None

    def models(self, query, body):
        return 200, {"object": "list", "data": [{"id": "fake-model", "object": "model", "max_model_len": 4096}]}

    def weight_info(self, query, body):
        return 200, {"weight_version": self.version_name}

    def world_size(self, query, body):
        return 200, {"world_size": 2}

    def server_info(self, query, body):
        transfer = None if self.connector is None else {"kv_connector": "SomeConnector"}
        return 200, {"vllm_config": {"model_config": {"enable_sleep_mode": self.sleep_mode}, "kv_transfer_config": transfer},
                     "vllm_env": {}, "system_env": {}}

    def checker(self, query, body):
        return 200, {"checksums": {}}

    NEW, NOT_OLD = ("new",), ("new", "aug")
    ROUTES = [
        ("/health", "GET", Server.health, None), ("/metrics", "GET", metrics, None),
        ("/pause", "POST", pause, NOT_OLD), ("/resume", "POST", resume, NOT_OLD),
        ("/is_paused", "GET", is_paused, NOT_OLD), ("/is_sleeping", "GET", is_sleeping, None),
        ("/sleep", "POST", sleep, None), ("/wake_up", "POST", wake_up, None),
        ("/release_kv_cache_memory", "POST", release_kv, NEW),
        ("/reset_prefix_cache", "POST", reset, None),
        ("/reset_mm_cache", "POST", empty, None), ("/reset_encoder_cache", "POST", empty, None),
        ("/abort_requests", "POST", abort, None),
        ("/init_weight_transfer_engine", "POST", init_transfer, None),
        ("/start_weight_update", "POST", start_update, NEW), ("/update_weights", "POST", update, None),
        ("/finish_weight_update", "POST", finish_update, NEW),
        ("/update_weight_version", "POST", set_version, NEW), ("/weight_info", "GET", weight_info, NEW),
        ("/collective_rpc", "POST", rpc, None), ("/get_world_size", "GET", world_size, NOT_OLD),
        ("/server_info", "GET", server_info, NEW), ("/weight_checker", "POST", checker, NEW),
        ("/v1/models", "GET", models, None), ("/v1/completions", "POST", Server.generate, None),
        ("/v1/load_lora_adapter", "POST", message, None), ("/v1/unload_lora_adapter", "POST", message, None),
        # what other frameworks add to it
        ("/init_communicator", "POST", message, None), ("/close_communicator", "POST", message, None),
        ("/update_named_param", "POST", message, None), ("/init_weights_update_group", "POST", message, None),
        ("/update_weights_from_distributed", "POST", update, None),
        ("/areal_set_update_weight_meta", "POST", message, None), ("/areal_update_weights", "POST", update, None),
        ("/areal_update_weights_xccl", "POST", update_xccl, None),
    ]


class Sglang(Server):
    """Versions: new, old (a pause takes no mode, and aborts)."""

    def ok(self, text="done"):
        return 200, {"message": text, "status": "ok"}

    def plain(self, query, body):
        return 200, {"success": True, "message": "done"}

    def pause(self, query, body):
        mode = body.get("mode", "abort") if self.version == "new" else "abort"
        with self.lock:
            boot = self.boots
            self.paused, self.mode = True, mode
            if mode == "abort":
                self.aborted += 1
                self.lock.notify_all()
                self.lock.wait_for(lambda: self.running == 0 or self.boots != boot, 60)
            if mode == "retract":
                self.retracted = True
        return self.ok("Generation paused")

    def go_on(self, query, body):
        with self.lock:
            if self.asleep:
                self.wrong(f"continued while {sorted(self.asleep)} asleep")
            self.paused = False
            self.retracted = False
            self.lock.notify_all()
        return self.ok("Generation continued")

    def flush(self, query, body):
        with self.lock:
            if self.running and not self.retracted:
                return 400, "Failed to flush cache: requests are pending"
            self.cache = None
        return 200, "Cache flushed."

    def tags(self, body):
        return body.get("tags") or list(TAGS)

    def release(self, query, body):
        with self.lock:
            self.transition("release")
            if self.running and not self.retracted:
                self.wrong("memory released while requests run")
            if not self.paused:
                self.wrong("memory released while not paused")
            for tag in self.tags(body):
                if tag in self.asleep:
                    self.wrong(f"{tag} released twice")
                elif tag in TAGS:
                    self.asleep[tag] = "released"
            self.cache = None
            self.moving = None
        return 200, "null"

    def restore(self, query, body):
        with self.lock:
            self.transition("resume")
            for tag in self.tags(body):
                if tag in TAGS and tag not in self.asleep:
                    self.wrong(f"{tag} resumed, but it was not released")
                self.asleep.pop(tag, None)
            self.moving = None
            self.lock.notify_all()
        return 200, "null"

    def update(self, query, body):
        self.loads("update")
        return 200, {"success": True, "message": "Succeeded"}

    def set_version(self, query, body):
        self.version_name = body["new_version"]
        return 200, {"success": True, "new_version": self.version_name}

    def load(self, query, body):
        return 200, [{"dp_rank": 0, "num_reqs": self.running + self.waiting, "num_waiting_reqs": self.waiting,
                      "num_tokens": 0}]

    def model_info(self, query, body):
        return 200, {"model_path": "fake-model", "is_generation": True, "weight_version": self.version_name}

    def server_info(self, query, body):
        return 200, {"model_path": "fake-model", "tp_size": 2, "context_length": 8192, "version": "0.5"}

    def weight_version(self, query, body):
        return 200, {"weight_version": self.version_name}

    def abort(self, query, body):
        with self.lock:
            self.aborted += 1
            self.lock.notify_all()
        return 200, None

    def boot(self):
        super().boot()
        self.retracted = False

    def models(self, query, body):
        return 200, {"object": "list", "data": [{"id": "fake-model", "object": "model"}]}

    NEW, OLD = ("new",), ("old",)
    ROUTES = [
        ("/health", "GET", Server.health, None), ("/get_load", "GET", load, None),
        ("/pause_generation", "POST", pause, None), ("/continue_generation", "POST", go_on, None),
        ("/flush_cache", "GET POST", flush, None),
        ("/release_memory_occupation", "GET POST", release, None),
        ("/resume_memory_occupation", "GET POST", restore, None),
        ("/abort_request", "POST", abort, None), ("/update_weight_version", "POST", set_version, NEW),
        ("/update_weights_from_disk", "POST", update, None), ("/update_weights_from_tensor", "POST", update, None),
        ("/update_weights_from_distributed", "POST", update, None), ("/update_weights_from_ipc", "POST", update, None),
        ("/init_weights_update_group", "POST", plain, None), ("/destroy_weights_update_group", "POST", plain, None),
        ("/weights_checker", "POST", plain, None), ("/model_info", "GET", model_info, NEW),
        ("/get_model_info", "GET", model_info, OLD), ("/server_info", "GET", server_info, NEW),
        ("/get_server_info", "GET", server_info, None), ("/get_weight_version", "GET", weight_version, OLD),
        ("/health_generate", "GET", Server.health, None), ("/generate", "POST", Server.generate, None),
        ("/v1/completions", "POST", Server.generate, None), ("/v1/models", "GET", models, None),
    ]


KINDS = {"vllm": Vllm, "sglang": Sglang}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--version", default="new")
    arguments = parser.parse_args()
    fake = KINDS[arguments.kind](arguments.port, arguments.version)
    print(f"fake {arguments.kind} ready {fake.url}", flush=True)
    threading.Event().wait()
