/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a share is cut, and why so.
 *
 * The share is cut in pages of 64 KiB. A value takes whole pages, any free ones, chained through
 * the page table, and up to three slots of slab pages for the rest of its bytes. So there is no
 * external fragmentation for whole pages at all: any k free pages hold a value of k pages, wherever
 * they lie. Contiguous runs are preferred (next fit, the longest of a few tries), so that values
 * have few extents; slab pages are taken from the low end, to leave the runs alone.
 *
 * Waste inside a value: slot sizes are 1/8 apart from 64 bytes to 4 KiB and 1/n of a page above.
 * Where one slot would waste more than an eighth, two or three are used, largest first; a rest from
 * 58,255 bytes takes a whole page. The waste is at most 12.5 % for every length from 64 bytes up
 * (a test walks them all), 3.2 % in the mean over the lengths below a page, 0 for multiples of a
 * page, for 16 KiB and for 32 KiB; below 64 bytes a value takes 64. The alternatives: one slot only
 * would waste up to half a page between 32 KiB and 64 KiB; a buddy system up to half of any value,
 * and it does fill up with fragments; a best-fit heap has to be compacted, under readers.
 *
 * Waste between values: a partly filled slab page. At most one per size is lasting under puts
 * alone, since slots are taken from pages with room first. After removals many may be thin. What
 * bounds it: whenever pages or slots are short, eviction empties a whole slab page (at most 64 KiB
 * of values for 64 KiB of space, never more than a page's worth per page gained) rather than spread
 * victims over many pages. So a share full of small leftovers always takes a large value, if only
 * the leftovers may be evicted at all.
 *
 * That question has an exact answer without a search: a page can be had if it is free, belongs to a
 * value that can be evicted, or is a slab page with no locked slot (`yielding`); a slot besides if
 * its class has a slot that is not locked in a page that will stay because of others (`slack`). The
 * counters are kept as values are locked and unlocked, a few steps each: for a value's whole pages
 * that is one addition, since a page belongs to one value.
 *
 * No byte of this lies in the share, where a peer could write. The page table costs 8 bytes per
 * page (0.01 %), a slab page 48 bytes and 8 per slot (at 64 bytes 12.5 %, at 4 KiB 0.3 %).
 */
#include "space.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define PAGE       KVS_CORE_PAGE
#define NONE       KVS_NO_PIECE
#define WHOLE_FROM 58255u /* a rest from here up takes a page: 65,536 is within an eighth of it */
#define RUN_TRIES  8u     /* places looked at for a long run */
#define WORD_BITS  64u
#define SLOT_BITS  10u
#define SLOT_MASK  ((1u << SLOT_BITS) - 1)

enum page_kind { PAGE_FREE, PAGE_WHOLE, PAGE_SLAB };

/* In which list a slab page is for eviction; a function of its counts. */
enum page_yield { YIELD_NOTHING, YIELD_PAGE, YIELD_PAGE_SOFT, YIELD_SLOTS };

struct slot {
    uint32_t owner; /* 0: free */
    uint32_t next;  /* of the value's slots, or of the page's free ones */
};

/* What is known of a slab page. */
struct slab {
    uint32_t room_prev;
    uint32_t room_next;
    uint32_t yield_prev;
    uint32_t yield_next;
    uint16_t used; /* slots */
    uint16_t locked;
    uint16_t soft;
    uint16_t fresh; /* slots never used yet: those from here on */
    uint16_t free;  /* first free slot before, SLOT_NONE */
    uint16_t nslots;
    uint8_t class;
    struct slot slots[];
};

/* One word per page: kind in its low bits; above, of a value's page the next one, of a slab page
 * the address of its slab. */
struct kvs_page {
    uint64_t word;
};
#define KIND_BITS 2u
#define KIND_MASK 3u
#define SLOT_NONE UINT16_MAX

static enum page_kind kind_of(const struct kvs_space *space, uint32_t at)
{
    return (enum page_kind)(space->pages[at].word & KIND_MASK);
}

static uint32_t next_page(const struct kvs_space *space, uint32_t at)
{
    return (uint32_t)(space->pages[at].word >> KIND_BITS);
}

static void set_whole(struct kvs_space *space, uint32_t at, uint32_t next)
{
    space->pages[at].word = (uint64_t)next << KIND_BITS | PAGE_WHOLE;
}

static struct slab *slab_at(const struct kvs_space *space, uint32_t at)
{
    uint64_t word = space->pages[at].word;
    kvb_assert((word & KIND_MASK) == PAGE_SLAB);
    return (struct slab *)(uintptr_t)(word & ~(uint64_t)KIND_MASK); /* put in by slab_open() */
}

/* ---- sizes of slots ---- */

/* Up to 4 KiB in steps of an eighth; above, page / n, rounded down to a cache line. At most 3.5 %
 * of a page is left over behind its last slot. */
static const uint16_t class_size[KVS_CLASSES] = {
    64,   72,   80,   88,   96,   104,  112,   120,   128,   144,   160,   176,  192,
    208,  224,  240,  256,  288,  320,  352,   384,   416,   448,   480,   512,  576,
    640,  704,  768,  832,  896,  960,  1024,  1152,  1280,  1408,  1536,  1664, 1792,
    1920, 2048, 2304, 2560, 2816, 3072, 3328,  3584,  3840,  4096,  4352,  4672, 4992,
    5440, 5952, 6528, 7232, 8192, 9344, 10880, 13056, 16384, 21824, 32768,
};

#define STEPPED_MAX 4096u
#define FIRST_SHIFT 11u

/* Above STEPPED_MAX: the first class beyond each 2 KiB. */
static const uint8_t first_above[16] = {0,  0,  49, 54, 57, 58, 59, 60,
                                        61, 61, 61, 62, 62, 62, 62, 62};

static uint32_t slots_per_page(uint8_t class)
{
    return PAGE / class_size[class];
}

/* The smallest size that holds len, or KVS_CLASSES: computed, since every lock and count of a value
 * begins here. */
static uint32_t class_above(uint32_t len)
{
    if (len <= class_size[0]) {
        return 0;
    }
    if (len <= STEPPED_MAX) {
        uint32_t log2 = 31u - (uint32_t)__builtin_clz(len - 1);
        uint32_t eighth = (len - 1 - (1u << log2)) >> (log2 - 3);
        return (log2 - 6) * 8 + eighth + 1;
    }
    if (len > class_size[KVS_CLASSES - 1]) {
        return KVS_CLASSES;
    }
    uint32_t class = first_above[(len - 1) >> FIRST_SHIFT];
    while (class_size[class] < len) {
        class ++;
    }
    return class;
}

static bool wastes_little(uint32_t taken, uint32_t len)
{
    return (taken - len) * 8 <= len || len <= class_size[0];
}

static void plan_slot(struct kvs_plan *plan, uint32_t class)
{
    plan->classes[plan->nslots++] = (uint8_t) class;
    plan->bytes += class_size[class];
}

/* Adds slots for `len` bytes: the smallest one that holds them, if it wastes little; else the
 * largest that they fill, and so on with the rest. */
static void plan_slots(struct kvs_plan *plan, uint32_t len)
{
    uint32_t class = class_above(len);
    if (class < KVS_CLASSES && wastes_little(class_size[class], len)) {
        plan_slot(plan, class);
        return;
    }
    uint32_t taken = 0;
    while (plan->nslots < KVS_SLOTS_MAX - 1) {
        class = class_above(len - taken);
        if (class < KVS_CLASSES && wastes_little(taken + class_size[class], len)) {
            break;
        }
        class -= class == KVS_CLASSES || class_size[class] > len - taken;
        plan_slot(plan, class);
        taken += class_size[class];
        if (taken == len) {
            return;
        }
    }
    class = class_above(len - taken);
    kvb_assert(class < KVS_CLASSES);
    plan_slot(plan, class);
}

bool kvs_space_plan(const struct kvs_space *space, uint64_t len, struct kvs_plan *plan_p)
{
    uint64_t npages = len / PAGE;
    uint32_t rest = (uint32_t)(len % PAGE);
    if (rest >= WHOLE_FROM) {
        npages++;
        rest = 0;
    }
    if (npages > space->npages) {
        return false;
    }
    /* Filled in place and field by field: copying what was just written in bytes stalls. */
    plan_p->npages = (uint32_t)npages;
    plan_p->nslots = 0;
    plan_p->bytes = npages * PAGE;
    if (rest > 0) {
        plan_slots(plan_p, rest);
    }
    if (npages + plan_p->nslots > space->npages) {
        /* A slab page per slot is more than there is; as a whole page it may fit. */
        plan_p->npages = (uint32_t)npages + 1;
        plan_p->nslots = 0;
        plan_p->bytes = (npages + 1) * PAGE;
    }
    return plan_p->npages <= space->npages;
}

bool kvs_space_has_class(const struct kvs_plan *plan, uint8_t class)
{
    for (uint32_t i = 0; i < plan->nslots; i++) {
        if (plan->classes[i] == class) {
            return true;
        }
    }
    return false;
}

/* ---- free pages: a bitmap with summaries, so that the next one is found in a few steps ---- */

#define LEVELS 4u

static uint32_t level_words(uint32_t npages, uint32_t level)
{
    uint64_t bits = npages;
    for (uint32_t i = 0; i <= level; i++) {
        bits = (bits + WORD_BITS - 1) / WORD_BITS;
    }
    return (uint32_t)bits;
}

static bool page_is_free(const struct kvs_space *space, uint32_t page)
{
    return (space->free_map[0][page / WORD_BITS] >> (page % WORD_BITS) & 1) != 0;
}

static void mark_free(struct kvs_space *space, uint32_t page)
{
    uint32_t at = page;
    for (uint32_t level = 0; level < LEVELS; level++) {
        space->free_map[level][at / WORD_BITS] |= 1ull << (at % WORD_BITS);
        at /= WORD_BITS;
    }
    space->nfree++;
}

static void mark_taken(struct kvs_space *space, uint32_t page)
{
    uint32_t at = page;
    for (uint32_t level = 0; level < LEVELS; level++) {
        uint64_t *word = &space->free_map[level][at / WORD_BITS];
        *word &= ~(1ull << (at % WORD_BITS));
        if (*word != 0) {
            break;
        }
        at /= WORD_BITS;
    }
    space->nfree--;
}

/* The first free page at or after `from`, or NONE. */
static uint32_t next_free(const struct kvs_space *space, uint32_t from)
{
    uint64_t at = from;
    uint32_t level = 0;
    while (level < LEVELS) {
        uint64_t index = at / WORD_BITS;
        if (index >= level_words(space->npages, level)) {
            return NONE;
        }
        uint64_t word = space->free_map[level][index] & (UINT64_MAX << (at % WORD_BITS));
        if (word == 0) {
            /* Nothing more in this word: look for the next non-zero one, a level up. */
            at = index + 1;
            level++;
            continue;
        }
        at = index * WORD_BITS + (uint64_t)__builtin_ctzll(word);
        if (level == 0) {
            return (uint32_t)at;
        }
        level--;
        at *= WORD_BITS;
    }
    return NONE;
}

static uint32_t run_length(const struct kvs_space *space, uint32_t from, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && from + n < space->npages) {
        uint32_t at = from + n;
        uint64_t word = space->free_map[0][at / WORD_BITS] >> (at % WORD_BITS);
        uint32_t here = ~word == 0 ? WORD_BITS : (uint32_t)__builtin_ctzll(~word);
        uint32_t left = WORD_BITS - at % WORD_BITS;
        n += here < left ? here : left;
        if (here < left) {
            break;
        }
    }
    return n < most ? n : most;
}

/* The longest run of at most `most` pages among the next few, from where the last one ended. */
static uint32_t find_run(struct kvs_space *space, uint32_t most, uint32_t *len_p)
{
    uint32_t best = NONE;
    uint32_t best_len = 0;
    uint32_t at = space->hand;
    for (uint32_t i = 0; i < RUN_TRIES && best_len < most; i++) {
        at = next_free(space, at);
        if (at == NONE) {
            at = next_free(space, 0);
            kvb_assert(at != NONE);
        }
        uint32_t len = run_length(space, at, most);
        if (len > best_len) {
            best = at;
            best_len = len;
        }
        at += len;
    }
    space->hand = best + best_len < space->npages ? best + best_len : 0;
    *len_p = best_len;
    return best;
}

/* ---- lists of slab pages ---- */

#define LIST(name)                                                                                 \
    static void name##_push(struct kvs_space *space, struct kvs_page_list *list, uint32_t at)      \
    {                                                                                              \
        struct slab *slab = slab_at(space, at);                                                    \
        slab->name##_prev = list->last;                                                            \
        slab->name##_next = NONE;                                                                  \
        *(list->last != NONE ? &slab_at(space, list->last)->name##_next : &list->first) = at;      \
        list->last = at;                                                                           \
    }                                                                                              \
    static void name##_remove(struct kvs_space *space, struct kvs_page_list *list, uint32_t at)    \
    {                                                                                              \
        const struct slab *slab = slab_at(space, at);                                              \
        uint32_t prev = slab->name##_prev;                                                         \
        uint32_t next = slab->name##_next;                                                         \
        *(prev != NONE ? &slab_at(space, prev)->name##_next : &list->first) = next;                \
        *(next != NONE ? &slab_at(space, next)->name##_prev : &list->last) = prev;                 \
    }
LIST(room)
LIST(yield)
#undef LIST

/* ---- what a slab page is good for: lists and counters follow its counts ---- */

static enum page_yield yield_of(const struct slab *slab)
{
    if (slab->used == 0) {
        return YIELD_NOTHING;
    }
    if (slab->locked == 0) {
        return slab->soft > 0 ? YIELD_PAGE_SOFT : YIELD_PAGE;
    }
    return slab->used > slab->locked ? YIELD_SLOTS : YIELD_NOTHING;
}

static struct kvs_page_list *yield_list(struct kvs_space *space, const struct slab *slab,
                                        enum page_yield yield)
{
    switch (yield) {
    case YIELD_PAGE:
        return &space->yielding[0];
    case YIELD_PAGE_SOFT:
        return &space->yielding[1];
    case YIELD_SLOTS:
        return &space->classes[slab->class].mixed;
    case YIELD_NOTHING:
        break;
    }
    return NULL;
}

/* What a page has in the counters, and where it is listed, before a change of its counts: its yield
 * and, above YIELD_BITS, its slack. */
#define YIELD_BITS 2u

static uint32_t mark_of(const struct slab *slab)
{
    uint32_t slack = slab->locked > 0 ? (uint32_t)slab->nslots - slab->locked : 0;
    return slack << YIELD_BITS | yield_of(slab);
}

static enum page_yield mark_yield(uint32_t mark)
{
    return (enum page_yield)(mark & ((1u << YIELD_BITS) - 1));
}

static uint32_t mark_slack(uint32_t mark)
{
    return mark >> YIELD_BITS;
}

static bool yields_page(enum page_yield yield)
{
    return yield == YIELD_PAGE || yield == YIELD_PAGE_SOFT;
}

static void page_changed(struct kvs_space *space, uint32_t at, uint32_t before)
{
    const struct slab *slab = slab_at(space, at);
    uint32_t mark = mark_of(slab);
    enum page_yield was = mark_yield(before);
    enum page_yield now = mark_yield(mark);
    space->classes[slab->class].slack += mark_slack(mark) - mark_slack(before);
    if (now == was) {
        return;
    }
    space->nyielding += (uint32_t)yields_page(now) - (uint32_t)yields_page(was);
    struct kvs_page_list *list = yield_list(space, slab, was);
    if (list != NULL) {
        yield_remove(space, list, at);
    }
    list = yield_list(space, slab, now);
    if (list != NULL) {
        yield_push(space, list, at);
    }
}

void kvs_space_fetch_word(const struct kvs_space *space, struct kvs_pieces pieces)
{
    if (pieces.slots != NONE) {
        __builtin_prefetch(&space->pages[kvs_piece_page(pieces.slots)]);
    }
}

void kvs_space_fetch_slab(const struct kvs_space *space, struct kvs_pieces pieces)
{
    if (pieces.slots != NONE) {
        __builtin_prefetch(slab_at(space, kvs_piece_page(pieces.slots)));
    }
}

/* ---- questions ---- */

static bool has_room(const struct kvs_space *space, uint8_t class)
{
    return space->classes[class].room.first != NONE;
}

bool kvs_space_fits(const struct kvs_space *space, const struct kvs_plan *plan)
{
    uint32_t need = plan->npages;
    for (uint32_t i = 0; i < plan->nslots; i++) {
        need += has_room(space, plan->classes[i]) ? 0 : 1;
    }
    return need <= space->nfree;
}

bool kvs_space_wants(const struct kvs_space *space, const struct kvs_plan *plan, uint8_t class)
{
    return kvs_space_has_class(plan, class) && !has_room(space, class);
}

bool kvs_space_could_fit(const struct kvs_space *space, const struct kvs_plan *plan)
{
    uint64_t need = plan->npages;
    for (uint32_t i = 0; i < plan->nslots; i++) {
        need += space->classes[plan->classes[i]].slack > 0 ? 0 : 1;
    }
    return need <= (uint64_t)space->nfree + space->unlocked + space->nyielding;
}

/* ---- take and give ---- */

static size_t slab_bytes(uint8_t class)
{
    return offsetof(struct slab, slots) + slots_per_page(class) * sizeof(struct slot);
}

static bool slab_open(struct kvs_space *space, uint8_t class)
{
    struct slab *slab = malloc(slab_bytes(class));
    if (slab == NULL) {
        return false;
    }
    *slab =
        (struct slab){.free = SLOT_NONE, .nslots = (uint16_t)slots_per_page(class), .class = class};
    uint32_t at = next_free(space, 0);
    kvb_assert(at != NONE);
    mark_taken(space, at);
    space->pages[at].word = (uint64_t)(uintptr_t)slab | PAGE_SLAB;
    space->slab_bytes += slab_bytes(class);
    room_push(space, &space->classes[class].room, at);
    /* cppcheck-suppress memleak ; the page's word holds it */
    return true;
}

static void slab_close(struct kvs_space *space, uint32_t at)
{
    struct slab *slab = slab_at(space, at);
    room_remove(space, &space->classes[slab->class].room, at);
    space->slab_bytes -= slab_bytes(slab->class);
    free(slab);
    space->pages[at].word = PAGE_FREE;
    mark_free(space, at);
}

static bool slab_full(const struct slab *slab)
{
    return slab->free == SLOT_NONE && slab->fresh == slab->nslots;
}

static uint32_t slot_take(struct kvs_space *space, uint8_t class, uint32_t owner)
{
    uint32_t at = space->classes[class].room.first;
    struct slab *slab = slab_at(space, at);
    uint32_t before = mark_of(slab);
    uint32_t slot = slab->free;
    if (slot != SLOT_NONE) {
        slab->free = (uint16_t)slab->slots[slot].next;
    } else {
        slot = slab->fresh++;
    }
    slab->slots[slot] = (struct slot){.owner = owner, .next = NONE};
    slab->used++;
    slab->locked++;
    page_changed(space, at, before);
    if (slab_full(slab)) {
        room_remove(space, &space->classes[class].room, at);
    }
    return at << SLOT_BITS | slot;
}

static void slot_give(struct kvs_space *space, uint32_t piece)
{
    uint32_t at = kvs_piece_page(piece);
    uint32_t slot = piece & SLOT_MASK;
    struct slab *slab = slab_at(space, at);
    uint32_t before = mark_of(slab);
    if (slab_full(slab)) {
        room_push(space, &space->classes[slab->class].room, at);
    }
    slab->slots[slot] = (struct slot){.owner = 0, .next = slab->free};
    slab->free = (uint16_t)slot;
    slab->used--;
    page_changed(space, at, before);
    if (slab->used == 0) {
        slab_close(space, at);
    }
}

static struct slot *slot_at(const struct kvs_space *space, uint32_t piece)
{
    return &slab_at(space, kvs_piece_page(piece))->slots[piece & SLOT_MASK];
}

uint32_t kvs_space_next_slot(const struct kvs_space *space, uint32_t piece)
{
    return slot_at(space, piece)->next;
}

static void give_pages(struct kvs_space *space, uint32_t first)
{
    for (uint32_t at = first; at != NONE;) {
        uint32_t next = next_page(space, at);
        space->pages[at].word = PAGE_FREE;
        mark_free(space, at);
        at = next;
    }
}

static uint32_t take_pages(struct kvs_space *space, uint32_t n)
{
    uint32_t first = NONE;
    uint32_t last = NONE;
    while (n > 0) {
        uint32_t len;
        uint32_t at = find_run(space, n, &len);
        n -= len;
        for (; len > 0; len--, at++) {
            mark_taken(space, at);
            set_whole(space, at, NONE);
            if (last == NONE) {
                first = at;
            } else {
                set_whole(space, last, at);
            }
            last = at;
        }
    }
    return first;
}

kvb_status_t kvs_space_take(struct kvs_space *space, const struct kvs_plan *plan, uint32_t owner,
                            struct kvs_pieces *pieces_p)
{
    kvb_assert(kvs_space_fits(space, plan));
    /* What may fail comes first. An open slab page without values would be a leak, so each is used
     * at once. */
    struct kvs_pieces pieces = {.pages = NONE, .slots = NONE};
    uint32_t last = NONE;
    for (uint32_t i = 0; i < plan->nslots; i++) {
        uint8_t class = plan->classes[i];
        if (!has_room(space, class) && !slab_open(space, class)) {
            struct kvs_plan taken = {.nslots = i};
            kvs_space_lock(space, &taken, pieces, false);
            kvs_space_give(space, &taken, pieces);
            return KVB_ERR_NO_MEMORY;
        }
        uint32_t piece = slot_take(space, class, owner);
        if (last == NONE) {
            pieces.slots = piece;
        } else {
            slot_at(space, last)->next = piece;
        }
        last = piece;
    }
    pieces.pages = take_pages(space, plan->npages);
    *pieces_p = pieces;
    return KVB_OK;
}

void kvs_space_give(struct kvs_space *space, const struct kvs_plan *plan, struct kvs_pieces pieces)
{
    for (uint32_t piece = pieces.slots; piece != NONE;) {
        uint32_t next = slot_at(space, piece)->next;
        slot_give(space, piece);
        piece = next;
    }
    give_pages(space, pieces.pages);
    kvb_assert(space->unlocked >= plan->npages);
    space->unlocked -= plan->npages;
}

void kvs_space_lock(struct kvs_space *space, const struct kvs_plan *plan, struct kvs_pieces pieces,
                    bool locked)
{
    space->unlocked += locked ? -plan->npages : plan->npages;
    for (uint32_t piece = pieces.slots; piece != NONE; piece = slot_at(space, piece)->next) {
        uint32_t at = kvs_piece_page(piece);
        struct slab *slab = slab_at(space, at);
        uint32_t before = mark_of(slab);
        slab->locked = (uint16_t)(locked ? slab->locked + 1 : slab->locked - 1);
        page_changed(space, at, before);
    }
}

void kvs_space_soften(struct kvs_space *space, struct kvs_pieces pieces, bool soft)
{
    for (uint32_t piece = pieces.slots; piece != NONE; piece = slot_at(space, piece)->next) {
        uint32_t at = kvs_piece_page(piece);
        struct slab *slab = slab_at(space, at);
        uint32_t before = mark_of(slab);
        slab->soft = (uint16_t)(soft ? slab->soft + 1 : slab->soft - 1);
        page_changed(space, at, before);
    }
}

kvb_status_t kvs_space_extents(const struct kvs_space *space, const struct kvs_plan *plan,
                               struct kvs_pieces pieces, uint64_t len, struct kvs_extents *extents)
{
    kvb_assert(len <= plan->bytes);
    extents->n = 0;
    for (uint32_t at = pieces.pages; at != NONE && len > 0; at = next_page(space, at)) {
        uint64_t part = len < PAGE ? len : PAGE;
        kvb_status_t status = kvs_extents_append(extents, (uint64_t)at * PAGE, part);
        if (status != KVB_OK) {
            return status;
        }
        len -= part;
    }
    for (uint32_t piece = pieces.slots; piece != NONE && len > 0;
         piece = slot_at(space, piece)->next) {
        uint32_t at = kvs_piece_page(piece);
        uint64_t size = class_size[slab_at(space, at)->class];
        uint64_t part = len < size ? len : size;
        kvb_status_t status =
            kvs_extents_append(extents, (uint64_t)at * PAGE + (piece & SLOT_MASK) * size, part);
        if (status != KVB_OK) {
            return status;
        }
        len -= part;
    }
    kvb_assert(len == 0);
    return KVB_OK;
}

/* ---- for eviction ---- */

uint32_t kvs_space_yielding_page(const struct kvs_space *space, struct kvs_pieces pieces, bool soft)
{
    for (uint32_t piece = pieces.slots; piece != NONE; piece = slot_at(space, piece)->next) {
        uint32_t at = kvs_piece_page(piece);
        enum page_yield yield = yield_of(slab_at(space, at));
        if (yield == YIELD_PAGE || (soft && yield == YIELD_PAGE_SOFT)) {
            return at;
        }
    }
    return NONE;
}

uint32_t kvs_space_first_yielding(const struct kvs_space *space, bool soft)
{
    return space->yielding[soft].first;
}

uint32_t kvs_space_first_mixed(const struct kvs_space *space, uint8_t class)
{
    return space->classes[class].mixed.first;
}

uint32_t kvs_space_owner(const struct kvs_space *space, uint32_t page, uint32_t *slot_p)
{
    if (kind_of(space, page) != PAGE_SLAB) {
        return 0;
    }
    const struct slab *slab = slab_at(space, page);
    for (uint32_t slot = *slot_p; slot < slab->fresh; slot++) {
        if (slab->slots[slot].owner != 0) {
            *slot_p = slot;
            return slab->slots[slot].owner;
        }
    }
    return 0;
}

/* ---- life ---- */

kvb_status_t kvs_space_init(struct kvs_space *space, uint64_t share_bytes)
{
    *space = (struct kvs_space){.npages = (uint32_t)(share_bytes / PAGE)};
    space->pages = calloc(space->npages, sizeof *space->pages);
    bool ok = space->pages != NULL;
    for (uint32_t i = 0; i < LEVELS; i++) {
        space->free_map[i] = calloc(level_words(space->npages, i), sizeof(uint64_t));
        ok = ok && space->free_map[i] != NULL;
    }
    if (!ok) {
        kvs_space_cleanup(space);
        return KVB_ERR_NO_MEMORY;
    }
    const struct kvs_page_list none = {.first = NONE, .last = NONE};
    space->yielding[0] = none;
    space->yielding[1] = none;
    for (uint32_t i = 0; i < KVS_CLASSES; i++) {
        space->classes[i].room = none;
        space->classes[i].mixed = none;
    }
    for (uint32_t i = 0; i < space->npages; i++) {
        mark_free(space, i);
    }
    return KVB_OK;
}

void kvs_space_cleanup(struct kvs_space *space)
{
    for (uint32_t i = 0; space->pages != NULL && i < space->npages; i++) {
        if (kind_of(space, i) == PAGE_SLAB) {
            free(slab_at(space, i));
        }
    }
    for (uint32_t i = 0; i < LEVELS; i++) {
        free(space->free_map[i]);
    }
    free(space->pages);
}

uint64_t kvs_space_metadata_bytes(const struct kvs_space *space)
{
    uint64_t bytes = space->npages * sizeof *space->pages + space->slab_bytes;
    for (uint32_t i = 0; i < LEVELS; i++) {
        bytes += level_words(space->npages, i) * sizeof(uint64_t);
    }
    return bytes;
}

/* ---- proof ---- */

static const char *validate_list(const struct kvs_space *space, struct kvs_page_list list,
                                 bool room, uint32_t *n_p)
{
    uint32_t prev = NONE;
    uint32_t n = 0;
    for (uint32_t at = list.first; at != NONE; n++) {
        if (at >= space->npages || n > space->npages) {
            return "a list of slab pages runs astray";
        }
        if (kind_of(space, at) != PAGE_SLAB) {
            return "a list of slab pages has another";
        }
        const struct slab *slab = slab_at(space, at);
        if ((room ? slab->room_prev : slab->yield_prev) != prev) {
            return "a list of slab pages has a wrong back link";
        }
        prev = at;
        at = room ? slab->room_next : slab->yield_next;
    }
    *n_p = n;
    return prev == list.last ? NULL : "a list of slab pages has a wrong end";
}

static const char *validate_maps(const struct kvs_space *space)
{
    for (uint32_t level = 1; level < LEVELS; level++) {
        for (uint32_t i = 0; i < level_words(space->npages, level - 1); i++) {
            bool bit = (space->free_map[level][i / WORD_BITS] >> (i % WORD_BITS) & 1) != 0;
            if (bit != (space->free_map[level - 1][i] != 0)) {
                return "a summary of free pages is wrong";
            }
        }
    }
    return NULL;
}

static const char *validate_slab(const struct slab *slab)
{
    uint32_t n = slots_per_page(slab->class);
    if (slab->nslots != n || slab->used == 0 || slab->used > n || slab->fresh > n ||
        slab->locked > slab->used || slab->soft > slab->used) {
        return "a slab page has impossible counts";
    }
    uint32_t nfree = 0;
    for (uint32_t slot = slab->free; slot != SLOT_NONE; slot = slab->slots[slot].next) {
        if (slot >= slab->fresh || slab->slots[slot].owner != 0 || ++nfree > n) {
            return "a slab page's free slots are wrong";
        }
    }
    return nfree + slab->used == slab->fresh ? NULL : "a slot is neither used nor free";
}

const char *kvs_space_validate(const struct kvs_space *space)
{
    uint32_t nfree = 0;
    uint32_t nyielding = 0;
    uint32_t yield[2] = {0, 0};
    uint32_t slack[KVS_CLASSES] = {0};
    uint32_t room[KVS_CLASSES] = {0};
    uint32_t mixed[KVS_CLASSES] = {0};
    for (uint32_t i = 0; i < space->npages; i++) {
        enum page_kind kind = kind_of(space, i);
        if ((kind == PAGE_FREE) != page_is_free(space, i)) {
            return "a page is free in one place and not in the other";
        }
        nfree += kind == PAGE_FREE;
        if (kind != PAGE_SLAB) {
            continue;
        }
        const struct slab *slab = slab_at(space, i);
        const char *wrong_slab = validate_slab(slab);
        if (wrong_slab != NULL) {
            return wrong_slab;
        }
        uint32_t mark = mark_of(slab);
        enum page_yield yields = mark_yield(mark);
        room[slab->class] += !slab_full(slab);
        nyielding += yields_page(yields);
        slack[slab->class] += mark_slack(mark);
        yield[0] += yields == YIELD_PAGE;
        yield[1] += yields == YIELD_PAGE_SOFT;
        mixed[slab->class] += yields == YIELD_SLOTS;
    }
    if (nfree != space->nfree) {
        return "the number of free pages is wrong";
    }
    if (nyielding != space->nyielding) {
        return "the number of yielding pages is wrong";
    }
    const char *wrong = validate_maps(space);
    uint32_t n = 0;
    for (uint32_t i = 0; wrong == NULL && i < 2; i++) {
        wrong = validate_list(space, space->yielding[i], false, &n);
        wrong = wrong == NULL && n != yield[i] ? "a yielding page is not listed" : wrong;
    }
    for (uint32_t i = 0; wrong == NULL && i < KVS_CLASSES; i++) {
        if (slack[i] != space->classes[i].slack) {
            return "the slack of a size is wrong";
        }
        wrong = validate_list(space, space->classes[i].room, true, &n);
        wrong = wrong == NULL && n != room[i] ? "a page with room is not listed" : wrong;
        if (wrong == NULL) {
            wrong = validate_list(space, space->classes[i].mixed, false, &n);
            wrong = wrong == NULL && n != mixed[i] ? "a mixed page is not listed" : wrong;
        }
    }
    return wrong;
}

const char *kvs_space_validate_value(const struct kvs_space *space, const struct kvs_plan *plan,
                                     struct kvs_pieces pieces, uint32_t owner, uint8_t *seen)
{
    uint32_t n = 0;
    for (uint32_t at = pieces.pages; at != NONE; at = next_page(space, at)) {
        if (at >= space->npages || n++ >= plan->npages || kind_of(space, at) != PAGE_WHOLE ||
            seen[at] != 0) {
            return "a value's pages are not its own";
        }
        seen[at] = 1;
    }
    if (n != plan->npages) {
        return "a value lacks pages";
    }
    n = 0;
    for (uint32_t piece = pieces.slots; piece != NONE; piece = slot_at(space, piece)->next) {
        uint32_t at = kvs_piece_page(piece);
        if (at >= space->npages || n >= plan->nslots || kind_of(space, at) != PAGE_SLAB ||
            slab_at(space, at)->class != plan->classes[n] ||
            slot_at(space, piece)->owner != owner) {
            return "a value's slots are not its own";
        }
        n++;
    }
    return n == plan->nslots ? NULL : "a value lacks slots";
}

const char *kvs_space_validate_page(const struct kvs_space *space, uint32_t at, uint8_t seen,
                                    uint32_t used, uint32_t locked, uint32_t soft)
{
    enum page_kind kind = kind_of(space, at);
    if ((kind == PAGE_WHOLE) != (seen != 0)) {
        return "a page belongs to no value";
    }
    if (kind != PAGE_SLAB) {
        return used == 0 ? NULL : "a slot lies outside the slab pages";
    }
    const struct slab *slab = slab_at(space, at);
    return slab->used == used && slab->locked == locked && slab->soft == soft
               ? NULL
               : "a slab page's counts do not match its values";
}
