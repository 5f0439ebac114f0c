/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a mismatch: is it the stored object that is bad, or was it the read? The object is found
 * anew, under a ticket of its own, and hashed where it lies, a slice a turn. Bad and still the same
 * (the ticket was held to the end): dropped.
 */
#include "share_impl.h"

#include "base/log.h"
#include "base/xxh3.h"

#include <stdlib.h>
#include <string.h>

#define SCRUBS_MAX  8
#define SCRUB_SLICE (256u << 10)

struct scrub {
    XXH3_state_t hash;
    struct kvb_list link;
    struct kvb_event step;
    struct kvs_scrubs *scrubs;
    struct kvs_shard *shard;
    struct kvs_core_where where;
    struct kvs_core_key key; /* its block points to key_bytes */
    uint8_t key_bytes[KVS_CORE_KEY_MAX];
    struct kvs_core_found found;
    struct kvs_extents extents;
    uint32_t extent; /* next to hash, and from where in it */
    uint64_t offset;
};

static uint64_t now(const struct scrub *scrub)
{
    return kvb_now_ns(scrub->scrubs->sched->clock);
}

static void destroy(struct scrub *scrub)
{
    kvb_sched_unpost(&scrub->step);
    kvb_list_remove(&scrub->link);
    scrub->scrubs->n--;
    kvs_extents_cleanup(&scrub->extents);
    free(scrub);
}

/* Gives the ticket back; true: the object was bad, and dropped. */
static bool release(struct scrub *scrub, bool bad)
{
    struct kvs_shard *shard = scrub->shard;
    bool dropped = false;
    kvb_mutex_lock(&shard->lock);
    kvb_status_t status =
        kvs_core_release(shard->core, now(scrub), scrub->found.ticket, KVS_LOCAL_SESSION);
    if (status == KVB_OK && bad) {
        dropped =
            kvs_core_remove(shard->core, now(scrub), &scrub->where, &scrub->key, true) == KVB_OK;
    }
    kvb_mutex_unlock(&shard->lock);
    kvs_share_poke(scrub->scrubs->share, false);
    return dropped;
}

static void finish(struct scrub *scrub)
{
    KVS_COUNT(scrub->scrubs->counts, scrubs, 1);
    if (release(scrub, XXH3_64bits_digest(&scrub->hash) != scrub->found.checksum)) {
        KVS_COUNT(scrub->scrubs->counts, scrubs_bad, 1);
        KVB_LOG_LIMITED(WARN, "an object's bytes are bad: dropped",
                        KVB_U64("bytes", scrub->found.len));
    }
    destroy(scrub);
}

static void on_step(struct kvb_event *event)
{
    struct scrub *scrub = kvb_container_of(event, struct scrub, step);
    uint64_t budget = SCRUB_SLICE;
    while (budget > 0 && scrub->extent < scrub->extents.n) {
        const struct kvs_extent *extent = &scrub->extents.at[scrub->extent];
        uint64_t len = extent->len - scrub->offset;
        len = len < budget ? len : budget;
        (void)XXH3_64bits_update(&scrub->hash, scrub->shard->base + extent->offset + scrub->offset,
                                 len);
        budget -= len;
        scrub->offset += len;
        if (scrub->offset == extent->len) {
            scrub->extent++;
            scrub->offset = 0;
        }
    }
    if (scrub->extent < scrub->extents.n) {
        kvb_sched_post(scrub->scrubs->sched, &scrub->step);
    } else {
        finish(scrub);
    }
}

void kvs_scrub_start(struct kvs_scrubs *scrubs, struct kvs_shard *shard,
                     const struct kvs_core_where *where, const struct kvs_core_key *key)
{
    if (scrubs->n >= SCRUBS_MAX) {
        return;
    }
    struct scrub *scrub = aligned_alloc(_Alignof(struct scrub), sizeof *scrub);
    if (scrub == NULL) {
        return;
    }
    scrub->scrubs = scrubs;
    scrub->shard = shard;
    scrub->where = *where;
    scrub->key = *key;
    memcpy(scrub->key_bytes, key->block.data, key->block.len);
    scrub->key.block.data = scrub->key_bytes;
    scrub->extent = 0;
    scrub->offset = 0;
    (void)XXH3_64bits_reset(&scrub->hash);
    kvs_extents_init(&scrub->extents);
    kvb_event_init(&scrub->step, on_step);

    uint64_t now_ns = now(scrub);
    kvb_mutex_lock(&shard->lock);
    kvb_status_t status = kvs_core_find(shard->core, now_ns, where, key, KVS_LOCAL_SESSION,
                                        now_ns + scrubs->ticket_ns, (struct kvs_core_holder){0},
                                        &scrub->found, &scrub->extents);
    kvb_mutex_unlock(&shard->lock);
    scrubs->n++;
    kvb_list_push_back(&scrubs->running, &scrub->link);
    if (status != KVB_OK) {
        destroy(scrub);
        return;
    }
    kvs_share_poke(scrubs->share, false);
    kvb_sched_post(scrubs->sched, &scrub->step);
}

void kvs_scrubs_init(struct kvs_scrubs *scrubs, struct kvb_sched *sched, struct kvs_share *share,
                     struct kvs_counts *counts, uint64_t ticket_ns)
{
    *scrubs = (struct kvs_scrubs){
        .sched = sched, .share = share, .counts = counts, .ticket_ns = ticket_ns};
    kvb_list_init(&scrubs->running);
}

void kvs_scrubs_cleanup(struct kvs_scrubs *scrubs)
{
    for (struct kvb_list *link; (link = kvb_list_first(&scrubs->running)) != NULL;) {
        struct scrub *scrub = kvb_container_of(link, struct scrub, link);
        (void)release(scrub, false);
        destroy(scrub);
    }
}
