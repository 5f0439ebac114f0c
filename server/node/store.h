/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_NODE_STORE_H
#define SERVER_NODE_STORE_H

#include "node/config.h"

/*
 * A store node: a share, served to the daemons of other machines, and known to them through the
 * cluster's etcd. Everything is bound before the ready line is printed; etcd may be away, at start
 * and later.
 */
struct kvp_store;

/* config is borrowed. What fails is logged with its cause; INVALID, BUSY, IO, LIMIT, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_store_create(const struct kvp_store_config *config,
                                           struct kvp_store **store_p);
/*
 * Prints `kvplane store ready HOST:PORT http://HOST:PORT` and serves until it is asked to leave, by
 * SIGINT, SIGTERM or POST /v1/kvplane/drain: nothing new is placed here, readers may finish up to
 * drain-bound, the node is withdrawn. A second signal ends the waiting.
 */
void kvp_store_run(struct kvp_store *store);
void kvp_store_destroy(struct kvp_store *store); /* after run, or without it */

/* `kvplane store`: argv[0] is the subcommand. Exit code: 0, 1 failed, 2 a bad command line. */
int kvp_store_main(int argc, char **argv);

#endif
