# SPDX-License-Identifier: Apache-2.0
"""What the connector takes from vLLM. Where that is not installed, stand-ins: the package can be imported,
typed and read, but no connector runs."""

from __future__ import annotations

import dataclasses
import enum
import importlib
from typing import Any

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"


def find(module: str, name: str) -> Any:
    """None where this vLLM has no such thing, or there is no vLLM."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def fields(kind: Any) -> set[str]:
    """Of a dataclass, or of what vLLM's messages are made of."""
    if dataclasses.is_dataclass(kind):
        return {one.name for one in dataclasses.fields(kind)}
    return set(getattr(kind, "__struct_fields__", None) or dir(kind))


class _Base:
    """KVConnectorBase_V1, as far as what is here calls it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._connector_metadata: Any = None

    def _get_connector_metadata(self) -> Any:
        return self._connector_metadata


class _Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class _Mixin:
    pass


INSTALLED = find(V1 + ".base", "KVConnectorBase_V1") is not None
Base: Any = find(V1 + ".base", "KVConnectorBase_V1") or _Base
Role: Any = find(V1 + ".base", "KVConnectorRole") or _Role
Metadata: Any = find(V1 + ".base", "KVConnectorMetadata") or type("KVConnectorMetadata", (), {})
Handshake: Any = find(V1 + ".base", "KVConnectorHandshakeMetadata") or type("KVConnectorHandshakeMetadata", (), {})
TransferResults: Any = find(V1 + ".base", "KVConnectorTransferResults")
"""None before the results of several KV groups were reported by request."""
HybridMixin: Any = (find(V1 + ".base", "SupportsHMA") if TransferResults is not None else None) or _Mixin
"""Without it vLLM makes one KV group of all: a failed block could not be told of otherwise."""
StatsBase: Any = find(V1 + ".metrics", "KVConnectorStats")
