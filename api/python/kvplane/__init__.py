# SPDX-License-Identifier: Apache-2.0
"""
kvplane from Python: `Client` and `AsyncClient` for the REST interface, `kvplane.link` for an engine that
shares its KV blocks. No third-party packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .rest import Answer, Client, Document, Error, Operation, OperationFailed, Refused, Unreachable

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncOperation

__version__ = "0.1.0"
__all__ = ["Answer", "AsyncClient", "AsyncOperation", "Client", "Document", "Error", "Operation", "OperationFailed",
           "Refused", "Unreachable"]


def __getattr__(name: str) -> Any:
    """asyncio is loaded by who uses it: each process of an engine would pay for it at its start."""
    if name in ("AsyncClient", "AsyncOperation"):
        from . import aio

        return getattr(aio, name)
    raise AttributeError(name)
