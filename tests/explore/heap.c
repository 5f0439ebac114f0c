/* SPDX-License-Identifier: Apache-2.0 */
#include "heap.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEAP_AT    ((char *)0x200000000000)
#define HEAP_BYTES (4u << 20)
#define GRAIN      64u
#define GRAINS     (HEAP_BYTES / GRAIN)
#define BLOCKS_MAX 4096u
#define HOLES_MAX  16u
#define DRAWN_MAX  65536u

/* Blocks are given out from the front, kept by size when they are freed, and given out again for
 * the same size: where a block begins and ends never changes once it is there. */
struct block {
    uint32_t at;    /* first grain */
    uint32_t bytes; /* as rounded */
    uint32_t next;  /* free list, + 1 */
    bool used, opaque;
};
struct head {
    uint32_t top; /* grains given out */
    uint32_t nblocks;
    uint32_t drawn;
    struct block blocks[BLOCKS_MAX];
    uint32_t free_of[64]; /* by size in grains, + 1; the last: all larger ones */
};
struct copy {
    struct head head;
    char *data;
};

static struct head head;
/* Needs no copy: below the top of a state that is kept, nothing of it changes as long as that state
 * is the one to come back to. */
static uint16_t block_of_grain[GRAINS];
static bool inside;
static struct {
    char *at;
    size_t len;
} holes[HOLES_MAX];
static uint32_t nholes;

void *__real_malloc(size_t len);
void *__real_calloc(size_t n, size_t len);
void *__real_realloc(void *at, size_t len);
void __real_free(void *at);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t n, size_t len);
void *__wrap_realloc(void *at, size_t len);
void __wrap_free(void *at);

static bool ours(const void *at)
{
    return (uintptr_t)at - (uintptr_t)HEAP_AT < HEAP_BYTES;
}

static uint32_t *free_list(uint32_t grains)
{
    return &head.free_of[grains < 63 ? grains : 63];
}

static void *heap_alloc(size_t len)
{
    uint32_t grains = (uint32_t)((len + GRAIN - 1) / GRAIN);
    grains = grains == 0 ? 1 : grains;
    for (uint32_t *link = free_list(grains); *link != 0; link = &head.blocks[*link - 1].next) {
        struct block *block = &head.blocks[*link - 1];
        if (block->bytes == grains * GRAIN) {
            *link = block->next;
            block->used = true;
            memset(HEAP_AT + (size_t)block->at * GRAIN, 0, block->bytes);
            return HEAP_AT + (size_t)block->at * GRAIN;
        }
    }
    kvb_assert(head.top + grains <= GRAINS && head.nblocks < BLOCKS_MAX);
    static bool mapped;
    if (!mapped) {
        mapped = true;
        void *at = mmap(HEAP_AT, HEAP_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        kvb_assert(at == HEAP_AT);
    }
    for (uint32_t i = 0; i < grains; i++) {
        block_of_grain[head.top + i] = (uint16_t)head.nblocks;
    }
    head.blocks[head.nblocks++] =
        (struct block){.at = head.top, .bytes = grains * GRAIN, .used = true};
    void *at = HEAP_AT + (size_t)head.top * GRAIN;
    head.top += grains;
    memset(at, 0, (size_t)grains * GRAIN);
    return at;
}

static struct block *block_of(const void *at)
{
    size_t grain = (size_t)((const char *)at - HEAP_AT) / GRAIN;
    return grain < head.top ? &head.blocks[block_of_grain[grain]] : NULL;
}

void *__wrap_malloc(size_t len)
{
    return inside ? heap_alloc(len) : __real_malloc(len);
}

void *__wrap_calloc(size_t n, size_t len)
{
    return inside ? heap_alloc(n * len) : __real_calloc(n, len);
}

void *__wrap_realloc(void *at, size_t len)
{
    if (!inside || (at != NULL && !ours(at))) {
        return __real_realloc(at, len);
    }
    void *fresh = heap_alloc(len);
    if (at != NULL) {
        size_t had = block_of(at)->bytes;
        memcpy(fresh, at, had < len ? had : len);
        __wrap_free(at);
    }
    return fresh;
}

void __wrap_free(void *at)
{
    if (!ours(at)) {
        __real_free(at);
        return;
    }
    struct block *block = block_of(at);
    kvb_assert(block != NULL && block->used); /* freed once */
    kvb_assert(HEAP_AT + (size_t)block->at * GRAIN == at);
    block->used = false;
    uint32_t *list = free_list(block->bytes / GRAIN);
    block->next = *list;
    *list = (uint32_t)(block - head.blocks) + 1;
    memset(at, 0xdd, block->bytes); /* whoever still reads it sees nonsense */
}

void heap_clear(void)
{
    memset(&head, 0, sizeof head);
    nholes = 0;
}

void heap_enter(void)
{
    inside = true;
}

void heap_leave(void)
{
    inside = false;
}

uint64_t heap_draw(void)
{
    kvb_assert(head.drawn + 1 < DRAWN_MAX);
    return HEAP_DRAWN_BASE + ++head.drawn;
}

void heap_opaque(const void *at)
{
    block_of(at)->opaque = true;
}

void heap_hole(const void *at, size_t len)
{
    for (uint32_t i = 0; i < nholes; i++) {
        if (holes[i].at == at) {
            return;
        }
    }
    kvb_assert(nholes < HOLES_MAX);
    holes[nholes].at = HEAP_AT + ((const char *)at - HEAP_AT);
    holes[nholes++].len = len;
}

/* What is in use and no hole. */
static void copy_data(size_t end, char *to, const char *from)
{
    size_t at = 0;
    while (at < end) {
        size_t until = end;
        size_t next = end;
        for (uint32_t i = 0; i < nholes; i++) {
            size_t begin = (size_t)(holes[i].at - HEAP_AT);
            if (begin >= at && begin < until) {
                until = begin;
                next = begin + holes[i].len;
            }
        }
        memcpy(to + at, from + at, until - at);
        at = next;
    }
}

static void copy_head(struct head *to, const struct head *from)
{
    to->top = from->top;
    to->nblocks = from->nblocks;
    to->drawn = from->drawn;
    memcpy(to->blocks, from->blocks, from->nblocks * sizeof from->blocks[0]);
    memcpy(to->free_of, from->free_of, sizeof from->free_of);
}

static struct copy first, marked;

static void save(struct copy *copy)
{
    if (copy->data == NULL) {
        copy->data = __real_malloc(HEAP_BYTES);
        kvb_assert(copy->data != NULL);
    }
    copy_head(&copy->head, &head);
    copy_data((size_t)head.top * GRAIN, copy->data, HEAP_AT);
}

static void load(const struct copy *copy)
{
    copy_head(&head, &copy->head);
    copy_data((size_t)head.top * GRAIN, HEAP_AT, copy->data);
}

void heap_first(void)
{
    save(&first);
}

void heap_begin(void)
{
    load(&first);
}

void heap_mark(void)
{
    save(&marked);
}

void heap_back(void)
{
    load(&marked);
}

/* ---- comparing ---- */

/* Names by the order in which things are met; a generation saves clearing them. */
static uint32_t generation;
static struct {
    uint32_t generation;
    uint32_t name;
} blocks[BLOCKS_MAX], drawn[DRAWN_MAX], asks[DRAWN_MAX];
static uint32_t nnames;
static uint16_t queue[BLOCKS_MAX];
static uint32_t nqueue;

struct mix {
    uint64_t a, b;
};

static inline void mix_add(struct mix *mix, uint64_t word)
{
    mix->a = (mix->a ^ word) * 0x9e3779b97f4a7c15ull;
    mix->a ^= mix->a >> 29;
    mix->b = (mix->b + word) * 0xc2b2ae3d27d4eb4full;
    mix->b = (mix->b << 31 | mix->b >> 33) + mix->a;
}

static uint64_t drawn_name(uint64_t word)
{
    uint32_t i = (uint32_t)(word - HEAP_DRAWN_BASE);
    if (drawn[i].generation != generation) {
        drawn[i].generation = generation;
        drawn[i].name = ++nnames;
    }
    return HEAP_DRAWN_BASE | drawn[i].name;
}

static uint32_t half_name(uint32_t half)
{
    uint32_t i = half - HEAP_ASK_BASE;
    if (i >= DRAWN_MAX) {
        return half;
    }
    if (asks[i].generation != generation) {
        asks[i].generation = generation;
        asks[i].name = ++nnames;
    }
    return HEAP_ASK_BASE | asks[i].name;
}

static uint64_t pointer_name(uint64_t word)
{
    const char *at = HEAP_AT + (word - (uint64_t)(uintptr_t)HEAP_AT);
    struct block *block = block_of(at);
    if (block == NULL) {
        return 1;
    }
    uint32_t i = (uint32_t)(block - head.blocks);
    if (blocks[i].generation != generation) {
        blocks[i].generation = generation;
        blocks[i].name = ++nnames;
        if (!block->opaque && block->used) {
            queue[nqueue++] = (uint16_t)i;
        }
    }
    return (uint64_t)blocks[i].name << 32 | (uint64_t)(at - (HEAP_AT + (size_t)block->at * GRAIN));
}

static uint64_t canonical(uint64_t word, uint64_t now_ns)
{
    if (word - (uint64_t)(uintptr_t)HEAP_AT < HEAP_BYTES) {
        return pointer_name(word);
    }
    if (word - HEAP_DRAWN_BASE < DRAWN_MAX) {
        return drawn_name(word);
    }
    if (word - HEAP_TIME_BASE < HEAP_TIME_BASE / 16) {
        return word > now_ns ? word - now_ns : 0;
    }
    return (uint64_t)half_name((uint32_t)(word >> 32)) << 32 | half_name((uint32_t)word);
}

static bool is_flag(const uint32_t *at, const uint32_t *const *flags, uint32_t nflags)
{
    for (uint32_t i = 0; i < nflags; i++) {
        if (flags[i] == at) {
            return true;
        }
    }
    return false;
}

/* Of a place that counts only as zero or not. */
static uint64_t masked(uint64_t word, const char *at, const uint32_t *const *flags, uint32_t nflags)
{
    uint32_t halves[2];
    memcpy(halves, &word, sizeof halves);
    for (uint32_t h = 0; h < 2; h++) {
        bool flag = is_flag((const void *)(at + 4 * h), flags, nflags);
        halves[h] = flag && halves[h] != 0 ? 1 : halves[h];
    }
    memcpy(&word, halves, sizeof word);
    return word;
}

/* Whether a word may mean something else than itself: most are small. */
static inline bool plain(uint64_t word)
{
    return word < HEAP_ASK_BASE;
}

/* Four words at a time: their products do not wait for each other. */
static inline uint64_t product(uint64_t a, uint64_t b)
{
    __uint128_t whole = (__uint128_t)a * b;
    return (uint64_t)whole ^ (uint64_t)(whole >> 64);
}

static void mix_stretch(struct mix *mix, const char *begin, const char *at, const char *stop,
                        const uint32_t *const *flags, uint32_t nflags, uint64_t now_ns)
{
    while (at < stop) {
        uint64_t words[4] = {0};
        size_t len = (size_t)(stop - at) < sizeof words ? (size_t)(stop - at) : sizeof words;
        memcpy(words, at, len);
        if ((words[0] | words[1] | words[2] | words[3]) != 0) {
            for (uint32_t i = 0; i < 4; i++) {
                uint64_t word = flags != NULL && words[i] != 0
                                    ? masked(words[i], at + 8 * i, flags, nflags)
                                    : words[i];
                words[i] = plain(word) ? word : canonical(word, now_ns);
            }
            uint64_t where = (uint64_t)(at - begin) * 0x9e3779b97f4a7c15ull;
            mix->a = product(words[0] ^ mix->a ^ 0xa0761d6478bd642full,
                             words[1] ^ where ^ 0xe7037ed1a0b428dbull);
            mix->b = product(words[2] ^ mix->b ^ 0x8ebc6af09c88c6e3ull,
                             words[3] ^ where ^ 0x589965cc75374cc3ull);
        }
        at += len;
    }
}

void heap_hash(const void *const *roots, uint32_t nroots, const uint32_t *const *flags,
               uint32_t nflags, uint64_t now_ns, uint64_t hash_p[2])
{
    struct mix mix = {0x243f6a8885a308d3ull, 0x13198a2e03707344ull};
    generation++;
    nnames = 0;
    nqueue = 0;
    for (uint32_t i = 0; i < nroots; i++) {
        mix_add(&mix, pointer_name((uint64_t)(uintptr_t)roots[i]));
    }
    for (uint32_t q = 0; q < nqueue; q++) {
        const struct block *block = &head.blocks[queue[q]];
        const char *begin = HEAP_AT + (size_t)block->at * GRAIN;
        const char *end = begin + block->bytes;
        bool flagged = false;
        for (uint32_t i = 0; i < nflags; i++) {
            flagged = flagged || (size_t)((const char *)flags[i] - begin) < block->bytes;
        }
        for (const char *at = begin; at < end;) {
            const char *stop = end;
            const char *next = end;
            for (uint32_t i = 0; i < nholes; i++) {
                if (holes[i].at >= at && holes[i].at < stop) {
                    stop = holes[i].at;
                    next = stop + holes[i].len;
                }
            }
            mix_stretch(&mix, begin, at, stop, flagged ? flags : NULL, nflags, now_ns);
            at = next;
        }
        mix_add(&mix, 0x5eed);
    }
    mix_add(&mix, nqueue);
    mix_add(&mix, mix.b);
    hash_p[0] = mix.a;
    hash_p[1] = mix.b;
}
