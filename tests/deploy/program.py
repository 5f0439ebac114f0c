# SPDX-License-Identifier: Apache-2.0
"""What the program's sources say of themselves: keys, routes, metrics, version. Read from their lists, so that nothing
needs to be built; a list that is written otherwise one day fails here, not silently."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {"serve": ("server/config.h", "server/control/routes.h"),
            "store": ("server/node/config.h", "server/node/routes.h")}


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def keys(command):
    """Key -> (type, default)."""
    text = read(PROGRAMS[command][0]) + read("server/cluster_keys.h")
    found = {key: (kind, default) for kind, key, default in
             re.findall(r'X\(\w+,\s*([A-Z]+),\s*"([a-z-]+)",\s*"([^"]*)"', text)}
    assert len(found) > 25 and "token-file" in found, f"keys of {command}: their list is written in a new way"
    return found


def probes(command):
    """Routes that are answered without a token, whatever the loop does."""
    found = {path for path, where in
             re.findall(r'X\(GET,\s*"([^"]+)",\s*\w+,\s*\w+,\s*(\w+)', read(PROGRAMS[command][1])) if where == "PROBE"}
    assert "/livez" in found, f"routes of {command}: their list is written in a new way"
    return found


def version():
    return re.search(r"^project\(kvplane VERSION (\S+)", read("CMakeLists.txt"), re.M)[1]


def metrics():
    """Name -> (type, labels); of a histogram also its _bucket, _sum and _count."""
    text = re.sub(r'"\s*\\?\n?\s*"', "", read("server/metrics.h").replace("\\\n", "\n"))
    found, names = {}, re.findall(r'"((?:kvplane|process)_\w+)"', text)
    for kind, name, rest in re.findall(r'X\(\w+,\s*([A-Z]+),\s*"(\w+)",\s*"[^"]*"((?:,\s*"\w+")*)\)', text):
        labels = re.findall(r'"(\w+)"', rest)
        names.remove(name)
        found[name] = (kind, labels)
        if kind in ("HISTOGRAM", "BYTES"):
            del found[name]
            for end, more in (("_bucket", ["le"]), ("_sum", []), ("_count", [])):
                found[name + end] = (kind, labels + more)
    assert len(found) > 50 and not names, f"metrics: their list is written in a new way: {names}"
    return found


_UNITS = {"": 1, "B": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_UNITS.update({unit + end: 1024**(i + 1) for i, unit in enumerate("KMGT") for end in ("i", "iB")})


def amount(text):
    """Bytes of 8GiB (ours) or 8Gi (Kubernetes)."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()
    return int(number) * _UNITS[unit]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600}[unit]
