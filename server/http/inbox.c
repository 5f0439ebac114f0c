/* SPDX-License-Identifier: Apache-2.0 */
#include "http/inbox.h"

#include "http/errors.h"

#include "base/assert.h"

void kvp_inbox_init(struct kvp_inbox *inbox, uint32_t max, void (*wake)(void *ctx), void *wake_ctx)
{
    atomic_init(&inbox->open, 0);
    inbox->max = max;
    kvb_queue_init(&inbox->submitted, "inbox", max, wake, wake_ctx);
}

void kvp_inbox_cleanup(struct kvp_inbox *inbox)
{
    kvb_assert(atomic_load(&inbox->open) == 0);
    kvb_queue_cleanup(&inbox->submitted);
}

kvb_status_t kvp_inbox_submit(struct kvp_inbox *inbox, struct kvp_request *request)
{
    if (atomic_fetch_add(&inbox->open, 1) >= inbox->max) {
        atomic_fetch_sub(&inbox->open, 1);
        return KVB_ERR_AGAIN;
    }
    kvb_status_t status = kvb_queue_put(&inbox->submitted, &request->item);
    if (status != KVB_OK) {
        atomic_fetch_sub(&inbox->open, 1);
    }
    return status;
}

struct kvp_request *kvp_inbox_next(struct kvp_inbox *inbox)
{
    struct kvb_item *item = kvb_queue_pop(&inbox->submitted);
    return item != NULL ? kvb_container_of(item, struct kvp_request, item) : NULL;
}

void kvp_inbox_reply(struct kvp_inbox *inbox, struct kvp_request *request, unsigned http_status,
                     json_t *body, unsigned retry_after_s)
{
    atomic_fetch_sub(&inbox->open, 1); /* before: the client may ask again at once */
    request->reply(request, http_status, body, retry_after_s);
}

void kvp_inbox_reply_error(struct kvp_inbox *inbox, struct kvp_request *request,
                           kvb_status_t status, const char *param, const char *message)
{
    unsigned http_status = kvp_error_http(status);
    kvp_inbox_reply(inbox, request, http_status, kvp_error_body(http_status, param, message),
                    kvp_error_retry_s(status));
}

void kvp_inbox_reply_closed(struct kvp_inbox *inbox, struct kvp_request *request)
{
    kvp_inbox_reply(
        inbox, request, 503,
        kvp_error_body(503, NULL,
                       "the daemon is shutting down; what was begun may or may not be done"),
        0);
}

static void drop(void *ctx, struct kvb_item *item)
{
    kvp_inbox_reply_closed(ctx, kvb_container_of(item, struct kvp_request, item));
}

void kvp_inbox_close(struct kvp_inbox *inbox)
{
    kvb_queue_close(&inbox->submitted, drop, inbox);
}
