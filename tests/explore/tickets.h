/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_EXPLORE_TICKETS_H
#define TESTS_EXPLORE_TICKETS_H

#include "store/core.h"

/* Those who use one shard, as tickets.c moves them, and what tells two states of it apart. */
#define VALUE_PAGES 2u /* at most */
#define PAGES_MAX   8u

enum who { W1, W2, FILLER, WRITERS, READER = WRITERS, WHO };

enum writing { IDLE, WRITING, ENDED };
struct writer {
    uint8_t at;      /* enum writing */
    uint8_t written; /* pages */
    bool may_write;  /* its connection can still move bytes into its extents */
    bool again;      /* it tried its commit a second time */
    uint64_t deadline_ns;
    struct kvs_attempt attempt;
    struct kvb_lineage lineage;
    uint64_t pages[VALUE_PAGES]; /* of the share, + 1 */
};
enum reading { R_IDLE, R_HELD, R_READING, R_RELEASED, R_DONE };
struct reader {
    uint8_t at;
    uint8_t got; /* pages */
    bool promised;
    uint64_t deadline_ns; /* of the promise, then of the ticket */
    struct kvs_ticket ticket;
    struct kvb_lineage lineage;
    uint64_t pages[VALUE_PAGES];
    uint64_t bytes[VALUE_PAGES]; /* what it read */
    uint64_t checksum;
};
struct world {
    struct kvs_core *core;
    uint64_t now_ns;
    struct writer writers[WRITERS];
    struct reader reader;
    bool ended[WHO]; /* its connection, at the node */
    bool stopped[WHO];
    uint64_t share[PAGES_MAX]; /* who wrote it: put + 1, and which of its pages */
    struct kvb_lineage lineages[2];
    uint32_t current;
    bool retired, updated, removed, late, closed;
    uint8_t died; /* bits of the lens */
    uint8_t ndied;
    struct kvs_attempt old_attempts[WRITERS]; /* of the node's life before */
    struct kvs_ticket old_ticket;
    bool visible[2][2]; /* by lineage, key: committed, and not gone by anybody's word */
};

/* Of the state, as far as it counts for what can still happen: two with one hash go on alike, but
 * for the names of records, serial numbers and, with values of one page, where in the share they
 * lie. alike: the writers of the one key can do the same, so that they may change places. serials:
 * numbers of attempts count, since a node that starts anew gives them again. */
struct form_options {
    uint32_t value; /* pages */
    bool alike, serials;
};
void ticket_form_hash(const struct world *world, const struct form_options *options,
                      uint64_t hash_p[2]);

#endif
