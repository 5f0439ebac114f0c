# SPDX-License-Identifier: Apache-2.0
"""The worker's side: one rank's KV cache, and the puts and gets of its blocks."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Sequence

from .. import link
from .layout import Direct, Shape, Staged
from .pristine import is_pristine
from .pump import Pump, result_text
from .settings import Settings, UnsupportedModel
from .stats import KvplaneStats
from .transfers import Block, Load, Save, ShapeHandshake, StepMetadata, StoredBlocks

log = logging.getLogger("kvplane.vllm")

BATCH_SLICES = 64 << 10
BATCH_ENTRIES = 1024
TRANSFER_S = 135.0
"""A daemon ends a transfer within twice its `transfer-bound` of 60 s, whatever happens to it: as long it may wait, and run."""
STORED = (link.Result.OK, link.Result.EXISTS)


@dataclass(eq=False)
class _Loading:
    load: Load
    left: set[Block]
    since: float
    late: bool = False
    failed: list[int] = field(default_factory=list)


class Worker:
    def __init__(self, settings: Settings, num_blocks: int, record_event: Callable[[], Any] = lambda: None) -> None:
        self._settings = settings
        self._num_blocks = num_blocks
        self._event = record_event
        self._changed = threading.Condition()
        self._loading: dict[str, _Loading] = {}
        self._heard = time.monotonic()  # when the daemon last answered anything
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._failed_requests: set[str] = set()
        self._putting: dict[str, int] = {}
        self._saved: set[str] = set()  # requests that the scheduler knows to have saved something
        self._finished: set[str] = set()  # of those, which it waits for
        self._stored: dict[tuple[int, bytes], int] = {}
        self._stats = KvplaneStats()
        self._waiting: list[Callable[[], bool]] = []  # for slots; only the pump's thread
        self._generation = 0
        self._released = False
        self._detached: threading.Event | None = None
        self._regions_left = 0
        self._regions_failed = 0
        self._registered = threading.Event()
        self._memory: Direct | Staged | None = None
        self._shape: Shape | None = None
        self._pump: Pump | None = None

    # ---- the cache

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Raises for what can never work: at start, where a person sees it."""
        self._shape = Shape(kv_caches, self._settings.groups, self._num_blocks)
        self._memory = self._make_memory(self._shape)
        fingerprint = self._fingerprint if self._settings.weights_version is not None else None
        self._pump = Pump(f"{self._settings.instance}/{self._settings.rank}",
                          {**self._settings.link_options(), "roles": link.Role.WORKER, "queue_max": 4096}, fingerprint=fingerprint,
                          on_attached=self._hand_over, on_disconnected=self._let_go)

    def _make_memory(self, shape: Shape) -> Direct | Staged:
        if self._settings.memory == "staged":
            return Staged(shape, self._settings.staging_bytes)
        try:
            made = Direct(shape)
            log.info("kvplane: the KV cache lies in %d memfd(s) and is moved without a copy", len(made.regions))
            return made
        except UnsupportedModel as why:
            if self._settings.memory == "direct":
                raise
            log.info("kvplane: blocks are copied through %d bytes of host memory (%s)", self._settings.staging_bytes, why)
            return Staged(shape, self._settings.staging_bytes)

    def _fingerprint(self) -> str | None:
        """The version that the weights were loaded as names them for as long as nothing can have changed them."""
        return self._settings.weights_version if is_pristine(self._settings) else None

    def handshake(self) -> ShapeHandshake | None:
        return None if self._shape is None else ShapeHandshake(self._shape.tag)

    def _hand_over(self, session: link.Session) -> None:
        if self._released and isinstance(self._memory, Direct):
            return
        assert self._memory is not None
        self._generation += 1
        self._registered.clear()
        self._regions_left = len(self._memory.regions) if isinstance(self._memory, Direct) else 1
        self._regions_failed = 0
        self._memory.register(session, self._generation, self._on_region)

    def _on_region(self, result: int) -> None:
        if result != link.Result.OK:
            log.warning("kvplane: the daemon cannot use the KV cache's memory: %s", result_text([result]))
            self._regions_failed += 1
        self._regions_left -= 1
        if self._regions_left == 0:
            self._registered.set()

    def _let_go(self) -> None:
        """The daemon holds nothing of ours any more."""
        if self._detached is not None:
            self._released = True
            self._detached.set()
            self._detached = None

    # ---- around sleep

    def release(self) -> None:
        """Before the cache is unmapped. Raises, and then nothing was given up."""
        if self._pump is None or (self._released and self._detached is None):
            return
        end = time.monotonic() + self._settings.release_timeout_s
        if not self._idle(end):
            raise TimeoutError(f"kvplane: transfers were not over within {self._settings.release_timeout_s:g} s")
        if isinstance(self._memory, Direct):
            done = threading.Event()
            self._pump.post(lambda: self._detach(done))
            if not done.wait(max(TRANSFER_S, end - time.monotonic())):
                if not self._released:  # else nothing is to be kept, and what is awaited is awaited on
                    self._pump.post(self._keep)
                raise TimeoutError("kvplane: the daemon did not give up the KV cache's memory")
            self._memory.close()  # a descriptor keeps memory as well
        self._released = True

    def _detach(self, done: threading.Event) -> None:
        assert self._pump is not None
        self._detached = done
        try:
            self._pump.session.detach()
        except link.LinkError:  # not attached: it holds nothing
            self._let_go()

    def _keep(self) -> None:
        if self._detached is not None:  # it may still come: then it is handed over anew
            self._detached = None
        elif self._released:
            self._released = False
            self._hand_over_if_attached()

    def _hand_over_anew(self) -> None:
        self._detached = None  # a session that ends still gives up what is of before
        self._released = False
        self._hand_over_if_attached()

    def _hand_over_if_attached(self) -> None:
        if self._pump is not None and self._pump.session.attached():
            self._hand_over(self._pump.session)
        else:
            self._registered.set()

    def restore(self) -> None:
        """After it was mapped again, at the same addresses. Raises, and is then as before: it may be called again."""
        if not self._released or self._pump is None:
            return
        if isinstance(self._memory, Direct):
            assert self._shape is not None
            self._memory = Direct(self._shape)
            self._registered.clear()
            self._pump.post(self._hand_over_anew)
            if not self._registered.wait(self._settings.reset_timeout_s) or self._regions_failed:
                done = threading.Event()
                self._pump.post(lambda: self._detach(done))
                done.wait(self._settings.reset_timeout_s)
                self._released = True
                self._memory.close()
                raise RuntimeError("kvplane: the daemon did not take the KV cache's memory again")
        self._released = False

    def _idle(self, end: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._putting and not self._loading, max(0.0, end - time.monotonic()))

    # ---- a step

    def start_loads(self, metadata: StepMetadata) -> None:
        self.preempted(metadata.preempted)  # a runner may not have told of all of them
        event = self._event() if metadata.loads else None
        for load in metadata.loads:
            loading = _Loading(load, set(load.blocks), time.monotonic())
            with self._changed:
                self._loading[load.req_id] = loading
            if not load.blocks:
                self._loaded(loading, [], [])
            elif self._pump is None:
                self._loaded(loading, load.blocks, [link.Result.DISCONNECTED] * len(load.blocks))
            else:
                self._pump.post(lambda loading=loading: self._get(loading, event))  # type: ignore[misc]

    def start_saves(self, metadata: StepMetadata) -> None:
        for save in metadata.saves:
            self._saved.add(save.req_id)
            if self._pump is None or not save.blocks:
                continue
            event = self._event()
            if isinstance(self._memory, Staged):
                self._stage_save(save, event)
            else:
                with self._changed:
                    self._putting[save.req_id] = self._putting.get(save.req_id, 0) + len(save.blocks)
                self._pump.post(lambda save=save, event=event: self._put(save, event))  # type: ignore[misc]

    def preempted(self, req_ids: Iterable[str]) -> None:
        """Their blocks are about to be written by others."""
        mine = set(req_ids)
        with self._changed:
            self._saved -= mine
        if not mine or self._pump is None:
            return
        with self._changed:
            if self._changed.wait_for(lambda: not mine & self._putting.keys(), TRANSFER_S):
                return
        log.error("kvplane: puts of preempted requests do not end: the connection is given up")
        done = threading.Event()
        self._pump.post(lambda: self._give_up(done))
        done.wait()  # as long as the daemon may read: what it reads now would be stored as what it was

    def _give_up(self, done: threading.Event) -> None:
        assert self._pump is not None
        before, self._pump.on_disconnected = self._pump.on_disconnected, lambda: None

        def gone() -> None:
            assert self._pump is not None
            self._pump.on_disconnected = before
            done.set()

        self._pump.on_disconnected = gone
        try:
            self._pump.session.detach()
        except link.LinkError:
            gone()

    # ---- gets; on the pump's thread

    def _entry(self, block: Block, where: int) -> link.Entry:
        assert self._memory is not None and self._shape is not None
        tag = self._shape.tag
        return link.Entry(tag + block.key, self._memory.slices(block.group, where), placement=tag + block.placement,
                          group=block.group, part=self._settings.rank)

    def _batches(self, blocks: Sequence[Block]) -> Iterable[Sequence[Block]]:
        assert self._shape is not None
        pieces = 1 if isinstance(self._memory, Staged) else max(len(spans) for spans in self._shape.spans.values())
        size = max(1, min(BATCH_ENTRIES, BATCH_SLICES // pieces))
        return (blocks[at:at + size] for at in range(0, len(blocks), size))

    def _get(self, loading: _Loading, event: Any) -> None:
        """Whatever happens, every block ends: vLLM waits for the request."""
        left = list(loading.load.blocks)
        try:
            for blocks in self._batches(loading.load.blocks):
                del left[:len(blocks)]
                if isinstance(self._memory, Staged):
                    self._get_staged(loading, list(blocks), event)
                else:
                    self._get_batch(loading.load, blocks, [block.block_id for block in blocks], lambda results, mine=blocks: (  # type: ignore[misc]
                        self._loaded(loading, mine, results)))
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: blocks of request %s are not loaded", loading.load.req_id)
            self._loaded(loading, left, [link.Result.IO] * len(left))

    def _get_batch(self, load: Load, blocks: Sequence[Block], where: Sequence[int], done: Callable[[list[int]], None]) -> None:
        assert self._pump is not None
        try:
            self._pump.session.get(load.number, load.token, [self._entry(block, at) for block, at in zip(blocks, where)], self._answered(done))
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(error, len(blocks), done)

    def _answered(self, done: Callable[[list[int]], None]) -> Callable[[list[int]], None]:
        def answered(results: list[int]) -> None:
            self._heard = time.monotonic()
            done(results)

        return answered

    def _fail(self, error: Exception, count: int, done: Callable[[list[int]], None]) -> None:
        assert self._pump is not None
        result = link.Result.IO
        if isinstance(error, link.LinkError):
            result = link.Result(error.result)
        else:
            log.error("kvplane: a transfer cannot be asked for", exc_info=error)
        self._pump.post(lambda: done([result] * count))

    def _get_staged(self, loading: _Loading, blocks: list[Block], event: Any) -> None:
        """As many at a time as there are slots; the rest when some are free again. `event`: until then what the GPU was
        given before may use the blocks. What comes too late is dropped: the blocks may be another request's."""
        assert isinstance(self._memory, Staged)
        memory: Staged = self._memory

        def some() -> bool:
            if self._is_over(loading):
                return True
            slots: list[int] = []
            while len(slots) < len(blocks):
                try:  # saves take them on another thread
                    slots.append(memory.free.pop())
                except IndexError:
                    break
            if not slots:
                return False
            mine, blocks[:len(slots)] = blocks[:len(slots)], []
            self._get_batch(loading.load, mine, slots, lambda results: got(mine, slots, results))
            return not blocks

        def got(mine: Sequence[Block], slots: Sequence[int], results: list[int]) -> None:
            if self._is_over(loading):
                self._free(slots)
                return
            try:
                if event is not None:
                    event.synchronize()
                for block, slot, result in zip(mine, slots, results):
                    if result == link.Result.OK:
                        memory.copy(block.group, slot, block.block_id, out=False)
                self._synchronize()
            except Exception:  # pylint: disable=broad-exception-caught
                log.exception("kvplane: blocks that were got cannot be copied into the cache")
                results = [link.Result.IO] * len(mine)
            self._free(slots)
            self._loaded(loading, mine, results)

        if not some():
            self._waiting.append(some)

    def _is_over(self, loading: _Loading) -> bool:
        with self._changed:
            return self._loading.get(loading.load.req_id) is not loading

    def _too_late(self, loading: _Loading) -> None:
        """A daemon that hangs answers nobody and, other than one that ends, may go on later where it was."""
        if self._is_over(loading):
            return
        req_id, left = loading.load.req_id, tuple(loading.left)
        if isinstance(self._memory, Staged):
            log.warning("kvplane: request %s: the daemon has answered nothing for %g s", req_id, self._settings.load_timeout_s)
            self._loaded(loading, left, [link.Result.TIMEOUT] * len(left))
        else:
            log.error("kvplane: request %s waits: the daemon has answered nothing for %g s, and may still write into %d of its blocks. If it "
                      "hangs (GET /livez of its --listen does not answer 200), kill it: then the load has failed", req_id,
                      self._settings.load_timeout_s, len(left))

    def _synchronize(self) -> None:
        event = self._event()
        if event is not None:
            event.synchronize()

    def _free(self, slots: Iterable[int]) -> None:
        memory = self._memory
        assert isinstance(memory, Staged)
        memory.free.extend(slots)
        while self._waiting and memory.free:
            if not self._waiting[0]():
                break
            self._waiting.pop(0)

    def _loaded(self, loading: _Loading, blocks: Sequence[Block], results: Sequence[int]) -> None:
        req_id = loading.load.req_id
        bad = [block.block_id for block, result in zip(blocks, results) if result != link.Result.OK]
        if bad:
            log.info("kvplane: request %s: %d of %d blocks are computed instead: %s", req_id, len(bad), len(blocks),
                     result_text([result for result in results if result != link.Result.OK]))
        with self._changed:
            self._stats.add("get_blocks", len(blocks) - len(bad))
            self._stats.add("get_failed_blocks", len(bad))
            if self._shape is not None:
                self._stats.add("get_bytes", sum(self._shape.block_bytes(block.group) for block, result in zip(blocks, results)
                                                 if result == link.Result.OK))
            loading.left.difference_update(blocks)
            loading.failed += bad
            if not loading.left:
                del self._loading[req_id]
                self._received.add(req_id)
                if loading.failed:
                    self._failed_blocks.update(loading.failed)
                    self._failed_requests.add(req_id)
                self._changed.notify_all()

    # ---- puts

    def _put(self, save: Save, event: Any) -> None:
        try:
            if event is not None:
                event.synchronize()
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: blocks of request %s are not saved", save.req_id)
            self._put_done(save, save.blocks, [link.Result.IO] * len(save.blocks))
            return
        for blocks in self._batches(save.blocks):
            self._put_batch(save, blocks, [block.block_id for block in blocks], lambda results, mine=blocks: (  # type: ignore[misc]
                self._put_done(save, mine, results)))

    def _put_batch(self, save: Save, blocks: Sequence[Block], where: Sequence[int], done: Callable[[list[int]], None]) -> None:
        assert self._pump is not None
        try:
            self._pump.session.put([(self._entry(block, at), save.token) for block, at in zip(blocks, where)], self._answered(done))
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(error, len(blocks), done)

    def _stage_save(self, save: Save, event: Any) -> None:
        """Here and now: when the step is over the blocks may be written. What finds no slot is not saved."""
        memory, pump = self._memory, self._pump
        assert isinstance(memory, Staged) and pump is not None
        blocks, slots = [], []
        for block in save.blocks:
            try:
                slots.append(memory.free.pop())
            except IndexError:
                break
            blocks.append(block)
        if len(blocks) < len(save.blocks):
            with self._changed:
                self._stats.add("put_failed_blocks", len(save.blocks) - len(blocks))
        if not blocks:
            return
        try:
            for block, slot in zip(blocks, slots):
                memory.copy(block.group, slot, block.block_id, out=True)
            copied = self._event() if event is not None else None
        except Exception:  # pylint: disable=broad-exception-caught
            log.exception("kvplane: blocks of request %s are not saved", save.req_id)
            memory.free.extend(slots)
            return
        with self._changed:
            self._putting[save.req_id] = self._putting.get(save.req_id, 0) + len(blocks)

        def done(results: Sequence[int], mine: Sequence[Block], used: Sequence[int]) -> None:
            self._free(used)
            self._put_done(save, mine, results)

        def put() -> None:
            try:
                if copied is not None:
                    copied.synchronize()
            except Exception:  # pylint: disable=broad-exception-caught
                log.exception("kvplane: blocks of request %s are not saved", save.req_id)
                self._free(slots)
                self._put_done(save, blocks, [link.Result.IO] * len(blocks))
                return
            finally:
                self._put_over(save.req_id, len(blocks))  # the cache's own blocks are read no more
            at = 0
            for batch in self._batches(blocks):
                used = slots[at:at + len(batch)]
                at += len(batch)
                self._put_batch(save, batch, used, lambda results, mine=batch, used=used: done(results, mine, used))  # type: ignore[misc]

        pump.post(put)

    def _put_done(self, save: Save, blocks: Sequence[Block], results: Sequence[int]) -> None:
        fenced = sum(result in (link.Result.FENCED, link.Result.CLOSED) for result in results)
        stored = [block for block, result in zip(blocks, results) if result in STORED]
        if len(stored) < len(blocks):
            log.info("kvplane: request %s: %d of %d blocks are not stored: %s", save.req_id, len(blocks) - len(stored), len(blocks),
                     result_text([result for result in results if result not in STORED]))
        with self._changed:
            self._stats.add("put_blocks", len(stored))
            self._stats.add("put_fenced_blocks", fenced)
            self._stats.add("put_failed_blocks", len(blocks) - len(stored) - fenced)
            if self._shape is not None:
                self._stats.add("put_bytes", sum(self._shape.block_bytes(block.group) for block in stored))
            for block in stored:
                self._stored[(block.group, block.key)] = 1
        if not isinstance(self._memory, Staged):
            self._put_over(save.req_id, len(blocks))

    def _put_over(self, req_id: str, count: int) -> None:
        with self._changed:
            left = self._putting.get(req_id, 0) - count
            if left > 0:
                self._putting[req_id] = left
            else:
                self._putting.pop(req_id, None)
                self._changed.notify_all()

    # ---- what vLLM takes after each step

    def finished(self, finished_req_ids: Iterable[str]) -> tuple[set[str], set[str], set[str]]:
        """Sent, received, and those of the latter of which a block failed."""
        with self._changed:
            for req_id in finished_req_ids:
                if req_id in self._saved:
                    self._saved.discard(req_id)
                    self._finished.add(req_id)
            sent = {req_id for req_id in self._finished if req_id not in self._putting}
            self._finished -= sent
            received, self._received = self._received, set()
            failed, self._failed_requests = self._failed_requests, set()
            end = time.monotonic() - self._settings.load_timeout_s
            late = [loading for loading in self._loading.values() if not loading.late and max(loading.since, self._heard) < end]
            for loading in late:
                loading.late = True
        for loading in late:
            if self._pump is not None:
                self._pump.post(lambda loading=loading: self._too_late(loading))  # type: ignore[misc]
        return sent, received, failed

    def failed_blocks(self) -> set[int]:
        with self._changed:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def stored(self) -> StoredBlocks | None:
        with self._changed:
            stored, self._stored = self._stored, {}
        return StoredBlocks(stored) if stored else None

    def stats(self) -> KvplaneStats | None:
        with self._changed:
            return self._stats.taken()

    def close(self) -> None:
        if self._pump is not None:
            self._pump.close()
        if self._memory is not None:
            self._memory.close()
