# SPDX-License-Identifier: Apache-2.0
"""The interface: names, signatures, defaults and what is abstract, as docs/vllm-facts.md has them."""
import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, field


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(ABC):
    pass


class KVConnectorHandshakeMetadata(ABC):
    pass


class KVConnectorWorkerMetadata(ABC):
    @abstractmethod
    def aggregate(self, other):
        ...


@dataclass
class KVConnectorTransferResults:
    finished_sending: set = field(default_factory=set)
    finished_recving: set = field(default_factory=set)
    failed_recving: set = field(default_factory=set)


class SupportsHMA(ABC):
    @abstractmethod
    def request_finished_all_groups(self, request, block_ids):
        ...


class KVConnectorBase_V1(ABC):
    def __init__(self, vllm_config, role, kv_cache_config):
        if vllm_config.kv_transfer_config is None:
            raise ValueError("no kv_transfer_config")
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._connector_metadata = None

    @property
    def role(self):
        return self._role

    @property
    def prefer_cross_layer_blocks(self):
        return False

    @property
    def requires_kv_delivery(self):
        return True

    @classmethod
    def supports_sleep_mode(cls, vllm_config):
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return False

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return None

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return None

    # Of a worker.
    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def has_connector_metadata(self):
        return self._connector_metadata is not None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata

    def register_kv_caches(self, kv_caches):
        pass

    def register_cross_layers_kv_cache(self, kv_cache, attn_backend):
        pass

    def set_host_xfer_buffer_ops(self, copy_operation):
        pass

    def handle_preemptions(self, kv_connector_metadata):
        pass

    @abstractmethod
    def start_load_kv(self, forward_context, **kwargs):
        ...

    @abstractmethod
    def wait_for_layer_load(self, layer_name):
        ...

    @abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        ...

    @abstractmethod
    def wait_for_save(self):
        ...

    def get_finished(self, finished_req_ids):
        return None, None

    def get_transfer_results(self, finished_req_ids):
        sending, recving = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(sending or set(), recving or set())

    def get_block_ids_with_load_errors(self):
        return set()

    def get_kv_connector_stats(self):
        return None

    def get_kv_connector_kv_cache_events(self):
        return None

    def get_handshake_metadata(self):
        return None

    def build_connector_worker_meta(self):
        return None

    def release_kv_caches(self):
        pass

    def restore_kv_caches(self):
        pass

    def shutdown(self):
        return None

    # Of the scheduler.
    def bind_gpu_block_pool(self, gpu_block_pool):
        pass

    @abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        ...

    @abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output):
        ...

    def on_new_request(self, request):
        pass

    def update_connector_output(self, connector_output):
        pass

    def request_finished(self, request, block_ids):
        return False, None

    def take_events(self):
        return ()

    def has_pending_push_work(self):
        return False

    def get_finished_count(self):
        return None

    def set_xfer_handshake_metadata(self, metadata):
        pass

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self.set_xfer_handshake_metadata({tp: meta for (_, tp), meta in metadata.items()})

    def reset_cache(self):
        return None
