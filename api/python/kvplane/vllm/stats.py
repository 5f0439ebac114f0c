# SPDX-License-Identifier: Apache-2.0
"""What the connector counts, as vLLM logs it and shows it."""

from __future__ import annotations

from typing import Any

from . import _base

COUNTERS = ("lookups", "lookup_hits_blocks", "lookup_failures", "put_blocks", "put_bytes", "put_failed_blocks", "put_fenced_blocks",
            "get_blocks", "get_bytes", "get_failed_blocks", "resets", "reset_failures")

_StatsBase: Any = _base.StatsBase or object


class KvplaneStats(_StatsBase):  # type: ignore[misc]
    """Sums since they were read last; `data` alone travels between processes."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data: dict[str, Any] = dict(data or {})

    def add(self, name: str, n: int = 1) -> None:
        self.data[name] = self.data.get(name, 0) + n

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: Any) -> "KvplaneStats":
        for name, n in other.data.items():
            self.add(name, n)
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: self.data[name] for name in COUNTERS if self.data.get(name)}

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def taken(self) -> "KvplaneStats | None":
        """What there was, which is 0 from now on; None if that is nothing."""
        if self.is_empty():
            return None
        was = KvplaneStats(self.data)
        self.reset()
        return was
