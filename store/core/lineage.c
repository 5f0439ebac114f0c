/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clearing at the same cost for any number of objects.
 *
 * Readers and writers reach objects only through the scope of their (space, lineage). Retiring a
 * lineage takes its scopes out of sight (`retired`), clearing a tenant takes all of its at once
 * (the tenant's epoch moves on, its list of scopes is spliced to the cleared ones), and sums kept
 * per scope and tenant move the bytes from live to retired. The objects themselves stay in index,
 * queue and list until kvs_reclaim_one() comes to them, one at a time; none can be found, since
 * whoever looks has no scope that they name. Eviction that meets one takes it first.
 */
#include "hash.h"
#include "shard.h"

#include <stdlib.h>

#define RING_LEAD 8u /* so that handle 1 is the first entry */
_Static_assert(sizeof(struct retired) % KVS_UNIT == 0, "handles count units");
#define RETIRED_UNITS ((uint32_t)(sizeof(struct retired) / KVS_UNIT))

/* ---- tenants ---- */

struct tenant *kvs_tenant_get(struct kvs_core *core, uint32_t tenant)
{
    if (tenant >= core->ntenants) {
        if (!kvs_memory_grow(&core->tenants, ((size_t)tenant + 1) * sizeof(struct tenant))) {
            return NULL;
        }
        for (uint32_t i = core->ntenants; i <= tenant; i++) {
            *tenant_at(core, i) = (struct tenant){.quota = UINT64_MAX};
        }
        core->ntenants = tenant + 1;
    }
    return tenant_at(core, tenant);
}

static void cleared_ring_add(struct kvs_core *core, uint32_t tenant)
{
    struct tenant *t = tenant_at(core, tenant);
    uint32_t link = tenant + 1;
    if (core->cleared == 0) {
        t->cleared_prev = link;
        t->cleared_next = link;
        core->cleared = link;
        return;
    }
    struct tenant *first = tenant_at(core, core->cleared - 1);
    t->cleared_next = core->cleared;
    t->cleared_prev = first->cleared_prev;
    tenant_at(core, first->cleared_prev - 1)->cleared_next = link;
    first->cleared_prev = link;
}

static void cleared_ring_remove(struct kvs_core *core, uint32_t tenant)
{
    struct tenant *t = tenant_at(core, tenant);
    uint32_t link = tenant + 1;
    tenant_at(core, t->cleared_prev - 1)->cleared_next = t->cleared_next;
    tenant_at(core, t->cleared_next - 1)->cleared_prev = t->cleared_prev;
    if (core->cleared == link) {
        core->cleared = t->cleared_next == link ? 0 : t->cleared_next;
    }
}

/* ---- scopes ---- */

static struct handles *scope_list(const struct kvs_core *core, const struct scope *scope)
{
    struct tenant *t = tenant_at(core, scope->tenant);
    return scope_cleared(core, scope) ? &t->cleared : &t->scopes;
}

static void scope_list_add(struct kvs_core *core, uint32_t handle)
{
    struct scope *scope = scope_at(core, handle);
    struct handles *list = scope_list(core, scope);
    if (list == &tenant_at(core, scope->tenant)->cleared && list->first == 0) {
        cleared_ring_add(core, scope->tenant);
    }
    scope->prev = list->last;
    scope->next = 0;
    *(list->last != 0 ? &scope_at(core, list->last)->next : &list->first) = handle;
    list->last = handle;
    scope->listed = true;
}

static void scope_list_remove(struct kvs_core *core, uint32_t handle)
{
    struct scope *scope = scope_at(core, handle);
    if (!scope->listed) {
        return;
    }
    struct handles *list = scope_list(core, scope);
    *(scope->prev != 0 ? &scope_at(core, scope->prev)->next : &list->first) = scope->next;
    *(scope->next != 0 ? &scope_at(core, scope->next)->prev : &list->last) = scope->prev;
    scope->listed = false;
    if (list == &tenant_at(core, scope->tenant)->cleared && list->first == 0) {
        cleared_ring_remove(core, scope->tenant);
    }
}

uint32_t kvs_scope_find(const struct kvs_core *core, const struct kvs_core_where *where)
{
    uint32_t hash = kvs_hash_lineage(core->seed, where->lineage);
    kvs_table_each(&core->scopes, hash, handle)
    {
        const struct scope *scope = scope_at(core, handle);
        if (scope->space == where->space && kvb_lineage_equal(scope->lineage, where->lineage) &&
            !scope_cleared(core, scope)) {
            kvb_assert(scope->tenant == where->tenant);
            return handle;
        }
    }
    return 0;
}

uint32_t kvs_scope_get(struct kvs_core *core, const struct kvs_core_where *where)
{
    uint32_t handle = kvs_scope_find(core, where);
    if (handle != 0) {
        return handle;
    }
    handle = kvs_arena_alloc(&core->arena, sizeof(struct scope));
    if (handle == 0) {
        return 0;
    }
    *scope_at(core, handle) = (struct scope){
        .space = where->space,
        .tenant = where->tenant,
        .lineage = where->lineage,
        .epoch = tenant_at(core, where->tenant)->epoch,
    };
    kvs_table_insert(&core->scopes, handle, kvs_hash_lineage(core->seed, where->lineage));
    scope_list_add(core, handle);
    return handle;
}

void kvs_scope_ref(struct kvs_core *core, uint32_t handle)
{
    scope_at(core, handle)->refs++;
}

void kvs_scope_settle(struct kvs_core *core, uint32_t handle)
{
    if (scope_at(core, handle)->refs > 0) {
        return;
    }
    scope_list_remove(core, handle);
    kvs_table_remove(&core->scopes, handle);
    kvs_arena_free(&core->arena, handle);
}

void kvs_scope_unref(struct kvs_core *core, uint32_t handle)
{
    scope_at(core, handle)->refs--;
    kvs_scope_settle(core, handle);
}

/* ---- retired lineages ---- */

static struct retired *retired_at(const struct kvs_core *core, uint32_t place)
{
    return (struct retired *)(void *)(core->retired_ring + RING_LEAD) + place;
}

bool kvs_lineage_retired(const struct kvs_core *core, struct kvb_lineage lineage)
{
    kvs_table_each(&core->retired, kvs_hash_lineage(core->seed, lineage), handle)
    {
        if (kvb_lineage_equal(retired_at(core, handle / RETIRED_UNITS)->lineage, lineage)) {
            return true;
        }
    }
    return false;
}

kvb_status_t kvs_retired_init(struct kvs_core *core)
{
    core->retired_ring = calloc(1, RING_LEAD + core->retired_max * sizeof(struct retired));
    if (core->retired_ring == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = kvs_table_init(&core->retired, core->retired_ring, core->retired_max);
    if (status != KVB_OK) {
        free(core->retired_ring);
    }
    return status;
}

void kvs_retired_cleanup(struct kvs_core *core)
{
    kvs_table_cleanup(&core->retired);
    free(core->retired_ring);
}

uint64_t kvs_retired_bytes(const struct kvs_core *core)
{
    return RING_LEAD + core->retired_max * sizeof(struct retired) + core->retired.heads.committed;
}

static void remember(struct kvs_core *core, struct kvb_lineage lineage)
{
    if (kvs_lineage_retired(core, lineage)) {
        return;
    }
    uint32_t place = core->retired_at;
    uint32_t handle = place * RETIRED_UNITS + 1;
    if (core->nretired == core->retired_max) {
        kvs_table_remove(&core->retired, handle);
    } else {
        core->nretired++;
    }
    retired_at(core, place)->lineage = lineage;
    kvs_table_insert(&core->retired, handle, kvs_hash_lineage(core->seed, lineage));
    core->retired_at = (place + 1) % core->retired_max;
}

/* ---- clearing ---- */

static void count_cleared(struct kvs_core *core, struct tenant *t, uint64_t objects, uint64_t bytes,
                          uint64_t value_bytes)
{
    t->live_objects -= objects;
    t->live_bytes -= bytes;
    t->live_value_bytes -= value_bytes;
    core->stats.objects -= objects;
    core->stats.live_bytes -= bytes;
    core->stats.value_bytes -= value_bytes;
    core->stats.retired_bytes += bytes;
}

void kvs_core_retire(struct kvs_core *core, struct kvb_lineage lineage)
{
    remember(core, lineage);
    /* One scope per space: as few as the lineage has layouts. */
    kvs_table_each(&core->scopes, kvs_hash_lineage(core->seed, lineage), handle)
    {
        struct scope *scope = scope_at(core, handle);
        if (!kvb_lineage_equal(scope->lineage, lineage) || scope_cleared(core, scope)) {
            continue;
        }
        scope_list_remove(core, handle);
        scope->retired = true;
        scope_list_add(core, handle);
        count_cleared(core, tenant_at(core, scope->tenant), scope->nobjects, scope->bytes,
                      scope->value_bytes);
    }
}

void kvs_core_remove_tenant(struct kvs_core *core, uint32_t tenant)
{
    if (tenant >= core->ntenants) {
        return;
    }
    struct tenant *t = tenant_at(core, tenant);
    struct handles moved = t->scopes;
    t->epoch++;
    count_cleared(core, t, t->live_objects, t->live_bytes, t->live_value_bytes);
    if (moved.first == 0) {
        return;
    }
    if (t->cleared.first == 0) {
        cleared_ring_add(core, tenant);
        t->cleared = moved;
    } else {
        scope_at(core, t->cleared.last)->next = moved.first;
        scope_at(core, moved.first)->prev = t->cleared.last;
        t->cleared.last = moved.last;
    }
    t->scopes = (struct handles){0};
}

void kvs_core_clear(struct kvs_core *core)
{
    for (uint32_t tenant = 0; tenant < core->ntenants; tenant++) {
        kvs_core_remove_tenant(core, tenant);
    }
}

void kvs_core_each_lineage(const struct kvs_core *core, uint32_t tenant,
                           void (*each)(void *arg, uint32_t space, struct kvb_lineage lineage),
                           void *arg)
{
    if (tenant >= core->ntenants) {
        return;
    }
    for (uint32_t handle = tenant_at(core, tenant)->scopes.first; handle != 0;) {
        const struct scope *scope = scope_at(core, handle);
        each(arg, scope->space, scope->lineage);
        handle = scope->next;
    }
}

/* ---- reclaim ---- */

static bool reclaim_stopped(struct kvs_core *core)
{
    uint32_t handle = core->stopped.first;
    if (handle == 0) {
        return false;
    }
    core->stopped.first = object_at(core, handle)->queue_next;
    if (core->stopped.first == 0) {
        core->stopped.last = 0;
    }
    kvs_object_free(core, handle);
    return true;
}

bool kvs_reclaim_one(struct kvs_core *core, uint32_t tenant)
{
    if (reclaim_stopped(core)) {
        core->stats.reclaimed++;
        return true;
    }
    uint32_t link = tenant == UINT32_MAX ? core->cleared : tenant + 1;
    uint32_t at = link == 0 ? 0 : tenant_at(core, link - 1)->cleared.first;
    if (at == 0) {
        return false;
    }
    struct scope *scope = scope_at(core, at);
    uint32_t handle = scope->objects;
    if (handle == 0) {
        /* Only attempts name it still, or nothing. */
        scope_list_remove(core, at);
        kvs_scope_settle(core, at);
        return true;
    }
    struct object *object = object_at(core, handle);
    if (object->scope_next != 0) {
        __builtin_prefetch(object_at(core, object->scope_next));
    }
    kvs_holds_drop(core, handle);
    object->flags &= (uint8_t)~OBJECT_HARD;
    if (object->leases != 0) {
        kvs_object_doom(core, handle);
    } else {
        kvs_object_free(core, handle);
    }
    core->stats.reclaimed++;
    return true;
}
