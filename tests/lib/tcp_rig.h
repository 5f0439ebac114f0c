/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TCP_RIG_H
#define TESTS_TCP_RIG_H

/*
 * A node that serves plain memory over the tcp transport: what the store is to it, without a store.
 * A question is a list of extents of that memory: RIG_PUT writes its body there, RIG_GET answers
 * with what is there, RIG_ECHO answers with its own text.
 */
#include "base/assert.h"
#include "transport/tcp.h"

#define XXH_STATIC_LINKING_ONLY /* the size of XXH3_state_t */
#include <xxhash.h>

#include <string.h>

enum { RIG_PUT = 1, RIG_GET = 2, RIG_ECHO = 3 };
#define RIG_EXTENTS_MAX 64

struct rig_node {
    struct kvt_tcp_server *server;
    uint8_t *base;
    uint64_t len;
    /* counts */
    uint32_t sessions, running, puts, gets, gone;
    bool late; /* does not answer by itself: rig_answer() */
    struct kvb_list waiting;
    kvb_status_t verdict;          /* what sent() says */
    struct kvt_request *receiving; /* the last put whose body is on the way */
};

static inline void rig_text_pack(const struct kvt_extent *extents, uint32_t n, uint8_t *out)
{
    memcpy(out, extents, n * sizeof *extents);
}

static inline uint32_t rig_iov_(const struct rig_node *node, const struct kvt_request *request,
                                struct iovec iov[RIG_EXTENTS_MAX])
{
    uint32_t n = (uint32_t)(request->ask.len / sizeof(struct kvt_extent));
    if (n > RIG_EXTENTS_MAX || n * sizeof(struct kvt_extent) != request->ask.len) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kvt_extent extent;
        memcpy(&extent, request->ask.data + i * sizeof extent, sizeof extent);
        if (extent.len > node->len || extent.offset > node->len - extent.len) {
            return 0;
        }
        iov[i] = (struct iovec){node->base + extent.offset, (size_t)extent.len};
    }
    return n;
}

static inline uint64_t rig_iov_len_(const struct iovec *iov, uint32_t n)
{
    uint64_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        len += iov[i].iov_len;
    }
    return len;
}

static inline uint64_t rig_hash_(const struct iovec *iov, uint32_t n)
{
    XXH3_state_t state;
    (void)XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < n; i++) {
        (void)XXH3_64bits_update(&state, iov[i].iov_base, iov[i].iov_len);
    }
    return XXH3_64bits_digest(&state);
}

static inline void rig_answer(struct rig_node *node, struct kvt_request *request)
{
    struct iovec iov[RIG_EXTENTS_MAX];
    uint32_t n = rig_iov_(node, request, iov);
    node->running--;
    if (request->type == RIG_ECHO && request->body_len == 0) {
        kvt_answer(request, KVB_OK, request->ask.data, (uint32_t)request->ask.len);
    } else if (request->type == RIG_GET && n > 0 && rig_iov_len_(iov, n) > 0 &&
               request->body_len == 0) {
        node->gets++;
        node->running++;
        kvt_answer_body(request, "got", 3, iov, n, rig_hash_(iov, n));
    } else if (request->type == RIG_PUT && n > 0 && request->body_len > 0 &&
               rig_iov_len_(iov, n) == request->body_len) {
        node->running++;
        node->receiving = request;
        kvt_receive(request, iov, n);
    } else {
        kvt_answer(request, KVB_ERR_INVALID, NULL, 0);
    }
}

static inline void rig_answer_all(struct rig_node *node)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&node->waiting)) != NULL;) {
        rig_answer(node, kvb_container_of(link, struct kvt_request, link));
    }
}

static inline kvb_status_t rig_opened_(void *ctx, const struct kvt_lane *lane, void **session_p)
{
    (void)lane;
    struct rig_node *node = ctx;
    node->sessions++;
    *session_p = node;
    return KVB_OK;
}

static inline void rig_closed_(void *ctx, void *session)
{
    struct rig_node *node = ctx;
    kvb_assert(session == node && node->sessions > 0);
    node->sessions--;
}

static inline void rig_request_(void *ctx, struct kvt_request *request)
{
    struct rig_node *node = ctx;
    node->running++;
    if (node->late) {
        kvb_list_push_back(&node->waiting, &request->link);
    } else {
        rig_answer(node, request);
    }
}

static inline void rig_received_(void *ctx, struct kvt_request *request, kvb_status_t status,
                                 uint64_t checksum)
{
    struct rig_node *node = ctx;
    node->running--;
    node->receiving = NULL;
    node->puts += status == KVB_OK;
    kvt_answer(request, status, &checksum, status == KVB_OK ? sizeof checksum : 0);
}

static inline kvb_status_t rig_sent_(void *ctx, struct kvt_request *request)
{
    (void)request;
    struct rig_node *node = ctx;
    node->running--;
    return node->verdict;
}

static inline void rig_gone_(void *ctx, struct kvt_request *request)
{
    struct rig_node *node = ctx;
    node->running--;
    node->gone++;
    kvb_list_remove(&request->link);
}

static const struct kvt_server_ops rig_server_ops = {
    .opened = rig_opened_,
    .closed = rig_closed_,
    .request = rig_request_,
    .received = rig_received_,
    .sent = rig_sent_,
    .gone = rig_gone_,
};

/* config: ops and ctx are filled in. */
static inline kvb_status_t rig_node_init(struct rig_node *node, void *base, uint64_t len,
                                         struct kvt_tcp_server_config config)
{
    *node = (struct rig_node){.base = base, .len = len};
    kvb_list_init(&node->waiting);
    config.ops = &rig_server_ops;
    config.ctx = node;
    return kvt_tcp_server_create(&config, &node->server);
}

static inline void rig_node_cleanup(struct rig_node *node)
{
    kvt_tcp_server_destroy(node->server);
    kvb_assert(node->sessions == 0 && node->running == 0);
}

#endif
