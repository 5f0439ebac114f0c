/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attempts, tickets and holds: what keeps space for somebody, for a time. One record each, linked
 * to its object, to its owner (the session, or the request that holds) and, with a deadline, in a
 * heap.
 *
 *   attempt   commit -> gone, the object is live
 *             revoke, writer stopped -> gone, with the object
 *             revoke, deadline, session end -> stays, its object quarantined, until the session is
 *             stopped (reclaim frees the space) or revoke says that the writer is
 *   ticket    release, deadline, session end -> gone; the last one of a doomed object takes it
 * along hold      get, discard, deadline, removal or reclaim of the object -> gone
 *
 * Ids are found by their serial in a table, never by an address or index that a peer sent.
 */
#include "hash.h"
#include "shard.h"

#include "base/faults.h"

/* ---- the heap of deadlines ---- */

static uint32_t *due_at(const struct kvs_core *core, uint32_t i)
{
    return (uint32_t *)(void *)core->due.base + i;
}

static uint64_t due_deadline(const struct kvs_core *core, uint32_t i)
{
    return lease_at(core, *due_at(core, i))->deadline_ns;
}

static void due_place(struct kvs_core *core, uint32_t i, uint32_t handle)
{
    *due_at(core, i) = handle;
    lease_at(core, handle)->due = i + 1;
}

static void due_up(struct kvs_core *core, uint32_t i, uint32_t handle)
{
    uint64_t deadline_ns = lease_at(core, handle)->deadline_ns;
    while (i > 0 && due_deadline(core, (i - 1) / 2) > deadline_ns) {
        due_place(core, i, *due_at(core, (i - 1) / 2));
        i = (i - 1) / 2;
    }
    due_place(core, i, handle);
}

static void due_down(struct kvs_core *core, uint32_t i, uint32_t handle)
{
    uint64_t deadline_ns = lease_at(core, handle)->deadline_ns;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= core->ndue) {
            break;
        }
        if (child + 1 < core->ndue && due_deadline(core, child + 1) < due_deadline(core, child)) {
            child++;
        }
        if (deadline_ns <= due_deadline(core, child)) {
            break;
        }
        due_place(core, i, *due_at(core, child));
        i = child;
    }
    due_place(core, i, handle);
}

static void due_remove(struct kvs_core *core, uint32_t handle)
{
    struct lease *lease = lease_at(core, handle);
    if (lease->due == 0) {
        return;
    }
    uint32_t i = lease->due - 1;
    lease->due = 0;
    uint32_t last = *due_at(core, --core->ndue);
    if (last == handle) {
        return;
    }
    if (lease_at(core, last)->deadline_ns < lease->deadline_ns) {
        due_up(core, i, last);
    } else {
        due_down(core, i, last);
    }
}

/* Room in the heap was made when the lease was created. */
static void due_set(struct kvs_core *core, uint32_t handle, uint64_t deadline_ns)
{
    due_remove(core, handle);
    lease_at(core, handle)->deadline_ns = deadline_ns;
    if (deadline_ns != KVB_NEVER) {
        due_up(core, core->ndue++, handle);
    }
}

uint64_t kvs_core_next_deadline_ns(const struct kvs_core *core)
{
    return core->ndue == 0 ? KVB_NEVER : due_deadline(core, 0);
}

/* ---- leases ---- */

static uint64_t *count_of(struct kvs_core *core, const struct lease *lease)
{
    switch ((enum lease_kind)lease->kind) {
    case LEASE_ATTEMPT:
        return &core->stats.attempts;
    case LEASE_TICKET:
        return &core->stats.tickets;
    case LEASE_HOLD:
        return &core->stats.holds;
    }
    KVB_UNREACHABLE("lease kind");
}

static uint32_t *owner_list(const struct kvs_core *core, const struct lease *lease)
{
    return lease->kind == LEASE_HOLD ? &request_at(core, lease->owner)->leases
                                     : &session_at(core, lease->owner)->leases;
}

static uint32_t lease_create(struct kvs_core *core, enum lease_kind kind, uint32_t object,
                             uint32_t owner, uint64_t deadline_ns, uint32_t hash,
                             kvb_status_t *status_p)
{
    *status_p = KVB_ERR_LIMIT;
    if (core->leases.count >= core->leases_max) {
        return 0;
    }
    *status_p = KVB_ERR_NO_MEMORY;
    if (!kvs_memory_grow(&core->due, ((size_t)core->leases.count + 1) * sizeof(uint32_t))) {
        return 0;
    }
    uint32_t handle = kvs_arena_alloc(&core->arena, sizeof(struct lease));
    if (handle == 0) {
        return 0;
    }
    struct lease *lease = lease_at(core, handle);
    struct object *o = object_at(core, object);
    *lease = (struct lease){
        .object = object,
        .owner = owner,
        .object_next = o->leases,
        .kind = (uint8_t)kind,
        .deadline_ns = deadline_ns,
        .serial = core->next_serial++,
    };
    uint32_t *list = owner_list(core, lease);
    lease->owner_next = *list;
    if (*list != 0) {
        lease_at(core, *list)->owner_prev = handle;
    }
    *list = handle;
    if (o->leases != 0) {
        lease_at(core, o->leases)->object_prev = handle;
    }
    o->leases = handle;
    kvs_table_insert(&core->leases, handle, hash);
    if (deadline_ns != KVB_NEVER) {
        due_up(core, core->ndue++, handle);
    }
    ++*count_of(core, lease);
    *status_p = KVB_OK;
    return handle;
}

uint32_t kvs_lease_create(struct kvs_core *core, enum lease_kind kind, uint32_t object,
                          uint32_t owner, uint64_t deadline_ns, kvb_status_t *status_p)
{
    uint32_t hash = kvs_hash_words(core->seed, core->next_serial, 0);
    return lease_create(core, kind, object, owner, deadline_ns, hash, status_p);
}

void kvs_lease_drop(struct kvs_core *core, uint32_t handle)
{
    struct lease *lease = lease_at(core, handle);
    struct object *object = object_at(core, lease->object);
    *(lease->owner_prev != 0 ? &lease_at(core, lease->owner_prev)->owner_next
                             : owner_list(core, lease)) = lease->owner_next;
    if (lease->owner_next != 0) {
        lease_at(core, lease->owner_next)->owner_prev = lease->owner_prev;
    }
    *(lease->object_prev != 0 ? &lease_at(core, lease->object_prev)->object_next
                              : &object->leases) = lease->object_next;
    if (lease->object_next != 0) {
        lease_at(core, lease->object_next)->object_prev = lease->object_prev;
    }
    due_remove(core, handle);
    kvs_table_remove(&core->leases, handle);
    if (lease->kind != LEASE_ATTEMPT || object->state != OBJECT_QUARANTINED) {
        --*count_of(core, lease);
    }
    kvs_arena_free(&core->arena, handle);
}

uint32_t kvs_lease_find(const struct kvs_core *core, enum lease_kind kind, uint64_t incarnation,
                        uint64_t serial, uint64_t session)
{
    if (incarnation != core->incarnation) {
        return 0;
    }
    kvs_table_each(&core->leases, kvs_hash_words(core->seed, serial, 0), handle)
    {
        const struct lease *lease = lease_at(core, handle);
        if (lease->kind == kind && lease->serial == serial) {
            return session_at(core, lease->owner)->id == session ? handle : 0;
        }
    }
    return 0;
}

/* ---- attempts and tickets ---- */

void kvs_attempt_quarantine(struct kvs_core *core, uint32_t handle)
{
    struct lease *lease = lease_at(core, handle);
    if (kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {
        uint32_t object = lease->object;
        kvs_lease_drop(core, handle);
        kvs_object_free(core, object);
        return;
    }
    due_set(core, handle, KVB_NEVER);
    kvs_object_quarantine(core, lease->object);
    core->stats.attempts--;
}

void kvs_ticket_end(struct kvs_core *core, uint32_t handle)
{
    uint32_t object = lease_at(core, handle)->object;
    kvs_lease_drop(core, handle);
    if (object_at(core, object)->state == OBJECT_DOOMED && object_at(core, object)->leases == 0) {
        kvs_object_free(core, object);
    } else {
        kvs_object_relock(core, object);
    }
}

/* ---- holds ---- */

static uint32_t holder_find(const struct kvs_core *core, uint64_t instance)
{
    kvs_table_each(&core->holders, kvs_hash_words(core->seed, instance, 0), handle)
    {
        if (holder_at(core, handle)->instance == instance) {
            return handle;
        }
    }
    return 0;
}

static uint32_t request_find(const struct kvs_core *core, struct kvs_core_holder wanted)
{
    uint32_t hash = kvs_hash_words(core->seed, wanted.instance, wanted.request);
    kvs_table_each(&core->requests, hash, handle)
    {
        const struct request *request = request_at(core, handle);
        if (request->instance == wanted.instance && request->id == wanted.request) {
            return handle;
        }
    }
    return 0;
}

static uint32_t holder_get(struct kvs_core *core, uint64_t instance)
{
    uint32_t handle = holder_find(core, instance);
    if (handle != 0) {
        return handle;
    }
    handle = kvs_arena_alloc(&core->arena, sizeof(struct holder));
    if (handle != 0) {
        *holder_at(core, handle) = (struct holder){.instance = instance};
        kvs_table_insert(&core->holders, handle, kvs_hash_words(core->seed, instance, 0));
    }
    return handle;
}

/* Frees the holder if it holds nothing. */
static void holder_settle(struct kvs_core *core, uint32_t handle)
{
    if (holder_at(core, handle)->requests == 0) {
        kvs_table_remove(&core->holders, handle);
        kvs_arena_free(&core->arena, handle);
    }
}

uint32_t kvs_request_get(struct kvs_core *core, struct kvs_core_holder wanted)
{
    uint32_t handle = request_find(core, wanted);
    if (handle != 0) {
        return handle;
    }
    uint32_t holder = holder_get(core, wanted.instance);
    if (holder == 0) {
        return 0;
    }
    handle = kvs_arena_alloc(&core->arena, sizeof(struct request));
    if (handle == 0) {
        holder_settle(core, holder);
        return 0;
    }
    struct holder *owner = holder_at(core, holder);
    *request_at(core, handle) = (struct request){
        .instance = wanted.instance,
        .id = wanted.request,
        .holder = holder,
        .next = owner->requests,
    };
    if (owner->requests != 0) {
        request_at(core, owner->requests)->prev = handle;
    }
    owner->requests = handle;
    kvs_table_insert(&core->requests, handle,
                     kvs_hash_words(core->seed, wanted.instance, wanted.request));
    return handle;
}

void kvs_request_settle(struct kvs_core *core, uint32_t handle)
{
    struct request *request = request_at(core, handle);
    if (request->leases != 0) {
        return;
    }
    uint32_t holder = request->holder;
    *(request->prev != 0 ? &request_at(core, request->prev)->next
                         : &holder_at(core, holder)->requests) = request->next;
    if (request->next != 0) {
        request_at(core, request->next)->prev = request->prev;
    }
    kvs_table_remove(&core->requests, handle);
    kvs_arena_free(&core->arena, handle);
    holder_settle(core, holder);
}

/* The object is not relocked. */
static void hold_drop(struct kvs_core *core, uint32_t handle)
{
    struct lease *lease = lease_at(core, handle);
    uint32_t request = lease->owner;
    holder_at(core, request_at(core, request)->holder)->bytes -=
        kvs_object_bytes(core, object_at(core, lease->object));
    kvs_lease_drop(core, handle);
    kvs_request_settle(core, request);
}

static void hold_end(struct kvs_core *core, uint32_t handle)
{
    uint32_t object = lease_at(core, handle)->object;
    hold_drop(core, handle);
    kvs_object_relock(core, object);
}

static uint32_t hold_hash(const struct kvs_core *core, uint32_t object, uint32_t request)
{
    return kvs_hash_words(core->seed, object, request);
}

static uint32_t hold_find(const struct kvs_core *core, uint32_t object, uint32_t request,
                          uint32_t hash)
{
    kvs_table_each(&core->leases, hash, handle)
    {
        const struct lease *lease = lease_at(core, handle);
        if (lease->kind == LEASE_HOLD && lease->object == object && lease->owner == request) {
            return handle;
        }
    }
    return 0;
}

bool kvs_hold_take(struct kvs_core *core, uint32_t object, uint32_t request, uint64_t deadline_ns)
{
    uint32_t hash = hold_hash(core, object, request);
    uint32_t lease = hold_find(core, object, request, hash);
    if (lease != 0) {
        due_set(core, lease, deadline_ns);
        return true;
    }
    struct holder *holder = holder_at(core, request_at(core, request)->holder);
    struct kvs_plan plan;
    kvs_object_plan(core, object_at(core, object), &plan);
    kvb_status_t status;
    if (plan.bytes > core->hold_bytes_max - holder->bytes ||
        lease_create(core, LEASE_HOLD, object, request, deadline_ns, hash, &status) == 0) {
        return false;
    }
    holder->bytes += plan.bytes;
    kvs_object_lock(core, object, &plan);
    return true;
}

void kvs_hold_give(struct kvs_core *core, uint32_t object, struct kvs_core_holder wanted)
{
    uint32_t request = wanted.instance == 0 ? 0 : request_find(core, wanted);
    uint32_t lease =
        request == 0 ? 0 : hold_find(core, object, request, hold_hash(core, object, request));
    if (lease != 0) {
        hold_end(core, lease);
    }
}

void kvs_holds_drop(struct kvs_core *core, uint32_t object)
{
    for (uint32_t handle = object_at(core, object)->leases; handle != 0;) {
        uint32_t next = lease_at(core, handle)->object_next;
        if (lease_at(core, handle)->kind == LEASE_HOLD) {
            hold_drop(core, handle);
        }
        handle = next;
    }
}

/* Gives back every hold of a request, which is gone afterwards. */
static void request_discard(struct kvs_core *core, uint32_t handle)
{
    for (;;) {
        uint32_t lease = request_at(core, handle)->leases;
        bool last = lease_at(core, lease)->owner_next == 0;
        hold_end(core, lease);
        if (last) {
            return;
        }
    }
}

void kvs_core_discard(struct kvs_core *core, struct kvs_core_holder holder)
{
    uint32_t request = request_find(core, holder);
    if (request != 0) {
        request_discard(core, request);
    }
}

void kvs_core_discard_instance(struct kvs_core *core, uint64_t instance)
{
    uint32_t holder = holder_find(core, instance);
    while (holder != 0) {
        uint32_t request = holder_at(core, holder)->requests;
        holder = request_at(core, request)->next == 0 ? 0 : holder;
        request_discard(core, request);
    }
}

/* ---- deadlines ---- */

void kvs_lease_end(struct kvs_core *core, uint32_t handle)
{
    switch ((enum lease_kind)lease_at(core, handle)->kind) {
    case LEASE_ATTEMPT:
        kvs_attempt_quarantine(core, handle);
        break;
    case LEASE_TICKET:
        core->stats.tickets_lost++;
        kvs_ticket_end(core, handle);
        break;
    case LEASE_HOLD:
        hold_end(core, handle);
        break;
    }
}

bool kvs_leases_expire(struct kvs_core *core, uint64_t now_ns, uint32_t budget)
{
    while (core->ndue > 0 && due_deadline(core, 0) <= now_ns) {
        if (budget-- == 0) {
            return false;
        }
        kvs_lease_end(core, *due_at(core, 0));
    }
    return true;
}

void kvs_object_expire(struct kvs_core *core, uint64_t now_ns, uint32_t object)
{
    for (uint32_t handle = object_at(core, object)->leases; handle != 0;) {
        uint32_t next = lease_at(core, handle)->object_next;
        if (lease_at(core, handle)->deadline_ns <= now_ns) {
            kvs_lease_end(core, handle);
        }
        handle = next;
    }
}

/* ---- sessions ---- */

uint32_t kvs_session_find(const struct kvs_core *core, uint64_t id)
{
    kvs_table_each(&core->sessions, kvs_hash_words(core->seed, id, 0), handle)
    {
        if (session_at(core, handle)->id == id) {
            return handle;
        }
    }
    return 0;
}

kvb_status_t kvs_core_session_open(struct kvs_core *core, uint64_t id)
{
    if (kvs_session_find(core, id) != 0) {
        return KVB_ERR_EXISTS;
    }
    uint32_t handle = kvs_arena_alloc(&core->arena, sizeof(struct session));
    if (handle == 0) {
        return KVB_ERR_NO_MEMORY;
    }
    *session_at(core, handle) = (struct session){.id = id};
    kvs_table_insert(&core->sessions, handle, kvs_hash_words(core->seed, id, 0));
    return KVB_OK;
}

static void session_end(struct kvs_core *core, uint32_t handle)
{
    struct session *session = session_at(core, handle);
    session->ended = true;
    for (uint32_t lease = session->leases; lease != 0;) {
        uint32_t next = lease_at(core, lease)->owner_next;
        if (object_at(core, lease_at(core, lease)->object)->state != OBJECT_QUARANTINED) {
            kvs_lease_end(core, lease);
        }
        lease = next;
    }
}

void kvs_core_session_end(struct kvs_core *core, uint64_t id)
{
    uint32_t handle = kvs_session_find(core, id);
    if (handle != 0) {
        session_end(core, handle);
    }
}

void kvs_core_session_stopped(struct kvs_core *core, uint64_t id)
{
    uint32_t handle = kvs_session_find(core, id);
    if (handle == 0) {
        return;
    }
    session_end(core, handle);
    for (uint32_t lease; (lease = session_at(core, handle)->leases) != 0;) {
        uint32_t object = lease_at(core, lease)->object;
        kvs_lease_drop(core, lease);
        kvs_object_stop(core, object);
    }
    kvs_table_remove(&core->sessions, handle);
    kvs_arena_free(&core->arena, handle);
}
