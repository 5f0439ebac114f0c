/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on a shard beside a naive model of what it promises. The model keeps lists and
 * a map of who was given which bytes of the share; it knows nothing of pages, queues or tables, and
 * so cannot know what is evicted. It knows what may be: an object may vanish only in a reserve that
 * did not refuse, and only if nobody was promised it. Bytes may be given out again only when nobody
 * can still read or write them. After every step validate() must prove the shard.
 */
#include "sim_sched.h"

#include "store/core.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#define TENANTS   3u
#define SPACES    5u /* tenant of space s: s % TENANTS */
#define LINEAGES  6u
#define BLOCKS    10u
#define PARTS     2u
#define SESSIONS  4u
#define INSTANCES 2u
#define REQUESTS  3u
#define THINGS    100000u
#define UNIT      8u
#define COUNTS    11u

enum life { ATTEMPT, QUARANTINED, LIVE, DEAD };

struct thing { /* an attempt, and what became of it */
    enum life life;
    uint32_t space;
    uint32_t lineage;
    uint32_t block;
    uint32_t part;
    uint64_t len;
    uint64_t checksum;
    uint64_t session;
    uint64_t deadline_ns;
    bool cleared; /* since it was reserved */
    bool pinned_hard;
    bool pinned_soft;
    struct kvs_attempt id;
    struct kvs_extents extents;
};

struct reader {
    bool open;
    uint32_t thing;
    uint64_t session;
    uint64_t deadline_ns;
    struct kvs_ticket id;
};

struct promise {
    bool open;
    uint32_t thing;
    struct kvs_core_holder holder;
    uint64_t deadline_ns;
};

struct model {
    struct sim_sched sim;
    struct kvs_core *core;
    uint64_t share_bytes;
    uint64_t objects_max;
    uint32_t *owner; /* of each unit of the share: thing + 1 */
    struct thing *things;
    uint32_t nthings;
    struct reader *readers;
    uint32_t nreaders;
    struct promise *promises;
    uint32_t npromises;
    struct kvb_lineage lineages[LINEAGES];
    bool retired[LINEAGES];
    uint64_t sessions[SESSIONS]; /* 0: none */
    bool ended[SESSIONS];
    uint64_t next_session;
    uint64_t quota[TENANTS];
    uint64_t step;
    uint64_t counts[COUNTS];
};

#define check(m, condition, ...)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "KVPLANE_SEED=%llu step %llu: ", (unsigned long long)(m)->sim.seed,    \
                    (unsigned long long)(m)->step);                                                \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            cr_assert_fail("%s", #condition);                                                      \
        }                                                                                          \
    } while (0)

static uint32_t below(struct model *m, uint32_t n)
{
    return (uint32_t)sim_below(&m->sim, n);
}

static struct kvs_core_where where_of(const struct model *m, uint32_t space, uint32_t lineage)
{
    return (struct kvs_core_where){
        .space = space, .tenant = space % TENANTS, .lineage = m->lineages[lineage]};
}

/* Blocks of different lengths, one of them the longest, with a common start. */
static struct kvs_core_key key_of(uint32_t block, uint32_t part)
{
    static uint8_t bytes[BLOCKS][KVS_CORE_KEY_MAX];
    static const uint16_t lens[BLOCKS] = {1, 2, 8, 16, 17, 32, 33, 100, 511, 512};
    memset(bytes[block], 'k', lens[block]);
    bytes[block][lens[block] - 1] = (uint8_t)block;
    return (struct kvs_core_key){
        .block = {.data = bytes[block], .len = lens[block]}, .group = part / 2, .part = part % 2};
}

/* ---- what the model knows ---- */

static bool visible(const struct model *m, const struct thing *t)
{
    return t->life == LIVE && !t->cleared && !m->retired[t->lineage];
}

static struct thing *find_visible(struct model *m, uint32_t space, uint32_t lineage, uint32_t block,
                                  uint32_t part)
{
    for (uint32_t i = 0; i < m->nthings; i++) {
        struct thing *t = &m->things[i];
        if (t->space == space && t->lineage == lineage && t->block == block && t->part == part &&
            visible(m, t)) {
            return t;
        }
    }
    return NULL;
}

static bool is_read(const struct model *m, const struct thing *t)
{
    for (uint32_t i = 0; i < m->nreaders; i++) {
        const struct reader *r = &m->readers[i];
        if (r->open && &m->things[r->thing] == t && r->deadline_ns > m->sim.now_ns) {
            return true;
        }
    }
    return false;
}

static bool is_promised(const struct model *m, const struct thing *t)
{
    for (uint32_t i = 0; i < m->npromises; i++) {
        const struct promise *p = &m->promises[i];
        if (p->open && &m->things[p->thing] == t && p->deadline_ns > m->sim.now_ns) {
            return true;
        }
    }
    return false;
}

/* Its bytes may not be given to anybody else now. */
static bool is_protected(const struct model *m, const struct thing *t)
{
    switch (t->life) {
    case ATTEMPT:
    case QUARANTINED:
        return true;
    case LIVE:
        return is_read(m, t) || (visible(m, t) && (is_promised(m, t) || t->pinned_hard));
    case DEAD:
        return is_read(m, t);
    }
    return true;
}

static void settle_deadlines(struct model *m)
{
    for (uint32_t i = 0; i < m->nthings; i++) {
        struct thing *t = &m->things[i];
        if (t->life == ATTEMPT && t->deadline_ns <= m->sim.now_ns) {
            t->life = QUARANTINED;
        }
    }
}

static void die(struct model *m, struct thing *t)
{
    t->life = DEAD;
    for (uint32_t i = 0; i < m->npromises; i++) {
        if (&m->things[m->promises[i].thing] == t) {
            m->promises[i].open = false;
        }
    }
}

static bool session_open(const struct model *m, uint64_t id)
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (id != 0 && m->sessions[i] == id) {
            return !m->ended[i];
        }
    }
    return false;
}

/* Every object that the model takes to be there must be, unless it may have been evicted. */
static void learn(struct model *m, bool may_evict)
{
    for (uint32_t i = 0; i < m->nthings; i++) {
        struct thing *t = &m->things[i];
        if (!visible(m, t)) {
            continue;
        }
        struct kvs_core_where where = where_of(m, t->space, t->lineage);
        struct kvs_core_entry entry = {.key = key_of(t->block, t->part)};
        kvs_core_exists(m->core, m->sim.now_ns, &where, &entry, 1, (struct kvs_core_holder){0}, 0);
        if (entry.status == KVB_OK) {
            check(m, entry.len == t->len, "length of a found object");
            continue;
        }
        check(m, may_evict, "an object vanished without a put");
        check(m, !is_protected(m, t), "a promised object was evicted");
        die(m, t);
        m->counts[0]++;
    }
}

/* Pages in which nothing is protected: what eviction could give. */
static uint64_t pages_to_be_had(const struct model *m)
{
    uint64_t n = 0;
    bool *bad = calloc(m->nthings + 1, sizeof *bad);
    for (uint32_t i = 0; i < m->nthings; i++) {
        bad[i + 1] = is_protected(m, &m->things[i]);
    }
    const uint64_t units = KVS_CORE_PAGE / UNIT;
    for (uint64_t page = 0; page < m->share_bytes / KVS_CORE_PAGE; page++) {
        bool had = true;
        for (uint64_t u = page * units; u < (page + 1) * units && had; u++) {
            had = !bad[m->owner[u]];
        }
        n += had;
    }
    free(bad);
    return n;
}

static uint64_t protected_things(const struct model *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->nthings; i++) {
        n += is_protected(m, &m->things[i]);
    }
    return n;
}

static uint64_t most_bytes(uint64_t len)
{
    return len < 64 ? 64 : len + len / 8;
}

static uint64_t quota_locked_most(const struct model *m, uint32_t tenant)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->nthings; i++) {
        const struct thing *t = &m->things[i];
        n += t->space % TENANTS == tenant && is_protected(m, t) ? most_bytes(t->len) : 0;
    }
    return n;
}

/* ---- steps ---- */

struct place {
    uint32_t space;
    uint32_t lineage;
    uint32_t block;
    uint32_t part;
};

/* A key, mostly of something that is or was there. */
static struct place random_place(struct model *m)
{
    if (m->nthings > 0 && below(m, 3) > 0) {
        uint32_t back = below(m, m->nthings < 60 ? m->nthings : 60);
        const struct thing *t = &m->things[m->nthings - 1 - back];
        return (struct place){t->space, t->lineage, t->block, t->part};
    }
    return (struct place){below(m, SPACES), below(m, LINEAGES), below(m, BLOCKS), below(m, PARTS)};
}

static void claim(struct model *m, uint32_t thing)
{
    struct thing *t = &m->things[thing];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->extents.n; i++) {
        struct kvs_extent e = t->extents.at[i];
        sum += e.len;
        check(m, e.len > 0 && e.offset % UNIT == 0 && e.offset + e.len <= m->share_bytes,
              "an extent outside the share");
        for (uint64_t u = e.offset / UNIT; u < (e.offset + e.len + UNIT - 1) / UNIT; u++) {
            if (m->owner[u] != 0) {
                const struct thing *before = &m->things[m->owner[u] - 1];
                check(m, !is_protected(m, before), "bytes in use were given out again");
                check(m, !visible(m, before), "a visible object's bytes were given out again");
            }
            m->owner[u] = thing + 1;
        }
    }
    check(m, sum == t->len, "extents of another length");
}

static uint64_t random_len(struct model *m)
{
    switch (below(m, 8)) {
    case 0:
        return 1 + below(m, 100);
    case 1:
    case 2:
        return 64 + below(m, 4096);
    case 3:
    case 4:
        return 4096 + below(m, 61441);
    case 5:
        return 16384;
    case 6:
        return (1 + below(m, 4)) * (uint64_t)KVS_CORE_PAGE;
    default:
        return KVS_CORE_PAGE + below(m, 300000);
    }
}

static uint64_t random_session(struct model *m)
{
    uint64_t id = m->sessions[below(m, SESSIONS)];
    return session_open(m, id) ? id : m->sessions[below(m, SESSIONS)];
}

static uint64_t random_deadline(struct model *m)
{
    return below(m, 8) == 0 ? KVB_NEVER : m->sim.now_ns + 1 + below(m, 40);
}

static void step_reserve(struct model *m)
{
    struct place at = random_place(m);
    uint32_t space = at.space;
    uint32_t lineage = at.lineage;
    struct thing t = {
        .life = ATTEMPT,
        .space = space,
        .lineage = lineage,
        .block = at.block,
        .part = at.part,
        .len = random_len(m),
        .session = random_session(m),
        .deadline_ns = random_deadline(m),
    };
    uint32_t pin = below(m, 30);
    t.pinned_hard = pin == 0;
    t.pinned_soft = pin == 1 || pin == 2;
    struct kvs_core_where where = where_of(m, space, lineage);
    struct kvs_core_key key = key_of(t.block, t.part);
    struct kvs_core_put put = {
        .len = t.len,
        .pin = t.pinned_hard   ? KVS_PIN_HARD
               : t.pinned_soft ? KVS_PIN_SOFT
                               : KVS_PIN_NONE,
        .session = t.session,
        .deadline_ns = t.deadline_ns,
    };
    uint64_t could = pages_to_be_had(m);
    uint64_t locked = quota_locked_most(m, space % TENANTS);
    bool exists = find_visible(m, space, lineage, t.block, t.part) != NULL;
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    kvb_status_t status;
    uint32_t tries = 0;
    bool again = false;
    do {
        status = kvs_core_reserve(m->core, m->sim.now_ns, &where, &key, &put, &t.id, &extents);
        again = again || status == KVB_ERR_AGAIN;
        check(m, ++tries < 1000, "again and again");
    } while (status == KVB_ERR_AGAIN);
    if (!session_open(m, t.session)) {
        check(m, status == KVB_ERR_BAD_STATE, "reserve without a session: %d", status);
    } else if (m->retired[lineage]) {
        check(m, status == KVB_ERR_FENCED, "reserve under a retired lineage: %d", status);
    } else if (exists) {
        check(m, status == KVB_ERR_EXISTS, "reserve of what is there: %d", status);
    } else if (t.len > m->share_bytes) {
        check(m, status == KVB_ERR_TOO_LARGE, "reserve of too much: %d", status);
    } else if (status == KVB_ERR_NO_SPACE) {
        check(m, could < t.len / KVS_CORE_PAGE + 4 || protected_things(m) >= m->objects_max,
              "no space, but %llu pages to be had", (unsigned long long)could);
        m->counts[1]++;
    } else if (status == KVB_ERR_QUOTA) {
        check(m, locked + most_bytes(t.len) > m->quota[space % TENANTS], "quota without a reason");
        m->counts[2]++;
    } else {
        check(m, status == KVB_OK, "reserve: %d", status);
    }
    learn(m, status == KVB_OK || again);
    if (status != KVB_OK) {
        kvs_extents_cleanup(&extents);
        return;
    }
    struct kvs_core_tenant_stats ts;
    kvs_core_tenant_stats(m->core, space % TENANTS, &ts);
    check(m, ts.used_bytes <= m->quota[space % TENANTS], "over quota");
    check(m, m->nthings < THINGS, "too many things");
    m->things[m->nthings] = t;
    struct thing *kept = &m->things[m->nthings++];
    kvs_extents_init(&kept->extents);
    kept->extents.n = extents.n;
    kept->extents.at = calloc(extents.n, sizeof *extents.at);
    memcpy(kept->extents.at, extents.at, extents.n * sizeof *extents.at);
    kvs_extents_cleanup(&extents);
    claim(m, m->nthings - 1);
    m->counts[3]++;
}

/* Mostly one of the last attempts. */
static struct thing *random_attempt(struct model *m)
{
    if (m->nthings == 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t back = below(m, m->nthings < 25 ? m->nthings : 25);
        struct thing *t = &m->things[m->nthings - 1 - back];
        if (t->life == ATTEMPT || t->life == QUARANTINED) {
            return t;
        }
    }
    return &m->things[below(m, m->nthings)];
}

static void step_commit(struct model *m)
{
    struct thing *t = random_attempt(m);
    if (t == NULL) {
        return;
    }
    uint64_t session = below(m, 10) == 0 ? random_session(m) : t->session;
    struct kvs_attempt id = t->id;
    id.incarnation += below(m, 30) == 0;
    bool known = (t->life == ATTEMPT || t->life == QUARANTINED) && session == t->session &&
                 id.incarnation == t->id.incarnation;
    uint64_t checksum = splitmix_next(&m->sim.random_state);
    kvb_status_t status = kvs_core_commit(m->core, m->sim.now_ns, id, session, checksum);
    if (!known) {
        check(m, status == KVB_ERR_NOT_FOUND, "commit of no attempt: %d", status);
    } else if (t->life == QUARANTINED) {
        check(m, status == KVB_ERR_TIMEOUT, "commit too late: %d", status);
    } else if (t->cleared || m->retired[t->lineage]) {
        check(m, status == KVB_ERR_FENCED, "commit after clearing: %d", status);
        t->life = DEAD;
        m->counts[4]++;
    } else if (find_visible(m, t->space, t->lineage, t->block, t->part) != NULL) {
        check(m, status == KVB_ERR_EXISTS, "second commit: %d", status);
        t->life = DEAD;
        m->counts[5]++;
    } else {
        check(m, status == KVB_OK, "commit: %d", status);
        t->life = LIVE;
        t->checksum = checksum;
        m->counts[6]++;
    }
    learn(m, false);
}

static void step_revoke(struct model *m)
{
    struct thing *t = random_attempt(m);
    if (t == NULL) {
        return;
    }
    bool stopped = below(m, 2) == 0;
    uint64_t session = below(m, 10) == 0 ? random_session(m) : t->session;
    bool known = (t->life == ATTEMPT || t->life == QUARANTINED) && session == t->session;
    kvb_status_t status = kvs_core_revoke(m->core, m->sim.now_ns, t->id, session, stopped);
    check(m, status == (known ? KVB_OK : KVB_ERR_NOT_FOUND), "revoke: %d", status);
    if (known) {
        t->life = stopped ? DEAD : QUARANTINED;
    }
}

static struct kvs_core_holder random_holder(struct model *m)
{
    return (struct kvs_core_holder){.instance = 1 + below(m, INSTANCES),
                                    .request = below(m, REQUESTS)};
}

static struct promise *promise_of(struct model *m, uint32_t thing, struct kvs_core_holder holder)
{
    for (uint32_t i = 0; i < m->npromises; i++) {
        struct promise *p = &m->promises[i];
        if (p->open && p->thing == thing && p->holder.instance == holder.instance &&
            p->holder.request == holder.request) {
            return p;
        }
    }
    return NULL;
}

static void step_find(struct model *m)
{
    struct place at = random_place(m);
    uint32_t space = at.space;
    uint32_t lineage = at.lineage;
    uint32_t block = at.block;
    uint32_t part = at.part;
    struct kvs_core_where where = where_of(m, space, lineage);
    struct kvs_core_key key = key_of(block, part);
    struct kvs_core_holder holder = random_holder(m);
    struct reader r = {.session = random_session(m), .deadline_ns = random_deadline(m)};
    struct kvs_core_found found;
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    kvb_status_t status = kvs_core_find(m->core, m->sim.now_ns, &where, &key, r.session,
                                        r.deadline_ns, holder, &found, &extents);
    const struct thing *t = find_visible(m, space, lineage, block, part);
    if (!session_open(m, r.session)) {
        check(m, status == KVB_ERR_BAD_STATE, "find without a session: %d", status);
    } else if (t == NULL) {
        check(m, status == KVB_ERR_NOT_FOUND, "find of nothing: %d", status);
    } else {
        check(m, status == KVB_OK, "find: %d", status);
        check(m, found.len == t->len && found.checksum == t->checksum, "found something else");
        check(m,
              extents.n == t->extents.n &&
                  memcmp(extents.at, t->extents.at, extents.n * sizeof *extents.at) == 0,
              "found it elsewhere");
        r.open = true;
        r.thing = (uint32_t)(t - m->things);
        r.id = found.ticket;
        m->readers[m->nreaders++] = r;
        struct promise *p = promise_of(m, r.thing, holder);
        if (p != NULL) {
            p->open = false;
        }
        m->counts[7]++;
    }
    kvs_extents_cleanup(&extents);
}

static void step_release(struct model *m)
{
    if (m->nreaders == 0) {
        return;
    }
    uint32_t back = below(m, m->nreaders < 12 ? m->nreaders : 12);
    struct reader *r = &m->readers[m->nreaders - 1 - back];
    uint64_t session = below(m, 12) == 0 ? random_session(m) : r->session;
    bool held = r->open && r->deadline_ns > m->sim.now_ns && session == r->session;
    kvb_status_t status = kvs_core_release(m->core, m->sim.now_ns, r->id, session);
    check(m, status == (held ? KVB_OK : KVB_ERR_TICKET), "release: %d", status);
    if (session == r->session) {
        r->open = false;
    }
    m->counts[8] += held;
    m->counts[9] += !held;
}

static void step_exists(struct model *m)
{
    struct place at = random_place(m);
    uint32_t space = at.space;
    uint32_t lineage = at.lineage;
    struct kvs_core_where where = where_of(m, space, lineage);
    struct kvs_core_entry entries[100];
    uint32_t blocks[100];
    uint32_t parts[100];
    uint32_t n = 1 + below(m, 100);
    for (uint32_t i = 0; i < n; i++) {
        blocks[i] = below(m, BLOCKS);
        parts[i] = below(m, PARTS);
        entries[i] = (struct kvs_core_entry){.key = key_of(blocks[i], parts[i])};
    }
    bool hold = below(m, 2) == 0;
    struct kvs_core_holder holder = hold ? random_holder(m) : (struct kvs_core_holder){0};
    uint64_t deadline_ns = random_deadline(m);
    kvs_core_exists(m->core, m->sim.now_ns, &where, entries, n, holder, deadline_ns);
    for (uint32_t i = 0; i < n; i++) {
        const struct thing *t = find_visible(m, space, lineage, blocks[i], parts[i]);
        check(m, entries[i].status == (t != NULL ? KVB_OK : KVB_ERR_NOT_FOUND), "exists");
        check(m, t == NULL || entries[i].len == t->len, "exists: length");
        check(m, hold || !entries[i].held, "held without being asked");
        if (!entries[i].held) {
            continue;
        }
        uint32_t thing = (uint32_t)(t - m->things);
        struct promise *p = promise_of(m, thing, holder);
        if (p == NULL) {
            p = &m->promises[m->npromises++];
        }
        *p = (struct promise){
            .open = true, .thing = thing, .holder = holder, .deadline_ns = deadline_ns};
        m->counts[10]++;
    }
}

static void step_discard(struct model *m)
{
    struct kvs_core_holder holder = random_holder(m);
    bool all = below(m, 4) == 0;
    if (all) {
        kvs_core_discard_instance(m->core, holder.instance);
    } else {
        kvs_core_discard(m->core, holder);
    }
    for (uint32_t i = 0; i < m->npromises; i++) {
        struct promise *p = &m->promises[i];
        if (p->holder.instance == holder.instance && (all || p->holder.request == holder.request)) {
            p->open = false;
        }
    }
}

static void step_remove(struct model *m)
{
    struct place at = random_place(m);
    uint32_t space = at.space;
    uint32_t lineage = at.lineage;
    uint32_t block = at.block;
    uint32_t part = at.part;
    bool force = below(m, 2) == 0;
    struct kvs_core_where where = where_of(m, space, lineage);
    struct kvs_core_key key = key_of(block, part);
    struct thing *t = find_visible(m, space, lineage, block, part);
    bool busy = t != NULL && !force &&
                (is_read(m, t) || is_promised(m, t) || t->pinned_hard || t->pinned_soft);
    kvb_status_t status = kvs_core_remove(m->core, m->sim.now_ns, &where, &key, force);
    kvb_status_t wanted = t == NULL ? KVB_ERR_NOT_FOUND : busy ? KVB_ERR_BUSY : KVB_OK;
    check(m, status == wanted, "remove: %d, not %d", status, wanted);
    if (status == KVB_OK) {
        die(m, t);
    }
    learn(m, false);
}

static void step_pin(struct model *m)
{
    struct place at = random_place(m);
    uint32_t space = at.space;
    uint32_t lineage = at.lineage;
    uint32_t block = at.block;
    struct kvs_core_where where = where_of(m, space, lineage);
    struct kvs_core_key key = key_of(block, at.part);
    struct thing *t = find_visible(m, space, lineage, block, at.part);
    enum kvs_pin pin = (enum kvs_pin)below(m, 3);
    kvb_status_t status = kvs_core_pin(m->core, m->sim.now_ns, &where, &key, pin);
    check(m, status == (t == NULL ? KVB_ERR_NOT_FOUND : KVB_OK), "pin: %d", status);
    if (t != NULL) {
        t->pinned_hard = pin == KVS_PIN_HARD;
        t->pinned_soft = pin == KVS_PIN_SOFT;
    }
}

/* tenant: or TENANTS for all. */
static void model_clear(struct model *m, uint32_t tenant)
{
    for (uint32_t i = 0; i < m->nthings; i++) {
        struct thing *t = &m->things[i];
        if (tenant == TENANTS || t->space % TENANTS == tenant) {
            if (t->life == LIVE) {
                die(m, t);
            }
            t->cleared = true;
        }
    }
}

static void step_clear(struct model *m)
{
    uint32_t what = below(m, 10);
    if (what < 6) {
        uint32_t lineage = below(m, LINEAGES);
        kvs_core_retire(m->core, m->lineages[lineage]);
        for (uint32_t i = 0; i < m->nthings; i++) {
            struct thing *t = &m->things[i];
            if (t->lineage == lineage) {
                if (t->life == LIVE) {
                    die(m, t);
                }
                t->cleared = true;
            }
        }
        m->retired[lineage] = true;
    } else if (what < 9) {
        uint32_t tenant = below(m, TENANTS);
        kvs_core_remove_tenant(m->core, tenant);
        model_clear(m, tenant);
    } else {
        kvs_core_clear(m->core);
        model_clear(m, TENANTS);
    }
    learn(m, false);
}

/* A fresh lineage in the place of a retired one. */
static void step_join(struct model *m)
{
    for (uint32_t i = 0; i < LINEAGES; i++) {
        if (!m->retired[i]) {
            continue;
        }
        for (uint32_t k = 0; k < m->nthings; k++) {
            struct thing *t = &m->things[k];
            t->cleared = t->cleared || t->lineage == i;
        }
        m->lineages[i].id = kvb_id_draw(&m->sim.random);
        m->retired[i] = false;
        return;
    }
}

static void step_session(struct model *m)
{
    uint32_t i = below(m, SESSIONS);
    uint64_t id = m->sessions[i];
    if (id == 0) {
        m->sessions[i] = ++m->next_session;
        m->ended[i] = false;
        check(m, kvs_core_session_open(m->core, m->sessions[i]) == KVB_OK, "open");
        check(m, kvs_core_session_open(m->core, m->sessions[i]) == KVB_ERR_EXISTS, "open twice");
        return;
    }
    bool stopped = below(m, 2) == 0;
    if (stopped) {
        kvs_core_session_stopped(m->core, id);
        m->sessions[i] = 0;
    } else {
        kvs_core_session_end(m->core, id);
        m->ended[i] = true;
    }
    for (uint32_t k = 0; k < m->nreaders; k++) {
        if (m->readers[k].session == id) {
            m->readers[k].open = false;
        }
    }
    for (uint32_t k = 0; k < m->nthings; k++) {
        struct thing *t = &m->things[k];
        if (t->session == id && (t->life == ATTEMPT || t->life == QUARANTINED)) {
            t->life = stopped ? DEAD : QUARANTINED;
        }
    }
}

static void step_quota(struct model *m)
{
    uint32_t tenant = below(m, TENANTS);
    m->quota[tenant] = below(m, 2) == 0 ? UINT64_MAX : below(m, (uint32_t)m->share_bytes);
    check(m, kvs_core_set_quota(m->core, tenant, m->quota[tenant]) == KVB_OK, "quota");
}

static void step_time(struct model *m)
{
    m->sim.now_ns += below(m, 5);
    settle_deadlines(m);
}

static void step_reclaim(struct model *m)
{
    (void)kvs_core_reclaim(m->core, m->sim.now_ns, 1 + below(m, 20));
    learn(m, false);
}

/* After all is reclaimed every count must be the model's. */
static void step_settle(struct model *m)
{
    while (kvs_core_reclaim(m->core, m->sim.now_ns, 100)) {
    }
    struct kvs_core_stats s;
    kvs_core_stats(m->core, &s);
    uint64_t objects = 0;
    uint64_t value = 0;
    uint64_t attempts = 0;
    uint64_t tickets = 0;
    uint64_t holds = 0;
    bool quarantined = false;
    bool kept = false;
    for (uint32_t i = 0; i < m->nthings; i++) {
        const struct thing *t = &m->things[i];
        objects += visible(m, t);
        value += visible(m, t) ? t->len : 0;
        attempts += t->life == ATTEMPT;
        quarantined = quarantined || t->life == QUARANTINED;
        kept = kept || (t->life == DEAD && is_read(m, t));
    }
    for (uint32_t i = 0; i < m->nreaders; i++) {
        tickets += m->readers[i].open && m->readers[i].deadline_ns > m->sim.now_ns;
    }
    for (uint32_t i = 0; i < m->npromises; i++) {
        holds += m->promises[i].open && m->promises[i].deadline_ns > m->sim.now_ns;
    }
    check(m, s.objects == objects && s.value_bytes == value, "objects");
    check(m, s.attempts == attempts && s.tickets == tickets && s.holds == holds, "leases");
    check(m, (s.quarantined_bytes > 0) == quarantined, "quarantine");
    check(m, (s.retired_bytes > 0) == kept, "retired bytes at rest");
    check(m, s.live_bytes >= value || value == 0, "live bytes");
}

static const struct {
    void (*step)(struct model *m);
    uint32_t weight;
} steps[] = {
    {step_reserve, 30}, {step_commit, 26}, {step_revoke, 3},  {step_find, 12},
    {step_release, 10}, {step_exists, 6},  {step_discard, 3}, {step_remove, 3},
    {step_pin, 2},      {step_clear, 1},   {step_join, 1},    {step_session, 3},
    {step_quota, 1},    {step_time, 8},    {step_reclaim, 3}, {step_settle, 1},
};

static void random_step(struct model *m)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        all += steps[i].weight;
    }
    uint32_t pick = below(m, all);
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (pick < steps[i].weight) {
            steps[i].step(m);
            return;
        }
        pick -= steps[i].weight;
    }
}

/* Things that can never matter again make room for new ones in the model's lists. */
static void forget(struct model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->nreaders; i++) {
        if (m->readers[i].open && m->readers[i].deadline_ns > m->sim.now_ns) {
            m->readers[n++] = m->readers[i];
        }
    }
    m->nreaders = n;
    n = 0;
    for (uint32_t i = 0; i < m->npromises; i++) {
        if (m->promises[i].open && m->promises[i].deadline_ns > m->sim.now_ns) {
            m->promises[n++] = m->promises[i];
        }
    }
    m->npromises = n;
    uint32_t *moved = calloc(m->nthings + 1, sizeof *moved);
    n = 0;
    for (uint32_t i = 0; i < m->nthings; i++) {
        if (m->things[i].life == DEAD && !is_read(m, &m->things[i])) {
            free(m->things[i].extents.at);
            continue;
        }
        m->things[n] = m->things[i];
        moved[i + 1] = ++n;
    }
    m->nthings = n;
    for (uint64_t u = 0; u < m->share_bytes / UNIT; u++) {
        m->owner[u] = moved[m->owner[u]];
    }
    for (uint32_t i = 0; i < m->nreaders; i++) {
        m->readers[i].thing = moved[m->readers[i].thing + 1] - 1;
    }
    for (uint32_t i = 0; i < m->npromises; i++) {
        m->promises[i].thing = moved[m->promises[i].thing + 1] - 1;
    }
    free(moved);
}

/* A run that never came to these has shown nothing of them. */
static const char *const count_names[COUNTS] = {"evicted",  "no space", "quota",     "reserved",
                                                "fenced",   "exists",   "committed", "found",
                                                "released", "lost",     "held"};

static void run(uint64_t seed, uint64_t pages, uint64_t nsteps, uint64_t objects_max,
                uint64_t seen[COUNTS])
{
    struct model m = {.share_bytes = pages * KVS_CORE_PAGE,
                      .objects_max = objects_max == 0 ? UINT64_MAX : objects_max};
    sim_init(&m.sim, seed);
    m.owner = calloc(m.share_bytes / UNIT, sizeof *m.owner);
    m.things = calloc(THINGS, sizeof *m.things);
    m.readers = calloc(THINGS, sizeof *m.readers);
    m.promises = calloc(THINGS * 10, sizeof *m.promises);
    for (uint32_t i = 0; i < LINEAGES; i++) {
        m.lineages[i].id = kvb_id_draw(&m.sim.random);
    }
    for (uint32_t i = 0; i < TENANTS; i++) {
        m.quota[i] = UINT64_MAX;
    }
    struct kvs_core_config config = {.share_bytes = m.share_bytes, .objects_max = objects_max};
    cr_assert_eq(kvs_core_create(&config, &m.sim.random, &m.core), KVB_OK);
    for (m.step = 0; m.step < nsteps; m.step++) {
        random_step(&m);
        const char *wrong = kvs_core_validate(m.core);
        check(&m, wrong == NULL, "%s", wrong);
        struct kvs_core_stats s;
        kvs_core_stats(m.core, &s);
        check(&m,
              s.used_bytes ==
                  s.live_bytes + s.reserved_bytes + s.quarantined_bytes + s.retired_bytes,
              "used bytes");
        if (m.step % 500 == 499) {
            forget(&m);
        }
    }
    for (uint32_t i = 0; i < COUNTS; i++) {
        seen[i] += m.counts[i];
    }
    kvs_core_destroy(m.core);
    for (uint32_t i = 0; i < m.nthings; i++) {
        free(m.things[i].extents.at);
    }
    free(m.owner);
    free(m.things);
    free(m.readers);
    free(m.promises);
}

#define RUN(name, pages, nsteps, objects_max)                                                      \
    Test(core_model, name)                                                                         \
    {                                                                                              \
        uint64_t seen[COUNTS] = {0};                                                               \
        for (uint64_t i = 0; i < 4; i++) {                                                         \
            run(sim_seed(__LINE__ * 100) + i, pages, nsteps, objects_max, seen);                   \
        }                                                                                          \
        for (uint32_t i = 0; i < COUNTS; i++) {                                                    \
            if (i == 1 && (pages) > 30 && (objects_max) == 0) {                                    \
                continue;                                                                          \
            }                                                                                      \
            if (getenv("KVPLANE_VERBOSE") != NULL) {                                               \
                fprintf(stderr, #name " %s=%llu\n", count_names[i], (unsigned long long)seen[i]);  \
            }                                                                                      \
            cr_assert(seen[i] > 0, "never: %s", count_names[i]);                                   \
        }                                                                                          \
    }

RUN(holds_in_a_tiny_share, 8, 1500, 0)
RUN(holds_in_a_small_share, 20, 1500, 0)
RUN(holds_in_a_larger_share, 40, 1500, 0)
RUN(holds_with_few_records, 100, 1500, 16)
