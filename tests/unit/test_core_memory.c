/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a shard takes from the system, and what it does when it gets nothing more. malloc and
 * mprotect (which puts memory behind the shard's address ranges) are wrapped by the linker: they
 * count, and fail from the nth call on or at it.
 */
#include "core_fixture.h"

#include <criterion/criterion.h>

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

static bool counting;
static uint64_t mapped;      /* bytes made usable */
static uint64_t calls;       /* that may fail, since it was set to 0 */
static uint64_t fail_at;     /* this one fails; 0: none */
static bool fail_ever_after; /* and all later ones */

static bool fails(void)
{
    if (!counting) {
        return false;
    }
    calls++;
    return fail_at != 0 && (calls == fail_at || (fail_ever_after && calls > fail_at));
}

void *__real_malloc(size_t len);
void *__real_calloc(size_t n, size_t len);
void *__real_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
int __real_madvise(void *at, size_t len, int advice);
int __wrap_madvise(void *at, size_t len, int advice);
int __real_mprotect(void *at, size_t len, int prot);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t n, size_t len);
void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset);
int __wrap_mprotect(void *at, size_t len, int prot);

void *__wrap_malloc(size_t len)
{
    return fails() ? NULL : __real_malloc(len);
}
void *__wrap_calloc(size_t n, size_t len)
{
    return fails() ? NULL : __real_calloc(n, len);
}
void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
    return fails() ? MAP_FAILED : __real_mmap(at, len, prot, flags, fd, offset);
}
int __wrap_mprotect(void *at, size_t len, int prot)
{
    if (fails()) {
        return -1;
    }
    mapped += counting ? len : 0;
    return __real_mprotect(at, len, prot);
}

static uint64_t returned; /* bytes given back to the system */

int __wrap_madvise(void *at, size_t len, int advice)
{
    returned += advice == MADV_DONTNEED ? len : 0;
    return __real_madvise(at, len, advice);
}

static void put_many(struct shard *s, uint64_t n, uint64_t len)
{
    uint8_t bytes[16];
    struct kvs_core_key key = {.block = {.data = bytes, .len = sizeof bytes}};
    for (uint64_t i = 0; i < n; i++) {
        uint64_t words[2] = {i, ~i * 0x9e3779b97f4a7c15ull};
        memcpy(bytes, words, sizeof bytes);
        kvb_status_t status = shard_put_key(s, key, len);
        cr_assert_eq(status, KVB_OK, "%s", kvb_status_label(status));
    }
}

/* All that the shard asked the system for, and what it says itself, with a share to match. */
static void check_cost(uint64_t n, uint64_t len)
{
    struct shard s;
    struct kvs_core_config config = {.share_bytes =
                                         (n * len / KVS_CORE_PAGE + 16) * KVS_CORE_PAGE * 9 / 8};
    size_t heap = mallinfo2().uordblks + mallinfo2().hblkhd;
    mapped = 0;
    counting = true;
    cr_assert_eq(shard_create(&s, &config), KVB_OK);
    put_many(&s, n, len);
    counting = false;
    uint64_t taken = mapped + mallinfo2().uordblks + mallinfo2().hblkhd - heap;
    struct kvs_core_stats stats = shard_stats(&s);
    cr_assert_eq(stats.objects, n);
    double each = (double)taken / (double)n;
    double told = (double)stats.metadata_bytes / (double)n;
    fprintf(stderr, "%llu objects of %llu bytes: %.1f bytes each, %.1f by its own count\n",
            (unsigned long long)n, (unsigned long long)len, each, told);
    cr_assert(each - 16 <= 128, "%.1f bytes beside the key", each - 16);
    cr_assert(told - 16 <= 128 && told > each * 0.95, "its own count says %.1f", told);
    cr_assert(kvs_core_validate(s.core) == NULL);
    shard_cleanup(&s);
}

Test(core_memory, an_object_costs_at_most_128_bytes_beside_its_key)
{
    check_cost(120000, 64);
    check_cost(300000, 1000);
    check_cost(150000, 16384);
    check_cost(100000, 70000);
}

Test(core_memory, what_is_cleared_gives_its_records_back)
{
    struct shard s;
    shard_init(&s, 1024);
    uint64_t before = shard_stats(&s).metadata_bytes;
    put_many(&s, 200000, 64);
    cr_assert(shard_stats(&s).metadata_bytes > before + 16000000);
    kvs_core_clear(s.core);
    shard_reclaim_all(&s);
    cr_assert(returned > 12000000);
    /* The table's heads stay, and a few segments. */
    cr_assert(shard_stats(&s).metadata_bytes < before + 6000000);
    put_many(&s, 1000, 64);
    cr_assert(kvs_core_validate(s.core) == NULL);
    shard_cleanup(&s);
}

Test(core_memory, an_emptied_shard_gives_all_its_records_memory_back)
{
    struct shard s;
    shard_init(&s, 1024);
    for (int i = 0; i < 3; i++) {
        returned = 0;
        put_many(&s, 20000, 64);
        kvs_core_clear(s.core);
        shard_reclaim_all(&s);
        cr_assert_geq(returned, 9ull << 18, "%lu", returned); /* 9 of 10 segments of 256 KiB */
        cr_assert(kvs_core_validate(s.core) == NULL);
    }
    shard_cleanup(&s);
}

/* A value for which there is room, but in more pieces than a list of extents has place for: it is
 * there whole, or not; and what is there is found whole, or not now. */
static kvb_status_t in_pieces(struct shard *s, uint64_t len)
{
    uint64_t before = shard_stats(s).used_bytes;
    kvs_extents_cleanup(&s->extents);
    kvb_status_t status = shard_put(s, "big", 0, len);
    bool there = shard_has(s, "big", 0);
    cr_assert_eq(there, status == KVB_OK);
    cr_assert(there || shard_stats(s).used_bytes <= before, "half of it stays");
    if (there) {
        kvs_extents_cleanup(&s->extents);
        status = shard_find(s, "big", 0);
        uint64_t found = 0;
        for (uint32_t i = 0; status == KVB_OK && i < s->extents.n; i++) {
            found += s->extents.at[i].len;
        }
        cr_assert(status != KVB_OK || found == len);
        if (status == KVB_OK) {
            cr_assert_gt(s->extents.n, KVS_EXTENTS_INLINE);
            cr_assert_eq(shard_release(s), KVB_OK);
        }
        cr_assert_eq(shard_remove(s, "big", 0, true), KVB_OK, "nobody holds it");
    }
    return status;
}

static kvb_status_t scattered(struct shard *s)
{
    enum { PAGES = 64 }; /* all that it has */
    kvb_status_t status = KVB_OK;
    for (uint64_t i = 0; i < PAGES && status == KVB_OK; i++) {
        status = shard_put(s, "p", i, KVS_CORE_PAGE);
    }
    for (uint64_t i = 0; i < PAGES && status == KVB_OK; i += 2) {
        status = shard_remove(s, "p", i, true);
    }
    shard_reclaim_all(s);
    if (status == KVB_OK) {
        status = in_pieces(s, PAGES / 2 * KVS_CORE_PAGE);
    }
    if (status == KVB_OK) { /* the last piece is no page */
        status = in_pieces(s, KVS_EXTENTS_INLINE * KVS_CORE_PAGE + 100);
    }
    for (uint64_t i = 0; i < PAGES; i++) {
        (void)shard_remove(s, "p", i, true);
    }
    shard_reclaim_all(s);
    return status;
}

/* One of everything that takes memory. Whatever fails, the shard stays sound, and nothing is lost
 * of what it had said yes to. */
static kvb_status_t everything(uint64_t *put_p)
{
    struct shard s;
    struct kvs_core_config config = {.share_bytes = 64 * KVS_CORE_PAGE};
    kvb_status_t status = shard_create(&s, &config);
    if (status != KVB_OK) {
        return status;
    }
    kvb_status_t worst = scattered(&s);
    if (worst == KVB_OK) {
        worst = kvs_core_set_quota(s.core, 400, UINT64_MAX);
    }
    bool there[40] = {0};
    for (uint64_t i = 0; i < 40; i++) {
        s.where.tenant = (uint32_t)(i * 90);
        s.where.space = (uint32_t)i;
        status = shard_put(&s, "a", i, 1 + i * i * 40);
        there[i] = status == KVB_OK;
        worst = status != KVB_OK ? status : worst;
        *put_p += there[i];
        (void)shard_hold(&s, "a", i, 1 + i % 3, i);
        status = shard_find(&s, "a", i);
        worst = there[i] && status != KVB_OK ? status : worst;
        const char *wrong = kvs_core_validate(s.core);
        cr_assert(wrong == NULL || strcmp(wrong, "no memory for the proof") == 0, "%s", wrong);
    }
    kvs_core_retire(s.core, shard_lineage(99));
    counting = false;
    for (uint64_t i = 0; i < 40; i++) {
        s.where.tenant = (uint32_t)(i * 90);
        s.where.space = (uint32_t)i;
        cr_assert_eq(shard_has(&s, "a", i), there[i]);
    }
    kvs_core_clear(s.core);
    kvs_core_session_stopped(s.core, 1);
    shard_reclaim_all(&s);
    cr_assert(kvs_core_validate(s.core) == NULL);
    cr_assert_eq(shard_stats(&s).used_bytes, 0);
    shard_cleanup(&s);
    return worst;
}

static void fail_everything(bool ever_after)
{
    uint64_t put = 0;
    calls = 0;
    counting = true;
    cr_assert_eq(everything(&put), KVB_OK);
    cr_assert_eq(put, 40);
    uint64_t all = calls;
    cr_assert(all > 20);
    bool seen = false;
    for (fail_at = 1; fail_at <= all; fail_at++) {
        put = 0;
        calls = 0;
        fail_ever_after = ever_after;
        counting = true;
        kvb_status_t status = everything(&put);
        counting = false;
        cr_assert(status == KVB_OK || status == KVB_ERR_NO_MEMORY, "%s", kvb_status_label(status));
        seen = seen || status == KVB_ERR_NO_MEMORY;
    }
    cr_assert(seen);
}

Test(core_memory, one_allocation_that_fails_is_survived)
{
    fail_everything(false);
}

Test(core_memory, no_more_memory_at_all_is_survived)
{
    fail_everything(true);
}

Test(core_memory, there_may_be_no_shard_to_destroy)
{
    kvs_core_destroy(NULL);
}
