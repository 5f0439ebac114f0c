/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CURL_H
#define BASE_CURL_H

#include "base/io.h"
#include "base/sched.h"

#include <stdbool.h>

/*
 * libcurl's multi interface on one loop: its sockets are watched by a struct kvb_io and its one
 * timer is a kvb_timer, so there is no thread and nothing blocks. Loop thread only.
 */
struct kvb_curl;

/* One request. Its owner makes `easy` (a CURL *) and sets everything about it but CURLOPT_PRIVATE.
 */
struct kvb_transfer {
    void *easy; /* NULL: none */
    /* It is over, result a CURLcode; not inside of libcurl, which may not be entered twice, so the
     * transfer may be stopped here and another one started. */
    void (*over)(struct kvb_transfer *transfer, int result);
};

/* connections_max: further transfers wait for one. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvb_curl_create(struct kvb_sched *sched, struct kvb_io *io,
                                          uint32_t connections_max, struct kvb_curl **curl_p);
/* Every transfer was stopped. */
void kvb_curl_destroy(struct kvb_curl *curl);

/* False: out of memory, and it is still the owner's. over() comes later, never inside. */
KVB_MUST_USE bool kvb_curl_start(struct kvb_curl *curl, struct kvb_transfer *transfer);
/* Ends it, whatever it was at, and frees `easy`. None: nothing. */
void kvb_curl_stop(struct kvb_curl *curl, struct kvb_transfer *transfer);

#endif
