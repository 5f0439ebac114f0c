# SPDX-License-Identifier: Apache-2.0
"""
kvplane from Python: `Client` and `AsyncClient` for the REST interface, `kvplane.link` for an engine that
shares its KV blocks. No third-party packages.
"""

from .aio import AsyncClient, AsyncOperation
from .rest import Answer, Client, Document, Error, Operation, OperationFailed, Refused, Unreachable

__version__ = "0.1.0"
__all__ = ["Answer", "AsyncClient", "AsyncOperation", "Client", "Document", "Error", "Operation", "OperationFailed",
           "Refused", "Unreachable"]
