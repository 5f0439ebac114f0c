# SPDX-License-Identifier: Apache-2.0
"""Rules and dashboards name metrics, labels and label values that the program has; alerts have a runbook and a test.

usage: metrics.py rules RULES… | metrics.py dashboard FILE EXPRESSIONS (EXPRESSIONS: rules made of its panels, for promtool)
"""
import functools
import json
import pathlib
import re
import sys

import yaml

import program

ROOT = program.ROOT
KEYWORDS = {"and", "or", "unless", "offset", "bool", "inf", "nan", "atan2"}
OWN = {"up": {"job", "instance"}}  # Prometheus's
# What a scrape adds to every series; `instance` of the program is shown as exported_instance.
SCRAPED = {"job", "instance", "exported_instance", "namespace", "pod"}
SOURCES = ("server/**/*.[ch]", "store/include/**/*.h", "transport/include/**/*.h", "base/include/base/status.h")


@functools.cache
def words():
    """What label values are made of: the strings of one word, and the names in the lists (`X(checksums, …)`)."""
    found = set()
    for path in {path for pattern in SOURCES for path in ROOT.glob(pattern)}:
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r'"(\w+)"', text))
        for line in re.findall(r"^\s*X\((.*)", text, re.M):
            found.update(re.findall(r"\w+", re.sub(r'"[^"]*"?', " ", line)))
    return found


def clauses(text):
    """`by (a, b)` and its like: their labels, and the text without them."""
    labels = set()

    def take(match):
        labels.update(re.findall(r"\w+", match[1]))
        return " "
    return labels, re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", take, text)


def check(expression, known):
    """What is wrong with it."""
    grouped, text = clauses(expression)
    used, bad = set(), []
    for name, matchers in re.findall(r"([A-Za-z_:][\w:]*)\s*\{([^}]*)\}", text):
        labels = set(known.get(name, ())) | SCRAPED
        for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label not in labels:
                bad.append(f"{name} has no label {label}")
            if label not in SCRAPED and not value.startswith("$"):
                bad += [f'{name}: no {label} is "{word}"' for word in re.split(r"[|.]+", value)
                        if word and not word.isdigit() and word not in words()]
    text = re.sub(r'\{[^}]*\}|"[^"]*"|\[[^]]*\]', " ", text)
    text = re.sub(r"\b\d+(?:\.\d+)?(?:e[+-]?\d+|[smhdwy])?\b", " ", text)
    for name, call in re.findall(r"([A-Za-z_:][\w:]*)(\s*\()?", text):
        if call or name in KEYWORDS:
            continue
        if name not in known:
            bad.append(f"there is no metric {name}")
        else:
            used.update(known[name])
    for label in grouped - used - SCRAPED:
        bad.append(f"grouped by {label}, which no metric there has")
    return bad


def known_metrics(rules):
    """Those of the program, of Prometheus, and what the rules record."""
    found = {name: set(labels) for name, (_, labels) in program.metrics().items()}
    found.update(OWN)
    for rule in rules:
        if "record" in rule:
            found[rule["record"]] = set(clauses(rule["expr"])[0]) or {"job", "instance"}
    return found


def read_rules(paths):
    return [rule for path in paths for group in yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))["groups"]
            for rule in group["rules"]]


def anchors():
    text = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    return {section.split("\n")[0].strip(): section for section in sections}


def check_rules(paths):
    rules = read_rules(paths)
    known = known_metrics(rules)
    sections = anchors()
    tests = (ROOT / "tests" / "deploy" / "rules_test.yml").read_text(encoding="utf-8")
    bad, alerts = [], []
    for rule in rules:
        name = rule.get("alert") or rule["record"]
        bad += [f"{name}: {line}" for line in check(rule["expr"], known)]
        if "alert" not in rule:
            continue
        alerts.append(name)
        if rule["annotations"].get("runbook") != f"docs/runbooks.md#{name.lower()}":
            bad.append(f"{name}: its runbook is docs/runbooks.md#{name.lower()}")
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            if part not in sections.get(name, ""):
                bad.append(f"{name}: docs/runbooks.md has no section with {part}")
        if rule["labels"].get("severity") not in ("critical", "warning", "info"):
            bad.append(f"{name}: severity")
        if not rule["annotations"].get("summary"):
            bad.append(f"{name}: no summary")
        if len(re.findall(rf'alertname="{name}"', tests)) < 2:
            bad.append(f"{name}: tests/deploy/rules_test.yml does not try it")
    text = "".join(sections.values())
    bad += [f"docs/runbooks.md: there is no metric {name}" for name in
            sorted(set(re.findall(r"kvplane[:_][\w:]+", text)) - set(known))]
    bad += [f"docs/runbooks.md: there is no section {link}" for link in re.findall(r"\(#(\w+)\)", text)
            if link not in {name.lower() for name in sections}]
    bad += [f"docs/runbooks.md: {name} is no alert" for name in sections if name not in alerts]
    bad += [f"{name}: twice" for name in {n for n in alerts if alerts.count(n) > 1}]
    return bad


def panels(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def check_dashboard(path, out):
    dashboard = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    known = known_metrics(read_rules(ROOT.glob("deploy/prometheus/rules.yml")))
    bad, expressions = [], []
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    if variables.get("datasource", {}).get("type") != "datasource":
        bad.append("no variable for the data source")
    ids = [panel["id"] for panel in panels(dashboard)]
    bad += [f"panel {number}: twice" for number in sorted({i for i in ids if ids.count(i) > 1})]
    boxes = {}
    for panel in panels(dashboard):
        title = panel.get("title") or f"panel {panel['id']}"
        if not panel.get("title"):
            bad.append(f"{title}: no title")
        at = panel["gridPos"]
        if at["x"] + at["w"] > 24:
            bad.append(f"{title}: wider than the page")
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                if boxes.setdefault((x, y), title) != title:
                    bad.append(f"{title}: lies over {boxes[x, y]}")
        if panel["type"] == "row":
            continue
        if not panel.get("description"):
            bad.append(f"{title}: no description")
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            bad.append(f"{title}: no unit")
        if not panel.get("targets"):
            bad.append(f"{title}: shows nothing")
        refs = [target["refId"] for target in panel.get("targets", [])]
        if len(refs) != len(set(refs)):
            bad.append(f"{title}: a refId twice")
        for thing in [panel, *panel.get("targets", [])]:
            if thing.get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
                bad.append(f"{title}: not from the chosen data source")
        expressions += [(title, target["expr"]) for target in panel.get("targets", [])]
    for variable in variables.values():
        if variable["type"] == "query":
            source = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            expressions.append((f"variable {variable['name']}", source[1] if source else "malformed("))
            if source and source[2] not in SCRAPED | known.get(re.match(r"[\w:]*", source[1])[0], set()):
                bad.append(f"variable {variable['name']}: no label {source[2]}")
    rules = []
    for number, (title, expression) in enumerate(expressions):
        for name in re.findall(r"\$\{?(\w+)", expression):
            if name not in variables and name != "__rate_interval":
                bad.append(f"{title}: there is no variable ${name}")
        plain = expression.replace("$__rate_interval", "5m")
        bad += [f"{title}: {line}" for line in check(plain, known)]
        rules.append({"record": f"panel:{number}", "expr": plain, "labels": {"panel": title}})
    pathlib.Path(out).write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    return bad


def main():
    if sys.argv[1] == "rules":
        bad = check_rules(sys.argv[2:])
    else:
        bad = check_dashboard(*sys.argv[2:])
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
