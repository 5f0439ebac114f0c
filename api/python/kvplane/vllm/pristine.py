# SPDX-License-Identifier: Apache-2.0
"""
Whether the weights of an engine are still those it was started with.

Its scheduler knows: vLLM resets the connector's cache wherever weights may change. Its workers are other processes
and are asked for a fingerprint of their weights at any time. So the scheduler listens at an abstract socket for as
long as no reset has come, and who gets no connection does not vouch. The kernel closes it with the process.
"""

from __future__ import annotations

import hashlib
import socket

from .settings import Settings


def _address(settings: Settings) -> str:
    name = f"{settings.engine_id}/{settings.instance}/{settings.socket}"
    return "\0kvplane-vllm-" + hashlib.sha256(name.encode()).hexdigest()[:32]


class Pristine:
    def __init__(self, settings: Settings) -> None:
        self._socket: socket.socket | None = None
        if settings.weights_version is None or not settings.engine_id:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listening.bind(_address(settings))
            listening.listen(1024)
        except OSError:  # somebody else's: then it says nothing about us
            listening.close()
            return
        self._socket = listening

    def end(self) -> None:
        """For good. When this returns nobody vouches any more, whoever has inherited the socket."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None


def is_pristine(settings: Settings) -> bool:
    if not settings.engine_id:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as asking:
        return asking.connect_ex(_address(settings)) == 0
