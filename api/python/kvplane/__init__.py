# SPDX-License-Identifier: Apache-2.0
"""
kvplane from Python: `Client` and `AsyncClient` for the REST interface, `kvplane.link` for an engine that
shares its KV blocks. No third-party packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import Error

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncOperation
    from .rest import Answer, Client, Document, Operation, OperationFailed, Refused, Unreachable

__version__ = "0.1.0"
__all__ = ["Answer", "AsyncClient", "AsyncOperation", "Client", "Document", "Error", "Operation", "OperationFailed",
           "Refused", "Unreachable"]


def __getattr__(name: str) -> Any:
    """HTTP and asyncio are loaded by who uses them: every process of an engine would pay for them at its start."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(".aio" if name.startswith("Async") else ".rest", __name__)
    return getattr(module, name)
