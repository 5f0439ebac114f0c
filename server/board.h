/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_BOARD_H
#define SERVER_BOARD_H

#include "connector/instance.h"

#include "base/clock.h"

/*
 * What probes read (promise P6): the last published view of every instance, the loop's heartbeat,
 * and those of other threads. The loop writes, the HTTP thread reads, under a lock that is held for
 * a copy and never across anything that waits; so a probe is answered in every state, also when the
 * loop hangs.
 */
struct kvp_board;

struct kvp_board_config {
    const struct kvb_clock *clock;
    const char *const *instances; /* configured ones, expected to attach; copied */
    uint32_t ninstances;
    uint64_t heartbeat_ms; /* the loop hangs if it has not turned for so long */
    bool as_one; /* who names no instance means all of them (kvp_control_config.verbs_for_all) */
};

KVB_MUST_USE kvb_status_t kvp_board_create(const struct kvp_board_config *config,
                                           struct kvp_board **board_p);
void kvp_board_destroy(struct kvp_board *board);

/* Any thread; the loop's: for kvp_fleet_config.changed. */
void kvp_board_publish(struct kvp_board *board, const struct kvp_view *view);
/* The loop has turned; at least every heartbeat_ms / 4. */
void kvp_board_beat(struct kvp_board *board);
/* A thread beside the loop, before the first question. beat_ns: any thread; when it last showed
 * that it goes on, KVB_NEVER if it has nothing to do. It is stuck if that is more than bound_ms
 * ago. name: copied, at most KVB_NAME_MAX - 1 bytes. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_board_watch(struct kvp_board *board, const char *name,
                                          uint64_t bound_ms,
                                          uint64_t (*beat_ns)(void *ctx, uint32_t which), void *ctx,
                                          uint32_t which);
/* From now on /health and /readyz say that the process is going, and answers close their
 * connection. Before kvp_control_close(). */
void kvp_board_stopping(struct kvp_board *board);
bool kvp_board_is_stopping(struct kvp_board *board); /* any thread */

/* ---- any thread, for probes ---- */

#define KVP_BOARD_REASON_MAX 384
typedef void (*kvp_board_reason_fn)(void *arg, const char *reason);

enum kvp_board_question {
    KVP_BOARD_HEALTH,  /* every configured or once attached instance is alive, asleep or not */
    KVP_BOARD_LIVE,    /* the loop turns, and no other thread is stuck */
    KVP_BOARD_READY,   /* every instance may take traffic */
    KVP_BOARD_STARTED, /* every configured instance has attached once, and at least one */
};
/* True: yes. Else each reason why not, one call each, without the lock. */
bool kvp_board_ask(struct kvp_board *board, enum kvp_board_question question,
                   kvp_board_reason_fn reason, void *arg);

/*
 * The view of one instance; name NULL or "": the only one, or, as_one, the first, paused and asleep
 * if any of them is. Errors, with message (KVP_BOARD_REASON_MAX bytes): INVALID there are several,
 * which it names; NOT_FOUND none of that
 * name; UNAVAILABLE none has attached yet, or it is gone.
 */
KVB_MUST_USE kvb_status_t kvp_board_view(struct kvp_board *board, const char *name,
                                         struct kvp_view *view_p, char *message);

/* Each instance that has attached once; called under the board's lock: it must not wait. */
void kvp_board_each(struct kvp_board *board, void (*each)(void *arg, const struct kvp_view *view),
                    void *arg);

#endif
