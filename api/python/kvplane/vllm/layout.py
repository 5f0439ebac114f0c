# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a block lie in the tensors of its layers."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import math
import mmap
import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from .. import link
from .settings import Group, UnsupportedModel

F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK = 1033, 1034, 2
PAGE = mmap.PAGESIZE
SLICES_MAX = 256
"""Of one block, in a put or a get."""


@dataclass(frozen=True)
class Span:
    """Bytes of one block in one layer: `base + block * step`, in the storage of that number."""
    storage: int
    base: int
    step: int
    length: int


@dataclass(frozen=True)
class Storage:
    address: int
    length: int
    tensor: Any
    """One of those that lie in it."""


def storage_of(tensor: Any) -> tuple[int, int]:
    """Address and length in bytes of all that the tensor's memory is part of."""
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return int(storage.data_ptr()), int(storage.nbytes())


class Shape:
    """Of all layers: spans of a block, by KV group, and a tag of the order of bytes within it."""

    def __init__(self, kv_caches: Mapping[str, Any], groups: Sequence[Group], num_blocks: int) -> None:
        self.storages: list[Storage] = []
        self.spans: dict[int, list[Span]] = {}
        orders: list[Any] = []
        for group in groups:
            spans: list[Span] = []
            for layer in group.layers:
                tensor = kv_caches.get(layer)
                if tensor is None:
                    continue  # of another pipeline stage, or one that shares its cache with another layer
                if isinstance(tensor, (list, tuple)):
                    raise UnsupportedModel(f"the KV cache of {layer} is of several tensors")
                made, order = self._layer(layer, tensor, num_blocks)
                spans += made
                orders.append((group.index, order))
            if not spans:
                raise UnsupportedModel(f"no layer of KV group {group.index} has a tensor here")
            self.spans[group.index] = spans
        self.tag = hashlib.sha256(repr(sorted(set(orders))).encode()).digest()[:8]

    def block_bytes(self, group: int) -> int:
        return sum(span.length for span in self.spans[group])

    def _storage(self, tensor: Any) -> int:
        address, length = storage_of(tensor)
        for number, one in enumerate(self.storages):
            if one.address == address:
                if length > one.length:
                    self.storages[number] = Storage(address, length, tensor)
                return number
        self.storages.append(Storage(address, length, tensor))
        return len(self.storages) - 1

    def _layer(self, name: str, tensor: Any, num_blocks: int) -> tuple[list[Span], Any]:
        """The dimension of blocks may be the first or lie within others ((2, blocks, …)), and may hold several
        rows for one block (a kernel's smaller blocks); inside a block there may be no gaps."""
        sizes, steps, width = [int(n) for n in tensor.shape], [int(n) for n in tensor.stride()], int(tensor.element_size())
        at = next((i for i, n in enumerate(sizes) if n == num_blocks),
                  next((i for i, n in enumerate(sizes) if n >= num_blocks and n % num_blocks == 0), None))
        if at is None:
            raise UnsupportedModel(f"the KV cache of {name}, {tuple(sizes)}, has no dimension of {num_blocks} blocks")
        rows, step = sizes[at] // num_blocks, steps[at]
        inner = [i for i in range(len(sizes)) if i != at and sizes[i] > 1 and steps[i] < step]
        outer = [i for i in range(len(sizes)) if i != at and sizes[i] > 1 and steps[i] >= step]
        if math.prod(sizes[i] for i in inner) != step or 1 + sum((sizes[i] - 1) * steps[i] for i in inner) != step:
            raise UnsupportedModel(f"the KV cache of {name}, {tuple(sizes)} with strides {tuple(steps)}, has gaps in its blocks")
        storage = self._storage(tensor)
        first = int(tensor.data_ptr()) - self.storages[storage].address
        bases = [0]
        for i in outer:
            bases = [base + index * steps[i] for base in bases for index in range(sizes[i])]
        spans = [Span(storage, first + base * width, rows * step * width, rows * step * width) for base in bases]
        # How dimensions follow each other in a block, outermost first. Keys and values apart are one dimension more
        # in either place: (2, blocks, …) and (blocks, 2, …) are the same bytes.
        order = tuple((i if i < at else i - 1, sizes[i]) for i in outer + sorted(inner, key=lambda i: -steps[i]))
        return spans, (width, rows, order)


class Direct:
    """The tensors' own memory, where it is a memfd's that the daemon can be given: nothing is copied here."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.regions: list[tuple[int, int, int, int]] = []  # descriptor, offset in it, length, where the storage begins in it
        try:
            for one in shape.storages:
                self.regions.append(_share(one))
            for group, spans in shape.spans.items():
                if len(spans) > SLICES_MAX:
                    raise UnsupportedModel(f"a block of KV group {group} has {len(spans)} pieces, more than {SLICES_MAX}")
        except BaseException:
            self.close()
            raise

    def slices(self, group: int, block: int) -> list[link.Slice]:
        return [link.Slice(span.storage, self.regions[span.storage][3] + span.base + block * span.step, span.length)
                for span in self.shape.spans[group]]

    def register(self, session: link.Session, generation: int, done: Any) -> None:
        for number, (fd, offset, length, _) in enumerate(self.regions):
            session.register_region(number, fd, length, offset=offset, generation=generation, done=done)

    def close(self) -> None:
        for fd, *_ in self.regions:
            os.close(fd)
        self.regions = []


def _share(storage: Storage) -> tuple[int, int, int, int]:
    """A descriptor of its own of the memfd that backs this memory. UnsupportedModel: there is none."""
    start, offset, inode = _mapping(storage.address, storage.length)
    skip = storage.address - start
    begin = (offset + skip) // PAGE * PAGE
    into = offset + skip - begin
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.stat(int(name)).st_ino != inode or not os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:"):
                continue
            fd = os.dup(int(name))
        except OSError:
            continue
        try:
            if not fcntl.fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK:
                fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
        except OSError as error:
            os.close(fd)
            raise UnsupportedModel(f"the memory's memfd cannot be sealed against shrinking: {error}") from error
        return fd, begin, into + storage.length, into
    raise UnsupportedModel("no descriptor of the memory is open in this process")


def _mapping(address: int, length: int) -> tuple[int, int, int]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            start, end = (int(word, 16) for word in words[0].split("-"))
            if start <= address < end:
                if len(words) < 6 or not words[5].startswith("/memfd:") or address + length > end or "s" not in words[1]:
                    break
                return start, int(words[2], 16), int(words[4])
    raise UnsupportedModel("the KV cache does not lie in a memfd")


class Staged:
    """Memory of the connector's own, which the daemon is given, in slots of one block: what is put is copied there
    first, what is got from there. For memory that cannot be handed over, which that of a GPU is not."""

    def __init__(self, shape: Shape, length: int) -> None:
        self.shape = shape
        self.slot_bytes = -(-max(shape.block_bytes(group) for group in shape.spans) // 64) * 64
        self.count = length // self.slot_bytes
        if self.count < 2:
            raise ValueError(f"kv_connector_extra_config.staging_bytes: a block has {self.slot_bytes} bytes, and room for two is needed")
        self.length = -(-self.count * self.slot_bytes // PAGE) * PAGE
        self.fd = os.memfd_create("kvplane-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.length)
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK)
        self.map = mmap.mmap(self.fd, self.length)
        self.free = list(range(self.count))
        self._here = _bytes_here(self.map, self.length, shape)
        self._there = [_bytes_of(one) for one in shape.storages]

    def slices(self, group: int, slot: int) -> list[link.Slice]:
        return [link.Slice(0, slot * self.slot_bytes, self.shape.block_bytes(group))]

    def copy(self, group: int, slot: int, block: int, *, out: bool) -> None:
        """Out of the cache into the slot, or back. On the current stream, where there is one."""
        at = slot * self.slot_bytes
        for span in self.shape.spans[group]:
            there = span.base + block * span.step
            mine = self._here[at:at + span.length]
            theirs = self._there[span.storage][there:there + span.length]
            if hasattr(mine, "copy_"):
                (mine.copy_(theirs, non_blocking=True) if out else theirs.copy_(mine, non_blocking=True))
            elif out:
                mine[:] = theirs
            else:
                theirs[:] = mine
            at += span.length

    def register(self, session: link.Session, generation: int, done: Any) -> None:
        session.register_region(0, self.fd, self.length, generation=generation, tag="staging", host_resident=True, done=done)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _bytes_here(mapped: mmap.mmap, length: int, shape: Shape) -> Any:
    if not hasattr(shape.storages[0].tensor, "is_contiguous"):
        return memoryview(mapped)
    import torch  # there are tensors, so it is here

    made = torch.frombuffer(mapped, dtype=torch.uint8, count=length)
    if shape.storages[0].tensor.device.type == "cuda":
        # Pinned, copies run beside the engine; if that is refused they are only slower.
        torch.cuda.cudart().cudaHostRegister(made.data_ptr(), length, 0)
    return made


def _bytes_of(storage: Storage) -> Any:
    tensor = storage.tensor
    if not hasattr(tensor, "is_contiguous"):
        return memoryview((ctypes.c_char * storage.length).from_address(storage.address)).cast("B")
    import torch

    untyped = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(untyped)
