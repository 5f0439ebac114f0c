/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DAEMON_H
#define SERVER_DAEMON_H

#include "config.h"

/*
 * The daemon beside an engine: loop, embedded store and coordinator, fleet, engine link and REST
 * API, put together. Everything is bound before the ready line is printed.
 */
struct kvp_daemon;

/* config is borrowed. What fails is logged with its cause; INVALID, BUSY, IO, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_daemon_create(const struct kvp_config *config,
                                            struct kvp_daemon **daemon_p);
/* Prints `kvplane ready http://HOST:PORT` and serves until SIGINT or SIGTERM; everything that was
 * asked for is answered. TIMEOUT: something did not end in time. */
KVB_MUST_USE kvb_status_t kvp_daemon_run(struct kvp_daemon *daemon);
void kvp_daemon_destroy(struct kvp_daemon *daemon); /* after run, or without it */

/* `kvplane serve`: argv[0] is the subcommand. Exit code: 0, 1 failed, 2 a bad command line. */
int kvp_serve_main(int argc, char **argv);

#endif
