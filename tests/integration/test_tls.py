# SPDX-License-Identifier: Apache-2.0
"""The REST API by TLS: who is shown what, what is asked of clients, and certificates that change under connections."""
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import unittest
import urllib.request
import warnings

import harness
import recording
from authority import Authority


class Node(harness.Server):
    """A store node that is alone."""
    READY = harness.StoreNode.READY
    KIND = harness.StoreNode.KIND


class Tls(harness.Case):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.directory, "authority")
        self.certificate, self.key = (os.path.join(self.directory, name) for name in ("server.pem", "server.key"))
        self.install(*self.authority.sign("server"))

    def install(self, certificate, key):
        """What the daemon reads; as a person would renew it."""
        shutil.copy(certificate, self.certificate)
        shutil.copy(key, self.key)
        os.chmod(self.key, 0o600)

    def context(self, version=None, *, pair=None, authority=None):
        context = ssl.create_default_context(cafile=(authority or self.authority).certificate)
        if version:
            context.minimum_version = context.maximum_version = version
        if pair:
            context.load_cert_chain(*pair)
        return context

    def args(self, *more):
        return ["--tls-cert-file", self.certificate, "--tls-key-file", self.key, *more]

    def serve(self, *args, pair=None):
        daemon = self.daemon(*self.args(*args))
        daemon.context = self.context(pair=pair)
        return daemon

    def node(self, *args):
        node = Node(["store", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0",
                     "--store-bytes", "8MiB", *self.args(*args)], self.directory, "store")
        self.processes.append(node)
        node.await_ready()
        node.context = self.context()
        return node

    def curl(self, process, path, *args):
        """Exit code, body and what it complains of."""
        heads = os.path.join(self.directory, "heads")
        run = subprocess.run(["curl", "-sS", "--cacert", self.authority.certificate, "-D", heads, *args,
                              process.url + path], capture_output=True, text=True, timeout=harness.DEADLINE_S)
        if run.returncode == 0:
            recording.exchanges(process.KIND, f"GET {path} HTTP/1.1\r\n\r\n".encode(),
                                pathlib.Path(heads).read_bytes() + run.stdout.encode())
        return run.returncode, run.stdout, run.stderr

    def serial(self, process):
        """Of the certificate that a new connection is shown."""
        with socket.create_connection((process.host, process.port), timeout=harness.DEADLINE_S) as plain:
            with self.context().wrap_socket(plain, server_hostname=process.host) as own:
                return own.getpeercert()["serialNumber"]

    def test_daemon_and_store_node_serve_real_clients_by_tls(self):
        daemon, node = self.serve(), self.node()
        engine = self.engine(daemon, "a")
        for process in (daemon, node):
            self.assertTrue(process.url.startswith("https://"), process.url)
            with urllib.request.urlopen(process.url + "/livez", context=self.context(),
                                        timeout=harness.DEADLINE_S) as answer:
                self.assertEqual(answer.status, 200)
            self.assertEqual(self.curl(process, "/health")[0], 0)
        self.assertEqual(daemon.ok("/sleep?level=1")["status"], "sleeping")
        self.assertEqual(daemon.ok("/wake_up")["status"], "awake")
        # A large body and a large answer, in pieces.
        self.assertEqual(daemon.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"x": "y" * 300000}})[0],
                         200)
        self.assertGreater(len(daemon.get("/openapi.yaml")[1]), 50000)
        # Who does not know the authority does not go on.
        other = Authority(self.directory, "other")
        with self.assertRaises(ssl.SSLCertVerificationError):
            daemon.context = self.context(authority=other)
            daemon.get("/livez")
        self.clean(engine, daemon, node)

    def test_what_is_no_request_is_refused_in_the_shape_of_all_answers(self):
        daemon = self.serve()
        for request, status in ((b"GET /livez HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n", 400),
                                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
                                (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400)):
            with socket.create_connection((daemon.host, daemon.port), timeout=harness.DEADLINE_S) as plain:
                with self.context().wrap_socket(plain, server_hostname=daemon.host) as own:
                    with recording.Conversation(own, daemon.port) as said:
                        said.sendall(request)
                        answer = http.client.HTTPResponse(said)
                        answer.begin()
                        self.assertEqual((answer.status, answer.getheader("Connection")), (status, "close"), request)
                        self.assertEqual(json.loads(answer.read())["error"]["code"], status)
        self.clean(daemon)

    def test_only_tls_1_2_and_later_and_nothing_else_is_spoken_there(self):
        daemon = self.serve()
        for version, spoken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True),
                                (ssl.TLSVersion.TLSv1_3, True)):
            daemon.context = self.context()
            daemon.context.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings(action="ignore"):  # that nobody should use it any more
                daemon.context.minimum_version = daemon.context.maximum_version = version
            if spoken:
                self.assertEqual(daemon.get("/livez")[0], 200, version)
            else:
                with self.assertRaises(OSError):
                    daemon.get("/livez")
        for hello in (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(range(256)) * 8,
                      b"\x00" * 600, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"):
            with socket.create_connection((daemon.host, daemon.port), timeout=harness.DEADLINE_S) as plain:
                plain.sendall(hello)
                text = b""
                with contextlib.suppress(ConnectionResetError):
                    while more := plain.recv(4096):
                        text += more
                self.assertNotIn(b"HTTP/1.1 200", text)
        daemon.context = self.context()
        self.assertEqual(daemon.get("/livez")[0], 200)
        self.clean(daemon)

    def test_a_handshake_that_stalls_holds_nobody(self):
        daemon = self.serve()
        with contextlib.ExitStack() as stack:
            for length in list(range(0, 60)):
                plain = stack.enter_context(
                    socket.create_connection((daemon.host, daemon.port), timeout=harness.DEADLINE_S))
                plain.sendall((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 64)[:length])
            self.assertEqual(daemon.get("/livez")[0], 200)
        self.clean(daemon)

    def test_a_handshake_that_is_not_over_in_time_ends_and_a_client_that_is_idle_after_it_stays(self):
        daemon = self.serve("--receive-timeout", "10s")
        with contextlib.ExitStack() as stack:
            connect = lambda: stack.enter_context(
                socket.create_connection((daemon.host, daemon.port), timeout=harness.DEADLINE_S))
            idle = [stack.enter_context(self.context(version).wrap_socket(connect(), server_hostname=daemon.host))
                    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]
            stalled = connect()
            stalled.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            stalled.setblocking(False)

            def ended():
                self.assertEqual(daemon.get("/livez")[0], 200)  # another one comes, and they are looked for
                try:
                    return stalled.recv(1) == b""
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True
            harness.until("the handshake ends", ended)
            for own in idle:
                own.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                self.assertEqual(own.recv(12), b"HTTP/1.1 200")
        daemon.says("its TLS handshake, was not whole in time")
        self.clean(daemon)

    def test_sighup_takes_another_certificate_and_running_connections_go_on(self):
        daemon = self.serve()
        first = self.serial(daemon)
        running = http.client.HTTPSConnection(daemon.host, daemon.port, timeout=harness.DEADLINE_S,
                                              context=self.context())

        def goes_on():
            running.request("GET", "/livez")
            answer = running.getresponse()
            answer.read()
            self.assertEqual(answer.status, 200)
        goes_on()
        own = running.sock
        expiry = daemon.metric("kvplane_tls_certificate_expiry_seconds")
        self.assertGreater(expiry, 0)
        self.install(*self.authority.sign("second"))
        self.assertEqual(self.serial(daemon), first)
        for times in (1, 2, 3):  # the one before the last is let go of, too
            daemon.popen.send_signal(signal.SIGHUP)
            daemon.says("the TLS certificate was read anew", times)
        second = self.serial(daemon)
        self.assertNotEqual(second, first)
        goes_on()
        self.assertIs(running.sock, own)
        harness.until("they are counted", lambda: daemon.metric(
            "kvplane_reloads_total", file="certificate", outcome="ok") == 3)  # after it was said
        # What is wrong changes nothing, and is said.
        good = pathlib.Path(self.key).read_bytes()
        certificate, key = self.authority.sign("third")
        expired = self.authority.sign("expired", expired=True)
        for times, (pair, words) in enumerate((
                ((certificate, self.key), "not that of the certificate"), ((os.devnull, key), "no certificate in PEM"),
                ((certificate, os.devnull), "no key in PEM"), (expired, "has expired")), 1):
            pathlib.Path(self.certificate).write_bytes(pathlib.Path(pair[0]).read_bytes())
            pathlib.Path(self.key).write_bytes(good if pair[1] == self.key else pathlib.Path(pair[1]).read_bytes())
            daemon.popen.send_signal(signal.SIGHUP)
            daemon.says("the TLS certificate stays as it was", times)
            self.assertIn(words, daemon.stderr())
            self.assertEqual(self.serial(daemon), second)
        goes_on()
        harness.until("they are counted", lambda: daemon.metric(
            "kvplane_reloads_total", file="certificate", outcome="failed") == 4)  # after it was said
        self.assertEqual(daemon.metric("kvplane_tls_certificate_expiry_seconds") > 0, True)
        running.close()
        self.clean(daemon)

    def test_clients_show_a_certificate_where_it_is_asked_for_and_probes_need_none(self):
        mine, other = self.authority.sign("client"), Authority(self.directory, "other")
        known = os.path.join(self.directory, "clients.pem")
        shutil.copy(self.authority.certificate, known)
        ca = ["--tls-client-ca-file", known]
        daemon = self.serve(*ca, pair=mine)
        node = self.node(*ca)
        engine = self.engine(daemon, "a")
        self.assertEqual(daemon.ok("/pause")["status"], "paused")
        daemon.context = self.context()
        for path in ("/livez", "/health", "/startupz", "/metrics"):
            self.assertEqual(daemon.get(path)[0], 200, path)
        self.assertEqual(node.get("/livez")[0], 200)
        for answer in (daemon.post("/resume"), daemon.get("/v1/kvplane/instances"), node.get("/v1/kvplane/node")):
            self.assertEqual(answer[0], 403, answer)
            self.assertIn("client certificate", answer[1]["error"]["message"])
        node.context = self.context(pair=mine)
        self.assertEqual(node.get("/v1/kvplane/node")[0], 200)
        # What another authority signed, is no client's, or has run out: not even a probe. (TLS 1.3 tells it to
        # the client after the client's own handshake is done.)
        stranger = other.sign("stranger")
        for pair in (stranger, self.authority.sign("s", usage="serverAuth"), self.authority.sign("old", expired=True)):
            daemon.context = self.context(pair=pair)
            with self.assertRaises((OSError, http.client.HTTPException)):
                daemon.get("/livez")
        daemon.says("a client's certificate is refused")
        daemon.context = self.context(pair=mine)
        self.assertEqual(daemon.ok("/resume")["status"], "resumed")
        shutil.copy(other.certificate, known)
        daemon.popen.send_signal(signal.SIGHUP)
        daemon.says("the TLS certificate was read anew")
        with self.assertRaises((OSError, http.client.HTTPException)):
            daemon.post("/pause")
        daemon.context = self.context(pair=stranger)
        self.assertEqual(daemon.ok("/pause")["status"], "paused")
        self.clean(engine, daemon, node)

    def command(self, *words, env=None):
        """Exit code, what it prints and what it complains of."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        run = subprocess.run([harness.PROGRAM, *words], capture_output=True, text=True, timeout=harness.DEADLINE_S,
                             env={**environment, **(env or {})})
        self.assertNotIn("Sanitizer", run.stderr)
        return run.returncode, run.stdout, run.stderr

    def test_the_command_line_goes_by_tls_and_says_what_is_wrong_with_it(self):
        mine, other = self.authority.sign("client"), Authority(self.directory, "other")
        daemon = self.serve("--tls-client-ca-file", self.authority.certificate, pair=mine)
        engine = self.engine(daemon, "a")
        url, ca = ["--url", daemon.url], ["--tls-ca-file", self.authority.certificate]
        shown = ["--tls-cert-file", mine[0], "--tls-key-file", mine[1]]
        for words in (["status"], ["pause"], ["resume"], ["events"], ["ops"]):
            code, _, said = self.command(*words, *url, *ca, *shown)
            self.assertEqual((code, said), (0, ""), words)
        self.assertEqual(self.command("status", env={
            "KVPLANE_URL": daemon.url, "KVPLANE_CA_FILE": ca[1], "KVPLANE_CLIENT_CERT_FILE": mine[0],
            "KVPLANE_CLIENT_KEY_FILE": mine[1]})[0], 0)
        for args, exit_code, words in (
                ([*url, *shown], 3, "--tls-ca-file"),
                ([*url, "--tls-ca-file", other.certificate, *shown], 3, "--tls-ca-file"),
                ([*url, "--tls-ca-file", "/nonexistent.pem"], 3, "/nonexistent.pem"),
                ([*url, *ca, "--tls-cert-file", "/nonexistent.pem"], 3, "certificate"),
                ([*url, *ca, "--tls-cert-file", mine[0], "--tls-key-file", other.sign("x")[1]], 3, "key"),
                ([*url, *ca], 1, "403: .*client certificate"),
                (["--url", daemon.url.replace("https", "http")], 3, "speak TLS")):
            for command in ("status", "events"):
                code, _, said = self.command(command, *args)
                self.assertEqual(code, exit_code, said)
                self.assertRegex(said, words)
        code, _, said = self.command("events", "--follow", *url)
        self.assertEqual(code, 3)
        self.assertIn("--tls-ca-file", said)
        plain = self.daemon(name="plain", socket_name="plain.sock")
        code, _, said = self.command("status", "--url", plain.url.replace("http", "https"))
        self.assertEqual(code, 3)
        self.assertIn("plain HTTP", said)
        self.clean(engine, daemon, plain)

    def test_files_that_are_wrong_are_said_at_start(self):
        pair = self.authority.sign("one")
        other = self.authority.sign("two")
        locked = os.path.join(self.directory, "locked.key")
        self.authority.openssl("rsa", "-aes256", "-passout", "pass:x", "-in", pair[1], "-out", locked)
        missing = "/nonexistent.pem"
        for certificate, key, ca, words in (
                (missing, pair[1], "", "tls-cert-file: /nonexistent.pem: No such file"),
                (pair[0], missing, "", "tls-key-file: /nonexistent.pem: No such file"),
                (*pair, missing, "tls-client-ca-file: /nonexistent.pem: No such file"),
                (pair[1], pair[1], "", "holds no certificate in PEM"),
                (pair[0], pair[0], "", "holds no key in PEM"),
                (pair[0], self.directory, "", "holds no key in PEM"),
                (self.directory, pair[1], "", "holds no certificate in PEM"),
                (*pair, pair[1], "tls-client-ca-file: .* holds no certificate in PEM"),
                (pair[0], locked, "", "the key is encrypted"),
                (pair[0], other[1], "", "the key is not that of the certificate"),
                (*self.authority.sign("expired", expired=True), "", "the certificate has expired")):
            for program in (["serve"], ["store", "--cluster-listen", "127.0.0.1:0"]):
                run = subprocess.run([harness.PROGRAM, *program, "--listen", "127.0.0.1:0", "--store-bytes", "1MiB",
                                      "--tls-cert-file", certificate, "--tls-key-file", key,
                                      "--tls-client-ca-file", ca],
                                     capture_output=True, text=True, timeout=harness.DEADLINE_S,
                                     env={**os.environ, "KVPLANE_ENGINE_SOCKET": f"{self.directory}/e.sock"}
                                     if program == ["serve"] else None)
                self.assertEqual(run.returncode, 1, run.stderr)
                self.assertRegex(run.stderr, words)
                self.assertNotIn("Sanitizer", run.stderr)
        os.chmod(self.key, 0o644)
        daemon = self.serve()
        daemon.says("everybody on this machine may read the key")
        self.clean(daemon)


if __name__ == "__main__":
    unittest.main(verbosity=2)
