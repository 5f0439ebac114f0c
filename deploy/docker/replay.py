#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Replays a Dockerfile without Docker: each stage is a copy of a plain Debian root (debootstrap, kept for the next time), each
step is carried out in it as Docker would. It is the Dockerfile that is run, not a copy of it; what this script does not know
how to do is an error. As root, since it makes roots.

usage: replay.py check                  it can be replayed, and it is as it should be (changes nothing)
       replay.py build DIRECTORY        leaves DIRECTORY/image, a root, and DIRECTORY/image.json, how to run it
       replay.py try DIRECTORY          runs that as a container would: read-only, without rights, in namespaces of its own
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
BASES = {"debian:12-slim": "bookworm"}
DEADLINE_S = 60
INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD", "LABEL", "EXPOSE"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Wrong(Exception):
    pass


# ---- reading ----

def instructions():
    """(line, name, rest) of each, continuations joined."""
    found, pending = [], None
    for number, line in enumerate(DOCKERFILE.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        start, text = pending or (number, "")
        if pending and line.split()[0] in INSTRUCTIONS:
            raise Wrong(f"line {number}: would belong to line {start}")
        text += line.strip()
        if text.endswith("\\"):
            pending = (start, text[:-1] + " ")
            continue
        pending = None
        name, _, rest = text.partition(" ")
        found.append((start, name, rest.strip()))
    if pending:
        raise Wrong(f"line {pending[0]}: does not end")
    return found


class Stage:
    def __init__(self, base, name):
        self.base, self.name = base, name
        self.steps = []  # (line, kind, …)
        self.env = {"PATH": PATH}
        self.user, self.workdir = "0:0", "/"
        self.entrypoint, self.cmd, self.stop = [], [], "SIGTERM"


def assignments(line, rest):
    pairs = [word.partition("=") for word in shlex.split(rest)]
    if not pairs or not all(equals for _, equals, _ in pairs):
        raise Wrong(f"line {line}: NAME=VALUE …")
    return {name: value for name, _, value in pairs}


def command(line, rest):
    """The JSON form: the shell form would put a shell between Docker's signal and the process."""
    try:
        words = json.loads(rest)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Wrong(f'line {line}: must be ["PROGRAM", "ARGUMENT", …]')
    return words


def read_stages():
    stages = []
    for line, name, rest in instructions():
        if name not in INSTRUCTIONS:
            raise Wrong(f"line {line}: {name}: cannot be replayed")
        if name == "FROM":
            match = re.fullmatch(r"(\S+)(?: AS (\w+))?", rest)
            if not match or match[1] not in BASES:
                raise Wrong(f"line {line}: FROM one of {', '.join(BASES)}")
            stages.append(Stage(match[1], match[2]))
            continue
        if not stages:
            raise Wrong(f"line {line}: {name} before FROM")
        stage = stages[-1]
        if name == "RUN":
            stage.steps.append((line, "run", rest, dict(stage.env), stage.user, stage.workdir))
        elif name == "COPY":
            match = re.fullmatch(r"(?:--from=(\w+) )?([^-\s]\S*(?: \S+)*) (\S+)", rest)
            if not match:
                raise Wrong(f"line {line}: COPY [--from=STAGE] SOURCE… TARGET")
            if match[1] and match[1] not in [s.name for s in stages[:-1]]:
                raise Wrong(f"line {line}: there is no stage {match[1]} before")
            stage.steps.append((line, "copy", match[1], match[2].split(" "), match[3], stage.workdir))
        elif name == "WORKDIR":
            stage.workdir = os.path.normpath(os.path.join(stage.workdir, rest))
            stage.steps.append((line, "mkdir", stage.workdir))
        elif name == "ENV":
            stage.env.update(assignments(line, rest))
        elif name == "USER":
            if not re.fullmatch(r"\d+:\d+", rest):
                raise Wrong(f"line {line}: UID:GID, in numbers: Kubernetes cannot tell that a name is not root")
            stage.user = rest
        elif name == "STOPSIGNAL":
            stage.stop = rest
        elif name == "ENTRYPOINT":
            stage.entrypoint = command(line, rest)
        elif name == "CMD":
            stage.cmd = command(line, rest)
        elif name == "LABEL":
            assignments(line, rest)
        elif not re.fullmatch(r"\d+(?: \d+)*", rest):  # EXPOSE
            raise Wrong(f"line {line}: PORT …")
    if not stages:
        raise Wrong("no FROM")
    return stages


def ignored():
    """Names at the top that are not sent to Docker."""
    names = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    if not all(re.fullmatch(r"[\w.-]+", name) for name in names):
        raise Wrong(".dockerignore: plain names of the top alone")
    return set(names)


def check():
    stages = read_stages()
    last = stages[-1]
    skip = ignored()
    if not {".git", "build"} <= skip:
        raise Wrong(".dockerignore: .git and build belong into it")
    for stage in stages:
        for line, kind, *step in stage.steps:
            for source in step[1] if kind == "copy" and step[0] is None else []:
                if not (ROOT / source).exists() or source.split("/")[0] in skip:
                    raise Wrong(f"line {line}: there is no {source} in what is sent")
    if last.user.split(":")[0] == "0":
        raise Wrong("the image runs as root")
    for name in ("engine", "store"):
        text = (ROOT / f"deploy/kubernetes/{name}/statefulset.yaml").read_text(encoding="utf-8")
        if f"runAsUser: {last.user.split(':')[0]}\n" not in text:
            raise Wrong(f"deploy/kubernetes/{name} runs as another user than the image")
    if last.stop != "SIGTERM" or last.cmd != ["serve"] or not last.entrypoint[:1]:
        raise Wrong("STOPSIGNAL, ENTRYPOINT or CMD are not those of `kvplane serve`")
    return stages


# ---- building ----

def run_in(root, script, env, user="0:0", workdir="/"):
    """/bin/sh -c script in that root: processes and mounts of its own, the network of this machine."""
    inner = ('set -e; mount --make-rprivate /; mount -t proc proc "$0/proc"; touch "$0/etc/resolv.conf"; '
             'mount --bind /etc/resolv.conf "$0/etc/resolv.conf"; exec chroot "--userspec=$1" "$0" '
             '/usr/bin/env -i -C "$2" "${@:4}" /bin/sh -c "$3"')
    arguments = [f"{name}={value}" for name, value in env.items()]
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", inner, str(root), user, workdir,
                    script, *arguments], check=True, stdin=subprocess.DEVNULL)


def pristine(directory, base):
    """A plain root, made once."""
    root = directory / base.replace(":", "-")
    if not root.exists():
        fresh = directory / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", BASES[base], str(fresh)], check=True)
        shutil.rmtree(fresh / "var" / "cache" / "apt" / "archives", ignore_errors=True)
        fresh.rename(root)
    return root


def within(root, path):
    return root / str(path).lstrip("/")


def copy(root, sources, target, workdir, skip):
    """sources: paths. As Docker: of a folder its contents; into TARGET if that ends with / or is a folder."""
    where = os.path.join(workdir, target)
    folder = where.endswith(("/", "/.")) or target == "." or len(sources) > 1 or within(root, where).is_dir()
    for source in sources:
        if source.is_dir():
            to = within(root, where)
            to.mkdir(parents=True, exist_ok=True)
            for entry in source.iterdir():
                if source != ROOT or entry.name not in skip:
                    subprocess.run(["cp", "-a", "--no-preserve=ownership", str(entry), str(to)], check=True)
        else:
            to = within(root, where) / source.name if folder else within(root, where)
            to.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "--no-preserve=ownership", str(source), str(to)], check=True)


def build(directory):
    stages = check()
    skip = ignored()
    directory.mkdir(parents=True, exist_ok=True)
    roots = {}
    shutil.rmtree(directory / "image", ignore_errors=True)
    with contextlib.ExitStack() as done:
        for number, stage in enumerate(stages):
            root = directory / f"stage-{number}"
            shutil.rmtree(root, ignore_errors=True)
            done.callback(shutil.rmtree, root, ignore_errors=True)
            subprocess.run(["cp", "-a", "--reflink=auto", str(pristine(directory, stage.base)), str(root)], check=True)
            roots[stage.name] = root
            for line, kind, *step in stage.steps:
                print(f"image: line {line}: {kind}", flush=True)
                if kind == "run":
                    run_in(root, *step)
                elif kind == "mkdir":
                    within(root, step[0]).mkdir(parents=True, exist_ok=True)
                else:
                    source, names, target, workdir = step
                    base = roots[source] if source else ROOT
                    copy(root, [within(base, name) if source else (base / name).resolve() for name in names], target, workdir,
                         skip)
        last = stages[-1]
        roots[last.name].rename(directory / "image")
        (directory / "image.json").write_text(json.dumps({
            "env": last.env, "user": last.user, "workdir": last.workdir, "entrypoint": last.entrypoint, "cmd": last.cmd,
            "stop": last.stop}), encoding="utf-8")


# ---- running ----

class Container:
    """A process of the image, the first of its namespace, with a read-only root, no capability and no way to get one.
    shared: folder of this machine -> where it is mounted, writable or (a file name that ends with :ro) not."""

    RUN = ('set -e; mount --make-rprivate /; mount --bind "$0" "$0"; mount -t proc proc "$0/proc"; '
           'mount -t tmpfs tmpfs "$0/tmp"; '
           'for pair in $1; do mkdir -p "$0/${pair#*=}"; mount --bind "${pair%%=*}" "$0/${pair#*=}"; done; '
           'mount -o remount,bind,ro "$0"; exec chroot "$0" /usr/bin/env -i -C "$3" "${@:5:$4}" '
           'setpriv --reuid "${2%:*}" --regid "${2#*:}" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all '
           # setpriv itself may still execute anything
           "/bin/sh -c 'exec \"$0\" \"$@\"' " '"${@:5+$4}"')

    def __init__(self, directory, how, arguments, shared, env=None):
        variables = [f"{name}={value}" for name, value in {**how["env"], **(env or {})}.items()]
        mounts = " ".join(f"{here}={there}" for here, there in shared.items())
        self.out = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.err = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.arguments = arguments
        self.popen = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "bash", "-c", self.RUN,
             str(directory / "image"), mounts, how["user"], how["workdir"], str(len(variables)), *variables,
             *how["entrypoint"], *(arguments or how["cmd"])],
            stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, text=True)
        self.stop_signal = signal.Signals[how["stop"]]

    def text(self, file):
        file.seek(0)
        return file.read()

    def until(self, what, condition):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self.popen.poll() is None:
            value = condition()
            if value:
                return value
            time.sleep(0.02)
        raise Wrong(f"{self.arguments}: not {what}\n{self.text(self.out)}{self.text(self.err)}")

    def ready(self):
        match = self.until("ready", lambda: re.search(r"ready .*http://([\d.]+):(\d+)$", self.text(self.out), re.M))
        self.address = match[1], int(match[2])

    def request(self, method, path, token=None):
        connection = http.client.HTTPConnection(*self.address, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def pid(self):
        """Of the process itself: unshare's child."""
        children = pathlib.Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text(encoding="utf-8").split()
        return int(children[0])

    def status(self):
        return dict(line.split(":", 1) for line in
                    pathlib.Path(f"/proc/{self.pid()}/status").read_text(encoding="utf-8").splitlines())

    def stop(self):
        os.kill(self.pid(), self.stop_signal)
        try:
            code = self.popen.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{self.arguments}: does not stop\n{self.text(self.err)}") from None
        if code != 0:
            raise Wrong(f"{self.arguments}: ended with {code}\n{self.text(self.err)}")

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


def want(truth, text):
    if not truth:
        raise Wrong(text)


def look(directory, how):
    """At the root that came of it."""
    image = directory / "image"
    program = how["entrypoint"][0]

    def output(*command):
        return subprocess.run(["chroot", str(image), *command], check=True, capture_output=True, text=True).stdout
    libraries = output("ldd", program)
    want("not found" not in libraries, f"a library is missing:\n{libraries}")
    packages = output("dpkg-query", "-W", "-f", "${Package}\n").split()
    extra = [p for p in packages if p.endswith("-dev") or p in ("gcc", "cmake", "git", "python3")]
    want(not extra, f"not for running: {extra}")
    # What the last stage names is what the program names, besides two that are loaded by name.
    needed = set(re.findall(r"NEEDED\s+(\S+)", subprocess.run(["objdump", "-p", str(within(image, program))], check=True,
                                                               capture_output=True, text=True).stdout))
    named = set(re.findall(r"\blib[a-z]+[\d.]*\b", " ".join(s[2] for s in read_stages()[-1].steps if s[1] == "run")))
    owners = {p for library in needed for p in
              re.findall(r"^(\S+?)(?::\w+)?:", output("sh", "-c", f"dpkg -S '*/{library}' || :"), re.M)} - {"libc6"}
    want(owners == named, f"packages of the last stage: {sorted(named)}, of the program's libraries: {sorted(owners)}")
    version = re.search(r"^project\(kvplane VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.M)[1]
    want(output(program, "version") == f"kvplane {version}\n", "another version")
    want(not (image / "src").exists(), "sources are left")


def try_pod(directory, how, work):
    """A pod of deploy/kubernetes/engine: two containers that share nothing but a folder and the network."""
    run, config, tokens = (work / name for name in ("run", "config", "tokens"))
    for folder in (run, config, tokens):
        folder.mkdir()
    os.chown(run, *map(int, how["user"].split(":")))
    shutil.copy(ROOT / "deploy/kubernetes/engine/serve.json", config)
    token = secrets.token_hex(16)
    (tokens / "tokens").write_text(token + "\n", encoding="utf-8")
    mounts = {run: "/run/kvplane", config: "/etc/kvplane/config", tokens: "/etc/kvplane/tokens"}
    with contextlib.ExitStack() as end:
        daemon = Container(directory, how, ["serve", "--config=/etc/kvplane/config/serve.json"], mounts,
                           {"KVPLANE_LISTEN": "127.0.0.1:0", "KVPLANE_INSTANCES": "e0", "KVPLANE_STORE_BYTES": "64MiB"})
        end.callback(daemon.kill)
        daemon.ready()
        status = daemon.status()
        want(status["Uid"].split() == [how["user"].split(":")[0]] * 4, "runs as another user")
        want(int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, "has capabilities")
        want(status["NoNewPrivs"].strip() == "1" and status["NSpid"].split()[-1] == "1", "not as a container runs it")
        want(daemon.request("GET", "/livez") == 200, "/livez")
        want(daemon.request("GET", "/health") == 503, "/health is well without its engine")
        want(daemon.request("GET", "/startupz") == 503, "/startupz does not wait for the engine")
        engine = Container(directory, how, ["engine", "--socket=/run/kvplane/engine.sock", "--instance=e0", "--fingerprint",
                                            "--requests=50", "--speed=0"], {run: "/run/kvplane"})
        end.callback(engine.kill)
        for path in ("/startupz", "/health", "/readyz"):
            daemon.until(f"well by {path}", lambda path=path: daemon.request("GET", path) == 200)
        want(daemon.request("POST", "/sleep?level=1") == 401, "a call without a token")
        want(daemon.request("POST", "/sleep?level=1", token) == 200, "/sleep")
        want(daemon.request("GET", "/health") == 200 and daemon.request("GET", "/readyz") == 503, "asleep: /health, /readyz")
        want(daemon.request("POST", "/wake_up", token) == 200, "/wake_up")
        want(daemon.request("GET", "/readyz") == 200, "awake: /readyz")
        engine.stop()
        daemon.stop()
    want(not list(run.glob("*.sock")), "the socket is left")


def try_store(directory, how, work):
    config, tokens, secret = (work / f"store-{name}" for name in ("config", "tokens", "secret"))
    for folder in (config, tokens, secret):
        folder.mkdir()
    shutil.copy(ROOT / "deploy/kubernetes/store/store.json", config)
    (tokens / "tokens").write_text(secrets.token_hex(16) + "\n", encoding="utf-8")
    (secret / "secret").write_text(secrets.token_hex(16) + "\n", encoding="utf-8")
    mounts = {config: "/etc/kvplane/config", tokens: "/etc/kvplane/tokens", secret: "/etc/kvplane/secret"}
    node = Container(directory, how, ["store", "--config=/etc/kvplane/config/store.json"], mounts,
                     {"KVPLANE_LISTEN": "127.0.0.1:0", "KVPLANE_CLUSTER_LISTEN": "127.0.0.1:0", "KVPLANE_STORE_BYTES": "64MiB",
                      "KVPLANE_NODE_NAME": "kvplane-store-0"})
    with contextlib.ExitStack() as end:
        end.callback(node.kill)
        node.ready()
        for path in ("/livez", "/readyz"):
            node.until(f"well by {path}", lambda path=path: node.request("GET", path) == 200)
        node.stop()


def try_image(directory):
    how = json.loads((directory / "image.json").read_text(encoding="utf-8"))
    look(directory, how)
    with tempfile.TemporaryDirectory(prefix="kvplane-image-") as work:
        work = pathlib.Path(work)
        work.chmod(0o755)
        try_pod(directory, how, work)
        try_store(directory, how, work)


def main():
    verb, *arguments = sys.argv[1:] or [""]
    try:
        if verb == "check" and not arguments:
            check()
        elif verb == "build" and len(arguments) == 1:
            build(pathlib.Path(arguments[0]).resolve())
        elif verb == "try" and len(arguments) == 1:
            try_image(pathlib.Path(arguments[0]).resolve())
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except Wrong as wrong:
        print(f"image: {wrong}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"image: {failed.cmd[0]} ended with {failed.returncode}\n{failed.stderr or ''}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
