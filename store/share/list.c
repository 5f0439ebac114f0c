/* SPDX-License-Identifier: Apache-2.0 */
#include "share_impl.h"

#include "base/assert.h"

#include <string.h>

enum {
    TURN = 256, /* of the index, under a shard's lock */
    TURNS = 16, /* of a step: well under a millisecond, if nothing of it was in a cache */
};

/* A step, and what has no name yet where a lock is held. */
struct step {
    struct kvs_core_list core;
    struct kvs_list *list;
    bool of_space; /* of one layout */
    uint32_t space;
    uint32_t spaces[KVS_LIST_MAX];
};

static void take(struct kvs_core_list *core, const struct kvs_core_listed *found)
{
    struct step *step = kvb_container_of(core, struct step, core);
    struct kvs_list *list = step->list;
    bool of_lineage = !kvb_id_none(list->lineage.id);
    if ((step->of_space && found->space != step->space) ||
        (of_lineage && !kvb_id_equal(found->lineage.id, list->lineage.id))) {
        return;
    }
    struct kvs_listed *listed = &list->at[list->n];
    step->spaces[list->n++] = found->space;
    listed->lineage = found->lineage;
    listed->key_len = (uint32_t)found->key.block.len;
    memcpy(listed->key, found->key.block.data, found->key.block.len);
    listed->group = found->key.group;
    listed->part = found->key.part;
    listed->len = found->len;
    listed->pin = found->pin;
    if (list->n == list->max) {
        core->budget = 0;
    }
}

static void turn(struct kvs_share *share, struct step *step)
{
    struct kvs_list *list = step->list;
    struct kvs_shard *shard = &share->shards[list->place.shard];
    step->core.budget = TURN;
    step->core.bucket = list->place.bucket;
    step->core.object = list->place.object;
    kvb_mutex_lock(&shard->lock);
    bool more = kvs_core_list(shard->core, &step->core);
    kvb_mutex_unlock(&shard->lock);
    list->place =
        more ? (struct kvs_list_place){list->place.shard, step->core.bucket, step->core.object}
             : (struct kvs_list_place){list->place.shard + 1, 0, 0};
}

void kvs_share_list(struct kvs_share *share, struct kvs_list *list)
{
    struct step step = {.core = {.each = take}, .list = list, .of_space = list->layout[0] != '\0'};
    struct kvs_space space = {0};
    kvb_assert(list->max > 0 && list->max <= KVS_LIST_MAX);
    strcpy(space.tenant, list->tenant);
    strcpy(space.layout, list->layout);
    list->n = 0;
    list->more = false;
    kvb_status_t known =
        step.of_space ? kvs_names_find_space(&share->names, &space, &step.space, &step.core.tenant)
                      : kvs_names_find_tenant(&share->names, list->tenant, &step.core.tenant);
    if (known != KVB_OK) {
        return; /* nothing was ever put there */
    }
    for (uint32_t i = 0; i < TURNS && list->n < list->max && list->place.shard < share->nshards;
         i++) {
        turn(share, &step);
    }
    list->more = list->place.shard < share->nshards;
    for (uint32_t i = 0; i < list->n; i++) {
        kvs_names_space_text(&share->names, step.spaces[i], &space);
        memcpy(list->at[i].layout, space.layout, sizeof space.layout);
    }
}
