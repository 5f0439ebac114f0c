/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks everything there is and proves that it fits together: every object is reached exactly once,
 * every byte of the share belongs to at most one, every link has its back link, every sum its
 * summands. The first thing found wrong is told.
 */
#include "shard.h"

#include <stdlib.h>

struct page_sum {
    uint32_t used;
    uint32_t locked;
    uint32_t soft;
};

struct tenant_sum {
    uint64_t used;
    uint64_t locked;
    uint64_t live;
    uint64_t objects;
    uint64_t value;
};

struct proof {
    const struct kvs_core *core;
    const char *wrong;
    uint8_t *seen; /* pages */
    struct page_sum *pages;
    struct tenant_sum *tenants;
    uint64_t objects;
    uint64_t locked;
    uint64_t queued;
    uint64_t live;
    uint64_t reserved;
    uint64_t quarantined;
    uint64_t retired;
    uint64_t kinds[3]; /* leases; of the attempts, open ones */
    uint64_t timed;    /* leases with a deadline */
    uint64_t owned;    /* leases found through their owners */
    uint64_t leased;   /* leases found through their objects */
};

static void expect(struct proof *p, bool holds, const char *what)
{
    if (!holds && p->wrong == NULL) {
        p->wrong = what;
    }
}

static void each_record(struct proof *p, const struct kvs_table *table,
                        void (*each)(struct proof *p, uint32_t handle))
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < table->nbuckets && p->wrong == NULL; b++) {
        uint32_t *head = (uint32_t *)(void *)table->heads.base + b;
        for (uint32_t handle = *head; handle != 0 && p->wrong == NULL;
             handle = kvs_node_at(table, handle)->next) {
            expect(p, kvs_table_head(table, kvs_node_at(table, handle)->hash) == head,
                   "a record is in the wrong bucket");
            expect(p, n++ < table->count, "a chain of a table runs astray");
            each(p, handle);
        }
    }
    expect(p, p->wrong != NULL || n == table->count, "a table's count is wrong");
}

/* ---- objects ---- */

static void check_pieces(struct proof *p, const struct object *object, uint32_t handle,
                         const struct kvs_plan *plan)
{
    const struct kvs_space *space = &p->core->space;
    const char *wrong = kvs_space_validate_value(space, plan, object->pieces, handle, p->seen);
    if (wrong != NULL) {
        expect(p, false, wrong);
        return;
    }
    for (uint32_t piece = object->pieces.slots; piece != KVS_NO_PIECE;
         piece = kvs_space_next_slot(space, piece)) {
        struct page_sum *sum = &p->pages[kvs_piece_page(piece)];
        sum->used++;
        sum->locked += (object->flags & OBJECT_LOCKED) != 0;
        sum->soft += (object->flags & OBJECT_SOFT) != 0;
    }
}

static void check_leases_of(struct proof *p, const struct object *object, uint32_t handle)
{
    uint32_t prev = 0;
    for (uint32_t at = object->leases; at != 0 && p->wrong == NULL;
         at = lease_at(p->core, at)->object_next) {
        const struct lease *lease = lease_at(p->core, at);
        bool attempt = object->state == OBJECT_RESERVED || object->state == OBJECT_QUARANTINED;
        expect(p, lease->object == handle && lease->object_prev == prev,
               "an object's list of leases is wrong");
        expect(p, attempt == (lease->kind == LEASE_ATTEMPT), "a lease does not suit its object");
        expect(p, lease->kind != LEASE_HOLD || object->state == OBJECT_LIVE,
               "a hold on what is not there");
        expect(p, p->leased++ <= p->core->leases.count, "an object's list of leases runs astray");
        prev = at;
    }
}

static void check_object(struct proof *p, uint32_t handle)
{
    const struct kvs_core *core = p->core;
    const struct object *object = object_at(core, handle);
    const struct scope *scope = scope_at(core, object->scope);
    struct kvs_plan plan;
    kvs_object_plan(core, object, &plan);
    struct tenant_sum *tenant = &p->tenants[scope->tenant];
    bool cleared = scope_cleared(core, scope);
    bool locked =
        object->state != OBJECT_LIVE || object->leases != 0 || (object->flags & OBJECT_HARD) != 0;
    p->objects++;
    p->locked += locked;
    p->queued += (object->flags & OBJECT_QUEUED) != 0;
    tenant->used += plan.bytes;
    tenant->locked += locked ? plan.bytes : 0;
    check_pieces(p, object, handle, &plan);
    check_leases_of(p, object, handle);
    expect(p, locked == ((object->flags & OBJECT_LOCKED) != 0), "a lock is wrong");
    expect(p, locked || (object->flags & OBJECT_QUEUED) != 0, "an evictable object is not queued");
    switch ((enum object_state)object->state) {
    case OBJECT_RESERVED:
        p->reserved += plan.bytes;
        break;
    case OBJECT_QUARANTINED:
        p->quarantined += plan.bytes;
        break;
    case OBJECT_STOPPED:
        expect(p, object->leases == 0, "a stopped attempt has a lease");
        p->retired += plan.bytes;
        break;
    case OBJECT_DOOMED:
        expect(p, object->leases != 0, "a doomed object has no ticket");
        p->retired += plan.bytes;
        break;
    case OBJECT_LIVE:
        *(cleared ? &p->retired : &p->live) += plan.bytes;
        if (!cleared) {
            tenant->live += plan.bytes;
            tenant->objects++;
            tenant->value += object->len;
        }
        break;
    }
}

static void check_indexed(struct proof *p, uint32_t handle)
{
    expect(p, object_at(p->core, handle)->state == OBJECT_LIVE,
           "the index has an object that is not committed");
    check_object(p, handle);
}

static void check_lease(struct proof *p, uint32_t handle)
{
    const struct kvs_core *core = p->core;
    const struct lease *lease = lease_at(core, handle);
    const struct object *object = object_at(core, lease->object);
    p->kinds[lease->kind] += lease->kind != LEASE_ATTEMPT || object->state == OBJECT_RESERVED;
    p->timed += lease->due != 0;
    expect(p, (lease->due != 0) == (lease->deadline_ns != KVB_NEVER),
           "a deadline is not in the heap");
    /* Objects that the index does not have are reached by their first lease. */
    if (object->state != OBJECT_LIVE && object->leases == handle) {
        check_object(p, lease->object);
    }
}

/* ---- scopes, tenants, queues ---- */

static void check_scope(struct proof *p, uint32_t handle)
{
    const struct kvs_core *core = p->core;
    const struct scope *scope = scope_at(core, handle);
    uint64_t n = 0;
    uint64_t bytes = 0;
    uint64_t value_bytes = 0;
    uint32_t prev = 0;
    for (uint32_t at = scope->objects; at != 0 && p->wrong == NULL;
         at = object_at(core, at)->scope_next) {
        const struct object *object = object_at(core, at);
        expect(p,
               object->scope == handle && object->scope_prev == prev &&
                   object->state == OBJECT_LIVE,
               "a lineage's list of objects is wrong");
        n++;
        bytes += kvs_object_bytes(core, object);
        value_bytes += object->len;
        prev = at;
    }
    expect(p, n == scope->nobjects && bytes == scope->bytes && value_bytes == scope->value_bytes,
           "a lineage's sums are wrong");
    expect(p, scope->refs >= n && scope->refs > 0, "a lineage nothing names");
    expect(p, scope->listed || (n == 0 && scope_cleared(core, scope)), "a lineage is not listed");
    expect(p, !kvs_lineage_retired(core, scope->lineage) || scope_cleared(core, scope),
           "a retired lineage is in use");
}

static void check_scope_list(struct proof *p, const struct handles *list, uint32_t tenant,
                             bool cleared)
{
    uint32_t prev = 0;
    for (uint32_t at = list->first; at != 0 && p->wrong == NULL; at = scope_at(p->core, at)->next) {
        const struct scope *scope = scope_at(p->core, at);
        expect(p,
               scope->tenant == tenant && scope->listed && scope->prev == prev &&
                   scope_cleared(p->core, scope) == cleared,
               "a tenant's list of lineages is wrong");
        prev = at;
    }
    expect(p, p->wrong != NULL || prev == list->last,
           "a tenant's list of lineages has a wrong end");
}

static uint64_t check_queue(struct proof *p, uint32_t tenant, unsigned soft, unsigned kind)
{
    const struct kvs_core *core = p->core;
    const struct queue *queue = &tenant_at(core, tenant)->queues[soft][kind];
    uint64_t n = 0;
    uint64_t nfresh = 0;
    bool hand = queue->hand == 0;
    uint32_t prev = 0;
    for (uint32_t at = queue->old; at != 0 && p->wrong == NULL;
         at = object_at(core, at)->queue_next) {
        const struct object *object = object_at(core, at);
        bool pages = object->pieces.pages != KVS_NO_PIECE;
        expect(p,
               object->queue_prev == prev && object->state == OBJECT_LIVE &&
                   (object->flags & OBJECT_QUEUED) != 0 &&
                   ((object->flags & OBJECT_SOFT) != 0) == (soft != 0) &&
                   pages == (kind == QUEUE_PAGES) &&
                   scope_at(core, object->scope)->tenant == tenant,
               "an object is in the wrong queue");
        expect(p, n++ < p->core->nobjects, "a queue runs astray");
        bool fresh = nfresh > 0 || at == queue->fresh;
        nfresh += fresh;
        expect(p, ((object->flags & OBJECT_FRESH) != 0) == fresh, "a queue's young half is torn");
        hand = hand || (queue->hand == at && !fresh);
        prev = at;
    }
    expect(p, p->wrong != NULL || (prev == queue->young && hand), "a queue's end or hand is wrong");
    expect(p,
           p->wrong != NULL || (queue->n == n && queue->nfresh == nfresh && 2 * nfresh <= n &&
                                (queue->fresh != 0) == (nfresh > 0)),
           "a queue's young half is not one");
    return n;
}

static void check_tenants(struct proof *p)
{
    const struct kvs_core *core = p->core;
    uint64_t queued = 0;
    uint32_t ringed[3] = {0};
    for (uint32_t tenant = 0; tenant < core->ntenants && p->wrong == NULL; tenant++) {
        const struct tenant *t = tenant_at(core, tenant);
        const struct tenant_sum *sum = &p->tenants[tenant];
        expect(p,
               t->used_bytes == sum->used && t->locked_bytes == sum->locked &&
                   t->live_bytes == sum->live && t->live_objects == sum->objects &&
                   t->live_value_bytes == sum->value,
               "a tenant's sums are wrong");
        check_scope_list(p, &t->scopes, tenant, false);
        check_scope_list(p, &t->cleared, tenant, true);
        for (unsigned soft = 0; soft < 2; soft++) {
            uint64_t n = check_queue(p, tenant, soft, QUEUE_SLOTS) +
                         check_queue(p, tenant, soft, QUEUE_PAGES);
            expect(p, n == t->nqueued[soft], "a tenant's count of queued objects is wrong");
            queued += n;
            ringed[soft] += n > 0;
        }
        ringed[2] += t->cleared.first != 0;
    }
    expect(p, queued == p->queued, "an object is marked as queued and is not");
    for (unsigned ring = 0; ring < 3 && p->wrong == NULL; ring++) {
        uint32_t first = ring < 2 ? core->queued[ring] : core->cleared;
        uint32_t n = 0;
        for (uint32_t link = first; link != 0 && n <= core->ntenants;) {
            const struct tenant *t = tenant_at(core, link - 1);
            n++;
            link = ring < 2 ? t->queued_next[ring] : t->cleared_next;
            link = link == first ? 0 : link;
        }
        expect(p, n == ringed[ring], "a ring of tenants is wrong");
    }
}

/* ---- leases by their owners, and the heap ---- */

static uint64_t check_owned(struct proof *p, uint32_t first, uint32_t owner, bool holds)
{
    uint32_t prev = 0;
    uint64_t bytes = 0;
    for (uint32_t at = first; at != 0 && p->wrong == NULL; at = lease_at(p->core, at)->owner_next) {
        const struct lease *lease = lease_at(p->core, at);
        expect(p,
               lease->owner == owner && lease->owner_prev == prev &&
                   (lease->kind == LEASE_HOLD) == holds,
               "an owner's list of leases is wrong");
        expect(p, p->owned++ <= p->core->leases.count, "an owner's list of leases runs astray");
        bytes += kvs_object_bytes(p->core, object_at(p->core, lease->object));
        prev = at;
    }
    return bytes;
}

static void check_session(struct proof *p, uint32_t handle)
{
    check_owned(p, session_at(p->core, handle)->leases, handle, false);
}

static void check_holder(struct proof *p, uint32_t handle)
{
    const struct holder *holder = holder_at(p->core, handle);
    uint64_t bytes = 0;
    uint32_t prev = 0;
    expect(p, holder->requests != 0, "a holder holds nothing");
    for (uint32_t at = holder->requests; at != 0 && p->wrong == NULL;
         at = request_at(p->core, at)->next) {
        const struct request *request = request_at(p->core, at);
        expect(p,
               request->holder == handle && request->prev == prev && request->leases != 0 &&
                   request->instance == holder->instance,
               "a holder's list of requests is wrong");
        bytes += check_owned(p, request->leases, at, true);
        prev = at;
    }
    expect(p, bytes == holder->bytes && bytes <= p->core->hold_bytes_max,
           "a holder's bytes are wrong");
}

static void check_heap(struct proof *p)
{
    const struct kvs_core *core = p->core;
    const uint32_t *heap = (const uint32_t *)(const void *)core->due.base;
    for (uint32_t i = 0; i < core->ndue && p->wrong == NULL; i++) {
        const struct lease *lease = lease_at(core, heap[i]);
        expect(p, lease->due == i + 1, "a lease does not know its place in the heap");
        expect(p, i == 0 || lease_at(core, heap[(i - 1) / 2])->deadline_ns <= lease->deadline_ns,
               "the heap of deadlines is not one");
    }
    expect(p, core->ndue == p->timed, "the heap has other leases than there are");
}

static void check_retired(struct proof *p, uint32_t handle)
{
    const struct retired *retired =
        (const struct retired *)(void *)kvs_node_at(&p->core->retired, handle);
    expect(p, kvs_lineage_retired(p->core, retired->lineage), "a retired lineage is forgotten");
}

/* ---- all of it ---- */

static void check_sums(struct proof *p)
{
    const struct kvs_core_stats *s = &p->core->stats;
    expect(p, s->live_bytes == p->live, "live bytes are wrong");
    expect(p, s->reserved_bytes == p->reserved, "reserved bytes are wrong");
    expect(p, s->quarantined_bytes == p->quarantined, "quarantined bytes are wrong");
    expect(p, s->retired_bytes == p->retired, "retired bytes are wrong");
    expect(p, s->used_bytes == p->live + p->reserved + p->quarantined + p->retired,
           "used bytes are not the sum of their parts");
    expect(p,
           s->used_bytes + (uint64_t)p->core->space.nfree * KVS_CORE_PAGE <= p->core->share_bytes,
           "more is used and free than there is");
    uint64_t locked = 0;
    uint64_t objects = 0;
    uint64_t value = 0;
    for (uint32_t i = 0; i < p->core->ntenants; i++) {
        locked += p->tenants[i].locked;
        objects += p->tenants[i].objects;
        value += p->tenants[i].value;
    }
    expect(p, s->locked_bytes == locked && p->core->nlocked == p->locked, "locked sums are wrong");
    expect(p, s->objects == objects && s->value_bytes == value, "live sums are wrong");
    expect(p,
           s->attempts == p->kinds[LEASE_ATTEMPT] && s->tickets == p->kinds[LEASE_TICKET] &&
               s->holds == p->kinds[LEASE_HOLD],
           "the counts of leases are wrong");
    expect(p, p->core->nobjects == p->objects, "an object was lost");
    expect(p, p->leased == p->core->leases.count && p->owned == p->core->leases.count,
           "a lease is not linked");
}

static void check_all(struct proof *p)
{
    const struct kvs_core *core = p->core;
    each_record(p, &core->index, check_indexed);
    each_record(p, &core->leases, check_lease);
    uint32_t last = 0;
    for (uint32_t at = core->stopped.first; at != 0 && p->wrong == NULL;
         at = object_at(core, at)->queue_next) {
        expect(p, object_at(core, at)->state == OBJECT_STOPPED, "not a stopped attempt");
        check_object(p, at);
        last = at;
    }
    expect(p, p->wrong != NULL || last == core->stopped.last,
           "the list of stopped attempts is wrong");
    each_record(p, &core->scopes, check_scope);
    each_record(p, &core->sessions, check_session);
    each_record(p, &core->holders, check_holder);
    each_record(p, &core->retired, check_retired);
    expect(p, core->retired.count == core->nretired, "the count of retired lineages is wrong");
    if (p->wrong != NULL) {
        return;
    }
    check_tenants(p);
    check_heap(p);
    check_sums(p);
    expect(p,
           kvs_arena_records(&core->arena) == core->nobjects + core->scopes.count +
                                                  core->leases.count + core->sessions.count +
                                                  core->holders.count + core->requests.count,
           "a record was lost");
    const char *wrong = kvs_space_validate(&core->space);
    for (uint32_t i = 0; wrong == NULL && i < core->space.npages; i++) {
        wrong = kvs_space_validate_page(&core->space, i, p->seen[i], p->pages[i].used,
                                        p->pages[i].locked, p->pages[i].soft);
    }
    expect(p, wrong == NULL, wrong);
}

const char *kvs_core_validate(const struct kvs_core *core)
{
    struct proof p = {
        .core = core,
        .seen = calloc(core->space.npages, sizeof *p.seen),
        .pages = calloc(core->space.npages, sizeof *p.pages),
        .tenants = calloc(core->ntenants + 1, sizeof *p.tenants),
    };
    if (p.seen == NULL || p.pages == NULL || p.tenants == NULL) {
        p.wrong = "no memory for the proof";
    } else {
        check_all(&p);
    }
    free(p.seen);
    free(p.pages);
    free(p.tenants);
    return p.wrong;
}
