/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_H
#define STORE_CORE_H

#include "base/clock.h"
#include "base/id.h"
#include "base/status.h"
#include "base/wire.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * One shard of a node's share: index, space, eviction, lineages, attempts, tickets, holds, quotas
 * (DESIGN.md sections 4 and 5). Plain code: no I/O, no thread, no clock, no callback out of it
 * that may come back in. Whoever holds the shard's lock calls it, from any thread, and hands in the
 * time. It never reads or writes a byte of the share: it deals in offsets, and all that it knows
 * lies in its own memory, where no peer can write.
 *
 * Time is `now_ns` of one monotonic clock; deadlines are absolute on it, KVB_NEVER: none. Deadlines
 * are judged by now_ns, not by when somebody calls: what is due counts as over in every answer.
 *
 * Work per call is bounded and does not grow with the number of objects: it grows with the bytes
 * asked for, the entries of a batch, and the pieces of one block (KVS_CORE_PIECES_MAX).
 */
struct kvs_core;

#define KVS_CORE_KEY_MAX    512u         /* bytes of a block key; at least 1 */
#define KVS_CORE_VALUE_MAX  (1ull << 30) /* bytes of a value; at least 1 */
#define KVS_CORE_PAGE       (64u << 10)  /* the share is cut in these */
#define KVS_CORE_SHARE_MAX  (256ull << 30)
#define KVS_CORE_PIECES_MAX 1024u /* pieces (group, part) of one block */
#define KVS_CORE_TENANT_MAX 65535u

struct kvs_core_config {
    uint64_t share_bytes;    /* at least one page, at most KVS_CORE_SHARE_MAX; a rest below a page
                                is not used */
    uint64_t objects_max;    /* 0: as many as fit in the share. Full is the same as no space */
    uint32_t leases_max;     /* tickets, attempts and holds together; 0: 262,144 */
    uint32_t retired_max;    /* retired lineages remembered; 0: 4,096 */
    uint64_t hold_bytes_max; /* bytes one instance may hold in this shard; 0: a quarter of it */
};

/* NO_MEMORY (also: no address range for the metadata), INVALID. random is used here only. */
KVB_MUST_USE kvb_status_t kvs_core_create(const struct kvs_core_config *config,
                                          const struct kvb_random *random,
                                          struct kvs_core **core_p);
void kvs_core_destroy(struct kvs_core *core);

/* ---- naming ---- */

/*
 * What all keys of a batch share. `space` stands for (tenant, layout) and `tenant` for the tenant:
 * small integers that the node gives out, from 0 up, without holes and for good; one space belongs
 * to one tenant (asserted). Keys are compared whole: two spaces, lineages or keys never meet,
 * whatever their bytes.
 */
struct kvs_core_where {
    uint32_t space;
    uint32_t tenant;
    struct kvb_lineage lineage;
};

struct kvs_core_key {
    struct kvb_span block; /* 1 to KVS_CORE_KEY_MAX bytes, else INVALID */
    uint32_t group;
    uint32_t part;
};

/* Which attempt or ticket, as given to the client. The incarnation is random per created shard, the
 * serial is never given twice, so one of an earlier life is refused. All zero: none. */
struct kvs_attempt {
    uint64_t incarnation;
    uint64_t serial;
};
struct kvs_ticket {
    uint64_t incarnation;
    uint64_t serial;
};

/*
 * Space as runs of the share, in the order of the value's bytes; adjoining ones are merged. A value
 * takes whole pages, which may lie anywhere, and up to three smaller slots for the rest. The caller
 * inits it once and may use it for many calls; each call that fills it replaces what was there.
 */
struct kvs_extent {
    uint64_t offset;
    uint64_t len;
};
#define KVS_EXTENTS_INLINE 6
struct kvs_extents {
    struct kvs_extent *at;
    uint32_t n;
    uint32_t cap;
    struct kvs_extent few[KVS_EXTENTS_INLINE];
};
void kvs_extents_init(struct kvs_extents *extents); /* not to be moved in memory afterwards */
void kvs_extents_cleanup(struct kvs_extents *extents);

/* ---- tenants ---- */

/* Bytes of space (as rounded by the allocator) the tenant may use in this shard; UINT64_MAX: no
 * quota, the default. Below what is used: nothing is evicted now, the next puts make room. A tenant
 * needs no other introduction. NO_MEMORY, INVALID (tenant above KVS_CORE_TENANT_MAX). */
KVB_MUST_USE kvb_status_t kvs_core_set_quota(struct kvs_core *core, uint32_t tenant,
                                             uint64_t quota_bytes);

/* ---- sessions ---- */

/*
 * A session is one connection; attempts and tickets belong to it and die with it. Ids are the
 * node's and never used twice. EXISTS: open, ended or not yet stopped. NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kvs_core_session_open(struct kvs_core *core, uint64_t session);
/* Its tickets end, its attempts go into quarantine; it can do nothing more. Idempotent; unknown: no
 * effect. Work grows with what the session has open. */
void kvs_core_session_end(struct kvs_core *core, uint64_t session);
/* Its writers are really stopped (its queue pairs are destroyed, its copies have returned): ends it
 * if need be, and gives its quarantined space free for reclaim. Idempotent; unknown: no effect. */
void kvs_core_session_stopped(struct kvs_core *core, uint64_t session);

/* ---- put ---- */

enum kvs_pin {
    KVS_PIN_NONE,
    KVS_PIN_SOFT, /* evicted only when nothing unpinned is left to evict */
    KVS_PIN_HARD, /* never evicted */
};

struct kvs_core_put {
    uint64_t len; /* bytes of the value */
    enum kvs_pin pin;
    uint64_t session;
    uint64_t deadline_ns; /* of the attempt */
};

/*
 * Space for a value that the session will write. Nobody sees it before commit. Several attempts at
 * one key may run; the first to commit wins. Makes room if it must: retired space first, then by
 * eviction, as little as the size needs. On failure nothing was reserved, and nothing evicted but
 * for AGAIN, LIMIT and NO_MEMORY:
 *   EXISTS     the key is committed already
 *   FENCED     the lineage is retired
 *   TOO_LARGE  longer than KVS_CORE_VALUE_MAX or than the share can ever hold
 *   QUOTA      the tenant's own evictable objects would not make enough room under its quota
 *   NO_SPACE   all that could be evicted would not make enough room
 *   AGAIN      room is being made, but not all in one call: call again, in a later turn. Every such
 *              call gets further; it ends
 *   LIMIT      leases_max, or KVS_CORE_PIECES_MAX pieces of this block (also at commit)
 *   BAD_STATE  the session is not open
 *   INVALID, NO_MEMORY
 */
KVB_MUST_USE kvb_status_t kvs_core_reserve(struct kvs_core *core, uint64_t now_ns,
                                           const struct kvs_core_where *where,
                                           const struct kvs_core_key *key,
                                           const struct kvs_core_put *put,
                                           struct kvs_attempt *attempt_p,
                                           struct kvs_extents *extents);

/*
 * Makes the written object visible. On any answer but NOT_FOUND the attempt is over; on a failure
 * the space is free again, except TIMEOUT, where it stays in quarantine.
 *   EXISTS     another attempt at the key was committed first; that one stays
 *   FENCED     the lineage was retired, or the tenant or shard cleared, after reserve
 *   TIMEOUT    the deadline had passed, or the session has ended
 *   NOT_FOUND  no such attempt of this session: stale, foreign, revoked, or done already
 */
KVB_MUST_USE kvb_status_t kvs_core_commit(struct kvs_core *core, uint64_t now_ns,
                                          struct kvs_attempt attempt, uint64_t session,
                                          uint64_t checksum);

/* Gives an attempt up, also one whose deadline has passed. writer_stopped: nobody can write to the
 * space any more, so it is free at once; else it goes into quarantine until the session is stopped,
 * or until revoke is called again with true. NOT_FOUND as for commit. */
KVB_MUST_USE kvb_status_t kvs_core_revoke(struct kvs_core *core, uint64_t now_ns,
                                          struct kvs_attempt attempt, uint64_t session,
                                          bool writer_stopped);

/* ---- get ---- */

/* Who was promised what a lookup found (DESIGN.md section 5). instance 0: nobody. */
struct kvs_core_holder {
    uint64_t instance;
    uint64_t request;
};

struct kvs_core_found {
    struct kvs_ticket ticket;
    uint64_t len;
    uint64_t checksum;
};

/*
 * A ticket for a committed object, until deadline_ns. From the deadline on, its space may be reused
 * and release refuses. Gives back the holder's hold on the object, if any (the ticket protects it
 * now). NOT_FOUND (also under a retired lineage), BAD_STATE (session not open), LIMIT (leases_max),
 * INVALID, NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kvs_core_find(struct kvs_core *core, uint64_t now_ns,
                                        const struct kvs_core_where *where,
                                        const struct kvs_core_key *key, uint64_t session,
                                        uint64_t deadline_ns, struct kvs_core_holder holder,
                                        struct kvs_core_found *found_p,
                                        struct kvs_extents *extents);

/*
 * Ends a ticket. OK: it was held without a break since find, so nothing else was written to the
 * extents meanwhile, also when the object was removed or its lineage retired (which is the
 * caller's to judge). TICKET: it was not (expired, released before, session ended, another
 * session's, another life's): what was read is worth nothing.
 */
KVB_MUST_USE kvb_status_t kvs_core_release(struct kvs_core *core, uint64_t now_ns,
                                           struct kvs_ticket ticket, uint64_t session);

struct kvs_core_entry {
    struct kvs_core_key key;
    kvb_status_t status; /* OK, NOT_FOUND, INVALID */
    bool held;           /* the holder is now promised it */
    uint64_t len;        /* if OK */
};

/*
 * Looks n keys up, in order, each on its own; the same key twice gets the same answer twice (and is
 * held once). With a holder, what was found is held until hold_deadline_ns: it is not evicted. A
 * hold ends when the holder gets the object, at discard, at its deadline; a later exists of the
 * same holder moves its deadline. Found but not held: the instance is at hold_bytes_max, or the
 * shard at leases_max. Memory latency is overlapped, so a batch is much cheaper than n calls.
 */
void kvs_core_exists(struct kvs_core *core, uint64_t now_ns, const struct kvs_core_where *where,
                     struct kvs_core_entry *entries, uint32_t n, struct kvs_core_holder holder,
                     uint64_t hold_deadline_ns);

/* Gives back all holds of a request; of an instance. Unknown: no effect. */
void kvs_core_discard(struct kvs_core *core, struct kvs_core_holder holder);
void kvs_core_discard_instance(struct kvs_core *core, uint64_t instance);

/* ---- clearing ---- */

/* NOT_FOUND, INVALID. */
KVB_MUST_USE kvb_status_t kvs_core_pin(struct kvs_core *core, uint64_t now_ns,
                                       const struct kvs_core_where *where,
                                       const struct kvs_core_key *key, enum kvs_pin pin);

/* Removes a committed object: it misses at once; its space is free now, or when its last ticket
 * goes. BUSY: read (ticket), promised (hold) or pinned (hard or soft), and not `force`. NOT_FOUND,
 * INVALID. */
KVB_MUST_USE kvb_status_t kvs_core_remove(struct kvs_core *core, uint64_t now_ns,
                                          const struct kvs_core_where *where,
                                          const struct kvs_core_key *key, bool force);

/*
 * Removes the tenant's objects that match, of all its spaces and lineages, as kvs_core_remove does:
 * walks the index bucket by bucket (about one object each), from where the last call came to, until
 * the budget is used up. true: more is left. What is put meanwhile may be met or not.
 */
struct kvs_core_sweep {
    uint32_t tenant;
    bool force;
    uint32_t budget; /* of this call: a bucket takes one off */
    /* Must not call into the core. May take off the budget, down to 0, what it cost more than
     * others. */
    bool (*matches)(struct kvs_core_sweep *sweep, struct kvb_span block);
    void *arg;
    uint64_t removed;
    uint64_t kept; /* BUSY */
    uint32_t next; /* 0 at first */
};
bool kvs_core_sweep(struct kvs_core *core, uint64_t now_ns, struct kvs_core_sweep *sweep);

/*
 * Walks the objects of a tenant that can be found, as many as `budget` allows; true: not through
 * yet, and `bucket` and `object` say from where to go on, as long as it takes and whatever happens
 * meanwhile. One that is there all the time is met; twice, if the index has grown.
 */
struct kvs_core_listed {
    uint32_t space;
    struct kvb_lineage lineage;
    struct kvs_core_key key; /* valid during the call */
    uint64_t len;
    enum kvs_pin pin;
};
struct kvs_core_list {
    uint32_t tenant;
    uint32_t budget; /* of this call: a bucket takes one off, and an object at most two */
    /* Must not call into the core; may take off the budget. */
    void (*each)(struct kvs_core_list *list, const struct kvs_core_listed *listed);
    uint32_t bucket, object; /* 0 at first */
};
bool kvs_core_list(const struct kvs_core *core, struct kvs_core_list *list);

/*
 * These miss at once and cost the same for ten objects and ten million; the space follows by
 * reclaim, or under the next puts. Attempts begun before answer FENCED at commit. Pins and holds
 * count for nothing; tickets keep their object's space (not the object) to their end.
 *
 * retire: for good. The lineage is remembered (also one with no objects here yet, whose puts may
 * still be on their way), so that later puts under it are FENCED. Only the last retired_max are
 * remembered: a put under one forgotten is stored, costs space until it is evicted, and is found by
 * nobody, since nobody holds that lineage any more (DESIGN.md section 4).
 */
void kvs_core_retire(struct kvs_core *core, struct kvb_lineage lineage);
void kvs_core_remove_tenant(struct kvs_core *core, uint32_t tenant);
void kvs_core_clear(struct kvs_core *core);

/* Calls each, once per lineage and space of the tenant that holds objects or attempts and is not
 * cleared. each must not call into the core. */
void kvs_core_each_lineage(const struct kvs_core *core, uint32_t tenant,
                           void (*each)(void *arg, uint32_t space, struct kvb_lineage lineage),
                           void *arg);

/* ---- changes ---- */

enum kvs_change { KVS_CHANGE_STORED, KVS_CHANGE_REMOVED, KVS_CHANGE_EVICTED };
struct kvs_core_change {
    enum kvs_change change;
    uint32_t space;
    uint32_t tenant;
    struct kvb_lineage lineage;
    struct kvs_core_key key;
    uint64_t len;
};
/* Calls changed for each object that becomes visible, and for each visible one that is removed or
 * evicted; not for what is cleared. It must not call into the core. NULL, the default: nobody. */
void kvs_core_on_change(struct kvs_core *core,
                        void (*changed)(void *arg, const struct kvs_core_change *change),
                        void *arg);

/* ---- upkeep ---- */

/* Frees up to `budget` cleared objects; ends due leases on the way. true: more is left. A budget of
 * 256 takes well under a millisecond. */
bool kvs_core_reclaim(struct kvs_core *core, uint64_t now_ns, uint32_t budget);

/* The earliest deadline of a lease, KVB_NEVER if none: when to call reclaim next. Promises hold
 * without it; space comes back in time with it. */
uint64_t kvs_core_next_deadline_ns(const struct kvs_core *core);

/*
 * All in bytes of space as allocated (a value's bytes rounded up by the allocator, at most 12.5 %
 * from 64 bytes up). Always: used == live + reserved + quarantined + retired, each >= 0, and used +
 * free <= share (the difference lies in partly filled slab pages).
 */
struct kvs_core_stats {
    uint64_t share_bytes;
    uint64_t used_bytes;
    uint64_t live_bytes;        /* committed and visible */
    uint64_t reserved_bytes;    /* attempts that may still commit */
    uint64_t quarantined_bytes; /* attempts given up, whose writer may still write */
    uint64_t retired_bytes;     /* cleared, not reclaimed yet or kept by a ticket; quarantine of
                                   stopped sessions until reclaimed */
    uint64_t free_bytes;        /* in whole free pages */
    uint64_t value_bytes;       /* of live objects, as put */
    uint64_t locked_bytes;      /* not evictable: tickets, holds, hard pins, attempts, quarantine */
    uint64_t objects;           /* committed and visible */
    uint64_t attempts;          /* open */
    uint64_t tickets;
    uint64_t holds;
    uint64_t evicted; /* objects, since create; so is what follows */
    uint64_t reclaimed;
    uint64_t fenced;
    uint64_t tickets_lost;   /* ended by their deadline or their session */
    uint64_t metadata_bytes; /* memory of the shard's own: all of it */
};
struct kvs_core_tenant_stats {
    uint64_t quota_bytes;
    uint64_t used_bytes; /* live, reserved, quarantined and retired */
    uint64_t live_bytes;
    uint64_t objects;
    uint64_t evicted;
};
void kvs_core_stats(const struct kvs_core *core, struct kvs_core_stats *stats_p);
/* An unknown tenant has used nothing. */
void kvs_core_tenant_stats(const struct kvs_core *core, uint32_t tenant,
                           struct kvs_core_tenant_stats *stats_p);

/* Proves every invariant by walking everything: NULL, or which one is broken (static text). For
 * tests; takes as long as there are objects. */
const char *kvs_core_validate(const struct kvs_core *core);

#endif
