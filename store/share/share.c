/* SPDX-License-Identifier: Apache-2.0 */
#include "share_impl.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"
#include "store/coordinator.h"

#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARD_BYTES (4ull << 30) /* one shard for each of these, unless the config says */
#define SHARDS_MAX  16u
#define HUGE_PAGE   (2ull << 20)
#define MFD_2MB     (21u << 26) /* memfd_create(2): log2 of the page size, MFD_HUGE_SHIFT */

#define DEFAULT_TICKET_MS 60000
#define FAULT_TICKET_MS   10 /* in fault runs tickets end while transfers are held */

#define RECLAIM_STEP    256 /* objects */
#define UPKEEP_EVERY_NS (100 * KVB_NS_PER_MS)

/* ---- memory ---- */

static kvb_status_t prefault(void *memory, uint64_t bytes, int fd)
{
    int failed = madvise(memory, bytes, MADV_POPULATE_WRITE);
    if (failed != 0 && errno == EINVAL) { /* an older kernel */
        failed = fallocate(fd, 0, 0, (off_t)bytes);
    }
    if (failed != 0) {
        KVB_LOG(ERROR, "the share's memory is not there; fewer bytes, or without prefault?",
                KVB_U64("bytes", bytes), KVB_ERRNO(errno));
        return KVB_ERR_NO_MEMORY;
    }
    return KVB_OK;
}

static kvb_status_t map(struct kvs_share *share, const struct kvs_share_config *config, int fd)
{
    /* Huge pages are promised here and now, or a page that is not there is a SIGBUS later. */
    int flags = MAP_SHARED | (config->huge_pages ? 0 : MAP_NORESERVE);
    uint64_t bytes = share->mapped_bytes;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    }
    if (memory == MAP_FAILED) {
        KVB_LOG(ERROR,
                config->huge_pages ? "the share's memory cannot be mapped; enough huge pages? "
                                     "(/proc/sys/vm/nr_hugepages)"
                                   : "the share's memory cannot be mapped",
                KVB_U64("bytes", bytes), KVB_ERRNO(errno));
        return KVB_ERR_NO_MEMORY;
    }
    if (!config->huge_pages) {
        (void)madvise(memory, bytes, MADV_HUGEPAGE); /* a wish */
    }
    kvb_status_t status = config->prefault ? prefault(memory, bytes, fd) : KVB_OK;
    if (status != KVB_OK) {
        (void)munmap(memory, bytes);
        return status;
    }
    share->memory = memory;
    return KVB_OK;
}

/* A memfd rather than anonymous memory: it is counted apart from what the process itself uses, and
 * can be handed to a transport's helper. */
static kvb_status_t map_memory(struct kvs_share *share, const struct kvs_share_config *config)
{
    share->mapped_bytes = share->bytes;
    if (config->huge_pages) {
        share->mapped_bytes = (share->bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    }
    int fd = memfd_create("kvplane-share",
                          MFD_CLOEXEC | (config->huge_pages ? MFD_HUGETLB | MFD_2MB : 0));
    if (fd < 0) {
        KVB_LOG(ERROR, "the share's memory cannot be created", KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    kvb_status_t status = map(share, config, fd);
    (void)close(fd);
    return status;
}

/* ---- create and destroy ---- */

static kvb_status_t shard_init(struct kvs_shard *shard, const struct kvb_random *random,
                               const struct kvs_core_config *config, uint32_t nevents,
                               uint8_t *base)
{
    *shard = (struct kvs_shard){.base = base, .len = config->share_bytes};
    kvb_status_t status = kvs_core_create(config, random, &shard->core);
    if (status != KVB_OK) {
        return status;
    }
    status = kvs_core_session_open(shard->core, KVS_LOCAL_SESSION);
    if (status != KVB_OK) {
        kvs_core_destroy(shard->core);
        return status;
    }
    status = kvs_ring_create(shard, nevents);
    if (status != KVB_OK) {
        kvs_core_destroy(shard->core);
        return status;
    }
    kvb_mutex_init(&shard->lock, "shard");
    return KVB_OK;
}

static void shard_cleanup(struct kvs_shard *shard)
{
    kvs_ring_destroy(shard);
    kvs_core_destroy(shard->core);
    kvb_mutex_cleanup(&shard->lock);
}

static uint32_t choose_nshards(const struct kvs_share_config *config)
{
    uint64_t n = config->shards != 0 ? config->shards : config->bytes / SHARD_BYTES;
    if (n == 0) {
        n = 1;
    }
    return (uint32_t)(config->shards == 0 && n > SHARDS_MAX ? SHARDS_MAX : n);
}

kvb_status_t kvs_share_create(const struct kvb_random *random,
                              const struct kvs_share_config *config, struct kvs_share **share_p)
{
    uint32_t nshards = choose_nshards(config);
    uint64_t each = config->bytes / nshards / KVS_CORE_PAGE * KVS_CORE_PAGE;
    const struct kvs_core_config core = {
        .share_bytes = each,
        .hold_bytes_max = config->hold_bytes_max / nshards,
    };
    if (each == 0 || each > KVS_CORE_SHARE_MAX) {
        KVB_LOG(ERROR, "the share's bytes over its shards are too little or too much for a shard",
                KVB_U64("bytes", config->bytes), KVB_U64("shards", nshards),
                KVB_U64("shard_min", KVS_CORE_PAGE), KVB_U64("shard_max", KVS_CORE_SHARE_MAX));
        return KVB_ERR_INVALID;
    }
    struct kvs_share *share = calloc(1, sizeof *share);
    if (share == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    share->bytes = each * nshards;
    share->due_ns = KVB_NEVER;
    atomic_init(&share->last_session, KVS_LOCAL_SESSION);
    share->shards = calloc(nshards, sizeof *share->shards);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (share->shards == NULL) {
        goto err_share;
    }
    status = map_memory(share, config);
    if (status != KVB_OK) {
        goto err_shards;
    }
    random->fill(random->ctx, &share->seed, sizeof share->seed);
    kvs_names_init(&share->names, share->seed);
    kvb_mutex_init(&share->counts_lock, "store counts");
    kvb_list_init(&share->users);
    for (; share->nshards < nshards; share->nshards++) {
        status = shard_init(&share->shards[share->nshards], random, &core, config->events,
                            share->memory + share->nshards * each);
        if (status != KVB_OK) {
            kvs_share_destroy(share);
            return status;
        }
    }
    *share_p = share;
    return KVB_OK;

err_shards:
    free(share->shards);
err_share:
    free(share);
    return status;
}

void kvs_share_destroy(struct kvs_share *share)
{
    if (share == NULL) {
        return;
    }
    kvb_assert(kvb_list_empty(&share->users));
    for (uint32_t i = 0; i < share->nshards; i++) {
        shard_cleanup(&share->shards[i]);
    }
    free(share->shards);
    kvb_mutex_cleanup(&share->counts_lock);
    kvs_names_cleanup(&share->names);
    (void)munmap(share->memory, share->mapped_bytes);
    free(share);
}

/* ---- which shard ---- */

uint64_t kvs_share_seed(const struct kvs_share *share, const struct kvs_core_where *where)
{
    uint64_t parts[] = {where->space, where->lineage.id.hi, where->lineage.id.lo};
    return XXH3_64bits_withSeed(parts, sizeof parts, share->seed);
}

struct kvs_shard *kvs_share_shard(const struct kvs_share *share, uint64_t seed, struct kvb_span key)
{
    if (share->nshards == 1) {
        return &share->shards[0];
    }
    uint64_t hash = XXH3_64bits_withSeed(key.data, key.len, seed);
    return &share->shards[((hash >> 32) * share->nshards) >> 32];
}

/* Calls fn for each shard, under its lock. */
static void each_shard(struct kvs_share *share, void (*fn)(struct kvs_shard *shard, void *arg),
                       void *arg)
{
    for (uint32_t i = 0; i < share->nshards; i++) {
        struct kvs_shard *shard = &share->shards[i];
        kvb_mutex_lock(&shard->lock);
        fn(shard, arg);
        kvb_mutex_unlock(&shard->lock);
    }
}

/* ---- sessions and holds ---- */

uint64_t kvs_ticket_ms(uint64_t wanted_ms)
{
    uint64_t ms = wanted_ms != 0 ? wanted_ms : DEFAULT_TICKET_MS;
    /* but where they would hide what a skipped drain does */
    if (kvb_fault_run() && !kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED) && ms > FAULT_TICKET_MS) {
        ms = FAULT_TICKET_MS;
    }
    return ms;
}

struct opening {
    uint64_t session;
    kvb_status_t status;
};

static void open_session(struct kvs_shard *shard, void *arg)
{
    struct opening *opening = arg;
    if (opening->status == KVB_OK) {
        opening->status = kvs_core_session_open(shard->core, opening->session);
    }
}

static void close_session(struct kvs_shard *shard, void *arg)
{
    kvs_core_session_stopped(shard->core, *(const uint64_t *)arg);
}

kvb_status_t kvs_share_session_open(struct kvs_share *share, uint64_t *session_p)
{
    struct opening opening = {
        .session = 1 + atomic_fetch_add_explicit(&share->last_session, 1, memory_order_relaxed)};
    each_shard(share, open_session, &opening);
    if (opening.status != KVB_OK) {
        each_shard(share, close_session, &opening.session); /* where it was not opened: nothing */
        return opening.status;
    }
    *session_p = opening.session;
    return KVB_OK;
}

void kvs_share_session_close(struct kvs_share *share, uint64_t session)
{
    each_shard(share, close_session, &session);
    kvs_share_poke(share, true);
}

static void discard_request(struct kvs_shard *shard, void *arg)
{
    const struct kvs_hold *hold = arg;
    kvs_core_discard(shard->core, (struct kvs_core_holder){hold->instance, hold->request});
}

static void discard_instance(struct kvs_shard *shard, void *arg)
{
    const struct kvs_hold *hold = arg;
    kvs_core_discard_instance(shard->core, hold->instance);
}

void kvs_share_discard(struct kvs_share *share, struct kvs_hold hold, bool all_of_instance)
{
    each_shard(share, all_of_instance ? discard_instance : discard_request, &hold);
}

/* ---- clearing ---- */

struct retiring {
    const struct kvb_lineage *lineages;
    uint32_t n;
};

static void retire(struct kvs_shard *shard, void *arg)
{
    const struct retiring *retiring = arg;
    for (uint32_t i = 0; i < retiring->n; i++) {
        kvs_core_retire(shard->core, retiring->lineages[i]);
        kvs_ring_cleared(shard, KVS_EVENT_RETIRED, UINT32_MAX, retiring->lineages[i]);
    }
}

void kvs_share_retire(struct kvs_share *share, const struct kvb_lineage *lineages, uint32_t n)
{
    struct retiring retiring = {lineages, n};
    each_shard(share, retire, &retiring);
    kvs_share_poke(share, true);
}

static void remove_tenant(struct kvs_shard *shard, void *arg)
{
    uint32_t tenant = *(const uint32_t *)arg;
    kvs_core_remove_tenant(shard->core, tenant);
    kvs_ring_cleared(shard, KVS_EVENT_TENANT_REMOVED, tenant, (struct kvb_lineage){0});
}

void kvs_share_remove_tenant(struct kvs_share *share, const char *tenant)
{
    uint32_t id;
    if (kvs_names_find_tenant(&share->names, tenant, &id) == KVB_OK) {
        each_shard(share, remove_tenant, &id);
        kvs_share_poke(share, true);
    }
}

static void clear(struct kvs_shard *shard, void *arg)
{
    (void)arg;
    kvs_core_clear(shard->core);
    kvs_ring_cleared(shard, KVS_EVENT_CLEARED, UINT32_MAX, (struct kvb_lineage){0});
}

void kvs_share_clear(struct kvs_share *share)
{
    each_shard(share, clear, NULL);
    kvs_share_poke(share, true);
}

struct collected {
    uint32_t tenant;
    struct kvb_lineage *lineages;
    uint32_t n, cap;
    bool failed;
};

static void collect(void *arg, uint32_t space, struct kvb_lineage lineage)
{
    struct collected *collected = arg;
    (void)space;
    if (collected->n == collected->cap) {
        uint32_t cap = collected->cap == 0 ? 64 : collected->cap * 2;
        struct kvb_lineage *grown = realloc(collected->lineages, cap * sizeof *grown);
        if (grown == NULL) {
            collected->failed = true;
            return;
        }
        collected->lineages = grown;
        collected->cap = cap;
    }
    collected->lineages[collected->n++] = lineage;
}

static void collect_shard(struct kvs_shard *shard, void *arg)
{
    struct collected *collected = arg;
    kvs_core_each_lineage(shard->core, collected->tenant, collect, collected);
}

static kvb_status_t share_lineages(void *ctx, const char *tenant, struct kvb_lineage **lineages_p,
                                   uint32_t *n_p)
{
    struct kvs_share *share = ctx;
    struct collected collected = {0};
    if (kvs_names_find_tenant(&share->names, tenant, &collected.tenant) == KVB_OK) {
        each_shard(share, collect_shard, &collected);
    }
    if (collected.failed) {
        free(collected.lineages);
        return KVB_ERR_NO_MEMORY;
    }
    *lineages_p = collected.lineages;
    *n_p = collected.n;
    return KVB_OK;
}

static void share_retire(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    kvs_share_retire(ctx, lineages, n);
}

const struct kvs_reclaim_ops kvs_share_reclaim = {.retire = share_retire,
                                                  .lineages = share_lineages};

struct quota {
    uint32_t tenant;
    uint64_t each;
    kvb_status_t status;
};

static void set_quota(struct kvs_shard *shard, void *arg)
{
    struct quota *quota = arg;
    if (quota->status == KVB_OK) {
        quota->status = kvs_core_set_quota(shard->core, quota->tenant, quota->each);
    }
}

void kvs_share_memory(const struct kvs_share *share, void **base_p, uint64_t *len_p)
{
    *base_p = share->memory;
    *len_p = share->mapped_bytes;
}

kvb_status_t kvs_share_set_quota(struct kvs_share *share, const char *tenant, uint64_t quota_bytes)
{
    struct quota quota = {.each = quota_bytes == UINT64_MAX ? UINT64_MAX
                                                            : quota_bytes / share->nshards};
    quota.status = kvs_names_tenant(&share->names, tenant, &quota.tenant);
    each_shard(share, set_quota, &quota);
    return quota.status;
}

/* ---- upkeep: space comes back in small steps ---- */

void kvs_share_on_poke(struct kvs_share *share, void (*poked)(void *ctx), void *ctx)
{
    share->poked = poked;
    share->poked_ctx = ctx;
}

void kvs_share_poke(struct kvs_share *share, bool now)
{
    atomic_bool *flag = now ? &share->cleared : &share->armed;
    if (atomic_load_explicit(flag, memory_order_relaxed) ||
        atomic_exchange_explicit(flag, true, memory_order_relaxed)) {
        return; /* the owner knows */
    }
    if (share->poked != NULL) {
        share->poked(share->poked_ctx);
    }
}

static uint64_t next_deadline(struct kvs_share *share)
{
    uint64_t next_ns = KVB_NEVER;
    for (uint32_t i = 0; i < share->nshards; i++) {
        struct kvs_shard *shard = &share->shards[i];
        kvb_mutex_lock(&shard->lock);
        uint64_t deadline_ns = kvs_core_next_deadline_ns(shard->core);
        kvb_mutex_unlock(&shard->lock);
        next_ns = deadline_ns < next_ns ? deadline_ns : next_ns;
    }
    return next_ns;
}

/*
 * When to look again. There is no hurry, and looking is not free. Who gives a lease and finds
 * `armed` set relies on the owner to have seen it, or to look later: after `armed` is taken back
 * the shards are looked at once more (their locks order the two).
 */
static uint64_t rearm(struct kvs_share *share, uint64_t now_ns)
{
    atomic_store_explicit(&share->armed, true, memory_order_relaxed);
    uint64_t next_ns = next_deadline(share);
    if (next_ns == KVB_NEVER) {
        atomic_store_explicit(&share->armed, false, memory_order_relaxed);
        next_ns = next_deadline(share);
        if (next_ns == KVB_NEVER) {
            return KVB_NEVER;
        }
        atomic_store_explicit(&share->armed, true, memory_order_relaxed);
    }
    uint64_t soonest_ns = now_ns + UPKEEP_EVERY_NS;
    return next_ns > soonest_ns ? next_ns : soonest_ns;
}

static bool reclaim(struct kvs_shard *shard, uint64_t now_ns)
{
    kvb_mutex_lock(&shard->lock);
    bool more = kvs_core_reclaim(shard->core, now_ns, RECLAIM_STEP);
    kvb_mutex_unlock(&shard->lock);
    return more;
}

uint64_t kvs_share_upkeep(struct kvs_share *share, uint64_t now_ns)
{
    if (!share->sweeping) {
        bool cleared = atomic_exchange_explicit(&share->cleared, false, memory_order_relaxed);
        if (!cleared && share->due_ns == KVB_NEVER) {
            share->due_ns = rearm(share, now_ns);
        }
        if (!cleared && now_ns < share->due_ns) {
            return share->due_ns;
        }
        share->sweeping = true;
        share->sweep_next = 0;
    }
    if (!reclaim(&share->shards[share->sweep_next], now_ns)) {
        share->sweep_next++;
    }
    if (share->sweep_next < share->nshards) {
        return 0;
    }
    share->sweeping = false;
    share->due_ns = rearm(share, now_ns);
    return atomic_load_explicit(&share->cleared, memory_order_relaxed) ? 0 : share->due_ns;
}

const char *kvs_share_validate(struct kvs_share *share)
{
    const char *broken = NULL;
    for (uint32_t i = 0; i < share->nshards && broken == NULL; i++) {
        struct kvs_shard *shard = &share->shards[i];
        kvb_mutex_lock(&shard->lock);
        broken = kvs_core_validate(shard->core);
        kvb_mutex_unlock(&shard->lock);
    }
    return broken;
}
