/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of those who use one shard of the real store/core over a transport that moves
 * bytes by itself (DESIGN.md section 5): two writers of one key, a reader that may be slow, one
 * more put that wants the space, a reset, a weight update, a removal, the death of each side,
 * deadlines that pass, and upkeep. The share's bytes are the reference: each page says which put
 * wrote it last. A writer whose connection has ended may go on writing until it is stopped.
 *
 * In each state: a read that was released as valid delivered one put's bytes, of the key and the
 * lineage that were asked for, and all of them (P2); what is committed keeps its bytes; nothing is
 * found under a lineage that was retired (P1), nor what was not committed; the first commit stays;
 * what was promised is there; the shard's own sums hold. From each state: once everybody has gone,
 * no byte is used.
 *
 * usage: ticket_explorer [--depth N] [--states N] [--lens NAME] [--replay TRACE]
 */
#include "tickets.h"

#include "explore_main.h"
#include "heap.h"
#include "memory.h"
#include "search.h"
#include "shard.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TTL_NS 1000u

/* ---- memory of the shard, in the heap ---- */

#define SEGMENTS 8u
#define RECORDS  1024u /* bytes used of each segment: all that are ever made fit */
#define SMALL    1024u /* everything but the records: 256 buckets of a table */

static uint32_t nmemories; /* of the shard being made; its records are the first */
static char *records;      /* stay when the node dies: they are much to clear */

kvb_status_t kvs_memory_init(struct kvs_memory *memory, size_t max_bytes)
{
    memory->reserved = max_bytes;
    if (nmemories++ > 0) {
        memory->committed = SMALL;
        memory->base = calloc(1, SMALL);
        kvb_assert(memory->base != NULL);
        return KVB_OK;
    }
    memory->committed = SEGMENTS * (size_t)KVS_SEGMENT_BYTES;
    records = records != NULL ? records : calloc(1, memory->committed);
    kvb_assert(records != NULL);
    memory->base = records;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        char *segment = records + i * (size_t)KVS_SEGMENT_BYTES;
        memset(segment, 0, RECORDS);
        heap_hole(segment + RECORDS, KVS_SEGMENT_BYTES - RECORDS);
    }
    return KVB_OK;
}

void kvs_memory_cleanup(struct kvs_memory *memory)
{
    if (memory->base != records) {
        free(memory->base);
    }
    memory->base = NULL;
}

bool kvs_memory_grow(struct kvs_memory *memory, size_t bytes)
{
    return bytes <= memory->committed;
}

void kvs_memory_return(struct kvs_memory *memory, size_t offset, size_t len)
{
    memset(memory->base + offset, 0, len < RECORDS ? len : RECORDS);
}

/* ---- what is explored ---- */

struct lens {
    struct explore_lens base;
    uint32_t pages, value;              /* of the share, of each value */
    bool second, filler, reset, update; /* who is there, beside a writer and a reader */
    bool remove, hold, late;            /* late: deadlines pass */
    bool revokes, forges;               /* forges: attempts and tickets of others are tried */
    uint8_t deaths;                     /* bits: DIES_*; how many of them: */
    uint8_t ndeaths;
};
enum { DIES_WRITER = 1, DIES_READER = 2, DIES_NODE = 4 };

#define LENS(name_, depth_) .base = {.name = (name_), .depth = (depth_)}
static const struct lens lenses[] = {
    {LENS("torn", 0), .forges = true, .pages = 4, .value = 2, .second = true, .filler = true,
     .late = true},
    {LENS("reset", 0), .pages = 6, .value = 2, .second = true, .reset = true, .update = true,
     .remove = true},
    {LENS("deaths", 0), .forges = true, .pages = 2, .value = 2, .filler = true,
     .deaths = DIES_WRITER | DIES_READER, .ndeaths = 2, .revokes = true, .late = true},
    {LENS("node", 0), .forges = true, .pages = 4, .value = 2, .second = true,
     .deaths = DIES_NODE | DIES_WRITER, .ndeaths = 2},
    {LENS("held", 0), .pages = 4, .value = 2, .filler = true, .hold = true, .late = true},
    {LENS("evict", 0), .pages = 2, .value = 1, .second = true, .filler = true, .update = true},
    /* Everybody at once, each once, and all deadlines may pass: values of one page, and of two. A
     * writer and a reader die, or the node, or one of the two. */
    {LENS("all", 0), .pages = 2, .value = 1, .second = true, .filler = true, .reset = true,
     .update = true, .deaths = DIES_WRITER | DIES_READER, .ndeaths = 2, .late = true},
    {LENS("all-node", 0), .pages = 2, .value = 1, .second = true, .filler = true, .reset = true,
     .update = true, .deaths = DIES_NODE, .ndeaths = 1, .late = true},
    {LENS("all-two", 0), .pages = 4, .value = 2, .second = true, .filler = true, .reset = true,
     .update = true, .deaths = DIES_WRITER | DIES_READER, .ndeaths = 1, .late = true},
};
#define NLENSES (sizeof lenses / sizeof lenses[0])
static const struct lens *lens;

static const char *const who_texts[WHO] = {"writer 1", "writer 2", "another put", "the reader"};

static struct world *world;

static void draw(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    for (size_t i = 0; i < len; i += sizeof(uint64_t)) {
        uint64_t word = heap_draw();
        memcpy((char *)buf + i, &word, len - i < sizeof word ? len - i : sizeof word);
    }
}
static const struct kvb_random drawn = {.fill = draw};

static uint64_t mark(uint32_t writer, uint32_t page)
{
    return (uint64_t)(writer + 1) << 8 | page;
}

static uint32_t lineage_index(struct kvb_lineage lineage)
{
    return kvb_lineage_equal(lineage, world->lineages[1]);
}

static struct kvs_core_where where_of(struct kvb_lineage lineage)
{
    return (struct kvs_core_where){.lineage = lineage};
}

/* The writers put one key, the filler another. */
static struct kvs_core_key key_of(uint32_t who)
{
    static const uint8_t names[2] = {'a', 'b'};
    return (struct kvs_core_key){.block = {.data = &names[who == FILLER], .len = 1}};
}

static void keep_pages(const struct kvs_extents *extents, uint64_t pages[VALUE_PAGES])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < extents->n; i++) {
        for (uint64_t off = 0; off < extents->at[i].len; off += KVS_CORE_PAGE) {
            kvb_assert(n < lens->value);
            pages[n++] = (extents->at[i].offset + off) / KVS_CORE_PAGE + 1;
        }
    }
    kvb_assert(n == lens->value);
}

static uint32_t nevicted; /* in the present event */

/* Told by the shard. */
static void on_change(void *arg, const struct kvs_core_change *change)
{
    (void)arg;
    nevicted += change->change == KVS_CHANGE_EVICTED;
    uint32_t key = change->key.block.data[0] == 'b';
    if (change->change != KVS_CHANGE_STORED) {
        world->visible[lineage_index(change->lineage)][key] = false;
    }
}

static void node_start(void)
{
    static const struct kvs_core_config sizes = {
        .objects_max = 8, .leases_max = 8, .retired_max = 2};
    struct kvs_core_config config = sizes;
    config.share_bytes = lens->pages * (uint64_t)KVS_CORE_PAGE;
    config.hold_bytes_max = config.share_bytes;
    nmemories = 0;
    kvb_status_t status = kvs_core_create(&config, &drawn, &world->core);
    kvb_assert(status == KVB_OK);
    kvs_core_on_change(world->core, on_change, NULL);
    for (uint32_t who = 0; who < WHO; who++) {
        status = kvs_core_session_open(world->core, who + 1);
        kvb_assert(status == KVB_OK);
    }
}

/* ---- events ---- */

enum event {
    EV_RESERVE, /* writer */
    EV_WRITE,
    EV_COMMIT,
    EV_REVOKE, /* writer; 1: it has stopped */
    EV_HOLD,
    EV_FIND,
    EV_READ,
    EV_RELEASE,
    EV_RESET,
    EV_UPDATE,
    EV_REMOVE,
    EV_LATE,
    EV_DIE,  /* whose connection ends */
    EV_STOP, /* and can write no more */
    EV_CRASH,
    EV_FORGE,
    EV_RECLAIM,
    EV_CLOSE
};
#define CHOICE(event, who, more) ((uint16_t)((event) << 8 | (who) << 4 | (more)))

static bool cleared(uint32_t lineage)
{
    return lineage == 0 && world->retired;
}

static void reserve(uint32_t who)
{
    struct writer *w = &world->writers[who];
    struct kvs_core_where where = where_of(world->lineages[world->current]);
    struct kvs_core_key key = key_of(who);
    struct kvs_core_put put = {.len = lens->value * (uint64_t)KVS_CORE_PAGE,
                               .session = who + 1,
                               .deadline_ns = world->now_ns + TTL_NS};
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    w->lineage = where.lineage;
    w->deadline_ns = put.deadline_ns;
    nevicted = 0;
    kvb_status_t status =
        kvs_core_reserve(world->core, world->now_ns, &where, &key, &put, &w->attempt, &extents);
    if (status == KVB_OK) {
        w->at = WRITING;
        w->may_write = true;
        keep_pages(&extents, w->pages);
        if (cleared(lineage_index(where.lineage))) {
            search_fail("P1: space is given to a put under a lineage that was retired");
        }
    } else if (status != KVB_ERR_AGAIN) {
        w->at = ENDED;
        if (nevicted > 0) {
            search_fail("a put that fails evicts");
        }
    }
    kvs_extents_cleanup(&extents);
}

static void write_page(uint32_t who)
{
    struct writer *w = &world->writers[who];
    world->share[w->pages[w->written] - 1] = mark(who, w->written);
    w->written++;
}

static void commit(uint32_t who)
{
    struct writer *w = &world->writers[who];
    uint32_t lineage = lineage_index(w->lineage);
    uint32_t key = who == FILLER;
    bool there = world->visible[lineage][key];
    bool overdue = w->deadline_ns <= world->now_ns;
    kvb_status_t status =
        kvs_core_commit(world->core, world->now_ns, w->attempt, who + 1, mark(who, 0));
    if (w->at == ENDED && status == KVB_OK) {
        search_fail("P2: an attempt that was over is committed");
    }
    w->again = w->at == ENDED;
    w->at = ENDED;
    if (status == KVB_ERR_TIMEOUT) {
        return; /* in quarantine: it may go on writing */
    }
    w->may_write = w->may_write && status == KVB_ERR_NOT_FOUND && world->ended[who];
    if (status != KVB_OK) {
        return;
    }
    if (there) {
        search_fail("P2: %s commits a key that is committed", who_texts[who]);
    }
    if (cleared(lineage)) {
        search_fail("P1: %s commits under a lineage that was retired", who_texts[who]);
    }
    if (overdue) {
        search_fail("P2: %s commits after its deadline", who_texts[who]);
    }
    world->visible[lineage][key] = true;
}

static void hold(void)
{
    struct reader *r = &world->reader;
    struct kvs_core_where where = where_of(world->lineages[world->current]);
    struct kvs_core_entry entry = {.key = key_of(W1)};
    kvs_core_exists(world->core, world->now_ns, &where, &entry, 1,
                    (struct kvs_core_holder){.instance = 1, .request = 1}, world->now_ns + TTL_NS);
    r->at = R_HELD;
    r->promised = entry.status == KVB_OK && entry.held;
    r->deadline_ns = world->now_ns + TTL_NS;
    r->lineage = where.lineage;
}

static void find(void)
{
    struct reader *r = &world->reader;
    struct kvb_lineage lineage = r->at == R_HELD ? r->lineage : world->lineages[world->current];
    struct kvs_core_where where = where_of(lineage);
    struct kvs_core_key key = key_of(W1);
    struct kvs_core_found found;
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    kvb_status_t status =
        kvs_core_find(world->core, world->now_ns, &where, &key, READER + 1, world->now_ns + TTL_NS,
                      (struct kvs_core_holder){.instance = 1, .request = 1}, &found, &extents);
    uint32_t index = lineage_index(lineage);
    bool kept = world->visible[index][0] && !cleared(index);
    r->at = R_DONE;
    if (status == KVB_OK && !kept) {
        search_fail("P1: what is not there is found");
    }
    if (status != KVB_OK && kept && status != KVB_ERR_BAD_STATE) {
        search_fail("what is there is not found");
    }
    if (status != KVB_OK && r->promised && !cleared(index) && !world->removed &&
        r->deadline_ns > world->now_ns && status != KVB_ERR_BAD_STATE) {
        search_fail("what was promised is gone");
    }
    if (status == KVB_OK) {
        r->at = R_READING;
        r->deadline_ns = world->now_ns + TTL_NS;
        r->lineage = lineage;
        r->ticket = found.ticket;
        r->checksum = found.checksum;
        keep_pages(&extents, r->pages);
    }
    r->promised = false;
    kvs_extents_cleanup(&extents);
    struct kvs_core_stats stats;
    kvs_core_stats(world->core, &stats);
    if (status == KVB_OK && stats.holds > 0) {
        search_fail("P5: what was promised is got, and is held on");
    }
}

static void read_page(void)
{
    struct reader *r = &world->reader;
    r->bytes[r->got] = world->share[r->pages[r->got] - 1];
    r->got++;
}

static void release(void)
{
    struct reader *r = &world->reader;
    kvb_status_t status = kvs_core_release(world->core, world->now_ns, r->ticket, READER + 1);
    if (status == KVB_OK && r->at == R_RELEASED) {
        search_fail("P2: a ticket is valid twice");
    }
    if (status == KVB_OK && r->deadline_ns <= world->now_ns) {
        search_fail("P2: a ticket is valid after its deadline");
    }
    r->at = r->at == R_READING && lens->revokes ? R_RELEASED : R_DONE;
    for (uint32_t i = 0; i < lens->value && status == KVB_OK && r->got == lens->value; i++) {
        uint32_t writer = (uint32_t)(r->bytes[0] >> 8) - 1;
        if (r->bytes[0] != r->checksum || r->bytes[i] != mark(writer, i)) {
            search_fail("P2: a get that is valid is torn: page %u was written by put %u of page %u",
                        i, (uint32_t)(r->bytes[i] >> 8), (uint32_t)r->bytes[i] & 0xff);
        } else if (writer >= WRITERS || writer == FILLER) {
            search_fail("P2: a get that is valid is of another key");
        } else if (!kvb_lineage_equal(world->writers[writer].lineage, r->lineage)) {
            search_fail("P1: a get that is valid is of another lineage");
        }
    }
    memset(r->bytes, 0, sizeof r->bytes);
}

static void died(uint8_t which)
{
    world->died |= which;
    world->ndied++;
}

static bool can_die(uint8_t which)
{
    return (lens->deaths & which) != 0 && (world->died & which) == 0 &&
           world->ndied < lens->ndeaths;
}

static void die(uint32_t who)
{
    kvs_core_session_end(world->core, who + 1);
    world->ended[who] = true;
    died(who == READER ? DIES_READER : DIES_WRITER);
}

static void stop(uint32_t who)
{
    kvs_core_session_stopped(world->core, who + 1);
    world->stopped[who] = true;
    if (who < WRITERS) {
        world->writers[who].may_write = false;
    }
}

/* Somebody tries what was given to others, and everybody what a life before gave: it is worth
 * nothing, and nothing changes. */
static void try_attempt(struct kvs_attempt attempt, uint64_t session, const char *whose)
{
    if (attempt.serial != 0 &&
        (kvs_core_commit(world->core, world->now_ns, attempt, session, 0) != KVB_ERR_NOT_FOUND ||
         kvs_core_revoke(world->core, world->now_ns, attempt, session, true) !=
             KVB_ERR_NOT_FOUND)) {
        search_fail("P2: an attempt of %s is taken", whose);
    }
}

static void try_ticket(struct kvs_ticket ticket, uint64_t session, const char *whose)
{
    if (ticket.serial != 0 &&
        kvs_core_release(world->core, world->now_ns, ticket, session) != KVB_ERR_TICKET) {
        search_fail("P2: a ticket of %s is taken", whose);
    }
}

static void forge(void)
{
    for (uint32_t who = 0; who < WRITERS; who++) {
        uint32_t other = (who + 1) % WRITERS;
        try_attempt(world->writers[who].attempt, other + 1, "another session");
        try_attempt(world->old_attempts[who], who + 1, "another life");
    }
    try_ticket(world->reader.ticket, W1 + 1, "another session");
    try_ticket(world->old_ticket, READER + 1, "another life");
}

/* The node's process dies and starts anew: its memory is empty, connections are made anew, and the
 * ids of their sessions may be those of before. */
static void crash(void)
{
    kvs_core_destroy(world->core);
    died(DIES_NODE);
    memset(world->visible, 0, sizeof world->visible);
    memset(world->share, 0, sizeof world->share);
    for (uint32_t who = 0; who < WRITERS; who++) {
        struct writer *w = &world->writers[who];
        w->may_write = false;
        if (w->at == WRITING) { /* and begins anew, too */
            world->old_attempts[who] = w->attempt;
            *w = (struct writer){.at = IDLE};
        }
    }
    world->reader.promised = false;
    if (world->reader.at == R_READING) {
        world->old_ticket = world->reader.ticket;
        world->reader = (struct reader){.at = R_IDLE};
    }
    world->retired = false; /* a node that has not heard yet wastes space, never correctness */
    memset(world->ended, 0, sizeof world->ended);
    memset(world->stopped, 0, sizeof world->stopped);
    node_start();
}

static void close_all(void)
{
    for (uint32_t who = 0; who < WHO; who++) {
        kvs_core_session_stopped(world->core, who + 1);
        world->ended[who] = world->stopped[who] = true;
    }
    kvs_core_discard_instance(world->core, 1);
    kvs_core_clear(world->core);
    while (kvs_core_reclaim(world->core, world->now_ns, 16)) {
    }
    memset(world->visible, 0, sizeof world->visible);
    world->closed = true;
    struct kvs_core_stats stats;
    kvs_core_stats(world->core, &stats);
    if (stats.used_bytes != 0 || stats.tickets != 0 || stats.attempts != 0 || stats.holds != 0) {
        search_fail("everybody is gone, and %llu bytes are used, by %llu attempts, %llu tickets, "
                    "%llu holds",
                    (unsigned long long)stats.used_bytes, (unsigned long long)stats.attempts,
                    (unsigned long long)stats.tickets, (unsigned long long)stats.holds);
    }
}

static void apply(uint16_t choice)
{
    uint32_t who = (choice >> 4) & 15;
    uint32_t more = choice & 15;
    heap_enter();
    switch ((enum event)(choice >> 8)) {
    case EV_RESERVE:
        reserve(who);
        break;
    case EV_WRITE:
        write_page(who);
        break;
    case EV_COMMIT:
        commit(who);
        break;
    case EV_REVOKE:
        (void)!kvs_core_revoke(world->core, world->now_ns, world->writers[who].attempt, who + 1,
                               more == 1);
        world->writers[who].at = ENDED;
        world->writers[who].again = true;
        world->writers[who].may_write = world->writers[who].may_write && more == 0;
        break;
    case EV_HOLD:
        hold();
        break;
    case EV_FIND:
        find();
        break;
    case EV_READ:
        read_page();
        break;
    case EV_RELEASE:
        release();
        break;
    case EV_RESET:
        world->retired = true;
        kvs_core_retire(world->core, world->lineages[0]);
        break;
    case EV_UPDATE:
        world->updated = true;
        world->current = 1;
        break;
    case EV_REMOVE: {
        struct kvs_core_where where = where_of(world->lineages[0]);
        struct kvs_core_key key = key_of(W1);
        world->removed = true;
        (void)!kvs_core_remove(world->core, world->now_ns, &where, &key, true);
        break;
    }
    case EV_LATE:
        world->late = true;
        world->now_ns += 2 * TTL_NS;
        break;
    case EV_DIE:
        die(who);
        break;
    case EV_STOP:
        stop(who);
        break;
    case EV_CRASH:
        crash();
        break;
    case EV_FORGE:
        forge();
        break;
    case EV_RECLAIM:
        (void)kvs_core_reclaim(world->core, world->now_ns, 16);
        if (kvs_core_next_deadline_ns(world->core) <= world->now_ns) {
            search_fail("P5: what is due does not end");
        }
        break;
    case EV_CLOSE:
        close_all();
        break;
    }
    struct kvs_core_stats *stats = &world->core->stats; /* history */
    stats->evicted = stats->reclaimed = stats->fenced = stats->tickets_lost = 0;
    heap_leave();
}

static uint32_t writer_choices(uint32_t who, uint16_t *out)
{
    const struct writer *w = &world->writers[who];
    uint32_t n = 0;
    if (w->at == IDLE && !world->ended[who]) {
        out[n++] = CHOICE(EV_RESERVE, who, 0);
    }
    /* Also after its attempt is over and its connection has ended: until it is stopped. */
    if (w->may_write && w->written < lens->value) {
        out[n++] = CHOICE(EV_WRITE, who, 0);
    }
    if (w->at == WRITING && w->written == lens->value) {
        out[n++] = CHOICE(EV_COMMIT, who, 0);
    }
    if (w->at == WRITING && lens->revokes && !world->ended[who]) {
        out[n++] = CHOICE(EV_REVOKE, who, 0);
        out[n++] = CHOICE(EV_REVOKE, who, 1);
    }
    if (w->at == ENDED && w->written == lens->value && !w->again) {
        out[n++] = CHOICE(EV_COMMIT, who, 0);
    }
    if (who <= W2 && can_die(DIES_WRITER) && w->at != IDLE) {
        out[n++] = CHOICE(EV_DIE, who, 0);
    }
    if (world->ended[who] && !world->stopped[who]) {
        out[n++] = CHOICE(EV_STOP, who, 0);
    }
    return n;
}

static uint32_t reader_choices(uint16_t *out)
{
    const struct reader *r = &world->reader;
    uint32_t n = 0;
    if (r->at == R_IDLE && lens->hold) {
        out[n++] = CHOICE(EV_HOLD, READER, 0);
    }
    if (r->at == R_IDLE || r->at == R_HELD) {
        out[n++] = CHOICE(EV_FIND, READER, 0);
    }
    if (r->at == R_READING && r->got < lens->value) {
        out[n++] = CHOICE(EV_READ, READER, 0);
    }
    if ((r->at == R_READING && r->got == lens->value) || r->at == R_RELEASED) {
        out[n++] = CHOICE(EV_RELEASE, READER, 0);
    }
    if (can_die(DIES_READER) && r->at == R_READING) {
        out[n++] = CHOICE(EV_DIE, READER, 0);
    }
    if (world->ended[READER] && !world->stopped[READER]) {
        out[n++] = CHOICE(EV_STOP, READER, 0);
    }
    return n;
}

static uint32_t choices(uint16_t out[SEARCH_CHOICES_MAX])
{
    uint32_t n = 0;
    if (world->closed) {
        return 0;
    }
    for (uint32_t who = 0; who < WRITERS; who++) {
        if (who == W1 || (who == W2 && lens->second) || (who == FILLER && lens->filler)) {
            n += writer_choices(who, out + n);
        }
    }
    n += reader_choices(out + n);
    if (lens->reset && !world->retired && (world->died & DIES_NODE) == 0) {
        out[n++] = CHOICE(EV_RESET, 0, 0);
    }
    if (lens->update && !world->updated) {
        out[n++] = CHOICE(EV_UPDATE, 0, 0);
    }
    if (lens->remove && !world->removed) {
        out[n++] = CHOICE(EV_REMOVE, 0, 0);
    }
    if (lens->late && !world->late) {
        out[n++] = CHOICE(EV_LATE, 0, 0);
    }
    if (can_die(DIES_NODE)) {
        out[n++] = CHOICE(EV_CRASH, 0, 0);
    }
    if (lens->forges) {
        out[n++] = CHOICE(EV_FORGE, 0, 0);
    }
    if (kvs_core_next_deadline_ns(world->core) <= world->now_ns || world->retired ||
        world->core->stopped.first != 0) {
        out[n++] = CHOICE(EV_RECLAIM, 0, 0);
    }
    return n;
}

static void describe(uint16_t choice, char *out, size_t cap)
{
    static const char *const texts[] = {
        [EV_RESERVE] = "reserves",
        [EV_WRITE] = "writes a page",
        [EV_COMMIT] = "commits",
        [EV_REVOKE] = "revokes",
        [EV_HOLD] = "looks up, and is promised what is there",
        [EV_FIND] = "finds",
        [EV_READ] = "reads a page",
        [EV_RELEASE] = "releases",
        [EV_RESET] = "the lineage is retired",
        [EV_UPDATE] = "the weights change: another lineage",
        [EV_REMOVE] = "the key is removed",
        [EV_LATE] = "all deadlines pass",
        [EV_DIE] = "loses its connection",
        [EV_STOP] = "is stopped",
        [EV_CRASH] = "the node dies and starts anew",
        [EV_FORGE] = "attempts and tickets of others, and of another life, are tried",
        [EV_RECLAIM] = "upkeep",
        [EV_CLOSE] = "everybody is gone",
    };
    uint32_t event = choice >> 8;
    uint32_t who = (choice >> 4) & 15;
    bool nobody = (event >= EV_RESET && event <= EV_LATE) || event >= EV_CRASH;
    snprintf(out, cap, "%s%s%s%s", nobody || who >= WHO ? "" : who_texts[who], nobody ? "" : " ",
             event < sizeof texts / sizeof texts[0] ? texts[event] : "?",
             event == EV_REVOKE && (choice & 15) == 1 ? ", and writes no more" : "");
}

/* ---- what must be so ---- */

/* What one may write, or reads with a ticket that still holds, is nobody else's. */
static void judge(void)
{
    const char *broken = kvs_core_validate(world->core);
    if (broken != NULL) {
        search_fail("the shard's sums: %s", broken);
    }
    for (uint32_t a = 0; a < WRITERS; a++) {
        for (uint32_t b = 0; b < a; b++) {
            const struct writer *one = &world->writers[a];
            const struct writer *other = &world->writers[b];
            for (uint32_t i = 0; i < lens->value * lens->value; i++) {
                if (one->may_write && other->may_write &&
                    one->pages[i / lens->value] == other->pages[i % lens->value]) {
                    search_fail("P2: %s and %s may both write page %llu", who_texts[b],
                                who_texts[a], (unsigned long long)one->pages[i / lens->value] - 1);
                }
            }
        }
    }
}

static const char *way_text(uint32_t way)
{
    (void)way;
    return "everybody goes";
}

static bool rest(uint32_t way)
{
    (void)way;
    return world->closed;
}

static uint16_t follow(uint32_t way)
{
    (void)way;
    return CHOICE(EV_CLOSE, 0, 0);
}

static void hash(uint64_t hash_p[2])
{
    const struct form_options options = {
        .value = lens->value, .alike = lens->second, .serials = (lens->deaths & DIES_NODE) != 0};
    ticket_form_hash(world, &options, hash_p);
}

static void exact(uint64_t hash_p[2])
{
    const void *roots[] = {world};
    heap_hash(roots, 1, NULL, 0, world->now_ns, hash_p);
}

static void create(const struct explore_lens *chosen)
{
    lens = (const struct lens *)(const void *)chosen; /* it begins with it */
    heap_clear();
    heap_enter();
    records = NULL;
    world = calloc(1, sizeof *world);
    kvb_assert(world != NULL);
    world->now_ns = HEAP_TIME_BASE;
    world->lineages[0].id.hi = heap_draw();
    world->lineages[1].id.hi = heap_draw();
    node_start();
    heap_leave();
    heap_first();
}

static const struct search_model model = {
    .begin = heap_begin,
    .choices = choices,
    .apply = apply,
    .judge = judge,
    .hash = hash,
    .exact = exact,
    .describe = describe,
    .save = heap_mark,
    .load = heap_back,
    .nways = 1,
    .follow = follow,
    .rest = rest,
    .way_text = way_text,
};

const struct explore explore = {
    .model = &model,
    .lenses = &lenses[0].base,
    .lens_bytes = sizeof lenses[0],
    .nlenses = NLENSES,
    .create = create,
};
