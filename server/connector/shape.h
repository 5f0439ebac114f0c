/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_SHAPE_H
#define SERVER_CONNECTOR_SHAPE_H

#include "base/link.h"
#include "store/client.h"

/*
 * How an engine is split, and what its blocks are (hello; DESIGN.md sections 3 and 7). Pure.
 *
 * Ranks are numbered stage by stage: rank = stage * tp_size + place in the stage. A block of one
 * stage is stored in store_tp_size parts, and every rank of the stage moves as many consecutive
 * ones of them as its share is: with store_tp_size 4, each rank of a TP2 engine has two parts of a
 * block and the one rank of a TP1 engine all four, under the same keys. Parts are numbered stage by
 * stage, too.
 */
struct kvp_shape {
    uint32_t world_size;
    uint32_t tp_size;       /* ranks of one pipeline stage */
    uint32_t store_tp_size; /* parts of one stage's block */
    uint32_t nparts;        /* of one block, over all stages */
    uint32_t ngroups;       /* 0: any number is a group like groups[0] */
    struct kvb_link_group_info groups[KVB_GROUPS_MAX];
};

/* REFUSED: reason says what to change. */
KVB_MUST_USE kvb_status_t kvp_shape_make(const struct kvb_link_hello *hello,
                                         struct kvp_shape *shape_p, char *reason,
                                         size_t reason_cap);
bool kvp_shape_equal(const struct kvp_shape *a, const struct kvp_shape *b);

/*
 * The layout that its objects are stored under: what the engine says, and what this engine's split
 * makes of it. Engines of one layout whose parts are the same bytes get the same one, others never.
 * REFUSED: too long, or the engine says what only the daemon may.
 */
KVB_MUST_USE kvb_status_t kvp_shape_layout(const struct kvb_link_hello *hello,
                                           const struct kvp_shape *shape, char *layout_p,
                                           size_t cap, char *reason, size_t reason_cap);

/* Is this part one of that rank's? */
bool kvp_shape_owns(const struct kvp_shape *shape, uint32_t rank, uint32_t part);

/* NULL: the engine has no such group. */
const struct kvb_link_group_info *kvp_shape_group(const struct kvp_shape *shape, uint32_t group);

#endif
