/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_SHARD_H
#define STORE_CORE_SHARD_H

#include "arena.h"
#include "space.h"
#include "table.h"

#include "base/assert.h"
#include "store/core.h"

#include <stddef.h>
#include <string.h>

/*
 * The records of a shard and who calls whom:
 *
 *   core.c    the public calls ─┬─ lineage.c  which lineages there are, clearing and reclaim
 *                               ├─ lease.c    sessions, attempts, tickets, holds and their
 * deadlines ├─ evict.c    queues, victims, making room └─ object.c   life, locks, index and bytes
 * of one object
 *
 * All guarded by the caller's lock of the shard. Handles are the arena's; 0 is none.
 */

enum object_state {
    OBJECT_RESERVED,    /* has an attempt; not in the index */
    OBJECT_QUARANTINED, /* its attempt was given up, its writer may still write; not in the index */
    OBJECT_STOPPED,     /* was quarantined, its writer is stopped; waits for reclaim */
    OBJECT_LIVE,        /* committed: in the index and in its scope's list, also when the scope was
                           cleared and reclaim has not come to it */
    OBJECT_DOOMED,      /* removed, kept by tickets; nowhere listed */
};

enum object_flag {
    OBJECT_VISITED = 1, /* used since the hand passed */
    OBJECT_SOFT = 2,
    OBJECT_HARD = 4,
    OBJECT_QUEUED = 8,  /* in an eviction queue */
    OBJECT_LOCKED = 16, /* counted as not evictable */
    OBJECT_FRESH = 32,  /* in the young half of its queue */
};

struct object {
    struct kvs_node node; /* index; chained by (space, lineage, block key) only */
    uint32_t scope;
    uint32_t group;
    uint32_t part;
    uint32_t len;
    uint64_t checksum;
    uint16_t key_len;
    uint8_t state;
    uint8_t flags;
    struct kvs_pieces pieces;
    uint32_t queue_prev; /* towards the older */
    uint32_t queue_next; /* STOPPED: the next to reclaim */
    uint32_t scope_prev;
    uint32_t scope_next;
    uint32_t leases; /* list */
    uint32_t stamp;  /* when it was queued, in puts */
    uint8_t key[];
};

struct handles {
    uint32_t first;
    uint32_t last;
};

/* One lineage in one space: what is read, written and cleared together. Lives while an object or an
 * attempt names it. */
struct scope {
    struct kvs_node node; /* by lineage */
    uint32_t space;
    uint32_t tenant;
    struct kvb_lineage lineage;
    uint32_t epoch; /* of the tenant; another one by now: cleared */
    bool retired;
    bool listed;   /* in the tenant's list of current or of cleared scopes */
    uint32_t prev; /* in it */
    uint32_t next;
    uint32_t refs;    /* objects in any state */
    uint32_t objects; /* list of the LIVE ones */
    uint64_t nobjects;
    uint64_t bytes;       /* of space, LIVE */
    uint64_t value_bytes; /* LIVE */
};

/* An eviction queue: SIEVE. New ones come in at the young end, the hand walks from old to young,
 * and turns back where the young half begins. */
struct queue {
    uint32_t old;
    uint32_t young;
    uint32_t hand;  /* 0: at the old end */
    uint32_t fresh; /* the oldest of the young half; 0: it is empty */
    uint32_t n;
    uint32_t nfresh; /* at most half of them: nobody becomes young again */
    uint32_t taken;  /* by the hand, since it left the old end */
};

enum queue_kind { QUEUE_SLOTS, QUEUE_PAGES, QUEUE_KINDS }; /* without and with whole pages */

struct tenant {
    uint32_t epoch;
    uint64_t quota;
    uint64_t used_bytes;
    uint64_t locked_bytes;
    uint64_t live_bytes;
    uint64_t live_value_bytes;
    uint64_t live_objects;
    uint64_t evicted;
    struct handles scopes;                   /* current */
    struct handles cleared;                  /* to be reclaimed */
    uint32_t cleared_prev, cleared_next;     /* tenants with cleared scopes, as tenant + 1 */
    struct queue queues[2][QUEUE_KINDS];     /* [1]: soft-pinned */
    uint64_t nqueued[2];                     /* in queues[soft] */
    uint32_t queued_prev[2], queued_next[2]; /* tenants with something queued, as tenant + 1 */
};

enum lease_kind { LEASE_ATTEMPT, LEASE_TICKET, LEASE_HOLD };

struct lease {
    struct kvs_node node; /* by serial, or of a hold by (object, request) */
    uint32_t object;
    uint32_t owner; /* session; of a hold the request */
    uint32_t owner_prev;
    uint32_t owner_next;
    uint32_t object_prev;
    uint32_t object_next;
    uint32_t due; /* place in the heap + 1; 0: not in it */
    uint8_t kind;
    uint64_t deadline_ns;
    uint64_t serial;
};

struct session {
    struct kvs_node node; /* by id */
    uint64_t id;
    bool ended;
    uint32_t leases; /* list */
};

struct holder {           /* an instance that holds something */
    struct kvs_node node; /* by instance */
    uint64_t instance;
    uint64_t bytes;
    uint32_t requests; /* list */
};

struct request {          /* of a holder; lives while it holds something */
    struct kvs_node node; /* by instance and request */
    uint64_t instance;
    uint64_t id;
    uint32_t holder;
    uint32_t prev;
    uint32_t next;
    uint32_t leases; /* list */
};

struct retired { /* a remembered lineage, in a ring: the oldest is forgotten first */
    struct kvs_node node;
    struct kvb_lineage lineage;
};

struct kvs_core {
    /* immutable after create */
    uint64_t seed;
    uint64_t incarnation;
    uint64_t share_bytes;
    uint64_t objects_max;
    uint32_t leases_max;
    uint32_t retired_max;
    uint64_t hold_bytes_max;

    struct kvs_arena arena;
    struct kvs_space space;
    struct kvs_table index; /* LIVE objects */
    struct kvs_table scopes;
    struct kvs_table leases;
    struct kvs_table sessions;
    struct kvs_table holders;
    struct kvs_table requests;

    struct kvs_memory tenants; /* of struct tenant */
    uint32_t ntenants;
    uint32_t queued[2]; /* ring of tenants with something queued, as tenant + 1: the next to ask */
    uint32_t cleared;   /* ring of tenants with cleared scopes */
    struct handles stopped; /* STOPPED objects */

    char *retired_ring; /* 8 bytes, then struct retired[retired_max] */
    struct kvs_table retired;
    uint32_t nretired;
    uint32_t retired_at; /* next place in the ring */

    struct kvs_memory due; /* heap of leases by deadline */
    uint32_t ndue;
    uint64_t next_serial;
    uint32_t next_stamp;

    void (*changed)(void *arg, const struct kvs_core_change *change);
    void *changed_arg;

    uint64_t nobjects; /* records, in any state */
    uint64_t nlocked;  /* of these */
    struct kvs_core_stats stats;
};

static inline struct object *object_at(const struct kvs_core *core, uint32_t handle)
{
    return kvs_arena_at(&core->arena, handle);
}
static inline struct scope *scope_at(const struct kvs_core *core, uint32_t handle)
{
    return kvs_arena_at(&core->arena, handle);
}
static inline struct lease *lease_at(const struct kvs_core *core, uint32_t handle)
{
    return kvs_arena_at(&core->arena, handle);
}
static inline struct session *session_at(const struct kvs_core *core, uint32_t handle)
{
    return kvs_arena_at(&core->arena, handle);
}
static inline struct request *request_at(const struct kvs_core *core, uint32_t handle)
{
    return kvs_arena_at(&core->arena, handle);
}
static inline struct holder *holder_at(const struct kvs_core *core, uint32_t handle)
{
    return kvs_arena_at(&core->arena, handle);
}
static inline struct tenant *tenant_at(const struct kvs_core *core, uint32_t tenant)
{
    return (struct tenant *)(void *)core->tenants.base + tenant;
}

static inline bool scope_cleared(const struct kvs_core *core, const struct scope *scope)
{
    return scope->retired || scope->epoch != tenant_at(core, scope->tenant)->epoch;
}

/* ---- lineage.c ---- */

/* NULL: no memory. */
struct tenant *kvs_tenant_get(struct kvs_core *core, uint32_t tenant);
/* The current scope; 0: none. */
uint32_t kvs_scope_find(const struct kvs_core *core, const struct kvs_core_where *where);
/* Same, created if need be; 0: no memory. The caller takes a reference, or puts it back. */
uint32_t kvs_scope_get(struct kvs_core *core, const struct kvs_core_where *where);
void kvs_scope_ref(struct kvs_core *core, uint32_t scope);
void kvs_scope_unref(struct kvs_core *core, uint32_t scope);
/* Frees it if nothing names it. */
void kvs_scope_settle(struct kvs_core *core, uint32_t scope);
bool kvs_lineage_retired(const struct kvs_core *core, struct kvb_lineage lineage);
kvb_status_t kvs_retired_init(struct kvs_core *core);
void kvs_retired_cleanup(struct kvs_core *core);
uint64_t kvs_retired_bytes(const struct kvs_core *core);
/* Frees (or dooms) one cleared object of the tenant, or of any (UINT32_MAX). false: none left. */
bool kvs_reclaim_one(struct kvs_core *core, uint32_t tenant);

/* ---- object.c ---- */

/* How its space is cut, and how much it is. */
void kvs_object_plan(const struct kvs_core *core, const struct object *object,
                     struct kvs_plan *plan_p);
uint64_t kvs_object_bytes(const struct kvs_core *core, const struct object *object);
static inline bool kvs_object_is_block(const struct object *object, uint32_t scope,
                                       struct kvb_span block)
{
    return object->scope == scope && object->key_len == block.len &&
           memcmp(object->key, block.data, block.len) == 0;
}
static inline bool kvs_object_is(const struct object *object, uint32_t scope,
                                 const struct kvs_core_key *key)
{
    return object->part == key->part && object->group == key->group &&
           kvs_object_is_block(object, scope, key->block);
}
/* Committed pieces of the block. */
uint32_t kvs_object_pieces(const struct kvs_core *core, uint32_t scope,
                           const struct kvs_core_key *key, uint32_t hash);
/* A committed, visible piece; 0: none. */
uint32_t kvs_object_find(const struct kvs_core *core, const struct kvs_core_where *where,
                         const struct kvs_core_key *key);
/* RESERVED, with space, counted, without attempt. NO_MEMORY. */
kvb_status_t kvs_object_create(struct kvs_core *core, uint32_t scope,
                               const struct kvs_core_key *key, uint64_t len, uint32_t hash,
                               const struct kvs_plan *plan, uint32_t *object_p);
/* RESERVED -> LIVE: into index, scope and queue. Its scope is current. */
void kvs_object_publish(struct kvs_core *core, uint32_t object, uint64_t checksum);
/* RESERVED -> QUARANTINED -> STOPPED (then it waits in core->stopped). */
void kvs_object_quarantine(struct kvs_core *core, uint32_t object);
void kvs_object_stop(struct kvs_core *core, uint32_t object);
/* LIVE -> DOOMED: out of index, scope and queue; its space stays. */
void kvs_object_doom(struct kvs_core *core, uint32_t object);
/* Any state, no lease any more: gone, and its space free. */
void kvs_object_free(struct kvs_core *core, uint32_t object);
/* A LIVE object came, or is about to go; whoever wants to know is told. */
void kvs_object_changed(const struct kvs_core *core, const struct object *object,
                        enum kvs_change change);
/* After a change of leases, pins or state: is it evictable? Keeps every count of that. */
void kvs_object_relock(struct kvs_core *core, uint32_t object);
/* The same after a lease was added, for who has the plan at hand. */
void kvs_object_lock(struct kvs_core *core, uint32_t object, const struct kvs_plan *plan);
void kvs_object_set_pin(struct kvs_core *core, uint32_t object, enum kvs_pin pin);
bool kvs_object_same_block(const struct object *a, const struct object *b);

/* ---- evict.c ---- */

void kvs_queue_add(struct kvs_core *core, uint32_t object);
void kvs_queue_remove(struct kvs_core *core, uint32_t object);
/* Makes room for the plan under the tenant's quota: OK, QUOTA, NO_SPACE, AGAIN. */
kvb_status_t kvs_make_room(struct kvs_core *core, uint64_t now_ns, uint32_t tenant,
                           const struct kvs_plan *plan);

/* ---- lease.c ---- */

uint32_t kvs_session_find(const struct kvs_core *core, uint64_t id);
/* NULL deadline heap entry for KVB_NEVER. 0: no memory or leases_max (then *status_p says which).
 */
uint32_t kvs_lease_create(struct kvs_core *core, enum lease_kind kind, uint32_t object,
                          uint32_t owner, uint64_t deadline_ns, kvb_status_t *status_p);
/* Unlinks and frees it; the object stays as it is (not relocked). */
void kvs_lease_drop(struct kvs_core *core, uint32_t lease);
/* An attempt or ticket by its id; 0: none of this session. */
uint32_t kvs_lease_find(const struct kvs_core *core, enum lease_kind kind, uint64_t incarnation,
                        uint64_t serial, uint64_t session);
/* Ends a lease as its deadline or session does. */
void kvs_lease_end(struct kvs_core *core, uint32_t lease);
/* The attempt is given up while its writer may still write. */
void kvs_attempt_quarantine(struct kvs_core *core, uint32_t lease);
/* Ends a ticket; frees a doomed object with its last one. */
void kvs_ticket_end(struct kvs_core *core, uint32_t lease);
/* Ends what is due, at most `budget`; false: more is due. */
bool kvs_leases_expire(struct kvs_core *core, uint64_t now_ns, uint32_t budget);
/* Ends what is due of one object's. It may be gone afterwards: false. */
void kvs_object_expire(struct kvs_core *core, uint64_t now_ns, uint32_t object);
/* Ends all holds on an object; it is not relocked. */
void kvs_holds_drop(struct kvs_core *core, uint32_t object);
/* The record of a holder's request, made if need be (0: no memory); whoever got it settles it in
 * the end, which frees it, and then its holder, if it holds nothing. */
uint32_t kvs_request_get(struct kvs_core *core, struct kvs_core_holder wanted);
void kvs_request_settle(struct kvs_core *core, uint32_t request);
bool kvs_hold_take(struct kvs_core *core, uint32_t object, uint32_t request, uint64_t deadline_ns);
void kvs_hold_give(struct kvs_core *core, uint32_t object, struct kvs_core_holder holder);

#endif
