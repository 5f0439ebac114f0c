/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include "base/list.h"
#include "base/mutex.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The way from any thread to a loop: a bounded queue of items plus a wake-up. Every item that was
 * put is completed exactly once: by the consumer that popped it, or by kvb_queue_close(), which
 * hands what is left to `drop`. An item that was not accepted (AGAIN: full, CANCELED: closed) still
 * belongs to the caller.
 */
struct kvb_item {
    struct kvb_list link;
};

struct kvb_queue {
    struct kvb_mutex lock;
    struct kvb_list items;   /* guarded by lock */
    uint32_t len;            /* guarded by lock */
    uint32_t cap;            /* immutable */
    bool closed;             /* guarded by lock */
    void (*wake)(void *ctx); /* immutable; any thread; called without the lock, for each put into an
                                empty queue */
    void *wake_ctx;
};

void kvb_queue_init(struct kvb_queue *queue, const char *name, uint32_t cap,
                    void (*wake)(void *ctx), void *ctx);
void kvb_queue_cleanup(struct kvb_queue *queue); /* must be empty */

/* OK: taken. ERR_AGAIN: full. ERR_CANCELED: closed. Any thread, never blocks. */
KVB_MUST_USE kvb_status_t kvb_queue_put(struct kvb_queue *queue, struct kvb_item *item);

/* Oldest item, or NULL. Wake-ups coalesce: pop until NULL. */
struct kvb_item *kvb_queue_pop(struct kvb_queue *queue);

/* No more puts; every item still inside is given to drop(ctx, item), once. Idempotent. */
void kvb_queue_close(struct kvb_queue *queue, void (*drop)(void *ctx, struct kvb_item *item),
                     void *ctx);
uint32_t kvb_queue_len(struct kvb_queue *queue);

#endif
