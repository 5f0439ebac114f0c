/* SPDX-License-Identifier: Apache-2.0 */
#include "base/queue.h"

#include "base/assert.h"

void kvb_queue_init(struct kvb_queue *queue, const char *name, uint32_t cap,
                    void (*wake)(void *ctx), void *ctx)
{
    kvb_mutex_init(&queue->lock, name);
    kvb_list_init(&queue->items);
    queue->len = 0;
    queue->cap = cap;
    queue->closed = false;
    queue->wake = wake;
    queue->wake_ctx = ctx;
}

void kvb_queue_cleanup(struct kvb_queue *queue)
{
    kvb_assert(kvb_list_empty(&queue->items));
    kvb_mutex_cleanup(&queue->lock);
}

kvb_status_t kvb_queue_put(struct kvb_queue *queue, struct kvb_item *item)
{
    kvb_status_t status = KVB_OK;
    bool first = false;
    kvb_mutex_lock(&queue->lock);
    if (queue->closed) {
        status = KVB_ERR_CANCELED;
    } else if (queue->len == queue->cap) {
        status = KVB_ERR_AGAIN;
    } else {
        first = queue->len++ == 0;
        kvb_list_push_back(&queue->items, &item->link);
    }
    kvb_mutex_unlock(&queue->lock);
    if (first && queue->wake != NULL) {
        queue->wake(queue->wake_ctx);
    }
    return status;
}

struct kvb_item *kvb_queue_pop(struct kvb_queue *queue)
{
    kvb_mutex_lock(&queue->lock);
    struct kvb_list *link = kvb_list_pop(&queue->items);
    if (link != NULL) {
        queue->len--;
    }
    kvb_mutex_unlock(&queue->lock);
    return link == NULL ? NULL : kvb_container_of(link, struct kvb_item, link);
}

void kvb_queue_close(struct kvb_queue *queue, void (*drop)(void *ctx, struct kvb_item *item),
                     void *ctx)
{
    kvb_mutex_lock(&queue->lock);
    queue->closed = true;
    kvb_mutex_unlock(&queue->lock);
    /* Nothing is added any more, and pop gives each item to one caller: this one or a consumer. */
    for (struct kvb_item *item; (item = kvb_queue_pop(queue)) != NULL;) {
        drop(ctx, item);
    }
}

uint32_t kvb_queue_len(struct kvb_queue *queue)
{
    kvb_mutex_lock(&queue->lock);
    uint32_t len = queue->len;
    kvb_mutex_unlock(&queue->lock);
    return len;
}
