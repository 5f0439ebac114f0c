# SPDX-License-Identifier: Apache-2.0
"""The project's recorded requests of real trainers: their bytes, and how their clients judge an answer."""
import json
import os
import pathlib
import socket
import urllib.parse

SHARED = os.environ.get("KVPLANE_SHARED") or pathlib.Path(__file__).resolve().parents[3] / "shared"
REPLAY = pathlib.Path(SHARED) / "reference" / "replay_trainers.py"
GOOD = {"<400": lambda s: s < 400, "==200": lambda s: s == 200, "==400": lambda s: s == 400,
        "2xx": lambda s: 200 <= s < 300, "200-399": lambda s: 200 <= s < 400, "any": lambda s: True}


def requests():
    text = REPLAY.with_name("trainer_requests.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
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
    with socket.create_connection(("127.0.0.1", port), timeout=240) as sock:
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


def passes(request, status):
    return GOOD[request["ok"]](status)
