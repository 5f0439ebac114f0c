# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side tells the workers' side with each step, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import link
from . import _base

WorkerMeta: Any = _base.find(_base.V1 + ".base", "KVConnectorWorkerMetadata") or object


@dataclass(frozen=True)
class Block:
    group: int
    key: bytes
    """vLLM's hash of the prefix that ends with it."""
    placement: bytes
    block_id: int


@dataclass(frozen=True)
class Load:
    req_id: str
    number: int
    """Under which the lookup holds what it found."""
    token: link.Token
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Save:
    req_id: str
    token: link.Token
    """Of the stay in which the oldest of what these blocks derive from was computed."""
    blocks: tuple[Block, ...]


@dataclass
class StepMetadata(_base.Metadata):  # type: ignore[misc]
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    preempted: set[str] = field(default_factory=set)
    """Requests whose blocks may be written by others in this step."""


@dataclass(frozen=True)
class ShapeHandshake(_base.Handshake):  # type: ignore[misc]
    tag: bytes


@dataclass
class StoredBlocks(WorkerMeta):  # type: ignore[misc]
    """Hashes of blocks whose put has ended well, and on how many ranks."""
    stored: dict[tuple[int, bytes], int] = field(default_factory=dict)

    def aggregate(self, other: "StoredBlocks") -> "StoredBlocks":
        for key, ranks in other.stored.items():
            self.stored[key] = self.stored.get(key, 0) + ranks
        return self
