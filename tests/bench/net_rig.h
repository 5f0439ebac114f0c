/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_NET_RIG_H
#define BENCH_NET_RIG_H

#include "loop.h"
#include "rig.h"

#include "store/service.h"
#include "transport/tcp.h"

/*
 * For the benches of the wire: servers in processes of their own, with one I/O thread that runs the
 * program's own loop, and in this process a loop, an engine's memory as a region, and a client of
 * store nodes. Anything that goes wrong is rig_fail().
 */

/* ---- servers ---- */

struct rig_server {
    pid_t pid;
    uint16_t port;
    char address[32];
};
struct rig_server_ops {
    void *(*start)(struct kvp_loop *loop, struct kvt_net *net, const void *arg);
    kvb_status_t (*adopt)(void *server, int fd);
};
/* Forks, pins to cpu, runs. arg: read in the child. */
void rig_server_start(struct rig_server *server, int cpu, const struct rig_server_ops *ops,
                      const void *arg);
void rig_server_stop(struct rig_server *server);

/* A store node. */
struct rig_node {
    uint64_t share_bytes;
};
extern const struct rig_server_ops rig_node_ops; /* arg: a struct rig_node */

/* ---- this process ---- */

#define RIG_SOCKET_BYTES                                                                           \
    0u /* of socket buffers, each way; 0, as the program has: the kernel's choice */

struct rig_net {
    struct kvp_loop *loop;
    struct kvt_net *net;
    struct kvt_regions *regions;
    struct kvt_region *region;
    char *memory;
    size_t len;
};
void rig_net_open(struct rig_net *net, size_t len);
void rig_net_close(struct rig_net *net);
/* Runs the loop for so long. */
void rig_net_idle(struct rig_net *net, uint64_t ns);
/* Runs a program on RIG_CLIENT_CPU, the loop meanwhile, so that lanes stay alive; its standard
 * output. */
void rig_net_spawn(struct rig_net *net, const char *const *argv, char *out, size_t cap);

/* ---- a client of store nodes ---- */

struct rig_client {
    struct rig_net *net;
    struct kvs_client *client;
    struct kvs_node *nodes[16];
    uint32_t nnodes;
    struct kvs_space space;
    struct kvb_lineage lineage;
};
void rig_client_open(struct rig_client *client, struct rig_net *net,
                     const struct rig_server *servers, uint32_t n);
void rig_client_close(struct rig_client *client);

struct rig_run {
    enum kvs_batch_op op;
    uint64_t first; /* keys first, first + 1, … */
    uint32_t n;     /* keys, a multiple of batch */
    uint32_t len;   /* bytes of each value; the region is walked, so nothing is hot */
    uint32_t batch; /* keys of one */
    uint32_t outstanding;
    double per_s;       /* batches begin at this rate, whatever is outstanding; 0: closed loop */
    double *latency_ns; /* of each batch, from when it was due; NULL: not wanted */
    uint32_t failed;    /* set: items whose status was not OK */
};
uint64_t rig_client_run(struct rig_client *client, struct rig_run *run); /* ns it took */

#endif
