# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field


@dataclass
class KVConnectorOutput:
    finished_sending: set = None
    finished_recving: set = None
    failed_recving: set = field(default_factory=set)
    invalid_block_ids: set = field(default_factory=set)
    kv_connector_stats: object = None
    kv_cache_events: object = None
    kv_connector_worker_meta: object = None
