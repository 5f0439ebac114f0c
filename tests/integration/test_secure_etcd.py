# SPDX-License-Identifier: Apache-2.0
"""An etcd that asks for certificates and passwords: who has them takes part, who has not is told why, and does not hammer."""
import contextlib
import os
import re
import subprocess
import time
import unittest

import harness
from authority import Authority

PASSWORD = "of the cluster"
PREFIX = "/kvplane/"


class SecureEtcd:
    """One member with client TLS and authentication, whose user may touch nothing but the prefix."""

    def __init__(self, case, authority, certificate, key, auth=True):
        self.case = case
        self.authority = authority
        self.client, self.peer = harness.free_ports(2)
        self.endpoints = f"https://127.0.0.1:{self.client}"
        self.certificate, self.key = certificate, key
        self.mine = authority.sign("etcdctl")
        self.start()
        if auth:
            for words in (["user", "add", "root:root"], ["role", "add", "kvplane"],
                          ["role", "grant-permission", "kvplane", "--prefix=true", "readwrite", PREFIX],
                          ["user", "add", f"kvplane:{PASSWORD}"], ["user", "grant-role", "kvplane", "kvplane"],
                          ["user", "grant-role", "root", "root"], ["auth", "enable"]):
                self.ctl(*words)

    def start(self):
        peer = f"http://127.0.0.1:{self.peer}"
        self.process = harness.Process([
            "--name=etcd-0", f"--data-dir={self.case.directory}/etcd-0", f"--listen-client-urls={self.endpoints}",
            f"--advertise-client-urls={self.endpoints}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd-0={peer}",
            f"--cert-file={self.certificate}", f"--key-file={self.key}", "--client-cert-auth",
            f"--trusted-ca-file={self.authority.certificate}", "--logger=zap", "--log-level=error",
            "--log-outputs=stderr"], self.case.directory, "etcd-0", program="etcd")
        self.case.processes.append(self.process)
        harness.until("etcd listens", self.listens)

    def listens(self):
        with contextlib.suppress(OSError):
            with harness.socket.create_connection(("127.0.0.1", self.client), timeout=5):
                return True
        return False

    def ctl(self, *words):
        certificate, key = self.mine

        def done():
            run = subprocess.run(["etcdctl", f"--endpoints={self.endpoints}", f"--cacert={self.authority.certificate}",
                                  f"--cert={certificate}", f"--key={key}", *words], capture_output=True, text=True,
                                 env={**os.environ, "ETCDCTL_API": "3"}, timeout=harness.DEADLINE_S)
            self.said = run.stderr
            return run.returncode == 0
        try:
            harness.until(" ".join(words), done)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.said}") from None

    def restart(self):
        self.process.kill()
        self.start()


class Secure(harness.Case):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.directory, "authority")

    def secret(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def args(self, *, ca=None, pair=None, password=PASSWORD):
        certificate, key = pair or self.authority.sign("kvplane")
        return ["--etcd-ca-file", ca or self.authority.certificate, "--etcd-cert-file", certificate,
                "--etcd-key-file", key, "--etcd-user", "kvplane",
                "--etcd-password-file", self.secret(f"password-{len(password)}", password + "\n")]

    @staticmethod
    def reached(process):
        return process.metric("kvplane_etcd_reachable") == 1

    def test_with_certificate_and_password_daemon_and_node_take_part_also_after_its_tokens_were_forgotten(self):
        etcd = SecureEtcd(self, self.authority, *self.authority.sign("server"))
        store = self.store_node(etcd, *self.args())
        daemon = self.cluster_daemon(etcd, *self.args())
        engine = self.engine(daemon, "a", "--fingerprint")

        def whole():
            for process in (store, daemon):
                harness.until(f"{process.name} reaches etcd", lambda p=process: self.reached(p))
            harness.until("the node is there", lambda: any(
                node["state"] == "up" for node in daemon.get("/v1/kvplane/nodes")[1]["nodes"]))
            harness.until("a shares", lambda: daemon.metric("kvplane_instance_shared", instance="a") == 1)
        whole()
        counts = engine.run(0, 20)
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0))
        self.assertGreater(counts["stored"], 0)
        # It keeps tokens in memory alone. Those who were not away for long need not have noticed that it was:
        # who is back is known by what he does, and hears.
        etcd.restart()
        harness.until("the daemon acts", lambda: daemon.ok("/reset_prefix_cache?reset_external=true")["external"]
                      == "done")
        other = self.store_node(etcd, *self.args(), name="store-1")
        harness.until("it hears of another node", lambda: [
            node["state"] for node in daemon.get("/v1/kvplane/nodes")[1]["nodes"]] == ["up", "up"])
        self.clean(other)
        etcd.process.kill()
        for process in (store, daemon):
            harness.until(f"{process.name} knows that it is away", lambda p=process: not self.reached(p))
        etcd.start()
        whole()
        harness.until("the daemon acts", lambda: daemon.ok("/reset_prefix_cache?reset_external=true")["external"]
                      == "done")
        for process in (store, daemon):
            self.assertNotIn(PASSWORD, process.stderr())
        self.clean(engine, daemon, store)

    def refused(self, etcd, words, **kw):
        """Neither takes part; the log says why; and they ask ten times a second at most."""
        begin = time.monotonic()
        store = self.store_node(etcd, *self.args(**kw))
        daemon = self.cluster_daemon(etcd, *self.args(**kw))
        engine = self.engine(daemon, "a", "--fingerprint")
        for process in (store, daemon):
            harness.until(f"{process.name} says: {words}", lambda p=process: re.search(words, p.stderr()))
        def tries(process):
            return process.stderr().count("msg=\"etcd ")
        for process in (store, daemon):
            before = tries(process)
            harness.until("it tries again", lambda p=process, n=before: tries(p) >= n + 6)
            # A hundred milliseconds between two: more on a busy machine.
            self.assertLess(tries(process), 5 + 10 * (time.monotonic() - begin))
        for process in (store, daemon):
            self.assertFalse(self.reached(process))
            self.assertNotIn(PASSWORD, process.stderr())
        self.assertEqual(store.get("/readyz")[0], 503)
        self.assertEqual(daemon.get("/livez")[0], 200)
        answer = daemon.ok("/sleep?level=1")
        self.assertEqual(daemon.ok("/wake_up")["status"], "awake")
        self.assertEqual(answer["status"], "sleeping")
        self.clean(engine, daemon, store)

    def test_a_wrong_password_is_refused_and_said(self):
        etcd = SecureEtcd(self, self.authority, *self.authority.sign("server"))
        self.refused(etcd, "invalid user ID or password", password="of another one")

    def test_an_etcd_of_another_authority_is_not_trusted(self):
        etcd = SecureEtcd(self, self.authority, *self.authority.sign("server"), auth=False)
        other = Authority(self.directory, "other")
        self.refused(etcd, "unable to get local issuer certificate|self.signed certificate", ca=other.certificate)

    def test_an_expired_certificate_is_not_trusted(self):
        expired = self.authority.sign("expired", expired=True)
        # Its own gateway does not talk to it either: it need not serve.
        etcd = SecureEtcd(self, self.authority, *expired, auth=False)
        self.refused(etcd, "certificate has expired")

    def test_a_certificate_of_another_authority_is_refused_by_etcd(self):
        etcd = SecureEtcd(self, self.authority, *self.authority.sign("server"), auth=False)
        other = Authority(self.directory, "other")
        self.refused(etcd, "(bad certificate|unknown ca)", pair=other.sign("stranger"))

    def test_files_that_are_not_there_are_said_at_start(self):
        pair = self.authority.sign("kvplane")
        for key, index in (("--etcd-ca-file", 1), ("--etcd-cert-file", 3), ("--etcd-key-file", 5),
                           ("--etcd-password-file", 9)):
            args = self.args(pair=pair)
            args[index] = "/nonexistent.pem"
            for program in (["serve", "--store-bytes", "0"], ["store", "--cluster-listen", "127.0.0.1:0"]):
                run = subprocess.run(
                    [harness.PROGRAM, *program, "--listen", "127.0.0.1:0", "--etcd", "https://127.0.0.1:1", *args],
                    capture_output=True, text=True, timeout=harness.DEADLINE_S)
                self.assertEqual(run.returncode, 1, run.stderr)
                self.assertIn("/nonexistent.pem", run.stderr)
                self.assertIn(f"key={key[2:]}", run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
