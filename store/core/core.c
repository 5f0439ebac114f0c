/* SPDX-License-Identifier: Apache-2.0 */
#include "hash.h"
#include "shard.h"

#include "base/faults.h"

#include <stdlib.h>

#define LEASES_DEFAULT  262144u
#define RETIRED_DEFAULT 4096u
#define RECORDS_BESIDE  4096u /* scopes, sessions, requests: at most so many more than objects */
#define SESSIONS_MAX    (1u << 20)
#define GROUP           64u /* lookups whose memory latencies overlap */
#define KEY_USUAL       16u /* bytes */
#define HOLD_SHARE      4u  /* one instance may hold a quarter */

/* ---- life ---- */

static kvb_status_t tables_init(struct kvs_core *core)
{
    char *base = core->arena.records.base;
    struct {
        struct kvs_table *table;
        uint64_t max;
    } all[] = {
        {&core->index, core->objects_max},  {&core->scopes, core->objects_max},
        {&core->leases, core->leases_max},  {&core->sessions, SESSIONS_MAX},
        {&core->holders, core->leases_max}, {&core->requests, core->leases_max},
    };
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kvb_status_t status = kvs_table_init(all[i].table, base, all[i].max);
        if (status != KVB_OK) {
            while (i-- > 0) {
                kvs_table_cleanup(all[i].table);
            }
            return status;
        }
    }
    return KVB_OK;
}

static void tables_cleanup(struct kvs_core *core)
{
    kvs_table_cleanup(&core->index);
    kvs_table_cleanup(&core->scopes);
    kvs_table_cleanup(&core->leases);
    kvs_table_cleanup(&core->sessions);
    kvs_table_cleanup(&core->holders);
    kvs_table_cleanup(&core->requests);
}

static bool config_ok(const struct kvs_core_config *config)
{
    return config->share_bytes >= KVS_CORE_PAGE && config->share_bytes <= KVS_CORE_SHARE_MAX;
}

static void configure(struct kvs_core *core, const struct kvs_core_config *config)
{
    core->share_bytes = config->share_bytes / KVS_CORE_PAGE * KVS_CORE_PAGE;
    uint64_t most = core->share_bytes / 64; /* the smallest slot */
    core->objects_max =
        config->objects_max == 0 || config->objects_max > most ? most : config->objects_max;
    core->leases_max = config->leases_max == 0 ? LEASES_DEFAULT : config->leases_max;
    core->retired_max = config->retired_max == 0 ? RETIRED_DEFAULT : config->retired_max;
    core->hold_bytes_max =
        config->hold_bytes_max == 0 ? core->share_bytes / HOLD_SHARE : config->hold_bytes_max;
}

kvb_status_t kvs_core_create(const struct kvs_core_config *config, const struct kvb_random *random,
                             struct kvs_core **core_p)
{
    if (!config_ok(config)) {
        return KVB_ERR_INVALID;
    }
    struct kvs_core *core = calloc(1, sizeof *core);
    if (core == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    configure(core, config);
    random->fill(random->ctx, &core->seed, sizeof core->seed);
    random->fill(random->ctx, &core->incarnation, sizeof core->incarnation);
    core->incarnation |= core->incarnation == 0; /* an id of zeros is none */
    core->next_serial = 1;
    uint64_t records = (core->objects_max + core->leases_max + RECORDS_BESIDE) * KVS_RECORD_MAX;
    kvb_status_t status = kvs_arena_init(&core->arena, records);
    if (status != KVB_OK) {
        goto err_core;
    }
    status = kvs_space_init(&core->space, core->share_bytes);
    if (status != KVB_OK) {
        goto err_arena;
    }
    status = tables_init(core);
    if (status != KVB_OK) {
        goto err_space;
    }
    status = kvs_retired_init(core);
    if (status != KVB_OK) {
        goto err_tables;
    }
    status = kvs_memory_init(&core->tenants, (KVS_CORE_TENANT_MAX + 1) * sizeof(struct tenant));
    if (status != KVB_OK) {
        goto err_retired;
    }
    status = kvs_memory_init(&core->due, (size_t)core->leases_max * sizeof(uint32_t));
    if (status != KVB_OK) {
        goto err_tenants;
    }
    *core_p = core;
    return KVB_OK;

err_tenants:
    kvs_memory_cleanup(&core->tenants);
err_retired:
    kvs_retired_cleanup(core);
err_tables:
    tables_cleanup(core);
err_space:
    kvs_space_cleanup(&core->space);
err_arena:
    kvs_arena_cleanup(&core->arena);
err_core:
    free(core);
    return status;
}

void kvs_core_destroy(struct kvs_core *core)
{
    if (core == NULL) {
        return;
    }
    kvs_memory_cleanup(&core->due);
    kvs_memory_cleanup(&core->tenants);
    kvs_retired_cleanup(core);
    tables_cleanup(core);
    kvs_space_cleanup(&core->space);
    kvs_arena_cleanup(&core->arena);
    free(core);
}

kvb_status_t kvs_core_set_quota(struct kvs_core *core, uint32_t tenant, uint64_t quota_bytes)
{
    if (tenant > KVS_CORE_TENANT_MAX) {
        return KVB_ERR_INVALID;
    }
    struct tenant *t = kvs_tenant_get(core, tenant);
    if (t == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    t->quota = quota_bytes;
    return KVB_OK;
}

/* ---- put ---- */

static bool key_ok(const struct kvs_core_key *key)
{
    return key->block.len >= 1 && key->block.len <= KVS_CORE_KEY_MAX;
}

static kvb_status_t reserve_check(const struct kvs_core *core, const struct kvs_core_where *where,
                                  const struct kvs_core_key *key, const struct kvs_core_put *put)
{
    if (!key_ok(key) || where->tenant > KVS_CORE_TENANT_MAX || kvb_id_none(where->lineage.id) ||
        put->len == 0) {
        return KVB_ERR_INVALID;
    }
    uint32_t session = kvs_session_find(core, put->session);
    if (session == 0 || session_at(core, session)->ended) {
        return KVB_ERR_BAD_STATE;
    }
    if (kvs_lineage_retired(core, where->lineage)) {
        return KVB_ERR_FENCED;
    }
    if (kvs_object_find(core, where, key) != 0) {
        return KVB_ERR_EXISTS;
    }
    return core->leases.count >= core->leases_max ? KVB_ERR_LIMIT : KVB_OK;
}

/* An attempt in a scope that is there; room was made. */
static kvb_status_t reserve_in(struct kvs_core *core, uint32_t scope,
                               const struct kvs_core_where *where, const struct kvs_core_key *key,
                               const struct kvs_core_put *put, const struct kvs_plan *plan,
                               struct kvs_attempt *attempt_p, struct kvs_extents *extents)
{
    uint32_t hash = kvs_hash_block(kvs_hash_where(core->seed, where), key->block);
    if (kvs_object_pieces(core, scope, key, hash) >= KVS_CORE_PIECES_MAX) {
        return KVB_ERR_LIMIT;
    }
    uint32_t object;
    uint32_t lease;
    kvb_status_t status = kvs_object_create(core, scope, key, put->len, hash, plan, &object);
    if (status != KVB_OK) {
        return status;
    }
    status =
        kvs_space_extents(&core->space, plan, object_at(core, object)->pieces, put->len, extents);
    if (status != KVB_OK) {
        goto err_object;
    }
    lease = kvs_lease_create(core, LEASE_ATTEMPT, object, kvs_session_find(core, put->session),
                             put->deadline_ns, &status);
    if (lease == 0) {
        goto err_object;
    }
    kvs_object_set_pin(core, object, put->pin);
    *attempt_p = (struct kvs_attempt){.incarnation = core->incarnation,
                                      .serial = lease_at(core, lease)->serial};
    return KVB_OK;

err_object:
    kvs_object_free(core, object);
    return status;
}

kvb_status_t kvs_core_reserve(struct kvs_core *core, uint64_t now_ns,
                              const struct kvs_core_where *where, const struct kvs_core_key *key,
                              const struct kvs_core_put *put, struct kvs_attempt *attempt_p,
                              struct kvs_extents *extents)
{
    kvb_status_t status = reserve_check(core, where, key, put);
    if (status != KVB_OK) {
        core->stats.fenced += status == KVB_ERR_FENCED;
        return status;
    }
    struct kvs_plan plan;
    if (put->len > KVS_CORE_VALUE_MAX || !kvs_space_plan(&core->space, put->len, &plan)) {
        return KVB_ERR_TOO_LARGE;
    }
    if (kvs_tenant_get(core, where->tenant) == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    status = kvs_make_room(core, now_ns, where->tenant, &plan);
    if (status != KVB_OK) {
        return status;
    }
    uint32_t scope = kvs_scope_get(core, where);
    if (scope == 0) {
        return KVB_ERR_NO_MEMORY;
    }
    kvs_scope_ref(core, scope);
    status = reserve_in(core, scope, where, key, put, &plan, attempt_p, extents);
    kvs_scope_unref(core, scope);
    return status;
}

/* Another one was first, or the block has all the pieces it may have. */
static kvb_status_t commit_check(const struct kvs_core *core, const struct object *object)
{
    uint32_t pieces = 0;
    kvs_table_each(&core->index, object->node.hash, handle)
    {
        const struct object *other = object_at(core, handle);
        if (!kvs_object_same_block(object, other)) {
            continue;
        }
        if (other->group == object->group && other->part == object->part) {
            return KVB_ERR_EXISTS;
        }
        pieces++;
    }
    return pieces >= KVS_CORE_PIECES_MAX ? KVB_ERR_LIMIT : KVB_OK;
}

kvb_status_t kvs_core_commit(struct kvs_core *core, uint64_t now_ns, struct kvs_attempt attempt,
                             uint64_t session, uint64_t checksum)
{
    uint32_t lease =
        kvs_lease_find(core, LEASE_ATTEMPT, attempt.incarnation, attempt.serial, session);
    if (lease == 0) {
        return KVB_ERR_NOT_FOUND;
    }
    uint32_t handle = lease_at(core, lease)->object;
    struct object *object = object_at(core, handle);
    if (object->state == OBJECT_QUARANTINED) {
        return KVB_ERR_TIMEOUT;
    }
    if (lease_at(core, lease)->deadline_ns <= now_ns) {
        kvs_attempt_quarantine(core, lease);
        return KVB_ERR_TIMEOUT;
    }
    kvb_status_t status = scope_cleared(core, scope_at(core, object->scope))
                              ? KVB_ERR_FENCED
                              : commit_check(core, object);
    core->stats.fenced += status == KVB_ERR_FENCED;
    kvs_lease_drop(core, lease);
    if (status == KVB_OK) {
        kvs_object_publish(core, handle, checksum);
    } else {
        kvs_object_free(core, handle);
    }
    return status;
}

kvb_status_t kvs_core_revoke(struct kvs_core *core, uint64_t now_ns, struct kvs_attempt attempt,
                             uint64_t session, bool writer_stopped)
{
    (void)now_ns;
    uint32_t lease =
        kvs_lease_find(core, LEASE_ATTEMPT, attempt.incarnation, attempt.serial, session);
    if (lease == 0) {
        return KVB_ERR_NOT_FOUND;
    }
    uint32_t object = lease_at(core, lease)->object;
    if (writer_stopped) {
        kvs_lease_drop(core, lease);
        kvs_object_free(core, object);
    } else if (object_at(core, object)->state != OBJECT_QUARANTINED) {
        kvs_attempt_quarantine(core, lease);
    }
    return KVB_OK;
}

/* ---- get ---- */

kvb_status_t kvs_core_find(struct kvs_core *core, uint64_t now_ns,
                           const struct kvs_core_where *where, const struct kvs_core_key *key,
                           uint64_t session_id, uint64_t deadline_ns, struct kvs_core_holder holder,
                           struct kvs_core_found *found_p, struct kvs_extents *extents)
{
    (void)now_ns;
    if (!key_ok(key)) {
        return KVB_ERR_INVALID;
    }
    uint32_t session = kvs_session_find(core, session_id);
    if (session == 0 || session_at(core, session)->ended) {
        return KVB_ERR_BAD_STATE;
    }
    uint32_t handle = kvs_object_find(core, where, key);
    if (handle == 0) {
        return KVB_ERR_NOT_FOUND;
    }
    struct object *object = object_at(core, handle);
    struct kvs_plan plan;
    kvs_object_plan(core, object, &plan);
    kvb_status_t status =
        kvs_space_extents(&core->space, &plan, object->pieces, object->len, extents);
    if (status != KVB_OK) {
        return status;
    }
    uint32_t lease = kvs_lease_create(core, LEASE_TICKET, handle, session, deadline_ns, &status);
    if (lease == 0) {
        return status;
    }
    object->flags |= OBJECT_VISITED;
    kvs_object_relock(core, handle);
    kvs_hold_give(core, handle, holder);
    *found_p = (struct kvs_core_found){
        .ticket = {.incarnation = core->incarnation, .serial = lease_at(core, lease)->serial},
        .len = object->len,
        .checksum = object->checksum,
    };
    return KVB_OK;
}

kvb_status_t kvs_core_release(struct kvs_core *core, uint64_t now_ns, struct kvs_ticket ticket,
                              uint64_t session)
{
    uint32_t lease = kvs_lease_find(core, LEASE_TICKET, ticket.incarnation, ticket.serial, session);
    bool held = lease != 0 && lease_at(core, lease)->deadline_ns > now_ns;
    if (lease != 0) {
        core->stats.tickets_lost += !held;
        kvs_ticket_end(core, lease);
    }
    return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : KVB_ERR_TICKET;
}

/* ---- lookup ---- */

/* One lookup on its way: the record to compare next, 0 when it is decided. */
struct probe {
    uint32_t hash;
    uint32_t at;
};

/* The cache lines of a record with a key of a hash's length: up to three. */
static void fetch_object(const struct kvs_core *core, uint32_t handle)
{
    const char *at = kvs_arena_at(&core->arena, handle);
    __builtin_prefetch(at);
    __builtin_prefetch(at + 64);
    __builtin_prefetch(at + offsetof(struct object, key) + KEY_USUAL - 1);
}

/* Compares the record at hand; decided, or on to the next of the chain, which is fetched. */
static bool probe_step(const struct kvs_core *core, uint32_t scope, struct kvs_core_entry *entry,
                       struct probe *probe, uint32_t *found_p)
{
    const struct object *object = object_at(core, probe->at);
    if (object->node.hash == probe->hash && kvs_object_is(object, scope, &entry->key)) {
        entry->status = KVB_OK;
        entry->len = object->len;
        *found_p = probe->at;
        probe->at = 0;
        return false;
    }
    probe->at = object->node.next;
    if (probe->at == 0) {
        return false;
    }
    fetch_object(core, probe->at);
    return true;
}

/* At most GROUP entries: all bucket heads are fetched, then all records, then compared, so that the
 * misses of a group overlap. */
static void lookup_group(const struct kvs_core *core, uint64_t salt, uint32_t scope,
                         struct kvs_core_entry *entries, uint32_t n, uint32_t *found)
{
    struct probe probes[GROUP];
    uint32_t open = 0;
    for (uint32_t i = 0; i < n; i++) {
        probes[i].hash = 0;
        found[i] = 0;
        entries[i].held = false;
        entries[i].status = key_ok(&entries[i].key) ? KVB_ERR_NOT_FOUND : KVB_ERR_INVALID;
        if (scope != 0 && entries[i].status == KVB_ERR_NOT_FOUND) {
            probes[i].hash = kvs_hash_block(salt, entries[i].key.block);
            __builtin_prefetch(kvs_table_head(&core->index, probes[i].hash));
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        bool ask = scope != 0 && entries[i].status == KVB_ERR_NOT_FOUND;
        probes[i].at = ask ? *kvs_table_head(&core->index, probes[i].hash) : 0;
        if (probes[i].at != 0) {
            open++;
            fetch_object(core, probes[i].at);
        }
    }
    while (open > 0) {
        open = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (probes[i].at != 0) {
                open += probe_step(core, scope, &entries[i], &probes[i], &found[i]);
            }
        }
    }
}

static void hold_group(struct kvs_core *core, struct kvs_core_entry *entries, uint32_t n,
                       const uint32_t *found, uint32_t request, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        if (found[i] != 0) {
            kvs_space_fetch_word(&core->space, object_at(core, found[i])->pieces);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (found[i] != 0) {
            kvs_space_fetch_slab(&core->space, object_at(core, found[i])->pieces);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (found[i] != 0) {
            object_at(core, found[i])->flags |= OBJECT_VISITED;
            entries[i].held = kvs_hold_take(core, found[i], request, deadline_ns);
        }
    }
}

void kvs_core_exists(struct kvs_core *core, uint64_t now_ns, const struct kvs_core_where *where,
                     struct kvs_core_entry *entries, uint32_t n, struct kvs_core_holder holder,
                     uint64_t hold_deadline_ns)
{
    uint64_t salt = kvs_hash_where(core->seed, where);
    uint32_t scope = kvs_scope_find(core, where);
    bool hold = holder.instance != 0 && hold_deadline_ns > now_ns;
    uint32_t request = hold ? kvs_request_get(core, holder) : 0;
    uint32_t found[GROUP];
    for (uint32_t done = 0; done < n; done += GROUP) {
        uint32_t now = n - done < GROUP ? n - done : GROUP;
        lookup_group(core, salt, scope, entries + done, now, found);
        if (request != 0) {
            hold_group(core, entries + done, now, found, request, hold_deadline_ns);
        }
    }
    if (request != 0) {
        kvs_request_settle(core, request);
    }
}

/* ---- pins and removal ---- */

kvb_status_t kvs_core_pin(struct kvs_core *core, uint64_t now_ns,
                          const struct kvs_core_where *where, const struct kvs_core_key *key,
                          enum kvs_pin pin)
{
    (void)now_ns;
    if (!key_ok(key)) {
        return KVB_ERR_INVALID;
    }
    uint32_t object = kvs_object_find(core, where, key);
    if (object == 0) {
        return KVB_ERR_NOT_FOUND;
    }
    kvs_object_set_pin(core, object, pin);
    return KVB_OK;
}

static kvb_status_t remove_object(struct kvs_core *core, uint64_t now_ns, uint32_t handle,
                                  bool force)
{
    kvs_object_expire(core, now_ns, handle);
    const struct object *object = object_at(core, handle);
    if (!force && (object->leases != 0 || (object->flags & (OBJECT_SOFT | OBJECT_HARD)) != 0)) {
        return KVB_ERR_BUSY;
    }
    kvs_object_changed(core, object, KVS_CHANGE_REMOVED);
    kvs_holds_drop(core, handle);
    if (object->leases != 0) {
        kvs_object_doom(core, handle);
    } else {
        kvs_object_free(core, handle);
    }
    return KVB_OK;
}

kvb_status_t kvs_core_remove(struct kvs_core *core, uint64_t now_ns,
                             const struct kvs_core_where *where, const struct kvs_core_key *key,
                             bool force)
{
    if (!key_ok(key)) {
        return KVB_ERR_INVALID;
    }
    uint32_t handle = kvs_object_find(core, where, key);
    return handle == 0 ? KVB_ERR_NOT_FOUND : remove_object(core, now_ns, handle, force);
}

static bool sweep_wants(const struct kvs_core *core, struct kvs_core_sweep *sweep,
                        const struct object *object)
{
    const struct scope *scope = scope_at(core, object->scope);
    return scope->tenant == sweep->tenant && !scope_cleared(core, scope) &&
           sweep->matches(sweep, (struct kvb_span){object->key, object->key_len});
}

/* Buckets are only ever split, into one behind all others: whoever walks them upwards meets every
 * object that stays. */
bool kvs_core_sweep(struct kvs_core *core, uint64_t now_ns, struct kvs_core_sweep *sweep)
{
    const uint32_t *heads = (const uint32_t *)(const void *)core->index.heads.base;
    while (sweep->budget > 0 && sweep->next < core->index.nbuckets) {
        uint32_t handle = heads[sweep->next++];
        sweep->budget--;
        while (handle != 0) {
            const struct object *object = object_at(core, handle);
            uint32_t next = object->node.next;
            if (sweep_wants(core, sweep, object)) {
                bool removed = remove_object(core, now_ns, handle, sweep->force) == KVB_OK;
                sweep->removed += removed;
                sweep->kept += !removed;
            }
            handle = next;
        }
    }
    return sweep->next < core->index.nbuckets;
}

/* Of a bucket the object with the next higher handle, which it keeps: its place in the chain
 * changes. 0: there is none. */
static uint32_t next_listed(const struct kvs_core *core, struct kvs_core_list *list)
{
    const uint32_t *heads = (const uint32_t *)(const void *)core->index.heads.base;
    uint32_t found = 0;
    uint32_t visits = 0;
    for (uint32_t handle = heads[list->bucket]; handle != 0;
         handle = kvs_node_at(&core->index, handle)->next) {
        visits++;
        if (handle > list->object && (found == 0 || handle < found)) {
            found = handle;
        }
    }
    visits += found == 0;
    list->budget -= visits < list->budget ? visits : list->budget;
    return found;
}

bool kvs_core_list(const struct kvs_core *core, struct kvs_core_list *list)
{
    while (list->budget > 0 && list->bucket < core->index.nbuckets) {
        list->object = next_listed(core, list);
        if (list->object == 0) {
            list->bucket++;
            continue;
        }
        const struct object *object = object_at(core, list->object);
        const struct scope *scope = scope_at(core, object->scope);
        if (scope->tenant == list->tenant && !scope_cleared(core, scope)) {
            list->each(list,
                       &(struct kvs_core_listed){
                           .space = scope->space,
                           .lineage = scope->lineage,
                           .key = {{object->key, object->key_len}, object->group, object->part},
                           .len = object->len,
                           .pin = (object->flags & OBJECT_HARD) != 0   ? KVS_PIN_HARD
                                  : (object->flags & OBJECT_SOFT) != 0 ? KVS_PIN_SOFT
                                                                       : KVS_PIN_NONE,
                       });
        }
    }
    return list->bucket < core->index.nbuckets;
}

void kvs_core_on_change(struct kvs_core *core,
                        void (*changed)(void *arg, const struct kvs_core_change *change), void *arg)
{
    core->changed = changed;
    core->changed_arg = arg;
}

/* ---- upkeep ---- */

bool kvs_core_reclaim(struct kvs_core *core, uint64_t now_ns, uint32_t budget)
{
    bool more = !kvs_leases_expire(core, now_ns, budget);
    for (uint32_t i = 0; i < budget; i++) {
        if (!kvs_reclaim_one(core, UINT32_MAX)) {
            if (core->index.count == 0) {
                kvs_arena_trim(&core->arena);
            }
            return more;
        }
    }
    return more || core->cleared != 0 || core->stopped.first != 0;
}

static uint64_t metadata_bytes(const struct kvs_core *core)
{
    return sizeof *core + kvs_arena_bytes(&core->arena) + kvs_space_metadata_bytes(&core->space) +
           core->index.heads.committed + core->scopes.heads.committed +
           core->leases.heads.committed + core->sessions.heads.committed +
           core->holders.heads.committed + core->requests.heads.committed +
           core->tenants.committed + core->due.committed + kvs_retired_bytes(core);
}

void kvs_core_stats(const struct kvs_core *core, struct kvs_core_stats *stats_p)
{
    *stats_p = core->stats;
    stats_p->share_bytes = core->share_bytes;
    stats_p->free_bytes = (uint64_t)core->space.nfree * KVS_CORE_PAGE;
    stats_p->metadata_bytes = metadata_bytes(core);
}

void kvs_core_tenant_stats(const struct kvs_core *core, uint32_t tenant,
                           struct kvs_core_tenant_stats *stats_p)
{
    *stats_p = (struct kvs_core_tenant_stats){.quota_bytes = UINT64_MAX};
    if (tenant < core->ntenants) {
        const struct tenant *t = tenant_at(core, tenant);
        *stats_p = (struct kvs_core_tenant_stats){
            .quota_bytes = t->quota,
            .used_bytes = t->used_bytes,
            .live_bytes = t->live_bytes,
            .objects = t->live_objects,
            .evicted = t->evicted,
        };
    }
}
