/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "base/metrics.h"
#include "transport/peer.h"

#include <stdio.h>

/*
 * Every family that /metrics shows, once: enum, name, type, help, labels and the table of README.md
 * are made from this list. Whoever counts takes the registry and the enum; nobody invents a name
 * elsewhere. Types: COUNTER, GAUGE, and histograms of seconds (HISTOGRAM) or of bytes (BYTES).
 *
 * A label `instance`, `tenant` or `node` has as many values as there are such; every other one has
 * those of a list in the program. What is gone (a rank, a node, an instance's former tenant) takes
 * its series along.
 */
#define KVP_METRICS(X)                                                                             \
    /* name, type, exposed name, help, labels… */                                                \
    X(BUILD_INFO, GAUGE, "kvplane_build_info", "Always 1; what the program is, in the labels.",    \
      "version", "revision", "compiler", "features")                                               \
    /* the process, by the names that every exporter gives them */                                 \
    X(PROCESS_CPU, COUNTER, "process_cpu_seconds_total", "User and system CPU time spent.")        \
    X(PROCESS_RESIDENT, GAUGE, "process_resident_memory_bytes",                                    \
      "Resident memory; the store's share is in it.")                                              \
    X(PROCESS_VIRTUAL, GAUGE, "process_virtual_memory_bytes", "Virtual memory.")                   \
    X(PROCESS_FDS, GAUGE, "process_open_fds", "Open descriptors.")                                 \
    X(PROCESS_FDS_MAX, GAUGE, "process_max_fds", "Descriptors that may be open.")                  \
    X(PROCESS_THREADS, GAUGE, "process_threads", "Threads.")                                       \
    X(PROCESS_START, GAUGE, "process_start_time_seconds",                                          \
      "Unix time at which the process started.")                                                   \
    X(HEAP, GAUGE, "kvplane_heap_bytes", "Bytes of the heap in use, beside the store's memory.")   \
    X(LOG_LINES, COUNTER, "kvplane_log_lines_total", "Lines written to the log.", "level")         \
    X(LOG_HELD_BACK, COUNTER, "kvplane_log_lines_held_back_total",                                 \
      "Lines that peers caused and that were too many.")                                           \
    X(LOOP_LAG, HISTOGRAM, "kvplane_loop_lag_seconds",                                             \
      "How late the heartbeats of an event loop came; io: those of all I/O threads.", "loop")      \
    X(LOOP_BEAT, GAUGE, "kvplane_loop_heartbeat_age_seconds",                                      \
      "Time since the last heartbeat of an event loop, of the oldest if there are several; more "  \
      "than a second: it hangs.",                                                                  \
      "loop")                                                                                      \
    /* operations */                                                                               \
    X(OPERATIONS, COUNTER, "kvplane_operations_total", "Finished lifecycle operations.",           \
      "operation", "outcome")                                                                      \
    X(OPERATION_SECONDS, HISTOGRAM, "kvplane_operation_seconds",                                   \
      "Time from request to answer of lifecycle operations.", "operation")                         \
    X(STEP_SECONDS, HISTOGRAM, "kvplane_operation_step_seconds",                                   \
      "Time that a step of lifecycle operations took.", "operation", "step")                       \
    X(STEP_FAILURES, COUNTER, "kvplane_operation_step_failures_total",                             \
      "Steps of lifecycle operations that failed.", "operation", "step", "status")                 \
    X(OPERATIONS_RUNNING, GAUGE, "kvplane_instance_operations_running",                            \
      "1 while an operation of the instance runs.", "instance", "tenant")                          \
    X(OPERATIONS_WAITING, GAUGE, "kvplane_instance_operations_waiting",                            \
      "Operations of the instance that wait for their turn.", "instance", "tenant")                \
    X(LINEAGES_LEFT, COUNTER, "kvplane_lineages_left_total",                                       \
      "Lineages that instances left, by reason.", "reason")                                        \
    X(AUDITED, COUNTER, "kvplane_audited_calls_total",                                             \
      "Calls that may change something, as the audit lines tell them; outcome: ok, refused "       \
      "(4xx), failed (5xx).",                                                                      \
      "operation", "outcome")                                                                      \
    /* instances */                                                                                \
    X(INSTANCE_UP, GAUGE, "kvplane_instance_up",                                                   \
      "1 while all ranks of the instance are attached.", "instance", "tenant")                     \
    X(INSTANCE_READY, GAUGE, "kvplane_instance_ready", "1 while the instance may take traffic.",   \
      "instance", "tenant")                                                                        \
    X(INSTANCE_SLEEPING, GAUGE, "kvplane_instance_sleeping", "1 while the instance sleeps.",       \
      "instance", "tenant")                                                                        \
    X(INSTANCE_DEGRADED, GAUGE, "kvplane_instance_degraded",                                       \
      "1 while memory is partly discarded and the instance cannot serve.", "instance", "tenant")   \
    X(INSTANCE_SCHEDULER, GAUGE, "kvplane_instance_scheduler_state",                               \
      "1 for the state that the scheduler of the instance is in.", "instance", "tenant", "state")  \
    X(INSTANCE_TAG, GAUGE, "kvplane_instance_tag_state",                                           \
      "1 for the state that the memory of a tag is in.", "instance", "tenant", "tag", "state")     \
    X(INSTANCE_OPEN, GAUGE, "kvplane_instance_open",                                               \
      "1 while the instance uses the store; 0 between two lineages.", "instance", "tenant")        \
    X(INSTANCE_SHARED, GAUGE, "kvplane_instance_shared",                                           \
      "1 while the lineage of the instance has a name that others can join.", "instance",          \
      "tenant")                                                                                    \
    X(INSTANCE_RETIREMENTS, GAUGE, "kvplane_instance_retirements_pending",                         \
      "Retirements that the coordinator has not got yet.", "instance", "tenant")                   \
    X(INSTANCE_REQUESTS, GAUGE, "kvplane_instance_requests",                                       \
      "Requests in the engine, as it last reported them: running, waiting, loading.", "instance",  \
      "tenant", "state")                                                                           \
    X(INSTANCE_BLOCKS, GAUGE, "kvplane_instance_blocks_held",                                      \
      "Blocks of the engine's own cache that requests hold, as it last reported them.",            \
      "instance", "tenant")                                                                        \
    X(REGIONS, GAUGE, "kvplane_regions", "Regions of engine memory registered now.", "instance",   \
      "rank")                                                                                      \
    X(REGION_BYTES, GAUGE, "kvplane_region_bytes", "Bytes of engine memory registered now.",       \
      "instance", "rank")                                                                          \
    X(REGION_PINNED, GAUGE, "kvplane_region_pinned_bytes",                                         \
      "Bytes that registrations of a region keep in memory; region: the engine's number of it.",   \
      "instance", "rank", "region")                                                                \
    X(CUDA_HELPERS, GAUGE, "kvplane_cuda_helpers",                                                 \
      "1 while a process holds, or may hold, GPU memory of a rank for the daemon.", "instance",    \
      "rank")                                                                                      \
    X(CUDA_HELD, GAUGE, "kvplane_cuda_references",                                                 \
      "What that process holds of GPU memory, by kind of reference; all 0 asleep.", "instance",    \
      "rank", "kind")                                                                              \
    X(CUDA_STARTS, COUNTER, "kvplane_cuda_helper_starts_total", "Such processes started.",         \
      "instance", "rank")                                                                          \
    X(CUDA_KILLS, COUNTER, "kvplane_cuda_helper_kills_total",                                      \
      "Such processes killed: too late with an answer, or their context was lost.", "instance",    \
      "rank")                                                                                      \
    X(CUDA_FAILURES, COUNTER, "kvplane_cuda_failures_total",                                       \
      "Imports, releases and copies that failed there, and unexpected ends; the status of the "    \
      "rank says the last cause.",                                                                 \
      "instance", "rank")                                                                          \
    /* the engine link */                                                                          \
    X(SESSIONS, GAUGE, "kvplane_sessions", "Connections on the engine socket.")                    \
    X(SESSIONS_ENDED, COUNTER, "kvplane_sessions_ended_total",                                     \
      "Connections on the engine socket that ended, by cause.", "cause")                           \
    X(LATE_REPLIES, COUNTER, "kvplane_late_replies_total",                                         \
      "Answers of engines that came after their bound and were dropped.", "message")               \
    X(CALLS_TIMED_OUT, COUNTER, "kvplane_calls_timed_out_total",                                   \
      "Calls that an engine did not answer within their bound.", "message")                        \
    X(LOOKUPS, COUNTER, "kvplane_lookups_total", "Lookups answered.", "status")                    \
    X(LOOKUP_BLOCKS, COUNTER, "kvplane_lookup_blocks_total",                                       \
      "Blocks looked up: hit, or missed because they are absent, the lineage is private, closed, " \
      "or the token fenced.",                                                                      \
      "result")                                                                                    \
    X(LOOKUP_SECONDS, HISTOGRAM, "kvplane_lookup_seconds", "Time from request to answer.")         \
    X(PUTS, COUNTER, "kvplane_puts_total", "Blocks put, by result.", "result")                     \
    X(GETS, COUNTER, "kvplane_gets_total", "Blocks got, by result.", "result")                     \
    X(PUT_BYTES, COUNTER, "kvplane_put_bytes_total", "Bytes of blocks stored.")                    \
    X(GET_BYTES, COUNTER, "kvplane_get_bytes_total", "Bytes of blocks delivered.")                 \
    X(PUT_SECONDS, HISTOGRAM, "kvplane_put_seconds", "Time from request to answer of a batch.")    \
    X(GET_SECONDS, HISTOGRAM, "kvplane_get_seconds", "Time from request to answer of a batch.")    \
    X(TASKS_QUEUED, GAUGE, "kvplane_tasks_queued", "Batches accepted and not begun.", "instance",  \
      "rank", "queue")                                                                             \
    X(TASKS_RUNNING, GAUGE, "kvplane_tasks_running", "Batches that move bytes now.", "instance",   \
      "rank", "queue")                                                                             \
    X(TASK_AGE, GAUGE, "kvplane_task_oldest_age_seconds",                                          \
      "Age of the oldest batch accepted and not answered; 0: there is none.", "instance", "rank",  \
      "queue")                                                                                     \
    /* servers that are driven by their own routes */                                              \
    X(ENGINE_CALLS, COUNTER, "kvplane_engine_calls_total",                                         \
      "Calls of the routes of a server that is driven; outcome: ok, refused (4xx), failed (5xx), " \
      "timeout, or why there was no answer.",                                                      \
      "instance", "route", "outcome")                                                              \
    X(ENGINE_MISSES, COUNTER, "kvplane_engine_health_misses_total",                                \
      "Looks at such a server's /health that it did not pass.", "instance")                        \
    /* between this process and the nodes */                                                       \
    X(TRANSFERS, COUNTER, "kvplane_transfers_total",                                               \
      "Blocks moved to (put) and from (get) a store node, by what carries them and result.",       \
      "direction", "transport", "result")                                                          \
    X(TRANSFER_BYTES, BYTES, "kvplane_transfer_bytes", "Sizes of the blocks that were moved.",     \
      "direction", "transport")                                                                    \
    X(TRANSFER_SECONDS, HISTOGRAM, "kvplane_transfer_seconds",                                     \
      "Time that a batch for one node took there.", "direction", "transport")                      \
    /* the share of this process */                                                                \
    X(STORE_CAPACITY, GAUGE, "kvplane_store_capacity_bytes", "Bytes the store can hold.")          \
    X(STORE_USED, GAUGE, "kvplane_store_used_bytes", "Bytes in use: live, reserved, quarantined.") \
    X(STORE_RESERVED, GAUGE, "kvplane_store_reserved_bytes", "Bytes of puts not yet committed.")   \
    X(STORE_QUARANTINED, GAUGE, "kvplane_store_quarantined_bytes",                                 \
      "Bytes not reused yet, because somebody may still write or read them.")                      \
    X(STORE_RETIRED, GAUGE, "kvplane_store_retired_bytes",                                         \
      "Bytes of retired lineages not reclaimed yet; new puts use them first.")                     \
    X(STORE_LOCKED, GAUGE, "kvplane_store_locked_bytes",                                           \
      "Bytes that no eviction may take: promised, read, pinned, or being written.")                \
    X(STORE_OBJECTS, GAUGE, "kvplane_store_objects", "Objects stored.")                            \
    X(STORE_TICKETS, GAUGE, "kvplane_store_tickets", "Reads that are promised now.")               \
    X(STORE_HOLDS, GAUGE, "kvplane_store_holds", "Objects that lookups were promised.")            \
    X(STORE_EVICTED, COUNTER, "kvplane_store_evicted_total", "Objects evicted for space.")         \
    X(STORE_RECLAIMED, COUNTER, "kvplane_store_reclaimed_total",                                   \
      "Objects of retired lineages reclaimed.")                                                    \
    X(STORE_TICKETS_LOST, COUNTER, "kvplane_store_tickets_lost_total",                             \
      "Promised reads that ended by their bound or with their reader.")                            \
    X(STORE_LOOKUPS, COUNTER, "kvplane_store_lookups_total", "Keys looked up: hit or miss.",       \
      "result")                                                                                    \
    X(STORE_PUTS, COUNTER, "kvplane_store_puts_total",                                             \
      "Puts: ok, existed, refused (no space or quota), fenced (a retired lineage), failed.",       \
      "result")                                                                                    \
    X(STORE_GETS, COUNTER, "kvplane_store_gets_total",                                             \
      "Gets: ok, missed, ticket (no longer held), checksum (the bytes were not those put), "       \
      "failed.",                                                                                   \
      "result")                                                                                    \
    X(STORE_PUT_BYTES, COUNTER, "kvplane_store_put_bytes_total", "Bytes stored.")                  \
    X(STORE_GET_BYTES, COUNTER, "kvplane_store_get_bytes_total", "Bytes read.")                    \
    X(STORE_REMOVED, COUNTER, "kvplane_store_removed_total", "Objects removed by key.")            \
    X(STORE_SCRUBS, COUNTER, "kvplane_store_scrubs_total",                                         \
      "Objects hashed again after a checksum mismatch: good, or bad and dropped.", "result")       \
    X(CHECKSUMS, COUNTER, "kvplane_checksum_failures_total",                                       \
      "Bytes that did not match their checksum: read from the share (get), hashed again there "    \
      "(scrub), or arrived on a connection (wire).",                                               \
      "at")                                                                                        \
    X(TENANT_USED, GAUGE, "kvplane_tenant_used_bytes", "Bytes in use by a tenant.", "tenant")      \
    X(TENANT_OBJECTS, GAUGE, "kvplane_tenant_objects", "Objects of a tenant.", "tenant")           \
    X(TENANT_EVICTED, COUNTER, "kvplane_tenant_evicted_total",                                     \
      "Objects of a tenant evicted for space.", "tenant")                                          \
    /* the cluster */                                                                              \
    X(ETCD_REACHABLE, GAUGE, "kvplane_etcd_reachable",                                             \
      "1 while etcd answers; 0 also without one.")                                                 \
    X(NODE_UP, GAUGE, "kvplane_node_up", "1 while a store node can be reached.", "node")           \
    X(NODE_SICK, GAUGE, "kvplane_node_sick",                                                       \
      "1 while a store node is left alone because it fails.", "node")                              \
    X(NODE_CAPACITY, GAUGE, "kvplane_node_capacity_bytes", "Bytes that a store node can hold.",    \
      "node")                                                                                      \
    X(NODE_USED, GAUGE, "kvplane_node_used_bytes", "Bytes in use on a store node.", "node")        \
    X(NODE_OBJECTS, GAUGE, "kvplane_node_objects", "Objects on a store node.", "node")             \
    X(NODE_CALLS, COUNTER, "kvplane_node_calls_total", "Calls of this process to a store node.",   \
      "node")                                                                                      \
    X(NODE_FAILURES, COUNTER, "kvplane_node_calls_failed_total",                                   \
      "Calls that failed by the fault of the node.", "node")                                       \
    X(CONNECTIONS, COUNTER, "kvplane_connections_total",                                           \
      "What happened on the connections to a store node, by what carries them; node `-`: on "      \
      "those of others to the share of this process.",                                             \
      "node", "transport", "event")                                                                \
    X(CONNECTION_BYTES, COUNTER, "kvplane_connection_bytes_total",                                 \
      "Bytes on those connections: sent and received.", "node", "transport", "direction")          \
    X(LANES, GAUGE, "kvplane_connections",                                                         \
      "Connections to a store node that are admitted now, by what carries them (rdma: a queue "    \
      "pair each); node `-`: those of others.",                                                    \
      "node", "transport")                                                                         \
    X(RDMA_UP, GAUGE, "kvplane_rdma_port_up",                                                      \
      "1 while the RDMA port of this process works; 0 also without one.")                          \
    X(RDMA_SHARE, GAUGE, "kvplane_rdma_share_bytes",                                               \
      "Bytes of this process's share that are pinned for RDMA.")                                   \
    X(RDMA_EVENTS, COUNTER, "kvplane_rdma_events_total",                                           \
      "What went wrong with RDMA: completions of work requests, connections, the device; by "      \
      "cause.",                                                                                    \
      "cause")                                                                                     \
    X(NODE_REQUESTS, GAUGE, "kvplane_node_requests_running",                                       \
      "Requests of other processes for the share, not answered yet.")                              \
    /* passed on to the engines' own servers */                                                    \
    X(UPSTREAM_REQUESTS, COUNTER, "kvplane_upstream_requests_total",                               \
      "Requests passed on to the engines' own servers, by instance (`-`: the one of `upstream`) "  \
      "and class of the answer's status (`none`: there was none).",                                \
      "instance", "code")                                                                          \
    X(UPSTREAM_RUNNING, GAUGE, "kvplane_upstream_requests_running",                                \
      "Requests at the engines' own servers, or on the way there or back.")                        \
    X(UPSTREAM_HELD, GAUGE, "kvplane_upstream_requests_held",                                      \
      "Requests held until an engine runs again.")                                                 \
    X(UPSTREAM_REFUSED, COUNTER, "kvplane_upstream_requests_refused_total",                        \
      "Requests not passed on: paused, asleep, held (too many or too long), full "                 \
      "(upstream-requests-max), unknown (no such instance), closed, memory.",                      \
      "reason")                                                                                    \
    X(UPSTREAM_BYTES, COUNTER, "kvplane_upstream_bytes_total",                                     \
      "Bytes of bodies passed on: sent to the engines' own servers, received from them.",          \
      "direction")                                                                                 \
    X(UPSTREAM_ERRORS, COUNTER, "kvplane_upstream_errors_total",                                   \
      "Requests passed on that went wrong: connect, tls, timeout, closed (unanswered), "           \
      "malformed, broken (in the middle of an answer), client (it left first), memory.",           \
      "kind")                                                                                      \
    /* REST */                                                                                     \
    X(HTTP_CONNECTIONS, GAUGE, "kvplane_http_connections", "HTTP connections open.")               \
    X(TLS_EXPIRY, GAUGE, "kvplane_tls_certificate_expiry_seconds",                                 \
      "Unix time at which the certificate that the REST API is served with expires.")              \
    X(RELOADS, COUNTER, "kvplane_reloads_total", "Files read anew at SIGHUP.", "file", "outcome")  \
    X(HTTP_REQUESTS, COUNTER, "kvplane_http_requests_total", "HTTP requests answered.", "route",   \
      "code")                                                                                      \
    X(HTTP_SECONDS, HISTOGRAM, "kvplane_http_request_seconds",                                     \
      "Time from the end of the request to its answer.", "route")

enum kvp_metric {
#define X(name, ...) KVP_M_##name,
    KVP_METRICS(X)
#undef X
        KVP_METRIC_COUNT
};
extern const struct kvb_metric kvp_metric_table[KVP_METRIC_COUNT];

/* The families CONNECTIONS and LANES, of one node and what carries them (tcp, rdma). */
void kvp_metrics_peer(struct kvb_metrics *metrics, const char *node, const char *transport,
                      const struct kvt_peer_stats *stats);

/* The table of the README. */
void kvp_metrics_table(FILE *out);

/* A heartbeat of an event loop came so late. Any thread. */
void kvp_metrics_beat(struct kvb_metrics *metrics, const char *loop, uint64_t lag_ns);

#endif
