# SPDX-License-Identifier: Apache-2.0
"""What `kv_connector_extra_config` may say, and what is read off vLLM's own configuration."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Sequence

from .. import link
from . import _base

FORMAT = 1
"""Of keys and of the order of bytes in a block. Another one shares with nobody who has this one."""


def _dtype(value: Any) -> str:
    return str(value).removeprefix("torch.")


@dataclass(frozen=True)
class Group:
    """A KV group whose blocks are shared."""
    index: int
    block_tokens: int
    window_tokens: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    socket: str | None
    instance: str
    tenant: str
    weights_version: str | None
    enable_lookup: bool
    lookup_async: bool
    save_decode_cache: bool
    puts: bool
    gets: bool
    memory: str
    staging_bytes: int
    lookup_timeout_s: float
    load_timeout_s: float
    reset_timeout_s: float
    release_timeout_s: float
    layout: str
    model: str
    max_model_len: int
    block_tokens: int
    hash_tokens: int
    groups: tuple[Group, ...]
    rank: int
    world_size: int
    tp_size: int
    engine_id: str

    def link_options(self) -> dict[str, Any]:
        """Of the sessions of both roles, alike."""
        return {"socket": self.socket, "instance": self.instance, "tenant": self.tenant, "layout": self.layout,
                "model": self.model, "max_model_len": self.max_model_len, "weights_name": self.weights_version,
                "rank": self.rank, "world_size": self.world_size, "tp_size": self.tp_size,
                "block_tokens": self.block_tokens, "tracks_lineage": True,
                "groups": [link.Group(group.block_tokens, group.window_tokens) for group in self.groups]}


CONFIG = ("rope_theta", "hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps", "layer_norm_eps", "num_experts_per_tok")
ROPE = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor")
"""Of a model's configuration: what decides, beside the weights, what it computes. Not all of it: models write into theirs
when they are loaded, in the workers alone, and then the processes of one engine would not agree."""


class UnsupportedModel(ValueError):
    """The connector cannot keep what it promises for this model or layout. Says why."""


def _positive(extra: dict[str, Any], name: str, default: float) -> float:
    value = extra.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise ValueError(f"kv_connector_extra_config.{name} must be a number above 0, not {value!r}")
    return float(value)


def _flag(extra: dict[str, Any], name: str, default: bool) -> bool:
    value = extra.get(name, default)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"kv_connector_extra_config.{name} must be true or false, not {value!r}")
    return value


def _text(extra: dict[str, Any], name: str, default: str | None) -> str | None:
    value = extra.get(name, default)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"kv_connector_extra_config.{name} must be a text, not {value!r}")
    return value


def _specs(group: Any) -> list[Any]:
    """Of its layers, which may differ. The scheduler is given the first in the place of all."""
    return list((getattr(group.kv_cache_spec, "kv_cache_specs", None) or {}).values()) or [group.kv_cache_spec]


def _hash_tokens(vllm_config: Any, kv_cache_config: Any, groups: Sequence[Group]) -> int:
    """Tokens that one of vLLM's hashes goes on by."""
    if len(groups) == 1:
        return groups[0].block_tokens
    resolve = _base.find("vllm.v1.core.kv_cache_utils", "resolve_kv_cache_block_sizes")
    if resolve is not None:
        return int(resolve(kv_cache_config, vllm_config)[1])
    cache = vllm_config.cache_config
    tokens = int(getattr(cache, "hash_block_size", None) or getattr(cache, "block_size", None) or groups[0].block_tokens)
    if any(group.block_tokens % tokens for group in groups):
        tokens = min(group.block_tokens for group in groups)
    return tokens


def _groups(kv_cache_config: Any) -> tuple[Group, ...]:
    made = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        for kind in (type(one).__name__ for one in _specs(group)):
            if "Mamba" in kind or "CrossAttention" in kind or "Chunked" in kind:
                raise UnsupportedModel(f"KV group {index} is a {kind}: kvplane shares full and sliding-window attention only")
        spec = _specs(group)[0]
        window = int(getattr(spec, "sliding_window", None) or 0)
        # What a window holds beside the token that is computed.
        made.append(Group(index, int(spec.block_size), max(0, window - 1), tuple(group.layer_names)))
    if not made or all(group.window_tokens for group in made):
        raise UnsupportedModel("no KV group of full attention: kvplane needs one to tell how long a prefix is")
    return tuple(made)


def _plain(value: Any) -> Any:
    """As JSON has it, the same in every process."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def _rope(value: Any) -> Any:
    """Of one kind of layers, or by kind."""
    if not isinstance(value, dict):
        return None
    return {str(name): _rope(one) if isinstance(one, dict) else _plain(one) for name, one in value.items()
            if name in ROPE or isinstance(one, dict)}


def _layout(vllm_config: Any, kv_cache_config: Any, groups: Sequence[Group], hash_tokens: int) -> str:
    """Everything that makes bytes interchangeable, but for how the engine is split (the daemon adds that) and for the
    order within a block, which only a worker sees (layout.Shape: it is in the keys). The same in every process."""
    model = vllm_config.model_config
    text = getattr(model, "hf_text_config", None)
    drafts = getattr(vllm_config, "speculative_config", None)
    own_scales = bool(getattr(vllm_config.cache_config, "calculate_kv_scales", False))
    first = [_specs(group)[0] for group in kv_cache_config.kv_cache_groups]
    told = {
        "format": FORMAT,
        "model": str(model.model),
        "revision": str(getattr(model, "revision", None)),
        "dtype": _dtype(model.dtype),
        "cache": _dtype(getattr(vllm_config.cache_config, "cache_dtype", "auto")),
        "quantization": str(getattr(model, "quantization", None)),
        "groups": [[type(spec).__name__, shared.block_tokens, shared.window_tokens, int(getattr(spec, "page_size_bytes", 0)),
                    int(getattr(spec, "num_kv_heads", 0)), int(getattr(spec, "head_size", 0)), _dtype(getattr(spec, "dtype", ""))]
                   for spec, shared in zip(first, groups)],
        "hash_tokens": hash_tokens,
        "layers": int(getattr(text, "num_hidden_layers", 0) or 0),
        "config": [[_plain(getattr(text, name, None)) for name in CONFIG],
                   [_rope(getattr(text, name, None)) for name in ("rope_parameters", "rope_scaling")]],
        "overrides": _plain(getattr(model, "hf_overrides", None)) or None,
        "drafts": None if drafts is None else [str(getattr(drafts, name, None)) for name in ("method", "model", "revision")],
        "scales": str(getattr(vllm_config.kv_transfer_config, "engine_id", "")) if own_scales else None,
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", str(model.model).rstrip("/").rsplit("/", 1)[-1])[:100]
    return f"vllm/{FORMAT} {name} {digest}"


def read(vllm_config: Any, kv_cache_config: Any, rank: int) -> Settings:
    """Raises ValueError for what is not allowed: at start, where a person sees it."""
    transfer = vllm_config.kv_transfer_config
    extra = dict(transfer.kv_connector_extra_config or {})
    parallel = vllm_config.parallel_config
    known = {"socket", "instance", "tenant", "weights_version", "enable_lookup", "lookup_async", "save_decode_cache", "memory",
             "staging_bytes", "lookup_timeout_s", "load_timeout_s", "reset_timeout_s", "release_timeout_s"}
    unknown = sorted(set(extra) - known)
    if unknown:
        raise ValueError(f"kv_connector_extra_config: unknown {', '.join(unknown)} (there are: {', '.join(sorted(known))})")
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
        if int(getattr(parallel, name, 1) or 1) != 1:
            raise UnsupportedModel(f"{name} above 1: a block's tokens are spread over ranks, which kvplane does not know")
    groups = _groups(kv_cache_config)
    hash_tokens = _hash_tokens(vllm_config, kv_cache_config, groups)
    if any(group.block_tokens % hash_tokens for group in groups):
        raise UnsupportedModel("block sizes of the KV groups are no multiples of the block that is hashed")
    instance = _text(extra, "instance", os.environ.get("KVPLANE_INSTANCE") or "vllm")
    data_parallel = int(getattr(parallel, "data_parallel_size", 1) or 1)
    if data_parallel > 1:  # each is an engine of its own
        instance = f"{instance}-dp{int(getattr(parallel, 'data_parallel_rank', 0) or 0)}"
    memory = _text(extra, "memory", "auto")
    if memory not in ("auto", "staged", "direct"):
        raise ValueError(f"kv_connector_extra_config.memory must be auto, staged or direct, not {memory!r}")
    role = str(getattr(transfer, "kv_role", None) or "kv_both")
    release = os.environ.get("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT") or "480"
    served = getattr(vllm_config.model_config, "served_model_name", None) or vllm_config.model_config.model
    return Settings(
        socket=_text(extra, "socket", None), instance=instance or "vllm", tenant=_text(extra, "tenant", "default") or "default",
        weights_version=_text(extra, "weights_version", None), enable_lookup=_flag(extra, "enable_lookup", True),
        lookup_async=_flag(extra, "lookup_async", True), save_decode_cache=_flag(extra, "save_decode_cache", False),
        puts=role != "kv_consumer" or _flag(extra, "save_decode_cache", False), gets=role != "kv_producer",
        memory=memory or "auto", staging_bytes=int(_positive(extra, "staging_bytes", 256 << 20)),
        lookup_timeout_s=_positive(extra, "lookup_timeout_s", 5), load_timeout_s=_positive(extra, "load_timeout_s", 150),
        reset_timeout_s=_positive(extra, "reset_timeout_s", 10), release_timeout_s=_positive(extra, "release_timeout_s", float(release)),
        layout=_layout(vllm_config, kv_cache_config, groups, hash_tokens), model=str(served)[:255],
        max_model_len=int(getattr(vllm_config.model_config, "max_model_len", 0) or 0),
        block_tokens=groups[0].block_tokens, hash_tokens=hash_tokens, groups=groups, rank=rank,
        world_size=int(parallel.world_size), tp_size=int(parallel.tensor_parallel_size),
        engine_id=str(getattr(transfer, "engine_id", "") or ""))
