#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every link of the documents within this repository leads somewhere; lint calls it."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def text(path):
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path):
    """As GitHub makes them of headings."""
    headings = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in re.findall(r"^#+ (.*)$", text(path), re.M))
    return {heading.replace(" ", "-") for heading in headings}


def dead(document):
    for link in re.findall(r"\]\(([^)]+)\)", text(document)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        to = document.parent / path if path else document
        if not to.exists() or anchor and to.suffix == ".md" and anchor not in anchors(to):
            yield link


def main():
    documents = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    found = [f"{name}: {link} leads nowhere" for name in documents for link in dead(ROOT / name)]
    for line in found:
        print(line)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
