/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CLIENT_HEALTH_H
#define STORE_CLIENT_HEALTH_H

#include "store/client.h"

/*
 * Whether a node is worth asking, judged by what became of the calls it was given. Pure: no clock,
 * no node.
 *
 * Failures are counted in a row and by operation: a node whose lookups work and whose transfers all
 * fail is sick. What fails together counts once: a call counts only if it was begun after the last
 * failure that did, so one broken connection with a hundred calls on it is one failure. A node that
 * said nothing at all for as long as a call may take is sick at once.
 *
 * A sick node is left alone for a fixed time. Then one call at a time may try it: the first that it
 * answers brings it back, the first that fails sends it away for as long again. One that came back
 * leaves again at the first failure of any operation that has not worked since.
 */
struct kvs_health {
    bool sick;
    bool trying;        /* sick: a call is under way that tries it */
    uint64_t since_ns;  /* sick: since when */
    uint64_t next_ns;   /* sick: from when on it may be tried */
    uint64_t begun;     /* calls; the number of the last */
    uint64_t failed_at; /* begun, when a failure was last counted */
    uint32_t in_row[KVS_BATCH_OPS];
    uint64_t failures; /* calls that failed */
    uint64_t sick_times;
};

/* A call as its health sees it. */
struct kvs_health_call {
    enum kvs_batch_op op;
    uint64_t number;
    bool tries; /* the node was sick when it was begun */
};

static inline bool kvs_health_may_ask(const struct kvs_health *health, uint64_t now_ns)
{
    return !health->sick || (!health->trying && now_ns >= health->next_ns);
}

struct kvs_health_call kvs_health_begin(struct kvs_health *health, enum kvs_batch_op op);

/* What became of a call: one of the two, or neither (it was canceled, or failed here). True: sick
 * or well has changed. silent: nothing was heard of the node for as long as a call may take. */
bool kvs_health_answered(struct kvs_health *health, const struct kvs_health_call *call);
bool kvs_health_failed(struct kvs_health *health, const struct kvs_health_call *call, bool silent,
                       const struct kvs_client_health *limits, uint64_t now_ns);
/* The call is over; after answered and failed. */
void kvs_health_end(struct kvs_health *health, const struct kvs_health_call *call);

#endif
