/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CORE_FIXTURE_H
#define TESTS_CORE_FIXTURE_H

/* A shard and the calls on it that tests make most, with one lineage and short text keys. The share
 * has no memory behind it: the core never touches it. */
#include "sim_sched.h"

#include "store/core.h"

#include <string.h>

struct shard {
    struct sim_sched sim;
    struct kvs_core *core;
    struct kvs_core_where where; /* of every call below; a test changes it as it likes */
    uint64_t session;
    enum kvs_pin pin;
    uint64_t ttl_ns; /* of attempts and tickets */
    char key[KVS_CORE_KEY_MAX];
    struct kvs_attempt attempt;
    struct kvs_core_found found;
    struct kvs_extents extents; /* of the last call that gave any */
};

static inline struct kvb_lineage shard_lineage(uint64_t n)
{
    return (struct kvb_lineage){.id = {.hi = 0x1111, .lo = n}};
}

static inline kvb_status_t shard_create(struct shard *s, const struct kvs_core_config *config)
{
    memset(s, 0, sizeof *s);
    sim_init(&s->sim, sim_seed(7));
    kvs_extents_init(&s->extents);
    s->where.lineage = shard_lineage(1);
    s->session = 1;
    s->ttl_ns = 1000;
    kvb_status_t status = kvs_core_create(config, &s->sim.random, &s->core);
    if (status == KVB_OK) {
        status = kvs_core_session_open(s->core, s->session);
        if (status != KVB_OK) {
            kvs_core_destroy(s->core);
        }
    }
    return status;
}

static inline void shard_init(struct shard *s, uint64_t pages)
{
    struct kvs_core_config config = {.share_bytes = pages * KVS_CORE_PAGE};
    kvb_status_t status = shard_create(s, &config);
    kvb_assert(status == KVB_OK);
}

static inline void shard_cleanup(struct shard *s)
{
    kvs_extents_cleanup(&s->extents);
    kvs_core_destroy(s->core);
}

static inline struct kvs_core_key shard_key(struct shard *s, const char *name, uint64_t n,
                                            uint32_t part)
{
    int len = snprintf(s->key, sizeof s->key, "%s-%llu", name, (unsigned long long)n);
    return (struct kvs_core_key){.block = {.data = (const uint8_t *)s->key, .len = (size_t)len},
                                 .part = part};
}

static inline kvb_status_t shard_reserve_key(struct shard *s, struct kvs_core_key key, uint64_t len)
{
    struct kvs_core_put put = {
        .len = len, .pin = s->pin, .session = s->session, .deadline_ns = s->sim.now_ns + s->ttl_ns};
    return kvs_core_reserve(s->core, s->sim.now_ns, &s->where, &key, &put, &s->attempt,
                            &s->extents);
}

static inline kvb_status_t shard_reserve(struct shard *s, const char *name, uint64_t n,
                                         uint64_t len)
{
    return shard_reserve_key(s, shard_key(s, name, n, 0), len);
}

static inline kvb_status_t shard_commit(struct shard *s)
{
    return kvs_core_commit(s->core, s->sim.now_ns, s->attempt, s->session, 77);
}

/* Comes again as often as it is told to. */
static inline kvb_status_t shard_put_key(struct shard *s, struct kvs_core_key key, uint64_t len)
{
    kvb_status_t status;
    do {
        status = shard_reserve_key(s, key, len);
    } while (status == KVB_ERR_AGAIN);
    return status == KVB_OK ? shard_commit(s) : status;
}

static inline kvb_status_t shard_put(struct shard *s, const char *name, uint64_t n, uint64_t len)
{
    return shard_put_key(s, shard_key(s, name, n, 0), len);
}

static inline kvb_status_t shard_find(struct shard *s, const char *name, uint64_t n)
{
    struct kvs_core_key key = shard_key(s, name, n, 0);
    return kvs_core_find(s->core, s->sim.now_ns, &s->where, &key, s->session,
                         s->sim.now_ns + s->ttl_ns, (struct kvs_core_holder){0}, &s->found,
                         &s->extents);
}

static inline kvb_status_t shard_release(struct shard *s)
{
    return kvs_core_release(s->core, s->sim.now_ns, s->found.ticket, s->session);
}

static inline struct kvs_core_entry shard_ask_key(struct shard *s, struct kvs_core_key key,
                                                  struct kvs_core_holder holder)
{
    struct kvs_core_entry entry = {.key = key};
    kvs_core_exists(s->core, s->sim.now_ns, &s->where, &entry, 1, holder,
                    s->sim.now_ns + s->ttl_ns);
    return entry;
}

static inline bool shard_has(struct shard *s, const char *name, uint64_t n)
{
    return shard_ask_key(s, shard_key(s, name, n, 0), (struct kvs_core_holder){0}).status == KVB_OK;
}

static inline bool shard_hold(struct shard *s, const char *name, uint64_t n, uint64_t instance,
                              uint64_t request)
{
    struct kvs_core_holder holder = {.instance = instance, .request = request};
    return shard_ask_key(s, shard_key(s, name, n, 0), holder).held;
}

static inline kvb_status_t shard_remove(struct shard *s, const char *name, uint64_t n, bool force)
{
    struct kvs_core_key key = shard_key(s, name, n, 0);
    return kvs_core_remove(s->core, s->sim.now_ns, &s->where, &key, force);
}

static inline void shard_reclaim_all(struct shard *s)
{
    while (kvs_core_reclaim(s->core, s->sim.now_ns, 256)) {
    }
}

static inline struct kvs_core_stats shard_stats(const struct shard *s)
{
    struct kvs_core_stats stats;
    kvs_core_stats(s->core, &stats);
    return stats;
}

static inline bool shard_overlap(const struct kvs_extents *a, const struct kvs_extents *b)
{
    for (uint32_t i = 0; i < a->n; i++) {
        for (uint32_t k = 0; k < b->n; k++) {
            if (a->at[i].offset < b->at[k].offset + b->at[k].len &&
                b->at[k].offset < a->at[i].offset + a->at[i].len) {
                return true;
            }
        }
    }
    return false;
}

#endif
