# SPDX-License-Identifier: Apache-2.0
"""What vLLM's scheduler and workers tell each other, as far as a KV connector sees it (docs/vllm-facts.md)."""
from dataclasses import dataclass, field

import model


@dataclass
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int = 1
    head_size: int = model.ROW
    dtype: str = "uint8"
    page_size_bytes: int = 0


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: list
    block_ids: tuple
    num_computed_tokens: int


@dataclass
class CachedRequestData:
    req_ids: list = field(default_factory=list)
    resumed_req_ids: set = field(default_factory=set)
    all_token_ids: dict = field(default_factory=dict)
    new_block_ids: list = field(default_factory=list)
    num_computed_tokens: list = field(default_factory=list)


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list = field(default_factory=list)
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict = field(default_factory=dict)
    finished_req_ids: set = field(default_factory=set)
    preempted_req_ids: set = field(default_factory=set)
    kv_connector_metadata: object = None


@dataclass
class KVConnectorOutput:
    finished_sending: set = None
    finished_recving: set = None
    failed_recving: set = field(default_factory=set)
    invalid_block_ids: set = field(default_factory=set)
    kv_connector_stats: object = None
    kv_cache_events: object = None
    kv_connector_worker_meta: object = None
