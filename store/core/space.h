/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_SPACE_H
#define STORE_CORE_SPACE_H

#include "extents.h"

/*
 * The space of one share: which bytes are whose. See the design note in space.c. Deals in whole
 * values: plan (how a length is cut), take, give. Knows no objects but by the handle of their
 * owner, and of those only whether they can be evicted ("locked": not), because then it can say
 * without a search whether evicting could make enough room.
 */
#define KVS_NO_PIECE  UINT32_MAX /* end of a chain */
#define KVS_SLOTS_MAX 3u         /* per value */
#define KVS_CLASSES   63u        /* sizes of slots */

struct kvs_plan {
    uint32_t npages;
    uint32_t nslots;
    uint8_t classes[KVS_SLOTS_MAX]; /* of the slots; all different, large to small */
    uint64_t bytes;                 /* of space it takes */
};

/* A value's space: two chains, so that its slots are reached without a walk over its pages. */
struct kvs_pieces {
    uint32_t pages;
    uint32_t slots;
};

struct kvs_page;

struct kvs_page_list {
    uint32_t first;
    uint32_t last;
};

struct kvs_space {
    uint32_t npages;
    struct kvs_page *pages;
    uint64_t *free_map[4]; /* a bit per free page; each level above: a bit per non-zero word */
    uint32_t nfree;
    uint32_t hand;      /* where the next run is looked for */
    uint32_t unlocked;  /* pages of values that could be evicted */
    uint32_t nyielding; /* slab pages with no locked slot: evicting their values frees the page */
    uint64_t slab_bytes;
    struct kvs_page_list yielding[2]; /* these; [1]: with soft-pinned values */
    struct {
        struct kvs_page_list room;  /* slab pages with free slots */
        struct kvs_page_list mixed; /* with locked slots and others */
        uint32_t slack;             /* slots that are not locked, in pages that have locked ones */
    } classes[KVS_CLASSES];
};

KVB_MUST_USE kvb_status_t kvs_space_init(struct kvs_space *space, uint64_t share_bytes);
void kvs_space_cleanup(struct kvs_space *space);
uint64_t kvs_space_metadata_bytes(const struct kvs_space *space);

/* How a value of len >= 1 is cut; always the same for one length. false: never fits here, and the
 * plan is of no use. */
KVB_MUST_USE bool kvs_space_plan(const struct kvs_space *space, uint64_t len,
                                 struct kvs_plan *plan_p);

/* There is room now. */
bool kvs_space_fits(const struct kvs_space *space, const struct kvs_plan *plan);
/* Of the plan's slots, this class has no free one now. */
bool kvs_space_wants(const struct kvs_space *space, const struct kvs_plan *plan, uint8_t class);
/* There would be room if everything that is not locked were evicted: exact. */
bool kvs_space_could_fit(const struct kvs_space *space, const struct kvs_plan *plan);

/* Takes the space; it must fit. It counts as locked. NO_MEMORY: nothing was taken. */
KVB_MUST_USE kvb_status_t kvs_space_take(struct kvs_space *space, const struct kvs_plan *plan,
                                         uint32_t owner, struct kvs_pieces *pieces_p);
/* It must not be locked, nor soft. */
void kvs_space_give(struct kvs_space *space, const struct kvs_plan *plan, struct kvs_pieces pieces);

void kvs_space_lock(struct kvs_space *space, const struct kvs_plan *plan, struct kvs_pieces pieces,
                    bool locked);
/* Fetch what a lock will touch into the cache, in two steps with other work between. */
void kvs_space_fetch_word(const struct kvs_space *space, struct kvs_pieces pieces);
void kvs_space_fetch_slab(const struct kvs_space *space, struct kvs_pieces pieces);
/* Soft-pinned values: their slab pages are emptied last. */
void kvs_space_soften(struct kvs_space *space, struct kvs_pieces pieces, bool soft);

/* The first len bytes of the value's space. NO_MEMORY: extents are cut short. */
KVB_MUST_USE kvb_status_t kvs_space_extents(const struct kvs_space *space,
                                            const struct kvs_plan *plan, struct kvs_pieces pieces,
                                            uint64_t len, struct kvs_extents *extents);

/* ---- for eviction ---- */

/* A slab page that the value has a slot in, and whose values can all be evicted; or
 * KVS_NO_PIECE. soft: also if there are soft-pinned ones among them. */
uint32_t kvs_space_yielding_page(const struct kvs_space *space, struct kvs_pieces pieces,
                                 bool soft);
/* The page that has been able to yield for longest; KVS_NO_PIECE: none. */
uint32_t kvs_space_first_yielding(const struct kvs_space *space, bool soft);
/* A slab page of the class with locked slots and others; KVS_NO_PIECE: none. */
uint32_t kvs_space_first_mixed(const struct kvs_space *space, uint8_t class);
/* The owner of a used slot at or after *slot_p in a page, 0: none (any more). Moves *slot_p to it.
 */
uint32_t kvs_space_owner(const struct kvs_space *space, uint32_t page, uint32_t *slot_p);
/* The value has a slot of this class. */
bool kvs_space_has_class(const struct kvs_plan *plan, uint8_t class);

/* ---- for validate() ---- */

/* Everything about free, yielding, room and mixed pages and their counters that can be proved
 * without knowing the owners; NULL or what is wrong. */
const char *kvs_space_validate(const struct kvs_space *space);
/* Checks the chains of one value against the pages, and marks its pages in `seen` (a byte per page,
 * false if one was marked already). Returns NULL or what is wrong. */
const char *kvs_space_validate_value(const struct kvs_space *space, const struct kvs_plan *plan,
                                     struct kvs_pieces pieces, uint32_t owner, uint8_t *seen);
/* What the slots of a page should add up to, from what validate() found in its values. */
const char *kvs_space_validate_page(const struct kvs_space *space, uint32_t page, uint8_t seen,
                                    uint32_t used, uint32_t locked, uint32_t soft);
/* The page of a slot's piece. */
static inline uint32_t kvs_piece_page(uint32_t piece)
{
    return piece >> 10;
}
uint32_t kvs_space_next_slot(const struct kvs_space *space, uint32_t piece);

#endif
