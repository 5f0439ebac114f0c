# SPDX-License-Identifier: Apache-2.0
"""The Python package as it is built, installed and used: nothing of the tree is on the path then."""
import json
import os
import shutil
import subprocess
import tarfile
import unittest
import zipfile

import harness

PYTHON = "/usr/bin/python3"  # Debian's, with the setuptools, wheel and pip of deploy/packages/test.txt
SOURCE = os.path.join(harness.ROOT, "api", "python")


class Package(harness.Case):
    def run_python(self, *args, **environment):
        """In an empty folder, without what users or the tree would add."""
        at = os.path.join(self.directory, "empty")
        os.makedirs(at, exist_ok=True)
        run = subprocess.run([PYTHON, "-s", *args], cwd=at, capture_output=True, text=True, timeout=harness.DEADLINE_S, check=False,
                             env={"PATH": os.environ["PATH"], "HOME": self.directory, **environment})
        return run.returncode, run.stdout, run.stderr

    def pip(self, *args):
        code, out, err = self.run_python("-m", "pip", "--isolated", "--no-cache-dir", "--disable-pip-version-check", *args, "--no-index", "--no-deps")
        self.assertEqual(code, 0, out + err)

    def test_sdist_makes_the_wheel_and_the_installed_wheel_asks_a_daemon(self):
        # A build leaves things beside its source.
        source = os.path.join(self.directory, "source")
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        built = os.path.join(self.directory, "built")
        code, _, err = self.run_python("-c", f"import os, setuptools.build_meta as b; os.chdir({source!r}); b.build_sdist({built!r})")
        self.assertEqual(code, 0, err)
        sdist, = os.listdir(built)
        modules = {os.path.relpath(os.path.join(folder, file), SOURCE)
                   for folder, _, files in os.walk(os.path.join(SOURCE, "kvplane")) for file in files
                   if file.endswith((".py", "py.typed"))}
        with tarfile.open(os.path.join(built, sdist)) as archive:
            root = sdist.removesuffix(".tar.gz")
            names = {os.path.relpath(one.name, root) for one in archive if one.isfile()}
        self.assertLessEqual(modules | {"LICENSE", "README.md", "pyproject.toml"}, names)

        self.pip("wheel", "--no-build-isolation", "-w", built, os.path.join(built, sdist))
        wheel, = (name for name in os.listdir(built) if name.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(built, wheel)) as archive:
            names = set(archive.namelist())
            about, = (name.removesuffix("/METADATA") for name in names if name.endswith("/METADATA"))
            metadata = archive.read(f"{about}/METADATA").decode().splitlines()
        self.assertEqual(modules | {f"{about}/{name}" for name in
                                    ("LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}, names)
        version = subprocess.run([harness.PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        self.assertIn(f"Version: {version}", metadata, "the package's version is the program's")
        self.assertFalse([line for line in metadata if line.startswith("Requires-Dist")])

        site = os.path.join(self.directory, "site")
        self.pip("install", "--target", site, os.path.join(built, wheel))
        code, out, err = self.run_python("-c", "import kvplane; print(kvplane.__version__, kvplane.__file__)", PYTHONPATH=site)
        self.assertEqual((code, out), (0, f"{version} {site}/kvplane/__init__.py\n"), err)
        code, out, err = self.run_python("-m", "kvplane", "--help", PYTHONPATH=site)
        self.assertEqual(code, 0, err)
        self.assertIn("usage: python3 -m kvplane", out)

        daemon = self.daemon()
        self.engine(daemon, "a")
        code, out, err = self.run_python("-m", "kvplane", "sleep", "level=1", PYTHONPATH=site, KVPLANE_URL=daemon.tap())
        self.assertEqual((code, json.loads(out or "{}").get("status")), (0, "sleeping"), err)
        script = os.path.join(site, "bin", "kvplane-py")
        code, out, err = self.run_python(script, "get", "/is_sleeping", PYTHONPATH=site, KVPLANE_URL=daemon.tap())
        self.assertEqual((code, json.loads(out or "{}").get("is_sleeping")), (0, True), err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
