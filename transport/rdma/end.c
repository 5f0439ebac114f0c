/* SPDX-License-Identifier: Apache-2.0 */
#include "end.h"

#include "cause.h"
#include "lane.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define POLL_STEP   32
#define AGAIN_MS    2u
#define EVENTS_TURN 64 /* of connections, in one turn */

struct rslab {
    uint8_t *pages;
    size_t len;
    struct ibv_mr *mr;
    struct rbuf *buffers;
};

/* ---- receiving ---- */

static void try_again(struct rend *end)
{
    if (!kvb_timer_armed(&end->again)) {
        kvb_sched_timer_set(end->sched, &end->again,
                            kvb_deadline_in_ms(end->sched->clock, AGAIN_MS));
    }
}

void rend_buffer_put(struct rend *end, struct rbuf *buffer)
{
    struct ibv_sge sge = {.addr = buffer->lkey_at,
                          .length = RDEV_MESSAGE_BYTES,
                          .lkey = end->slabs[buffer->slab].mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uintptr_t)buffer, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;
    kvb_list_remove(&buffer->link);
    int error = end->device->verbs->ibv_post_srq_recv(end->srq, &wr, &bad);
    if (error != 0) { /* there is room for all of them: it is short of something else */
        KVB_LOG_LIMITED(WARN, "rdma: a receive could not be posted", KVB_ERRNO(error));
        kvb_list_push_back(&end->unposted, &buffer->link);
        try_again(end);
    }
}

static struct rlane *lane_of(struct rend *end, uint32_t qp_num)
{
    kvb_list_each(&end->lanes[qp_num % REND_BUCKETS], link)
    {
        struct rlane *lane = kvb_container_of(link, struct rlane, by_number);
        if (lane->qp->qp_num == qp_num) {
            return lane;
        }
    }
    return NULL;
}

static void make_ready(struct rend *end, struct rlane *lane)
{
    if (kvb_list_empty(&lane->ready)) {
        kvb_list_push_back(&end->ready, &lane->ready);
    }
    rlane_kick(lane);
}

static void fail_all(struct rend *end)
{
    KVB_LOG_LIMITED(ERROR, "rdma: what was received cannot be read");
    for (uint32_t i = 0; i < REND_BUCKETS; i++) {
        kvb_list_each(&end->lanes[i], link)
        {
            rlane_fail(kvb_container_of(link, struct rlane, by_number), KVB_ERR_IO);
        }
    }
}

static void on_received(struct rend *end, const struct ibv_wc *wc)
{
    struct rbuf *buffer = (struct rbuf *)(uintptr_t)wc->wr_id; /* lives as long as the queue */
    struct rlane *lane = lane_of(end, wc->qp_num);
    if (wc->status != IBV_WC_SUCCESS) {
        const struct rcause *row = rcause_of_wc(wc->status);
        rdev_count(end->device, row->cause);
        if (lane != NULL) {
            rlane_fail(lane, row->lane);
        }
        rend_buffer_put(end, buffer);
        return;
    }
    if (lane == NULL) { /* of a queue pair that is gone */
        rend_buffer_put(end, buffer);
        return;
    }
    buffer->len = wc->byte_len;
    kvb_list_push_back(&lane->inbox, &buffer->link);
    make_ready(end, lane);
}

void rend_poll(struct rend *end)
{
    struct ibv_wc wcs[POLL_STEP];
    int n;
    /* Ends: a buffer is posted again only when its packet was looked at, or is nobody's. */
    uint64_t budget = (uint64_t)end->slabs_n * end->device->info.window + POLL_STEP;
    while ((n = end->device->verbs->ibv_poll_cq(end->received, POLL_STEP, wcs)) > 0) {
        for (int i = 0; i < n; i++) {
            on_received(end, &wcs[i]);
        }
        if (n < POLL_STEP || budget < (uint64_t)n) {
            break;
        }
        budget -= (uint64_t)n;
    }
    if (n < 0) {
        fail_all(end);
        try_again(end);
    }
}

/* Completions are told, and those that came before are taken; or else a moment later. */
static void arm(struct rend *end)
{
    end->unarmed = end->device->verbs->ibv_req_notify_cq(end->received, 0) != 0;
    if (end->unarmed) {
        try_again(end);
    }
    rend_poll(end);
}

static void on_again(struct kvb_timer *timer)
{
    struct rend *end = kvb_container_of(timer, struct rend, again);
    struct kvb_list unposted;
    kvb_list_init(&unposted);
    for (struct kvb_list *link; (link = kvb_list_pop(&end->unposted)) != NULL;) {
        kvb_list_push_back(&unposted, link);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&unposted)) != NULL;) {
        rend_buffer_put(end, kvb_container_of(link, struct rbuf, link));
    }
    if (end->unarmed) {
        arm(end);
    } else {
        rend_poll(end);
    }
}

static void run_ready(struct rend *end)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&end->ready)) != NULL;) {
        rlane_run(kvb_container_of(link, struct rlane, ready));
    }
}

static int take_completions(struct rwatch *watch)
{
    struct rend *end = kvb_container_of(watch, struct rend, completions_watch);
    const struct kvt_verbs *verbs = end->device->verbs;
    struct ibv_cq *cq;
    void *context;
    errno = 0;
    while (verbs->ibv_get_cq_event(end->completions, &cq, &context) == 0) {
        verbs->ibv_ack_cq_events(cq, 1);
        if (cq == end->received) {
            arm(end);
        } else {
            struct rlane *lane = context;
            rlane_arm(lane);
            make_ready(end, lane);
        }
        errno = 0;
    }
    int error = errno;
    run_ready(end);
    return error;
}

/* ---- connections ---- */

static bool has_data(enum rdma_cm_event_type type)
{
    return type == RDMA_CM_EVENT_CONNECT_RESPONSE || type == RDMA_CM_EVENT_ESTABLISHED ||
           type == RDMA_CM_EVENT_REJECTED;
}

static int take_events(struct rwatch *watch)
{
    struct rend *end = kvb_container_of(watch, struct rend, channel_watch);
    const struct kvt_verbs *verbs = end->device->verbs;
    for (int i = 0; i < EVENTS_TURN; i++) {
        struct rdma_cm_event *event;
        errno = 0;
        if (verbs->rdma_get_cm_event(end->channel, &event) != 0) {
            return errno;
        }
        /* Acknowledged before it is looked at: an identifier cannot be destroyed before. */
        struct rdma_cm_event copy = *event;
        uint8_t data[256];
        size_t len = 0;
        if (has_data(event->event) && event->param.conn.private_data != NULL) {
            len = event->param.conn.private_data_len;
            memcpy(data, event->param.conn.private_data, len);
        }
        copy.param.conn.private_data = NULL;
        (void)verbs->rdma_ack_cm_event(event);
        end->event(end, &copy, data, len);
    }
    return 0;
}

/* ---- buffers ---- */

static void slab_free(struct rend *end, struct rslab *slab)
{
    if (slab->mr != NULL) {
        (void)end->device->verbs->ibv_dereg_mr(slab->mr);
    }
    rmem_pages_free(slab->pages, slab->len);
    free(slab->buffers);
}

static kvb_status_t slab_add(struct rend *end)
{
    uint32_t window = end->device->info.window;
    struct rslab slab = {.len = (size_t)window * RDEV_MESSAGE_BYTES};
    char reason[KVT_RDMA_REASON_MAX];
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    slab.pages = rmem_pages(slab.len);
    slab.buffers = calloc(window, sizeof *slab.buffers);
    if (slab.pages != NULL && slab.buffers != NULL) {
        status = rmem_register(end->device, slab.pages, slab.len, IBV_ACCESS_LOCAL_WRITE, &slab.mr,
                               reason);
    }
    if (status != KVB_OK) {
        slab_free(end, &slab);
        return status;
    }
    uint32_t at = end->slabs_n++;
    end->slabs[at] = slab;
    for (uint32_t i = 0; i < window; i++) {
        struct rbuf *buffer = &slab.buffers[i];
        kvb_list_init(&buffer->link);
        buffer->slab = at;
        buffer->data = slab.pages + (size_t)i * RDEV_MESSAGE_BYTES;
        buffer->lkey_at = (uintptr_t)buffer->data;
        rend_buffer_put(end, buffer);
    }
    return KVB_OK;
}

kvb_status_t rend_window_get(struct rend *end)
{
    if (end->windows == end->lanes_max) {
        return KVB_ERR_LIMIT;
    }
    if (end->windows == end->slabs_n) {
        kvb_status_t status = slab_add(end);
        if (status != KVB_OK) {
            return status;
        }
    }
    end->windows++;
    return KVB_OK;
}

void rend_window_put(struct rend *end)
{
    kvb_assert(end->windows > 0);
    end->windows--;
}

void rend_lane_add(struct rend *end, struct rlane *lane)
{
    kvb_list_push_back(&end->lanes[lane->qp->qp_num % REND_BUCKETS], &lane->by_number);
}

void rend_lane_remove(struct rend *end, struct rlane *lane)
{
    (void)end;
    kvb_list_remove(&lane->by_number);
    kvb_list_remove(&lane->ready);
}

/* ---- life ---- */

kvb_status_t rend_open(struct rend *end, struct kvt_rdma_device *device, struct kvb_sched *sched,
                       struct kvb_io *io, uint32_t lanes)
{
    const struct kvt_verbs *verbs = device->verbs;
    const struct ibv_device_attr *attr = &device->attr;
    uint32_t window = device->info.window;
    uint32_t fit_srq = (uint32_t)attr->max_srq_wr / window;
    uint32_t fit_cq = (uint32_t)attr->max_cqe / window;
    uint32_t fit = fit_srq < fit_cq ? fit_srq : fit_cq;
    kvb_status_t status;
    struct ibv_srq_init_attr srq = {.attr = {.max_sge = 1}};
    *end = (struct rend){.device = device, .sched = sched, .io = io};
    end->lanes_max = lanes < fit ? lanes : fit;
    srq.attr.max_wr = end->lanes_max * window;
    for (uint32_t i = 0; i < REND_BUCKETS; i++) {
        kvb_list_init(&end->lanes[i]);
    }
    kvb_list_init(&end->ready);
    kvb_list_init(&end->unposted);
    kvb_timer_init(&end->again, on_again);
    end->slabs = calloc(end->lanes_max, sizeof *end->slabs);
    if (end->slabs == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    errno = 0;
    end->channel = verbs->rdma_create_event_channel();
    if (end->channel == NULL) {
        status = rdev_status(errno);
        goto err_slabs;
    }
    status = rwatch_open(&end->channel_watch, sched, io, end->channel->fd, take_events);
    if (status != KVB_OK) {
        goto err_channel;
    }
    errno = 0;
    end->completions = verbs->ibv_create_comp_channel(device->context);
    if (end->completions == NULL) {
        status = rdev_status(errno);
        goto err_channel_watch;
    }
    status =
        rwatch_open(&end->completions_watch, sched, io, end->completions->fd, take_completions);
    if (status != KVB_OK) {
        goto err_completions;
    }
    errno = 0;
    end->srq = verbs->ibv_create_srq(device->pd, &srq);
    if (end->srq == NULL) {
        status = rdev_status(errno);
        goto err_completions_watch;
    }
    end->received = verbs->ibv_create_cq(device->context, (int)(end->lanes_max * window), NULL,
                                         end->completions, 0);
    if (end->received == NULL) {
        status = rdev_status(errno);
        goto err_srq;
    }
    if (verbs->ibv_req_notify_cq(end->received, 0) != 0) {
        status = KVB_ERR_IO;
        goto err_received;
    }
    return KVB_OK;

err_received:
    (void)verbs->ibv_destroy_cq(end->received);
err_srq:
    (void)verbs->ibv_destroy_srq(end->srq);
err_completions_watch:
    rwatch_close(&end->completions_watch);
err_completions:
    (void)verbs->ibv_destroy_comp_channel(end->completions);
err_channel_watch:
    rwatch_close(&end->channel_watch);
err_channel:
    verbs->rdma_destroy_event_channel(end->channel);
err_slabs:
    free(end->slabs);
    KVB_LOG(ERROR, "rdma: queues cannot be made", KVB_STR("device", device->info.device),
            KVB_U64("receives", end->lanes_max * window), KVB_STATUS(status));
    return status;
}

void rend_close(struct rend *end)
{
    const struct kvt_verbs *verbs = end->device->verbs;
    kvb_assert(end->windows == 0);
    kvb_sched_timer_clear(end->sched, &end->again);
    rwatch_close(&end->completions_watch);
    rwatch_close(&end->channel_watch);
    /* The receives end with their queue; then nothing writes into the buffers. */
    (void)verbs->ibv_destroy_srq(end->srq);
    (void)verbs->ibv_destroy_cq(end->received);
    (void)verbs->ibv_destroy_comp_channel(end->completions);
    verbs->rdma_destroy_event_channel(end->channel);
    for (uint32_t i = 0; i < end->slabs_n; i++) {
        slab_free(end, &end->slabs[i]);
    }
    free(end->slabs);
}
