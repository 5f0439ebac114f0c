/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections arrive on the listener's event channel, and move to that of the server which accepts
 * them, on its thread. Until then they hold the listener's channel, which outlives it for them.
 */
#include "conn.h"
#include "device.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_TURN 64

struct channel {
    const struct kvt_verbs *verbs;
    struct rdma_event_channel *channel;
    atomic_uint refs;
};

struct kvt_rdma_listener {
    struct kvt_rdma_listener_config config;
    struct channel *channel;
    struct rwatch watch;
    struct rdma_cm_id *id;
    uint16_t port;
};

struct kvt_rdma_conn {
    struct channel *channel;
    struct rdma_cm_id *id;
    size_t data_len;
    uint8_t data[RWIRE_CONNECT_LEN];
};

static void channel_put(struct channel *channel)
{
    if (atomic_fetch_sub(&channel->refs, 1) == 1) {
        channel->verbs->rdma_destroy_event_channel(channel->channel);
        free(channel);
    }
}

/* ---- a connection ---- */

static void conn_free(struct kvt_rdma_conn *conn)
{
    channel_put(conn->channel);
    free(conn);
}

void rconn_from(const struct kvt_rdma_conn *conn, char *out, size_t cap)
{
    rdev_address_text(&conn->id->route.addr.dst_addr, out, cap);
}

kvb_status_t rconn_wants(const struct kvt_rdma_conn *conn, struct rwire_connect *wants_p)
{
    return rwire_connect_unpack(conn->data, conn->data_len, wants_p);
}

kvb_status_t rconn_take(struct kvt_rdma_conn *conn, struct rdma_event_channel *channel,
                        void *context, struct rdma_cm_id **id_p)
{
    const struct kvt_verbs *verbs = conn->channel->verbs;
    struct rdma_cm_id *id = conn->id;
    id->context = context;
    errno = 0;
    if (verbs->rdma_migrate_id(id, channel) != 0) {
        kvb_status_t status = rdev_status(errno);
        rconn_reject(conn, status);
        return status;
    }
    conn_free(conn);
    *id_p = id;
    return KVB_OK;
}

void rconn_reject(struct kvt_rdma_conn *conn, kvb_status_t why)
{
    const struct kvt_verbs *verbs = conn->channel->verbs;
    uint8_t data[RWIRE_REJECT_LEN];
    rwire_reject_pack(why, data);
    (void)verbs->rdma_reject(conn->id, data, sizeof data);
    (void)verbs->rdma_destroy_id(conn->id);
    conn_free(conn);
}

void kvt_rdma_conn_drop(struct kvt_rdma_conn *conn)
{
    rconn_reject(conn, KVB_ERR_UNAVAILABLE);
}

/* ---- the listener ---- */

static void turn_away(struct kvt_rdma_listener *listener, struct rdma_cm_id *id, kvb_status_t why)
{
    const struct kvt_verbs *verbs = listener->channel->verbs;
    uint8_t data[RWIRE_REJECT_LEN];
    KVB_LOG_LIMITED(WARN, "rdma: a connection was not admitted", KVB_STATUS(why));
    rwire_reject_pack(why, data);
    (void)verbs->rdma_reject(id, data, sizeof data);
    (void)verbs->rdma_destroy_id(id);
}

static void on_request(struct kvt_rdma_listener *listener, struct rdma_cm_id *id,
                       const uint8_t *data, size_t len)
{
    struct kvt_rdma_device *device = listener->config.device;
    if (id->verbs != device->context) {
        rdev_count(device, KVT_RDMA_OTHER_DEVICE);
        turn_away(listener, id, KVB_ERR_UNSUPPORTED);
        return;
    }
    struct kvt_rdma_conn *conn = malloc(sizeof *conn);
    if (conn == NULL) {
        turn_away(listener, id, KVB_ERR_NO_MEMORY);
        return;
    }
    conn->channel = listener->channel;
    conn->id = id;
    conn->data_len = len < sizeof conn->data ? len : sizeof conn->data;
    if (conn->data_len > 0) {
        memcpy(conn->data, data, conn->data_len);
    }
    id->context = NULL;
    (void)atomic_fetch_add(&listener->channel->refs, 1);
    listener->config.accepted(listener->config.ctx, conn);
}

static int take_events(struct rwatch *watch)
{
    struct kvt_rdma_listener *listener = kvb_container_of(watch, struct kvt_rdma_listener, watch);
    const struct kvt_verbs *verbs = listener->channel->verbs;
    for (int i = 0; i < EVENTS_TURN; i++) {
        struct rdma_cm_event *event;
        errno = 0;
        if (verbs->rdma_get_cm_event(listener->channel->channel, &event) != 0) {
            return errno;
        }
        enum rdma_cm_event_type type = event->event;
        struct rdma_cm_id *id = event->id;
        uint8_t data[256];
        size_t len = type == RDMA_CM_EVENT_CONNECT_REQUEST ? event->param.conn.private_data_len : 0;
        if (len > 0 && event->param.conn.private_data != NULL) {
            memcpy(data, event->param.conn.private_data, len);
        } else {
            len = 0;
        }
        (void)verbs->rdma_ack_cm_event(event);
        /* The end of one that waits for its server shows there, when it is accepted or greeted. */
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            on_request(listener, id, data, len);
        } else if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
            rdev_count(listener->config.device, KVT_RDMA_CM_DEVICE_REMOVAL);
            rdev_die(listener->config.device, kvt_rdma_cause_text(KVT_RDMA_CM_DEVICE_REMOVAL));
        }
    }
    return 0;
}

static kvb_status_t refuse(char *reason, const char *what, const char *address, int error)
{
    char text[128];
    (void)snprintf(reason, KVT_RDMA_REASON_MAX, "rdma: cannot %s %s: %s", what, address,
                   strerror_r(error, text, sizeof text));
    switch (error) {
    case EADDRINUSE:
        return KVB_ERR_EXISTS;
    case EADDRNOTAVAIL:
    case ENODEV:
        return KVB_ERR_UNAVAILABLE;
    default:
        return rdev_status(error);
    }
}

static kvb_status_t bind_and_listen(struct kvt_rdma_listener *listener, struct sockaddr_storage *at,
                                    char *reason)
{
    const struct kvt_verbs *verbs = listener->channel->verbs;
    const char *address = listener->config.address;
    int backlog = listener->config.backlog != 0 ? (int)listener->config.backlog : 128;
    errno = 0;
    if (verbs->rdma_create_id(listener->channel->channel, &listener->id, NULL, RDMA_PS_TCP) != 0) {
        return refuse(reason, "listen at", address, errno);
    }
    errno = 0;
    if (verbs->rdma_bind_addr(listener->id, (struct sockaddr *)at) != 0 ||
        verbs->rdma_listen(listener->id, backlog) != 0) {
        kvb_status_t status = refuse(reason, "listen at", address, errno);
        (void)verbs->rdma_destroy_id(listener->id);
        return status;
    }
    if (listener->id->verbs != NULL && listener->id->verbs != listener->config.device->context) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "rdma: the address %s belongs to another device than %s", address,
                       listener->config.device->info.device);
        (void)verbs->rdma_destroy_id(listener->id);
        return KVB_ERR_UNAVAILABLE;
    }
    listener->port = ntohs(verbs->rdma_get_src_port(listener->id));
    return KVB_OK;
}

kvb_status_t kvt_rdma_listener_create(const struct kvt_rdma_listener_config *config,
                                      struct kvt_rdma_listener **listener_p,
                                      char reason[KVT_RDMA_REASON_MAX])
{
    struct sockaddr_storage at;
    if (rdev_address_parse(config->address, &at) != KVB_OK) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "rdma: %s is no address with a port (a.b.c.d:PORT, [IPV6]:PORT)",
                       config->address);
        return KVB_ERR_INVALID;
    }
    struct kvt_rdma_listener *listener = calloc(1, sizeof *listener);
    struct channel *channel = calloc(1, sizeof *channel);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    (void)snprintf(reason, KVT_RDMA_REASON_MAX, "rdma: out of memory");
    if (listener == NULL || channel == NULL) {
        goto err_free;
    }
    listener->config = *config;
    listener->channel = channel;
    channel->verbs = config->device->verbs;
    atomic_init(&channel->refs, 1);
    errno = 0;
    channel->channel = channel->verbs->rdma_create_event_channel();
    if (channel->channel == NULL) {
        status = refuse(reason, "listen at", config->address, errno);
        goto err_free;
    }
    status = bind_and_listen(listener, &at, reason);
    if (status != KVB_OK) {
        goto err_channel;
    }
    status =
        rwatch_open(&listener->watch, config->sched, config->io, channel->channel->fd, take_events);
    if (status != KVB_OK) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX, "rdma: %s cannot be watched", config->address);
        (void)channel->verbs->rdma_destroy_id(listener->id);
        goto err_channel;
    }
    listener->config.address = NULL; /* the caller's */
    reason[0] = '\0';
    *listener_p = listener;
    return KVB_OK;

err_channel:
    channel->verbs->rdma_destroy_event_channel(channel->channel);
err_free:
    free(channel);
    free(listener);
    return status;
}

void kvt_rdma_listener_destroy(struct kvt_rdma_listener *listener)
{
    if (listener == NULL) {
        return;
    }
    rwatch_close(&listener->watch);
    (void)listener->channel->verbs->rdma_destroy_id(listener->id);
    channel_put(listener->channel);
    free(listener);
}

uint16_t kvt_rdma_listener_port(const struct kvt_rdma_listener *listener)
{
    return listener->port;
}
