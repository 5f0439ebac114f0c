/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_CLUSTER_RIG_H
#define BENCH_CLUSTER_RIG_H

#include "rig.h"

#include <curl/curl.h>

/* A cluster of real processes: etcd and store nodes, all on RIG_SERVER_CPU, and an etcd client of
 * our own as the ruler. */

#define RIG_ETCD_MAX 3u

struct rig_etcd {
    pid_t pids[RIG_ETCD_MAX];
    uint32_t n;
    char dir[64];
    char urls[RIG_ETCD_MAX][32];
    char endpoints[RIG_ETCD_MAX * 32];
    CURL *curl;
    uint64_t count;
};
void rig_etcd_start(struct rig_etcd *etcd, uint32_t n);
void rig_etcd_stop(struct rig_etcd *etcd);
/* The bare transaction: one compare and `puts` puts of so many bytes, over a connection that is
 * kept; until its answer is there. */
double rig_etcd_txn_us(struct rig_etcd *etcd, uint32_t puts, size_t bytes);

/* `kvplane store`. */
struct rig_store {
    pid_t pid;
    struct rig rest; /* its port, for rig_http */
};
void rig_store_start(struct rig_store *store, const char *name, const struct rig_etcd *etcd,
                     const char *bytes);
void rig_store_kill(struct rig_store *store);

/* Processor time that all threads of a process have used. */
double rig_cpu_ms(pid_t pid);

#endif
