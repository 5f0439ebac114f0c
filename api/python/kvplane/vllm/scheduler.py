# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: which blocks a request finds in the store, and which of its own it saves."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Sequence

from .. import link
from . import _base
from .pristine import Pristine
from .pump import Pump, result_text
from .settings import Settings
from .stats import KvplaneStats
from .transfers import Block, Load, Save, ShapeHandshake, StepMetadata, StoredBlocks

log = logging.getLogger("kvplane.vllm")

KEYS_MAX = 4096
EVENTS_MAX = 1 << 17
"""Blocks that are remembered so that a KV event tells of each once. What is forgotten is told of again, or by no event."""
NULL_BLOCK = 0
"""vLLM's block that stands for no block."""
NO_TOKEN = link.Token()


@dataclass
class _Lookup:
    number: int
    start: int
    """Token from which on was asked."""
    asked_at: float
    hits: int | None = None
    """Tokens from the start on; None: not answered yet."""


@dataclass
class _Tracked:
    """A request from the moment it starts computing, which after a preemption it does anew."""
    request: Any
    token: link.Token
    lookup: _Lookup | None = None
    local: int = 0
    """Tokens that vLLM's own prefix cache had."""
    blocks: list[list[int]] = field(default_factory=list)
    oldest: link.Token | None = None
    """The stay in which what it derives from was computed, as soon as that is known."""
    saved: list[int] = field(default_factory=list)
    scheduled: bool = False


class Scheduler:
    def __init__(self, settings: Settings, *, events: bool = False) -> None:
        self._settings = settings
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[Load] = []
        self._preempted: set[str] = set()
        self._unlucky: set[str] = set()  # whose load failed: they compute
        self._loading: dict[str, set[int]] = {}  # blocks that a request waits for
        self._saved: set[str] = set()  # requests of which anything was saved
        self._sending: set[str] = set()  # finished ones whose blocks the workers may still read
        self._block_tokens: dict[int, link.Token] = {}  # per block of the cache: the stay in which it was computed
        self._numbers = itertools.count(1)
        self._stats = KvplaneStats()
        self._tags: dict[int, bytes] = {}
        self._align = math.lcm(*(group.block_tokens for group in settings.groups))
        self._events = events
        self._stored: dict[tuple[int, bytes], int] = {}
        self._told: dict[tuple[int, bytes], None] = {}  # by age
        self._new_events: list[Any] = []
        self._pristine = Pristine(settings)
        self._pump = Pump(f"{settings.instance}/scheduler", {**settings.link_options(), "roles": link.Role.SCHEDULER, "rank": 0,
                                                             "queue_max": 16384})

    def take_handshake(self, metadata: Mapping[int, Any]) -> None:
        self._tags = {rank: one.tag for rank, one in metadata.items() if isinstance(one, ShapeHandshake)}
        if len(set(self._tags.values())) > 1:
            log.error("kvplane: ranks keep their blocks in different orders: nothing is looked up")

    def _tag(self) -> bytes | None:
        tags = set(self._tags.values())
        return tags.pop() if len(tags) == 1 else None

    # ---- a request that starts

    def matched(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens beyond those computed here; None: ask again."""
        try:
            return self._matched(request, num_computed_tokens)
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: request %s is not looked up", request.request_id)
            self._forget(request.request_id)
            return 0, False

    def _forget(self, req_id: str) -> None:
        """It computes, and nothing of it is saved."""
        tracked = self._tracked.pop(req_id, None)
        if tracked is not None and tracked.lookup is not None:
            self._discard(tracked.lookup)

    def _matched(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.scheduled:
            tracked = self._start(request)
        tracked.local = num_computed_tokens
        lookup = tracked.lookup
        if lookup is not None and lookup.start != self._aligned(num_computed_tokens):
            self._discard(lookup)
            lookup = tracked.lookup = None
        if lookup is None:
            lookup = tracked.lookup = self._look_up(tracked, num_computed_tokens)
            if lookup is None:
                return 0, False
            if not self._settings.lookup_async:
                self._await(lookup)
        if lookup.hits is None:
            if time.monotonic() < lookup.asked_at + self._settings.lookup_timeout_s:
                return None, False
            self._stats.add("lookup_failures")
            lookup.hits = 0
        found = lookup.start + lookup.hits - num_computed_tokens
        return (found, True) if found > 0 else (0, False)

    def _start(self, request: Any) -> _Tracked:
        before = self._tracked.get(request.request_id)
        if before is not None:
            self._preempted.add(request.request_id)
            if before.lookup is not None:
                self._discard(before.lookup)
        tracked = self._tracked[request.request_id] = _Tracked(request, self._pump.token)
        return tracked

    def _aligned(self, tokens: int) -> int:
        return tokens // self._align * self._align

    def _keys(self, request: Any, group: Any, first: int, end: int) -> list[tuple[bytes, bytes]]:
        """Hash and placement of blocks of a group; fewer, where vLLM has no hash yet."""
        hashes = request.block_hashes
        if len(hashes) > request.num_tokens // self._settings.hash_tokens:
            raise ValueError(f"vLLM hashes less than {self._settings.hash_tokens} tokens at a time: its hashes name other blocks")
        per_block = group.block_tokens // self._settings.hash_tokens
        made = []
        for block in range(first, min(end, len(hashes) // per_block)):
            place = self._pump.session.placement(block, group.block_tokens)
            made.append((_key(hashes[(block + 1) * per_block - 1]), _key(hashes[(place + 1) * per_block - 1])))
        return made

    def _look_up(self, tracked: _Tracked, num_computed_tokens: int) -> _Lookup | None:
        request, tag = tracked.request, self._tag()
        start = self._aligned(num_computed_tokens)
        # One token at least is computed: without that there is no next one.
        end = self._aligned(request.num_tokens - 1)
        end = min(end, start + KEYS_MAX * min(group.block_tokens for group in self._settings.groups) // self._align * self._align)
        if (not self._settings.enable_lookup or not self._settings.gets or tag is None or tracked.token == NO_TOKEN
                or start >= end or request.request_id in self._unlucky or getattr(request, "skip_reading_prefix_cache", False)):
            return None
        groups = []
        for group in self._settings.groups:
            keys = self._keys(request, group, start // group.block_tokens, end // group.block_tokens)
            groups.append(link.Keys([tag + key for key, _ in keys], [tag + place for _, place in keys], group.index))
        if not all(group.keys for group in groups):
            return None
        lookup = _Lookup(next(self._numbers), start, time.monotonic())
        first = self._settings.groups[0].block_tokens

        def answered(result: int, hits: Sequence[int]) -> None:
            if result not in (link.Result.OK, link.Result.FENCED, link.Result.CLOSED):
                log.debug("kvplane: a lookup failed: %s", result_text([result]))
                self._stats.add("lookup_failures")
            self._stats.add("lookup_hits_blocks", hits[0] if hits else 0)
            lookup.hits = hits[0] * first if hits else 0

        def ask() -> None:
            try:
                self._pump.session.lookup(lookup.number, tracked.token, groups, answered)
            except link.LinkError as error:
                answered(error.result, [])

        self._stats.add("lookups")
        self._pump.post(ask)
        return lookup

    def _await(self, lookup: _Lookup) -> None:
        end = time.monotonic() + self._settings.lookup_timeout_s
        while lookup.hits is None and time.monotonic() < end:
            time.sleep(0.0005)

    def _discard(self, lookup: _Lookup) -> None:
        def discard() -> None:
            try:
                self._pump.session.discard(lookup.number)
            except link.LinkError:
                pass  # what is held ends with its bound

        self._pump.post(discard)

    # ---- its blocks

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.scheduled or request.request_id in self._loading:
            return
        lookup, tracked.lookup = tracked.lookup, None
        if lookup is None:
            return
        if num_external_tokens <= 0:
            self._discard(lookup)
            return
        ids = [list(group) for group in blocks.get_block_ids()]
        end = tracked.local + num_external_tokens
        try:
            self._inherit(tracked, ids)
            load = Load(request.request_id, lookup.number, tracked.token, tuple(self._wanted(tracked, ids, end)))
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: request %s is not loaded", request.request_id)
            self._discard(lookup)
            # vLLM waits for it: a load that every daemon refuses.
            load = Load(request.request_id, lookup.number, NO_TOKEN, tuple(
                Block(group.index, b"", b"", block) for group in self._settings.groups
                for block in ids[group.index][tracked.local // group.block_tokens:] if block != NULL_BLOCK))
        self._loading[request.request_id] = {block.block_id for block in load.blocks}
        self._loads.append(load)

    def _wanted(self, tracked: _Tracked, ids: Sequence[Sequence[int]], end: int) -> Iterable[Block]:
        for group in self._settings.groups:
            size = group.block_tokens
            first = tracked.local // size
            mine, keys = ids[group.index], self._keys(tracked.request, group, first, end // size)
            if len(keys) < end // size - first:
                raise ValueError("blocks were found that have no hash any more")
            for at, (key, place) in enumerate(keys, start=first):
                if at < len(mine) and mine[at] != NULL_BLOCK:
                    self._block_tokens[mine[at]] = tracked.token
                    yield Block(group.index, key, place, mine[at])

    def _inherit(self, tracked: _Tracked, ids: Sequence[Sequence[int]]) -> None:
        """What it computes derives from blocks that were cached here: their stay counts, if it was another one."""
        tracked.oldest = tracked.token
        for group in self._settings.groups:
            for block in ids[group.index][:tracked.local // group.block_tokens]:
                if block != NULL_BLOCK and self._block_tokens.get(block, NO_TOKEN) != tracked.token:
                    tracked.oldest = self._block_tokens.get(block, NO_TOKEN)

    # ---- a step

    def build(self, output: Any) -> StepMetadata:
        metadata = StepMetadata(loads=self._loads, preempted=self._preempted)
        self._loads, self._preempted = [], set()
        try:
            self._note_preempted(output, metadata)
            self._note_scheduled(output, metadata)
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: a step is not understood: what it computes, or has computed, is not saved")
            self._tracked.clear()
            self._block_tokens.clear()
        return metadata

    def _note_preempted(self, output: Any, metadata: StepMetadata) -> None:
        """vLLM does not tell of those that a reset has preempted: they have computed, and nothing is computed of them."""
        metadata.preempted |= set(getattr(output, "preempted_req_ids", None) or ())
        metadata.preempted |= {req_id for req_id, tracked in self._tracked.items() if _is_preempted(tracked)}
        self._saved -= metadata.preempted  # what of them was put is over when the step begins

    def _note_scheduled(self, output: Any, metadata: StepMetadata) -> None:
        for new in output.scheduled_new_reqs:
            self._scheduled(new.req_id, new.block_ids, int(new.num_computed_tokens), output, metadata, replace=True)
        cached = output.scheduled_cached_reqs
        for at, req_id in enumerate(cached.req_ids):
            resumed = _resumed(cached, at, req_id)
            if resumed:
                metadata.preempted.add(req_id)
                self._saved.discard(req_id)
            self._scheduled(req_id, cached.new_block_ids[at], int(cached.num_computed_tokens[at]), output, metadata, replace=resumed)

    def _scheduled(self, req_id: str, block_ids: Sequence[Sequence[int]] | None, computed: int, output: Any,
                   metadata: StepMetadata, *, replace: bool) -> None:
        try:
            self._note_step(req_id, block_ids, computed, output, metadata, replace=replace)
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: request %s is not saved", req_id)
            self._forget(req_id)
            self._note_step(req_id, block_ids, computed, output, metadata, replace=replace)  # as one that nothing is known of

    def _note_step(self, req_id: str, block_ids: Sequence[Sequence[int]] | None, computed: int, output: Any,
                   metadata: StepMetadata, *, replace: bool) -> None:
        tracked = self._tracked.get(req_id)
        if tracked is None:
            for group_ids in block_ids or ():
                for block in group_ids:
                    self._block_tokens.pop(block, None)  # computed by whom we know nothing of
            return
        if replace:
            tracked.blocks = [list(group_ids) for group_ids in block_ids or ()]
            self._inherit(tracked, tracked.blocks)
            tracked.saved = [computed // group.block_tokens for group in self._settings.groups]
        elif block_ids is not None:
            for mine, more in zip(tracked.blocks, block_ids):
                mine.extend(more)
        if not tracked.blocks:
            return
        tracked.scheduled = True
        self._mark(tracked, block_ids or (), replace)
        drafts = len((getattr(output, "scheduled_spec_decode_tokens", None) or {}).get(req_id, ()))
        end = computed + max(0, int(output.num_scheduled_tokens.get(req_id, 0)) - drafts)
        if not self._settings.save_decode_cache:
            end = min(end, int(tracked.request.num_prompt_tokens))
        self._save(req_id, tracked, end, metadata)

    def _mark(self, tracked: _Tracked, block_ids: Sequence[Sequence[int]], replace: bool) -> None:
        """Blocks that it writes are of its stay, or of what it derives from."""
        for group in self._settings.groups:
            if group.index < len(block_ids):
                skip = tracked.local // group.block_tokens if replace else 0
                for block in block_ids[group.index][skip:]:
                    if block != NULL_BLOCK:
                        self._block_tokens[block] = tracked.oldest or NO_TOKEN

    def _save(self, req_id: str, tracked: _Tracked, end: int, metadata: StepMetadata) -> None:
        if not self._settings.puts or self._tag() is None:
            return
        blocks: list[Block] = []
        for at, group in enumerate(self._settings.groups):
            first, mine = tracked.saved[at], tracked.blocks[group.index]
            keys = self._keys(tracked.request, group, first, min(end // group.block_tokens, len(mine)))
            blocks += [Block(group.index, key, place, mine[block]) for block, (key, place) in enumerate(keys, start=first)
                       if mine[block] != NULL_BLOCK]
            tracked.saved[at] = max(first, first + len(keys))
        # Of an earlier stay it would be refused.
        if blocks and tracked.oldest is not None and tracked.oldest == self._pump.token != NO_TOKEN:
            self._saved.add(req_id)
            metadata.saves.append(Save(req_id, tracked.oldest, tuple(blocks)))

    # ---- what the workers have done

    def output(self, connector_output: Any) -> None:
        for req_id in connector_output.finished_sending or ():
            self._sending.discard(req_id)
        invalid = set(connector_output.invalid_block_ids or ())
        failed = set(getattr(connector_output, "failed_recving", None) or ())
        for req_id, blocks in self._loading.items():
            if req_id in failed or blocks & invalid:
                self._unlucky.add(req_id)
        for req_id in connector_output.finished_recving or ():
            self._loading.pop(req_id, None)
        meta = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(meta, StoredBlocks) and self._events:
            try:
                self._note_stored(meta)
            except Exception:  # pylint: disable=broad-exception-caught
                log.exception("kvplane: no KV event tells of blocks that were stored")

    def _note_stored(self, meta: StoredBlocks) -> None:
        for key, ranks in meta.stored.items():
            if key in self._told:
                continue
            self._stored[key] = self._stored.get(key, 0) + ranks
            if self._stored[key] >= self._settings.world_size:
                del self._stored[key]
                self._told[key] = None
                event = self._stored_event(*key)
                if event is not None:
                    self._new_events.append(event)
        _forget_oldest(self._told)
        _forget_oldest(self._stored)

    def _stored_event(self, index: int, key: bytes) -> Any:
        made = _base.find("vllm.distributed.kv_events", "BlockStored")
        if made is None:
            return None
        group = next(group for group in self._settings.groups if group.index == index)
        for tracked in self._tracked.values():
            hashes = tracked.request.block_hashes
            per_block = group.block_tokens // self._settings.hash_tokens
            for block in range(len(hashes) // per_block):
                if _key(hashes[(block + 1) * per_block - 1]) == key:
                    parent = _key(hashes[block * per_block - 1]) if block else None
                    tokens = list(tracked.request.all_token_ids)[block * group.block_tokens:(block + 1) * group.block_tokens]
                    lora = getattr(tracked.request, "lora_request", None)
                    told = {"block_hashes": [key], "parent_block_hash": parent, "token_ids": tokens, "block_size": group.block_tokens,
                            "lora_id": getattr(lora, "lora_int_id", None), "medium": "KVPLANE",
                            "lora_name": getattr(lora, "lora_name", None), "group_idx": index}
                    known = _base.fields(made)
                    return made(**{name: value for name, value in told.items() if name in known})
        return None

    def events(self) -> Iterable[Any]:
        events, self._new_events = self._new_events, []
        return events

    def pending(self) -> bool:
        """Puts of requests that have finished: vLLM keeps stepping until their blocks are free."""
        return bool(self._sending)

    def finished(self, request: Any) -> bool:
        """True: the workers may still read its blocks, and will say when not."""
        req_id = request.request_id
        tracked = self._tracked.get(req_id)
        if tracked is not None and _is_preempted(tracked):
            self._preempted.add(req_id)
        self._forget(req_id)
        self._unlucky.discard(req_id)
        if req_id in self._preempted:
            self._saved.discard(req_id)  # its blocks are others' already: the next step waits for the puts
        if req_id not in self._saved:
            return False
        self._saved.discard(req_id)
        self._sending.add(req_id)
        return True

    # ---- reset

    def reset(self) -> bool:
        """Leaves the lineage. True: nothing of before can come back, by any way."""
        self._pristine.end()
        self._stats.add("resets")
        for req_id, tracked in list(self._tracked.items()):
            if not tracked.scheduled and req_id not in self._loading:
                if tracked.lookup is not None:
                    self._discard(tracked.lookup)
                del self._tracked[req_id]  # it has computed nothing: it starts in the next stay
        over = threading.Event()
        results: list[int] = []

        def left(result: int) -> None:
            self._pump.token = self._pump.session.token()
            results.append(result)
            over.set()

        def leave() -> None:
            try:
                waits = self._pump.session.leave(left)
            except link.LinkError as error:  # one is on its way already
                self._pump.token = NO_TOKEN
                left(error.result)
                return
            self._pump.token = self._pump.session.token()
            if not waits:
                left(link.Result.OK)  # no daemon holds anything for us, and the next one hears of it

        self._pump.post(leave)
        if over.wait(self._settings.reset_timeout_s) and results[0] in (link.Result.OK, link.Result.DISCONNECTED):
            self._told.clear()
            self._stored.clear()
            if self._events:
                cleared = _base.find("vllm.distributed.kv_events", "AllBlocksCleared")
                self._new_events = [cleared()] if cleared is not None else []
            return True
        self._stats.add("reset_failures")
        log.warning("kvplane: the daemon did not acknowledge that this engine has left its lineage")
        return False

    def shares_as(self) -> str:
        return self._pump.shares_as

    def stats(self) -> KvplaneStats | None:
        return self._stats.taken()

    def close(self) -> None:
        self._pristine.end()
        self._pump.close()


def _forget_oldest(kept: dict[tuple[int, bytes], Any]) -> None:
    while len(kept) > EVENTS_MAX:
        del kept[next(iter(kept))]


def _key(hash_: Any) -> bytes:
    if not isinstance(hash_, bytes):
        raise TypeError(f"vLLM names blocks by {type(hash_).__name__} here: kvplane needs a version that does by bytes")
    return hash_


def _is_preempted(tracked: _Tracked) -> bool:
    return tracked.scheduled and getattr(tracked.request, "num_computed_tokens", 1) == 0


def _resumed(cached: Any, at: int, req_id: str) -> bool:
    if hasattr(cached, "resumed_req_ids"):
        return req_id in cached.resumed_req_ids
    return bool(cached.resumed_from_preemption[at])
