# SPDX-License-Identifier: Apache-2.0
"""A session with the daemon on a thread of its own: vLLM's threads post to it and never wait for a network."""

from __future__ import annotations

import collections
import logging
import os
import select
import threading
import time
from typing import Any, Callable, Mapping, Sequence

from .. import link

log = logging.getLogger("kvplane.vllm")

RETRY_S = 2.0
"""Between two tries of a daemon that refuses."""


class Pump(link.Engine):
    """
    Owns the session. `post` runs something on its thread; nothing else touches the session. Of what the daemon
    asks of an engine it does nothing: who starts and stops this engine is vLLM, over its own interface.
    """

    def __init__(self, name: str, options: Mapping[str, Any], *, fingerprint: Callable[[], str | None] | None = None,
                 on_attached: Callable[[link.Session], None] = lambda session: None,
                 on_disconnected: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = False
        self._retry_at: float | None = None
        self._fingerprint = fingerprint
        self.token = link.Token()
        self.shares_as = ""
        """Name of the weights in whose lineage it is, as the daemon has told since it attached; "": in one of its own, or none."""
        self._on_attached = on_attached
        self.on_disconnected = on_disconnected
        if fingerprint is not None:
            self.fingerprint = self._tell_fingerprint
        try:
            self.session = link.Session(self, **options)
        except BaseException:
            os.close(self._wake_r)
            os.close(self._wake_w)
            raise
        self._thread = threading.Thread(target=self._run, name=f"kvplane-{name}", daemon=True)
        self._thread.start()

    # ---- from vLLM's threads

    def post(self, job: Callable[[], None]) -> None:
        """`job` runs soon on the session's thread; after close() never."""
        self._jobs.append(job)
        try:
            os.write(self._wake_w, b"\0")
        except (BlockingIOError, OSError):
            pass  # it is awake, or gone

    def close(self, timeout_s: float = 5.0) -> None:
        """Lets gets complete, as long as that takes not too long: the daemon writes into their memory."""
        if self._closing:
            return
        end = time.monotonic() + timeout_s
        self._closing = True
        self.post(lambda: None)
        self._thread.join(max(0.0, end - time.monotonic()) + 1.0)

    # ---- its thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self.session.fileno(), select.POLLIN)
        deadline: float | None = None
        while True:
            poll.poll(self._poll_ms(deadline))
            try:
                while os.read(self._wake_r, 4096):
                    pass
            except BlockingIOError:
                pass
            while self._jobs:
                self._guard(self._jobs.popleft())
            self._guard(self._process)
            self.token = self.session.token()
            if self._closing:
                deadline = deadline or time.monotonic() + 5.0
                if self.session.pending() == 0 or not self.session.attached() or time.monotonic() > deadline:
                    break
        self._guard(self.session.close)
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _poll_ms(self, deadline: float | None) -> int | None:
        ends = [end for end in (deadline, self._retry_at) if end is not None]
        return None if not ends else max(0, int((min(ends) - time.monotonic()) * 1000) + 1)

    def _process(self) -> None:
        self.session.process()
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            self._retry_at = None
            self.session.reattach()
            self.session.process()

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane %s: an error inside, which costs hits and no more", self.name)

    # ---- what the daemon asks

    def state(self) -> link.State:
        return link.State()

    def attached(self, result: int) -> None:
        if result == link.Result.OK:
            log.info("kvplane %s: attached", self.name)
            self._on_attached(self.session)
            return
        log.warning("kvplane %s: the daemon does not take this engine: %s", self.name, self.session.last_error())
        self._retry_at = time.monotonic() + RETRY_S

    def disconnected(self, reason: int) -> None:
        log.info("kvplane %s: no daemon (%s); serving without a store", self.name, self.session.strerror(reason))
        self.shares_as = ""
        self.on_disconnected()
        self.session.reattach()

    def lineage(self, left: bool, name: str) -> None:
        self.token = self.session.token()
        self.shares_as = name  # after the token: who reads this may go by it
        log.info("kvplane %s: %s", self.name, "left its lineage" if left else f"shares as {name or 'itself'}")

    def reset_local(self, call: link.Call, preempt: bool) -> None:
        call.answer_reset(link.Result.UNSUPPORTED)

    def _tell_fingerprint(self, call: link.Call) -> None:
        text = self._fingerprint() if self._fingerprint is not None else None
        if text is None:
            call.answer(link.Result.UNSUPPORTED)
        else:
            call.answer_text(text)


def result_text(results: Sequence[int]) -> str:
    """The failures in words, each once."""
    return ", ".join(sorted({link.Result(one).name if one in link.Result._value2member_map_ else str(one) for one in results}))
