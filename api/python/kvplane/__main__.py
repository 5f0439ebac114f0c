# SPDX-License-Identifier: Apache-2.0
"""
    python3 -m kvplane sleep level=2 instance=engine-0
    python3 -m kvplane get /v1/kvplane/instances
    python3 -m kvplane events

For a machine that has this package and not the `kvplane` program, whose command line does more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Sequence

from . import __version__
from .errors import Error
from .rest import VERB_TIMEOUT_S, Client, Document, Refused

METHOD_NOT_ALLOWED = 405

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3


def _parameters(words: Sequence[str]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is no parameter: write name=value")
        before = parameters.get(name)
        parameters[name] = value if before is None else [*(before if isinstance(before, list) else [before]), value]
    return parameters


def _run(client: Client, what: str, words: Sequence[str]) -> None:
    if what == "events":
        for event in client.events():
            print(json.dumps(event), flush=True)
        return
    if what in ("get", "post"):
        if not words or not words[0].startswith("/"):
            raise ValueError(f"{what} wants a path: {what} /v1/kvplane/instances")
        path, words = words[0], words[1:]
    else:
        path = f"/{what}"
    document = _asked(client, what, path, _parameters(words))
    text = document.get("answer")
    print(text if isinstance(text, str) else json.dumps(document, indent=2), flush=True)


def _asked(client: Client, what: str, path: str, parameters: dict[str, Any]) -> Document:
    if what != "get":
        try:
            return client._asked("POST", path, parameters, None, VERB_TIMEOUT_S)
        except Refused as error:  # is_sleeping and its like: nothing has happened
            if what == "post" or error.status != METHOD_NOT_ALLOWED:
                raise
    return client._asked("GET", path, parameters, None, VERB_TIMEOUT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 refused or failed, 2 wrong usage, 3 the daemon was not reached."""
    parser = argparse.ArgumentParser(prog="python3 -m kvplane", description="Asks a kvplane daemon.",
                                     epilog="$KVPLANE_TOKEN: a token, where the daemon wants one. $SSL_CERT_FILE: whom to trust, "
                                     "of https. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reached.")
    parser.add_argument("--version", action="version", version=f"kvplane {__version__} (Python)")
    parser.add_argument("--url", help="http://HOST:PORT, https://HOST:PORT or unix:///PATH ($KVPLANE_URL, else http://127.0.0.1:8100)")
    parser.add_argument("what", help="a verb (sleep, wake_up, pause, resume, reset_prefix_cache, …), get PATH, post PATH, or events")
    parser.add_argument("parameter", nargs="*", help="name=value; repeat a name for a list")
    options = parser.parse_args(arguments)
    try:
        with Client(options.url) as client:
            _run(client, options.what, options.parameter)
    except Refused as error:
        print(f"kvplane: {error}", file=sys.stderr)
        return EXIT_FAILED
    except ValueError as error:
        print(f"kvplane: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:  # who read it has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Error, TimeoutError) as error:
        print(f"kvplane: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
