/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_SESSION_H
#define LINK_SESSION_H

#include "link.h"

#include "base/list.h"
#include "base/wire.h"

/*
 * One connection on the engine socket: hello first and once, requests of the engine answered
 * exactly once, calls of the daemon completed exactly once. Loop thread only.
 */
struct kvp_session;
struct kvp_link_rank;

#define KVP_HELLO_MS 10000 /* a connection says hello by then */

/* Takes fd. */
void kvp_session_open(struct kvp_link *owner, int fd);
/* Its end is told by kvp_link_session_gone(). Idempotent. */
void kvp_session_close(struct kvp_session *session, const char *reason);

struct kvp_session *kvp_session_of(struct kvb_list *link);                 /* of the link's list */
struct kvp_link_rank *kvp_session_rank(const struct kvp_session *session); /* NULL: no hello yet */

/* Answers the engine's request seq; takes the writer's bytes. */
void kvp_session_reply(struct kvp_session *session, uint16_t type, uint64_t seq,
                       struct kvb_writer *writer);
void kvp_session_reply_status(struct kvp_session *session, uint16_t type, uint64_t seq,
                              kvb_status_t status);

/* kvp_rank_ops.call */
void kvp_session_call(struct kvp_session *session, enum kvb_link_type type, const void *msg,
                      uint64_t deadline_ns, kvp_rank_call_fn done, void *arg);
/* kvp_rank_ops.hurry_pauses */
void kvp_session_hurry_pauses(struct kvp_session *session, uint64_t deadline_ns);

#endif
