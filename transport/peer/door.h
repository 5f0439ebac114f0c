/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PEER_DOOR_H
#define PEER_DOOR_H

#include "handshake.h"

#include "base/list.h"

#define KVT_FROM_MAX 64u

/* A lane of a server, whatever carries it: who is behind it. Part of the transport's own struct. */
struct kvt_guest {
    struct kvb_list link; /* one of the door's */
    struct kvt_handshake shake;
    char from[KVT_FROM_MAX];
    void *session; /* admitted */
};

/* Who is in and who is not yet, of one server. */
struct kvt_door {
    /* immutable once it is open */
    const char *by; /* "tcp", "rdma": for people */
    const struct kvt_protocol *protocol;
    struct kvt_identity identity;
    uint32_t lanes_max, lanes_each_max, strangers_max;

    struct kvb_list lanes; /* admitted */
    uint32_t admitted;
    struct kvb_list strangers; /* the others, the oldest first: their number is no peer's loss */
    uint32_t strangers_n;
    struct kvt_peer_stats counted;
};

/* name: valid (kvt_name_valid). */
void kvt_door_init(struct kvt_door *door, const char *by, const struct kvt_protocol *protocol,
                   const char *name, uint64_t incarnation);
bool kvt_door_has_room(const struct kvt_door *door, const char *from);
/* The stranger that has to go before another one comes; NULL: none. */
struct kvt_guest *kvt_door_oldest(const struct kvt_door *door);
void kvt_door_enter(struct kvt_door *door, struct kvt_guest *guest); /* a stranger */
/* Its proof was right and there is room: makes ADMITTED's payload, asks the node (opened), and
 * takes it in. Not OK: it is a stranger as before. */
KVB_MUST_USE kvb_status_t kvt_door_admit(struct kvt_door *door, struct kvt_guest *guest,
                                         const struct kvt_peer_common *common,
                                         const struct kvt_server_ops *ops, void *ctx,
                                         uint8_t identity[KVT_PAYLOAD_MAX], size_t *len_p);
void kvt_door_leave(struct kvt_door *door, struct kvt_guest *guest, bool admitted);

/* For the log: it was refused. */
void kvt_door_refused(const struct kvt_door *door, const struct kvt_guest *guest, kvb_status_t why);
/* Counts, and tells the log: the connection ended. */
void kvt_door_lost(struct kvt_door *door, const struct kvt_guest *guest, bool admitted,
                   kvb_status_t why);

#endif
