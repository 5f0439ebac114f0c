/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_PROGRAM_H
#define SERVER_PROGRAM_H

#include "cluster_keys.h"
#include "http/http.h"

#include "base/io.h"
#include "base/metrics.h"
#include "base/sched.h"
#include "store/coordinator.h"
#include "transport/tcp.h"

/* How the two programs begin: what their common keys (cluster_keys.h) say is put into place. */

/* Log, descriptor limit, signals, memory, fault switch. INVALID: no such fault here; logged. */
KVB_MUST_USE kvb_status_t kvp_program_begin(const char *log_level, const char *log_format,
                                            const char *fault);

/* The file of a key, at most cap - 1 bytes of it, without the blanks at its end and without a NUL.
 * INVALID: empty or too long; IO; logged. */
KVB_MUST_USE kvb_status_t kvp_program_secret(const char *key, const char *path, char *out,
                                             size_t cap, uint32_t *len_p);

/*
 * What an Authorization header says with the token that the first line of that file is, for
 * kvp_program_bearer_free(). path "": NULL. As kvp_program_secret(); NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kvp_program_bearer(const char *key, const char *path,
                                             char **authorization_p);
void kvp_program_bearer_free(char *authorization);

/* Tells a service manager that asked for it (systemd's Type=notify): READY=1, STOPPING=1. Nobody
 * asked, or it does not listen (logged): nothing happens. Never waits. */
void kvp_program_notify(const char *state);
/* The main loop turns: for its watchdog, if it has set one. *told_ns: the caller keeps it, 0 at
 * first. */
void kvp_program_alive(uint64_t now_ns, uint64_t *told_ns);

/* A share of so many bytes fits into this machine. NO_MEMORY: it does not; logged. */
KVB_MUST_USE kvb_status_t kvp_program_memory(uint64_t bytes);

/* Descriptors that a process wants at most, beside its HTTP connections: for its lanes if it is of
 * a cluster, and for so many sessions of engines. */
uint32_t kvp_program_descriptors(const struct kvp_cluster_config *config, uint32_t sessions);

/* A listener at HOST:PORT (checked before), and the address of it: with the port it got. */
#define KVP_ADDRESS_MAX 256
KVB_MUST_USE kvb_status_t kvp_program_listen(const char *listen, int *fd_p,
                                             char address[KVP_ADDRESS_MAX]);

/* The REST API: by TCP, on a Unix socket, or both, each with a server of its own. Zeroes: not
 * started. */
#define KVP_REST_SERVERS 2
struct kvp_rest {
    struct kvp_rest_config config;
    struct kvb_metrics *metrics;
    struct kvp_http *servers[KVP_REST_SERVERS];
    uint32_t n;
    char url[KVP_ADDRESS_MAX]; /* where it is; unix:PATH where there is no other */
};

/* http: routes, inbox, ops and ctx, asked on the thread of each server; the rest comes from the
 * keys, whose texts are borrowed for as long as it is there. INVALID, IO: also a file of the keys;
 * logged. */
KVB_MUST_USE kvb_status_t kvp_rest_start(struct kvp_rest *rest,
                                         const struct kvp_rest_config *config,
                                         const struct kvp_http_config *http,
                                         struct kvb_metrics *metrics);
bool kvp_rest_started(const struct kvp_rest *rest);
/* SIGHUP: tokens and TLS files are read anew. What is wrong with them is logged and counted, and
 * what was in force stays. */
void kvp_rest_reload(struct kvp_rest *rest);
uint32_t kvp_rest_connections(const struct kvp_rest *rest); /* open now */
void kvp_rest_wake(const struct kvp_rest *rest, bool beat); /* kvp_http_wake() */
void kvp_rest_stop(struct kvp_rest *rest);                  /* nothing if it never was */
/* The line of a call that changes something: who (which token), what, of which instance, from
 * where, and how it ended. */
void kvp_program_audit(const struct kvp_http_answered *answered);

/* Secret and bounds of connections between processes of the cluster; net is left alone. INVALID,
 * IO: the secret file; logged. */
KVB_MUST_USE kvb_status_t kvp_program_common(const struct kvp_cluster_config *config,
                                             struct kvt_peer_common *common_p);
/* The coordinator of the cluster; etcd may be away. grace_ms: of names. INVALID, IO (password
 * file), NO_MEMORY; logged. */
KVB_MUST_USE kvb_status_t kvp_program_etcd(const struct kvp_cluster_config *config,
                                           uint64_t grace_ms, const char *process,
                                           struct kvb_sched *sched, struct kvb_io *io,
                                           struct kvs_coordinator **coordinator_p);
/* The record of this process's share. listen: the address it got. */
void kvp_program_record(const struct kvp_cluster_config *config, const char *listen,
                        uint64_t capacity_bytes, struct kvs_node_record *record_p);

#endif
