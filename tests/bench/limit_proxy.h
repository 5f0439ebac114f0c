/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LIMIT_PROXY_H
#define BENCH_LIMIT_PROXY_H

#include <stdint.h>
#include <sys/types.h>

/*
 * The ruler of bench proxy: what a bare program reaches that answers by libmicrohttpd and asks by
 * libcurl, as kvplane does, and does nothing else. It looks at no header, passes no body of a
 * request on and none of an answer before it is whole, bounds nothing, and drives both libraries
 * from one epoll set, in two threads that share nothing. (kvplane cannot do that: libmicrohttpd
 * 0.9.75 loses clients that close where it is driven by epoll, so it polls in a thread of its own.)
 * Its rate is no bound, for it waits at times; what its CPU allows is.
 */
#define LIMIT_PROXY_THREADS 2 /* as many as kvplane has for it */

/* A process, at 127.0.0.1:port; url: what comes before the path that it is asked for. */
pid_t limit_proxy(uint16_t port, const char *url);

#endif
