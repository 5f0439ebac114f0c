# SPDX-License-Identifier: Apache-2.0
"""
`python3 -m kvplane.vllm.check`: what the connector expects of vLLM, held against the vLLM that is installed here.

Ends 0 if all of it is so, 1 if something is not, 2 where no vLLM is installed. docs/vllm-facts.md has where each
fact is from.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable, Iterator

from . import _base

REQUIRED = {
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "take_events": (),
    "register_kv_caches": ("kv_caches",),
    "handle_preemptions": ("kv_connector_metadata",),
    "start_load_kv": ("forward_context", "**kwargs"),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata", "**kwargs"),
    "wait_for_save": (),
    "get_finished": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "get_handshake_metadata": (),
    "set_xfer_handshake_metadata": ("metadata",),
    "bind_connector_metadata": ("connector_metadata",),
    "clear_connector_metadata": (),
    "get_kv_connector_stats": (),
    "build_connector_worker_meta": (),
    "reset_cache": (),
    "shutdown": (),
}
"""Without one of these, with these parameters, the connector does not work or does not keep what it promises."""

LATER = {
    "has_pending_push_work": ((), "a pause is answered before puts of finished requests are over"),
    "get_transfer_results": (("finished_req_ids",), "a model of several KV groups cannot tell that a load failed"),
    "supports_sleep_mode": (("vllm_config",), "sleep mode runs without the hooks"),
    "release_kv_caches": ((), "sleep does not wait for transfers: give memory=staged"),
    "restore_kv_caches": ((), "sleep does not wait for transfers: give memory=staged"),
}
"""What older versions lack, and what that costs."""

FIELDS = {
    ("vllm.v1.core.sched.output", "SchedulerOutput"): ("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens",
                                                       "scheduled_spec_decode_tokens", "preempted_req_ids"),
    ("vllm.v1.core.sched.output", "NewRequestData"): ("req_id", "block_ids", "num_computed_tokens"),
    ("vllm.v1.core.sched.output", "CachedRequestData"): ("req_ids", "new_block_ids", "num_computed_tokens"),
    ("vllm.v1.outputs", "KVConnectorOutput"): ("finished_sending", "finished_recving", "invalid_block_ids", "kv_connector_worker_meta"),
    (_base.V1 + ".metrics", "KVConnectorStats"): ("data",),
    ("vllm.distributed.kv_events", "BlockStored"): ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                                                    "lora_name"),
}


def parameters(function: Any) -> tuple[str, ...]:
    return tuple(("**" if one.kind is one.VAR_KEYWORD else "*" if one.kind is one.VAR_POSITIONAL else "") + one.name
                 for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls"))


def found(say: Callable[[str], None]) -> Iterator[bool]:
    """Whether each fact is so; says what is not."""
    base = _base.Base
    for name, expected in REQUIRED.items():
        has = parameters(getattr(base, name)) if hasattr(base, name) else None
        if has != expected:
            say(f"KVConnectorBase_V1.{name}: expected {expected}, " + ("there is none" if has is None else f"it has {has}"))
        yield has == expected
    for name, (expected, cost) in LATER.items():
        has = parameters(getattr(base, name)) if hasattr(base, name) else None
        if has is None:
            say(f"note: no {name} in this version: {cost}")
        elif has != expected:
            say(f"KVConnectorBase_V1.{name}: expected {expected}, it has {has}")
        yield has is None or has == expected
    abstract: frozenset[str] = getattr(base, "__abstractmethods__", frozenset())
    missing = sorted(abstract - set(REQUIRED))
    if missing:
        say(f"KVConnectorBase_V1: abstract, and not known to the connector: {', '.join(missing)}")
    yield not missing
    for (module, name), fields in FIELDS.items():
        kind = _base.find(module, name)
        if kind is None:
            say(f"{module}.{name}: there is none")
            yield False
            continue
        known = _base.fields(kind)
        lacks = [one for one in fields if one not in known]
        if lacks:
            say(f"{module}.{name}: has no {', '.join(lacks)}")
        yield not lacks
    results = _base.TransferResults
    if results is not None:
        known = _base.fields(results)
        lacks = [one for one in ("finished_sending", "finished_recving", "failed_recving") if one not in known]
        if lacks:
            say(f"KVConnectorTransferResults: has no {', '.join(lacks)}")
        yield not lacks
    from .connector import KvplaneConnector

    left: frozenset[str] = getattr(KvplaneConnector, "__abstractmethods__", frozenset())
    if left:
        say(f"KvplaneConnector lacks {', '.join(sorted(left))}")
    yield not left


def main() -> int:
    if not _base.INSTALLED:
        print("vllm check: no vLLM is installed here (for this Python)")
        return 2
    version = getattr(__import__("vllm"), "__version__", "unknown")
    facts = list(found(lambda text: print("  " + text)))
    bad = facts.count(False)
    print(f"vllm check: {'failed' if bad else 'ok'} version={version} facts={len(facts)} wrong={bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
