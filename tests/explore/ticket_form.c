/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a shard, and of those who use it, counts for what can still happen, as a row of words.
 * Left out: handles, hash chains, free lists (a record is named by the order in which it is met),
 * sums (validate() proves them in every state), and what nobody can look at any more. Every order
 * that decides something is kept: of the eviction queue and its hand, of what waits for reclaim.
 */
#include "shard.h"
#include "tickets.h"

#include "base/assert.h"

#include <xxhash.h>

#include <string.h>

#define WORDS_MAX   512u
#define RECORDS_MAX 32u
#define END         UINT64_MAX /* of a list */

struct form {
    const struct world *world;
    const struct kvs_core *core;
    const struct form_options *options;
    uint8_t order[WHO]; /* who is named as whom, and the other way round: it is its own inverse */
    uint32_t turn;      /* the page that is named 0 */
    uint64_t words[WORDS_MAX];
    uint32_t nwords;
    uint32_t records[RECORDS_MAX];
    uint32_t nrecords;
};

static void add(struct form *form, uint64_t word)
{
    kvb_assert(form->nwords < WORDS_MAX);
    form->words[form->nwords++] = word;
}

/* True: it is met for the first time. */
static bool add_record(struct form *form, uint32_t handle)
{
    uint32_t i = 0;
    while (i < form->nrecords && form->records[i] != handle) {
        i++;
    }
    add(form, handle == 0 ? 0 : i + 1);
    if (handle == 0 || i < form->nrecords) {
        return false;
    }
    kvb_assert(i < RECORDS_MAX);
    form->records[form->nrecords++] = handle;
    return true;
}

static void add_time(struct form *form, uint64_t at_ns)
{
    uint64_t now_ns = form->world->now_ns;
    add(form, at_ns == KVB_NEVER ? KVB_NEVER : at_ns > now_ns ? at_ns - now_ns : 0);
}

static void add_lineage(struct form *form, struct kvb_lineage lineage)
{
    add(form, kvb_lineage_equal(lineage, form->world->lineages[1]));
}

static void add_page(struct form *form, uint64_t page)
{
    uint32_t n = form->core->space.npages;
    add(form, (page + n - form->turn) % n);
}

/* What a writer left in a page, or a checksum. */
static void add_mark(struct form *form, uint64_t mark)
{
    uint64_t who = mark >> 8;
    if (who >= 1 && who <= WHO) {
        who = form->order[who - 1] + 1;
    }
    add(form, who << 8 | (mark & 0xff));
}

static void add_scope(struct form *form, uint32_t handle)
{
    if (!add_record(form, handle)) {
        return;
    }
    const struct scope *scope = scope_at(form->core, handle);
    add_lineage(form, scope->lineage);
    add(form, (uint64_t)scope->refs << 3 | (uint64_t)scope->listed << 2 |
                  (uint64_t)scope->retired << 1 | scope_cleared(form->core, scope));
}

static void add_object(struct form *form, uint32_t handle)
{
    if (!add_record(form, handle)) {
        return;
    }
    const struct object *object = object_at(form->core, handle);
    struct kvs_plan plan;
    struct kvs_extents extents;
    kvs_object_plan(form->core, object, &plan);
    kvs_extents_init(&extents);
    kvb_status_t status =
        kvs_space_extents(&form->core->space, &plan, object->pieces, object->len, &extents);
    kvb_assert(status == KVB_OK);
    bool bytes = object->state == OBJECT_LIVE || object->state == OBJECT_DOOMED;
    add(form, (uint64_t)object->state << 16 | (uint64_t)object->flags << 8 | object->key[0]);
    add_mark(form, object->checksum);
    add_scope(form, object->scope);
    for (uint32_t i = 0; i < extents.n; i++) {
        for (uint64_t off = 0; off < extents.at[i].len; off += KVS_CORE_PAGE) {
            uint64_t page = (extents.at[i].offset + off) / KVS_CORE_PAGE;
            add_page(form, page);
            if (bytes) { /* else they are written, or nobody's, before anybody reads them */
                add_mark(form, form->world->share[page]);
            }
        }
    }
    kvs_extents_cleanup(&extents);
    for (uint32_t at = object->leases; at != 0; at = lease_at(form->core, at)->object_next) {
        const struct lease *lease = lease_at(form->core, at);
        if (lease->kind == LEASE_HOLD) {
            add_time(form, lease->deadline_ns);
        }
    }
    add(form, END);
}

static void add_session(struct form *form, uint32_t who)
{
    const struct kvs_core *core = form->core;
    uint32_t handle = kvs_session_find(core, who + 1);
    add(form, handle == 0 ? 0 : 1u + session_at(core, handle)->ended);
    for (uint32_t at = handle == 0 ? 0 : session_at(core, handle)->leases; at != 0;
         at = lease_at(core, at)->owner_next) {
        const struct lease *lease = lease_at(core, at);
        (void)add_record(form, at);
        add(form, lease->kind);
        add_time(form, lease->deadline_ns);
        add(form, form->options->serials ? lease->serial : 0);
        add_object(form, lease->object);
    }
    add(form, END);
}

static void add_scopes(struct form *form, const struct handles *list)
{
    for (uint32_t at = list->first; at != 0; at = scope_at(form->core, at)->next) {
        add_scope(form, at);
        for (uint32_t object = scope_at(form->core, at)->objects; object != 0;
             object = object_at(form->core, object)->scope_next) {
            add_object(form, object);
        }
        add(form, END);
    }
    add(form, END);
}

static void add_core(struct form *form)
{
    const struct kvs_core *core = form->core;
    const struct tenant *t = core->ntenants > 0 ? tenant_at(core, 0) : NULL;
    for (uint32_t i = 0; i < 2; i++) {
        add(form, kvs_lineage_retired(core, form->world->lineages[i]));
    }
    add(form, form->options->value > 1 ? core->space.hand : 0);
    add(form, form->options->serials ? core->next_serial : 0);
    if (t != NULL) {
        const struct queue *queue = &t->queues[0][QUEUE_PAGES];
        for (uint32_t at = queue->old; at != 0; at = object_at(core, at)->queue_next) {
            add_object(form, at);
        }
        add(form, END);
        (void)add_record(form, queue->hand);
        add(form, queue->taken);
        add_scopes(form, &t->cleared);
        add_scopes(form, &t->scopes);
    }
    for (uint32_t at = core->stopped.first; at != 0; at = object_at(core, at)->queue_next) {
        add_object(form, at);
    }
    add(form, END);
    for (uint32_t who = 0; who < WHO; who++) {
        add_session(form, form->order[who]);
    }
}

/* The attempt or ticket that is found by it, if there still is one. */
static void add_lease(struct form *form, enum lease_kind kind, uint64_t incarnation,
                      uint64_t serial, uint32_t who)
{
    (void)add_record(form, kvs_lease_find(form->core, kind, incarnation, serial, who + 1));
    add(form, form->options->serials ? serial : 0);
}

static void add_writer(struct form *form, uint32_t who)
{
    const struct world *world = form->world;
    const struct writer *w = &world->writers[who];
    bool whole = w->written == form->options->value;
    bool asks = w->at == WRITING || (w->at == ENDED && !w->again && (whole || w->may_write));
    add(form, (uint64_t)w->at << 8 | (uint64_t)world->ended[who] << 3 |
                  (uint64_t)world->stopped[who] << 2 | (uint64_t)w->may_write << 1 | asks);
    add(form, world->old_attempts[who].serial);
    if (w->at == IDLE) {
        return;
    }
    add_lineage(form, w->lineage);
    if (!asks && !w->may_write) {
        return;
    }
    add(form, w->written);
    add_time(form, w->deadline_ns);
    add_lease(form, LEASE_ATTEMPT, w->attempt.incarnation, w->attempt.serial, who);
    for (uint32_t i = 0; i < form->options->value; i++) {
        add_page(form, w->pages[i] - 1);
        if (i < w->written && w->at == WRITING) {
            add_mark(form, world->share[w->pages[i] - 1]);
        }
    }
}

static void add_reader(struct form *form)
{
    const struct world *world = form->world;
    const struct reader *r = &world->reader;
    add(form, (uint64_t)r->at << 8 | (uint64_t)world->ended[READER] << 2 |
                  (uint64_t)world->stopped[READER] << 1 | r->promised);
    add(form, world->old_ticket.serial);
    if (r->at == R_HELD || r->at == R_READING || r->at == R_RELEASED) {
        add_time(form, r->deadline_ns);
        add_lineage(form, r->lineage);
    }
    if (r->at == R_RELEASED) {
        add_lease(form, LEASE_TICKET, r->ticket.incarnation, r->ticket.serial, READER);
    }
    if (r->at != R_READING) {
        return;
    }
    add(form, r->got);
    add_lease(form, LEASE_TICKET, r->ticket.incarnation, r->ticket.serial, READER);
    add_mark(form, r->checksum);
    for (uint32_t i = 0; i < form->options->value; i++) {
        if (i < r->got) {
            add_mark(form, r->bytes[i]);
        } else {
            add_page(form, r->pages[i] - 1);
            add_mark(form, world->share[r->pages[i] - 1]);
        }
    }
}

/* swap: the two writers have changed places. */
static void make(struct form *form, const struct world *world, const struct form_options *options,
                 bool swap)
{
    form->world = world;
    form->core = world->core;
    form->options = options;
    form->nwords = 0;
    form->nrecords = 0;
    form->turn = options->value > 1 ? 0 : world->core->space.hand;
    for (uint32_t who = 0; who < WHO; who++) {
        form->order[who] = (uint8_t)(swap && who <= W2 ? W1 + W2 - who : who);
    }
    add(form, (uint64_t)world->died << 16 | (uint64_t)world->ndied << 8 |
                  (uint64_t)world->current << 5 | (uint64_t)world->retired << 4 |
                  (uint64_t)world->updated << 3 | (uint64_t)world->removed << 2 |
                  (uint64_t)world->late << 1 | world->closed);
    for (uint32_t i = 0; i < 4; i++) {
        add(form, world->visible[i / 2][i % 2]);
    }
    add_core(form);
    for (uint32_t who = 0; who < WRITERS; who++) {
        add_writer(form, form->order[who]);
    }
    add_reader(form);
}

void ticket_form_hash(const struct world *world, const struct form_options *options,
                      uint64_t hash_p[2])
{
    static struct form forms[2];
    const struct form *least = &forms[0];
    make(&forms[0], world, options, false);
    if (options->alike) {
        make(&forms[1], world, options, true);
        bool shorter = forms[1].nwords < forms[0].nwords;
        bool same = forms[1].nwords == forms[0].nwords;
        if (shorter || (same && memcmp(forms[1].words, forms[0].words,
                                       forms[0].nwords * sizeof(uint64_t)) < 0)) {
            least = &forms[1];
        }
    }
    XXH128_hash_t hash = XXH3_128bits(least->words, least->nwords * sizeof(uint64_t));
    hash_p[0] = hash.low64;
    hash_p[1] = hash.high64;
}
