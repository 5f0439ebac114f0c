/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_COMPAT_H
#define SERVER_COMPAT_H

#include "connector/instance.h"

#include "base/metrics.h"

/*
 * `metrics-compat`: the names under which vLLM and Mooncake show the same, for dashboards and
 * trainers that read those; shown behind our own. Nothing is counted twice: counters and histograms
 * are made of ours at each scrape, by the table in compat.c. `engine` is our instance. Where vLLM
 * counts tokens, these count blocks (ratios are the same).
 */
#define KVP_COMPAT(X)                                                                              \
    X(SLEEP_STATE, GAUGE, "vllm:engine_sleep_state",                                               \
      "1 for the state the engine is in; at level 0 none.", "model_name", "engine", "sleep_state") \
    X(COMPONENT_STATE, GAUGE, "vllm:engine_sleep_component_state",                                 \
      "1 while scheduler, weights or kv_cache are awake.", "model_name", "engine", "component")    \
    X(OPERATION_SECONDS, HISTOGRAM, "vllm:sleep_mode_operation_duration_seconds",                  \
      "Time of sleep mode operations.", "operation")                                               \
    X(IN_FLIGHT, GAUGE, "vllm:sleep_mode_operations_in_flight", "Those that run now.",             \
      "operation")                                                                                 \
    X(RL_OPERATIONS, COUNTER, "vllm:rl_sleep_mode_operations_total",                               \
      "Sleep mode operations, by status: success, error.", "operation", "status")                  \
    X(QUERIES, COUNTER, "vllm:external_prefix_cache_queries_total", "Blocks looked up.")           \
    X(HITS, COUNTER, "vllm:external_prefix_cache_hits_total", "Blocks found.")                     \
    X(STORE_SECONDS, HISTOGRAM, "vllm:mooncake_store_operation_time_seconds",                      \
      "Time of batches of puts, gets and lookups.", "operation")                                   \
    X(STORE_KEYS, COUNTER, "vllm:mooncake_store_operation_keys_total", "Keys of those.",           \
      "operation")                                                                                 \
    X(STORE_FAILED, COUNTER, "vllm:mooncake_store_operation_failed_keys_total",                    \
      "Keys of those that failed.", "operation")                                                   \
    X(STORE_BYTES, COUNTER, "vllm:mooncake_store_operation_bytes_total", "Bytes of those.",        \
      "operation")                                                                                 \
    X(ALLOCATED, GAUGE, "master_allocated_bytes", "Bytes in use.")                                 \
    X(CAPACITY, GAUGE, "master_total_capacity_bytes", "Bytes the share can hold.")                 \
    X(KEYS, GAUGE, "master_key_count", "Objects stored.")                                          \
    X(EVICTED, GAUGE, "master_evicted_key_count", "Objects evicted.")

enum kvp_compat_metric {
#define X(name, ...) KVP_C_##name,
    KVP_COMPAT(X)
#undef X
        KVP_COMPAT_COUNT
};

struct kvp_compat;

/* of: our registry (kvp_metric_table), which shows it from now on. NULL: out of memory. */
struct kvp_compat *kvp_compat_create(struct kvb_metrics *of);
/* After the registry it belongs to, or before anybody scrapes it. NULL: nothing. */
void kvp_compat_destroy(struct kvp_compat *compat);
/* Loop thread: kvp_fleet_config.changed. NULL compat: nothing. */
void kvp_compat_instance(struct kvp_compat *compat, const struct kvp_view *view);

#endif
