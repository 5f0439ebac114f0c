# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by openssl."""
import os
import subprocess

import harness


class Authority:
    """A self-made certificate authority, and what it signs, below a directory."""

    def __init__(self, directory, name):
        self.directory = os.path.join(directory, name)
        os.mkdir(self.directory)
        self.certificate = self.path("ca.pem")
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                     "-keyout", self.path("ca.key"), "-out", self.certificate)

    def path(self, name):
        return os.path.join(self.directory, name)

    @staticmethod
    def openssl(*args):
        run = subprocess.run(["openssl", *args], capture_output=True, text=True, timeout=harness.DEADLINE_S, check=False)
        assert run.returncode == 0, (args, run.returncode, run.stderr)

    def sign(self, name, expired=False, usage="serverAuth,clientAuth"):
        """Certificate and key for 127.0.0.1, without a common name (etcd's gateway takes one for a user)."""
        certificate, key = self.path(f"{name}.pem"), self.path(f"{name}.key")
        with open(self.path("ca.cnf"), "w", encoding="utf-8") as config:
            config.write(f"[ca]\ndefault_ca=own\n[own]\ndatabase={self.path('index')}\nserial={self.path('serial')}\n"
                         f"new_certs_dir={self.directory}\ndefault_md=sha256\npolicy=any\nunique_subject=no\n"
                         "x509_extensions=both\n[any]\norganizationName=optional\n[both]\n"
                         f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\n")
        with open(self.path("index"), "a", encoding="utf-8"):
            pass
        self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/O={name}", "-keyout", key,
                     "-out", self.path("request"))
        days = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"] if expired else ["-days", "2"]
        self.openssl("ca", "-batch", "-config", self.path("ca.cnf"), "-create_serial", "-cert", self.certificate,
                     "-keyfile", self.path("ca.key"), "-in", self.path("request"), "-out", certificate, "-notext",
                     *days)
        return certificate, key
