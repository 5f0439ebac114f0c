/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_NODE_CONFIG_H
#define SERVER_NODE_CONFIG_H

#include "cluster_keys.h"
#include "commands.h"

#include <stdio.h>

/* Every key of `kvplane store`, once; read as those of the daemon (server/config.h). */
#define KVP_STORE_CONFIG(X)                                                                        \
    X(listen, TEXT, "listen", "127.0.0.1:8101", "",                                                \
      "HOST:PORT of this node's own REST API; port 0 takes a free one. Another host than a "       \
      "loopback one needs token-file or insecure")                                                 \
    X(cluster_listen, TEXT, "cluster-listen", "127.0.0.1:8102", "",                                \
      "HOST:PORT at which daemons reach the share; port 0 takes a free one. Another host than a "  \
      "loopback one needs secret-file or insecure")                                                \
    X(transport, CHOICE, "transport", "auto", "auto rdma tcp",                                     \
      "how daemons reach the share: by tcp always; by rdma, too, where there is a device (auto), " \
      "or this node does not start (rdma)")                                                        \
    X(store_bytes, BYTES, "store-bytes", "1GiB", "1MiB 64TiB", "memory of the share")              \
    X(shards, COUNT, "shards", "0", "0 256",                                                       \
      "shards of the share, each with its own lock; 0: one for each 4GiB, at most 16")             \
    X(huge_pages, SWITCH, "huge-pages", "false", "",                                               \
      "of the system's huge pages (vm.nr_hugepages), or not start")                                \
    X(prefault, SWITCH, "prefault", "false", "",                                                   \
      "take all memory at start rather than with the first puts")                                  \
    X(events, COUNT, "events", "1024", "0 1000000",                                                \
      "of each shard, that are kept for GET /v1/kvplane/events")                                   \
    X(ticket, TIME, "ticket", "60s", "1ms 1h",                                                     \
      "a reader or writer that is slower than this fails")                                         \
    X(drain_bound, TIME, "drain-bound", "30s", "0s 24h",                                           \
      "a node that leaves waits so long for its readers")                                          \
    KVP_CLUSTER_KEYS(X)                                                                            \
    KVP_REST_KEYS(X)                                                                               \
    X(fault, TEXT, "fault", "", "", "take a protection out (only in builds for that)")

struct kvp_store_config {
#define X(name, type, key, standard, limits, what) KVP_CONFIG_##type name;
    KVP_STORE_CONFIG(X)
#undef X
};

/* As kvp_config_read() and the rest of server/config.h. */
KVB_MUST_USE kvb_status_t kvp_store_config_read(int argc, const char *const *argv,
                                                struct kvp_store_config *config_p, char *error);
void kvp_store_config_cleanup(struct kvp_store_config *config);
/* Borrows the texts. */
struct kvp_cluster_config kvp_store_config_cluster(const struct kvp_store_config *config);
struct kvp_rest_config kvp_store_config_rest(const struct kvp_store_config *config);
void kvp_store_config_options(const char *command, kvp_tell_option_fn tell, void *ctx);
void kvp_store_config_table(FILE *out);
void kvp_store_config_show(const struct kvp_store_config *config, FILE *out);

#endif
