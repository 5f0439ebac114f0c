/* SPDX-License-Identifier: Apache-2.0 */
#include "hash.h"
#include "shard.h"

#include <string.h>

_Static_assert(offsetof(struct object, key) == 68, "what an object costs beside its key");
_Static_assert(offsetof(struct object, key) + KVS_CORE_KEY_MAX <= KVS_RECORD_MAX,
               "the longest key fits a record");

/* ---- what it takes ---- */

void kvs_object_plan(const struct kvs_core *core, const struct object *object,
                     struct kvs_plan *plan_p)
{
    bool fits = kvs_space_plan(&core->space, object->len, plan_p);
    kvb_assert(fits);
}

uint64_t kvs_object_bytes(const struct kvs_core *core, const struct object *object)
{
    struct kvs_plan plan;
    kvs_object_plan(core, object, &plan);
    return plan.bytes;
}

/* ---- finding ---- */

bool kvs_object_same_block(const struct object *a, const struct object *b)
{
    return a->node.hash == b->node.hash && a->scope == b->scope && a->key_len == b->key_len &&
           memcmp(a->key, b->key, a->key_len) == 0;
}

uint32_t kvs_object_find(const struct kvs_core *core, const struct kvs_core_where *where,
                         const struct kvs_core_key *key)
{
    uint32_t scope = kvs_scope_find(core, where);
    if (scope == 0) {
        return 0;
    }
    uint32_t hash = kvs_hash_block(kvs_hash_where(core->seed, where), key->block);
    kvs_table_each(&core->index, hash, handle)
    {
        if (kvs_object_is(object_at(core, handle), scope, key)) {
            return handle;
        }
    }
    return 0;
}

uint32_t kvs_object_pieces(const struct kvs_core *core, uint32_t scope,
                           const struct kvs_core_key *key, uint32_t hash)
{
    uint32_t n = 0;
    kvs_table_each(&core->index, hash, handle)
    {
        n += kvs_object_is_block(object_at(core, handle), scope, key->block);
    }
    return n;
}

/* ---- evictable or not ---- */

static void count_lock(struct kvs_core *core, struct object *object, const struct kvs_plan *plan,
                       bool locked)
{
    struct tenant *t = tenant_at(core, scope_at(core, object->scope)->tenant);
    if (locked) {
        object->flags |= OBJECT_LOCKED;
        t->locked_bytes += plan->bytes;
        core->stats.locked_bytes += plan->bytes;
        core->nlocked++;
    } else {
        object->flags &= (uint8_t)~OBJECT_LOCKED;
        t->locked_bytes -= plan->bytes;
        core->stats.locked_bytes -= plan->bytes;
        core->nlocked--;
    }
}

static void set_locked(struct kvs_core *core, struct object *object, bool locked)
{
    if (locked == ((object->flags & OBJECT_LOCKED) != 0)) {
        return;
    }
    struct kvs_plan plan;
    kvs_object_plan(core, object, &plan);
    kvs_space_lock(&core->space, &plan, object->pieces, locked);
    count_lock(core, object, &plan, locked);
}

void kvs_object_lock(struct kvs_core *core, uint32_t handle, const struct kvs_plan *plan)
{
    struct object *object = object_at(core, handle);
    if ((object->flags & OBJECT_LOCKED) == 0) {
        kvs_space_lock(&core->space, plan, object->pieces, true);
        count_lock(core, object, plan, true);
    }
}

void kvs_object_relock(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    bool locked =
        object->state != OBJECT_LIVE || object->leases != 0 || (object->flags & OBJECT_HARD) != 0;
    set_locked(core, object, locked);
    /* A locked one stays in its queue until the hand meets it: most are unlocked before. */
    if (!locked && (object->flags & OBJECT_QUEUED) == 0) {
        kvs_queue_add(core, handle);
    }
}

static void set_soft(struct kvs_core *core, struct object *object, bool soft)
{
    if (soft == ((object->flags & OBJECT_SOFT) != 0)) {
        return;
    }
    object->flags ^= OBJECT_SOFT;
    kvs_space_soften(&core->space, object->pieces, soft);
}

void kvs_object_set_pin(struct kvs_core *core, uint32_t handle, enum kvs_pin pin)
{
    struct object *object = object_at(core, handle);
    if (object->flags & OBJECT_QUEUED) {
        kvs_queue_remove(core, handle);
    }
    set_soft(core, object, pin == KVS_PIN_SOFT);
    object->flags &= (uint8_t)~OBJECT_HARD;
    object->flags |= pin == KVS_PIN_HARD ? OBJECT_HARD : 0;
    kvs_object_relock(core, handle);
}

/* ---- life ---- */

void kvs_object_changed(const struct kvs_core *core, const struct object *object,
                        enum kvs_change change)
{
    if (core->changed == NULL) {
        return;
    }
    const struct scope *scope = scope_at(core, object->scope);
    const struct kvs_core_change what = {
        .change = change,
        .space = scope->space,
        .tenant = scope->tenant,
        .lineage = scope->lineage,
        .key = {{object->key, object->key_len}, object->group, object->part},
        .len = object->len,
    };
    core->changed(core->changed_arg, &what);
}

kvb_status_t kvs_object_create(struct kvs_core *core, uint32_t scope_handle,
                               const struct kvs_core_key *key, uint64_t len, uint32_t hash,
                               const struct kvs_plan *plan, uint32_t *object_p)
{
    uint32_t handle = kvs_arena_alloc(&core->arena, offsetof(struct object, key) + key->block.len);
    if (handle == 0) {
        return KVB_ERR_NO_MEMORY;
    }
    struct kvs_pieces pieces;
    kvb_status_t status = kvs_space_take(&core->space, plan, handle, &pieces);
    if (status != KVB_OK) {
        kvs_arena_free(&core->arena, handle);
        return status;
    }
    struct object *object = object_at(core, handle);
    *object = (struct object){
        .node = {.hash = hash},
        .scope = scope_handle,
        .group = key->group,
        .part = key->part,
        .len = (uint32_t)len,
        .key_len = (uint16_t)key->block.len,
        .state = OBJECT_RESERVED,
        .pieces = pieces,
    };
    memcpy(object->key, key->block.data, key->block.len);
    kvs_scope_ref(core, scope_handle);
    count_lock(core, object, plan, true);
    tenant_at(core, scope_at(core, scope_handle)->tenant)->used_bytes += plan->bytes;
    core->stats.used_bytes += plan->bytes;
    core->stats.reserved_bytes += plan->bytes;
    core->nobjects++;
    *object_p = handle;
    return KVB_OK;
}

static void count_live(struct kvs_core *core, const struct object *object, uint64_t bytes, int sign)
{
    struct scope *scope = scope_at(core, object->scope);
    scope->nobjects += sign;
    scope->bytes += sign * bytes;
    scope->value_bytes += sign * (uint64_t)object->len;
    if (scope_cleared(core, scope)) {
        core->stats.retired_bytes += sign * bytes;
        return;
    }
    struct tenant *t = tenant_at(core, scope->tenant);
    t->live_objects += sign;
    t->live_bytes += sign * bytes;
    t->live_value_bytes += sign * (uint64_t)object->len;
    core->stats.objects += sign;
    core->stats.live_bytes += sign * bytes;
    core->stats.value_bytes += sign * (uint64_t)object->len;
}

void kvs_object_publish(struct kvs_core *core, uint32_t handle, uint64_t checksum)
{
    struct object *object = object_at(core, handle);
    struct scope *scope = scope_at(core, object->scope);
    uint64_t bytes = kvs_object_bytes(core, object);
    kvb_assert(object->state == OBJECT_RESERVED && !scope_cleared(core, scope));
    object->state = OBJECT_LIVE;
    object->checksum = checksum;
    object->scope_prev = 0;
    object->scope_next = scope->objects;
    if (scope->objects != 0) {
        object_at(core, scope->objects)->scope_prev = handle;
    }
    scope->objects = handle;
    core->stats.reserved_bytes -= bytes;
    count_live(core, object, bytes, 1);
    kvs_table_insert(&core->index, handle, object->node.hash);
    kvs_object_relock(core, handle);
    kvs_object_changed(core, object, KVS_CHANGE_STORED);
}

void kvs_object_quarantine(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    uint64_t bytes = kvs_object_bytes(core, object);
    kvb_assert(object->state == OBJECT_RESERVED);
    object->state = OBJECT_QUARANTINED;
    core->stats.reserved_bytes -= bytes;
    core->stats.quarantined_bytes += bytes;
}

void kvs_object_stop(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    uint64_t bytes = kvs_object_bytes(core, object);
    kvb_assert(object->state == OBJECT_QUARANTINED && object->leases == 0);
    object->state = OBJECT_STOPPED;
    core->stats.quarantined_bytes -= bytes;
    core->stats.retired_bytes += bytes;
    object->queue_next = 0;
    *(core->stopped.last != 0 ? &object_at(core, core->stopped.last)->queue_next
                              : &core->stopped.first) = handle;
    core->stopped.last = handle;
}

/* LIVE: out of everything that it is linked in, and out of the sums. */
static void unlink_live(struct kvs_core *core, uint32_t handle, uint64_t bytes)
{
    struct object *object = object_at(core, handle);
    struct scope *scope = scope_at(core, object->scope);
    kvs_table_remove(&core->index, handle);
    if (object->flags & OBJECT_QUEUED) {
        kvs_queue_remove(core, handle);
    }
    *(object->scope_prev != 0 ? &object_at(core, object->scope_prev)->scope_next
                              : &scope->objects) = object->scope_next;
    if (object->scope_next != 0) {
        object_at(core, object->scope_next)->scope_prev = object->scope_prev;
    }
    count_live(core, object, bytes, -1);
}

void kvs_object_doom(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    uint64_t bytes = kvs_object_bytes(core, object);
    kvb_assert(object->state == OBJECT_LIVE && object->leases != 0);
    unlink_live(core, handle, bytes);
    object->state = OBJECT_DOOMED;
    core->stats.retired_bytes += bytes;
}

void kvs_object_free(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    struct kvs_plan plan;
    kvs_object_plan(core, object, &plan);
    kvb_assert(object->leases == 0);
    switch ((enum object_state)object->state) {
    case OBJECT_RESERVED:
        core->stats.reserved_bytes -= plan.bytes;
        break;
    case OBJECT_QUARANTINED:
        core->stats.quarantined_bytes -= plan.bytes;
        break;
    case OBJECT_STOPPED:
    case OBJECT_DOOMED:
        core->stats.retired_bytes -= plan.bytes;
        break;
    case OBJECT_LIVE:
        unlink_live(core, handle, plan.bytes);
        break;
    }
    set_soft(core, object, false);
    set_locked(core, object, false);
    kvs_space_give(&core->space, &plan, object->pieces);
    tenant_at(core, scope_at(core, object->scope)->tenant)->used_bytes -= plan.bytes;
    core->stats.used_bytes -= plan.bytes;
    core->nobjects--;
    kvs_scope_unref(core, object->scope);
    kvs_arena_free(&core->arena, handle);
}
