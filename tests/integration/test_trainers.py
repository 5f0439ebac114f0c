# SPDX-License-Identifier: Apache-2.0
"""What real trainers send, byte for byte, judged as they judge it (the project's recorded requests)."""
import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess
import sys
import unittest
import urllib.parse

import harness

SHARED = os.environ.get("KVPLANE_SHARED") or pathlib.Path(__file__).resolve().parents[3] / "shared"
REPLAY = pathlib.Path(SHARED) / "reference" / "replay_trainers.py"
GOOD = {"<400": lambda s: s < 400, "==200": lambda s: s == 200, "==400": lambda s: s == 400,
        "2xx": lambda s: 200 <= s < 300, "200-399": lambda s: 200 <= s < 400, "any": lambda s: True}


def requests():
    lines = [json.loads(line) for line in open(REPLAY.with_name("trainer_requests.jsonl"))]
    return lines[0]["clients"], lines[1:]


def raw(defaults, request, port):
    """The bytes of one request."""
    query = urllib.parse.urlencode([tuple(pair) for pair in request["query"]])
    headers = {"Host": f"127.0.0.1:{port}", **defaults[request["client"]],
               **{k: v for k, v in request["headers"].items() if "$" not in v}}
    body = (request["body"] or "").encode()
    if request["body"] is not None or request.get("framing") in ("CL0", "octet"):
        headers["Content-Length"] = str(len(body))
    target = request["path"] + ("?" + query if query else "")
    head = f"{request['method']} {target} HTTP/1.1\r\n"
    return (head + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n").encode() + body


def send(port, data, early=False):
    """Status and body, or None of a client that goes away as soon as it has asked."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(data)
        if early:
            return None
        answer = sock.makefile("rb")
        status = int(answer.readline().split()[1])
        length = 0
        while line := answer.readline().strip():
            name, value = line.split(b":", 1)
            length = int(value) if name.lower() == b"content-length" else length
        body = answer.read(length)
        assert len(body) == length
        return status, body


@unittest.skipUnless(REPLAY.exists(), f"the recorded requests are not here ({REPLAY})")
class Trainers(harness.Case):
    def setUp(self):
        super().setUp()
        self.served = self.daemon()
        self.computing = self.engine(self.served, "engine-0")

    def expect_serving(self):
        """Whatever was asked before: it can be brought back, and computes what is right."""
        harness.until("nothing runs", lambda: not any(
            o["status"] == "running"
            for o in self.served.get("/v1/kvplane/operations")[1]["operations"]))
        for path in ("/wake_up", "/resume"):
            self.served.ok(path)
        self.assertTrue(self.served.instance("engine-0")["ready"])
        counts = self.computing.run(0, 8)
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)

    def test_every_request_of_every_client_passes_in_order_on_one_system(self):
        run = subprocess.run([sys.executable, str(REPLAY), f"127.0.0.1:{self.served.port}"],
                             capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn(" 0 failed", run.stdout)
        self.expect_serving()

    def test_every_request_sent_twice_at_once_is_answered_alike(self):
        defaults, all_requests = requests()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for request in all_requests:
                data = raw(defaults, request, self.served.port)
                for status, body in pool.map(lambda _, d=data: send(self.served.port, d), range(2)):
                    self.assertTrue(GOOD[request["ok"]](status),
                                    f"{request['fw']}#{request['seq']} {request['path']}: {body}")
        self.expect_serving()

    def test_clients_that_go_away_early_leave_a_system_that_serves(self):
        defaults, all_requests = requests()
        for request in all_requests:
            send(self.served.port, raw(defaults, request, self.served.port), early=True)
            self.assertEqual(self.served.get("/health")[0], 200)
        self.expect_serving()


if __name__ == "__main__":
    if not REPLAY.exists():
        print(f"SKIP: trainers: the recorded requests are not beside this checkout ({REPLAY.name})")
    unittest.main()
