# SPDX-License-Identifier: Apache-2.0
"""KvplaneConnector: vLLM's KV connector interface, each method a line to the side that does it."""

from __future__ import annotations

import logging
import os
from typing import Any, Iterable

from . import _base, settings
from .scheduler import Scheduler
from .stats import KvplaneStats
from .transfers import StepMetadata
from .worker import Worker

log = logging.getLogger("kvplane.vllm")


class KvplaneConnector(_base.Base, _base.HybridMixin):  # type: ignore[misc]
    """
    One object per process: in the scheduler's it looks up and decides, in each worker's it moves blocks. A store that
    fails costs hits: nothing is raised into the engine but what is wrong with the configuration, at start, and a
    `release_kv_caches` or `restore_kv_caches` that could not be done.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if kv_cache_config is None:
            raise ValueError("kvplane needs a vLLM that gives its connectors the KV cache's configuration")
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        rank = 0 if role == _base.Role.SCHEDULER else int(vllm_config.parallel_config.rank)
        read = settings.read(vllm_config, kv_cache_config, rank)
        self._by_request = len(read.groups) > 1 and _base.TransferResults is not None
        if role == _base.Role.SCHEDULER:
            kv_events = getattr(vllm_config, "kv_events_config", None)
            self._scheduler = Scheduler(read, events=bool(getattr(kv_events, "enable_kv_cache_events", False)))
        else:
            self._worker = Worker(read, int(kv_cache_config.num_blocks), record_event=self._record_event)
        self._device: Any = None

    def _record_event(self) -> Any:
        """What this thread has given the cache's GPU up to now; None: there is no GPU."""
        if self._device is None:
            return None
        import torch

        return torch.cuda.current_stream(self._device).record_event()

    # ---- of the class

    @classmethod
    def supports_sleep_mode(cls, vllm_config: Any) -> bool:
        """Nobody but this host's daemon ever holds a key to the cache, and that gives it up when asked. The variables
        are those by which users of Mooncake say that their transport hands keys out."""
        return "MC_FORCE_MNNVL" not in os.environ and "MC_INTRANODE_NVLINK" not in os.environ

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return None  # the backend's choice; it is in the keys

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return False  # nothing happens between layers

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvplaneStats | None:
        return KvplaneStats(data)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is dropped is a miss later

    # ---- scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        if self._scheduler is not None:
            self._scheduler.take_handshake(metadata)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self.set_xfer_handshake_metadata(dict(enumerate(metadata.values())))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        assert self._scheduler is not None
        return self._scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return self._scheduler.finished(request), None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def take_events(self) -> Iterable[Any]:
        return self._scheduler.events() if self._scheduler is not None else ()

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.pending()

    def get_finished_count(self) -> int | None:
        return None  # every rank reports every request

    def shares_as(self) -> str:
        """Name of the weights under which blocks are shared now; "": with nobody."""
        return self._scheduler.shares_as() if self._scheduler is not None else ""

    def reset_cache(self) -> bool | None:
        """Leaves the lineage; the workers' part is the daemon's."""
        return self._scheduler.reset() if self._scheduler is not None else None

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        assert self._worker is not None
        devices = [getattr(one, "device", None) for one in kv_caches.values()]
        self._device = next((one for one in devices if getattr(one, "type", "cpu") == "cuda"), None)
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> Any:
        return self._worker.handshake() if self._worker is not None else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Older versions give the requests themselves."""
        if self._worker is not None:
            if isinstance(kv_connector_metadata, StepMetadata):
                self._worker.preempted(kv_connector_metadata.preempted)
            elif isinstance(kv_connector_metadata, (set, frozenset, list, tuple)):
                self._worker.preempted(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        metadata = self._get_connector_metadata()
        if isinstance(metadata, StepMetadata):
            self._worker.start_loads(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are over before their request is scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved whole, after the step."""

    def wait_for_save(self) -> None:
        """Begins the step's puts; their blocks stay the request's until they are over (get_finished)."""
        assert self._worker is not None
        metadata = self._get_connector_metadata()
        if isinstance(metadata, StepMetadata):
            self._worker.start_saves(metadata)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self._worker is not None
        sent, received, _ = self._worker.finished(finished_req_ids)
        return sent or None, received or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        assert self._worker is not None
        sent, received, failed = self._worker.finished(finished_req_ids)
        return _base.TransferResults(finished_sending=sent, finished_recving=received,
                                     failed_recving=failed if self._by_request else set())

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        failed = self._worker.failed_blocks()
        return set() if self._by_request else failed

    def build_connector_worker_meta(self) -> Any:
        return self._worker.stored() if self._worker is not None else None

    def get_kv_connector_stats(self) -> KvplaneStats | None:
        side = self._worker if self._worker is not None else self._scheduler
        return side.stats() if side is not None else None

    def release_kv_caches(self) -> None:
        assert self._worker is not None
        self._worker.release()

    def restore_kv_caches(self) -> None:
        assert self._worker is not None
        self._worker.restore()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
