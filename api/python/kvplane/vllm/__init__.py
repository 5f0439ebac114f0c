# SPDX-License-Identifier: Apache-2.0
"""
vLLM shares its KV blocks through kvplane: a KV connector that vLLM loads by itself.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvplaneConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "kvplane.vllm", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": "/run/kvplane/engine.sock", "instance": "vllm-0"}}'

docs/vllm.md has the settings and what is promised. `python3 -m kvplane.vllm.check` holds what the connector expects of
vLLM against the one that is installed.
"""

from .connector import KvplaneConnector
from .stats import KvplaneStats

__all__ = ["KvplaneConnector", "KvplaneStats"]
