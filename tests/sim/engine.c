/* SPDX-License-Identifier: Apache-2.0 */
#include "actors.h"
#include "wire.h"

#include "base/assert.h"
#include "base/link.h"
#include "base/list.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * An engine as api/kvplane.h wants it, speaking the link itself. What it puts is made from (tenant,
 * key, part, weights), the weights being a number that only engines know: so each byte that it gets
 * tells under which weights it was computed, and whether it is whole. It keeps the pages that it
 * has given up, filled with a pattern, and looks whether anything of theirs has changed.
 */
#define BLOCK      768u /* bytes; no power of two: blocks share pages */
#define BLOCKS     6u   /* of a request, at most */
#define REQUESTS   5u
#define PROMPTS    12u
#define KV_LEN     32768u
#define WEIGHT_LEN 4096u
#define POISON     0xdb
#define PENDING    64

_Static_assert(BLOCK *BLOCKS *REQUESTS <= KV_LEN, "slots fit");

struct sim_counts sim_counts;
struct sim_resets sim_resets[SIM_ENGINES_MAX];
struct sim_shares sim_shares[SIM_ENGINES_MAX];
static struct sim_engine *engines[SIM_ENGINES_MAX]; /* the last of each number */

enum tag { KV, WEIGHTS, TAGS };
static const char *const tag_names[TAGS] = {"kv_cache", "weights"};

struct memory {
    int fd; /* -1: not mapped */
    uint8_t *at;
    size_t len;
    uint64_t generation;
    bool aside;   /* offloaded */
    uint8_t *old; /* what was given up last, still mapped here; NULL: nothing */
};

struct rank {
    struct sim_engine *engine;
    uint32_t index;
    struct sim_wire *wire;
    bool attached;
    uint64_t last_seq;
    struct kvb_link_lineage lineage; /* acknowledged */
    bool weights_written;
    uint64_t weights;
    struct memory memories[TAGS];
    struct kvb_timer connect;
};

enum stage { FREE, LOOKUP, LOAD, COMPUTE, COMPUTED, STORE };

struct request {
    struct sim_engine *engine;
    enum stage stage;
    uint64_t id;
    uint32_t prompt, nblocks, hits;
    struct kvb_token token; /* when it began */
    uint64_t weights[SIM_RANKS_MAX];
    uint64_t seqs[SIM_RANKS_MAX]; /* what it waits for; 0: nothing */
    uint64_t
        reset_ns[SIM_RANKS_MAX]; /* when the last reset was asked for that was over as it began */
    uint32_t good;               /* blocks that are there */
    bool aborted;
    struct kvb_timer compute;
};

/* A call of the daemon whose answer waits. */
struct answer {
    struct kvb_list link; /* pauses only */
    struct kvb_timer timer;
    struct rank *rank;
    struct sim_wire *wire;
    uint16_t type;
    uint64_t seq;
    enum kvb_pause_mode mode;
    kvb_status_t status;
    struct kvb_writer writer;
};

struct sim_engine {
    struct sim_process *process;
    uint32_t number, nranks;
    char instance[KVB_NAME_MAX], tenant[KVB_NAME_MAX];
    struct rank ranks[SIM_RANKS_MAX];
    struct request requests[REQUESTS];
    uint64_t last_request;
    bool paused;
    enum kvb_pause_mode pause_mode;
    bool updating;
    struct kvb_list pauses;
    struct kvb_timer tick;
    uint32_t misbehaves;
};

/* ---- what a block holds ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xff51afd7ed558ccdull;
    return h ^ (h >> 32);
}

/* made_ns: when, in its first bytes and in all the others. */
static void content(const char *tenant, uint32_t prompt, uint32_t block, uint32_t part,
                    uint64_t weights, uint64_t made_ns, uint8_t out[BLOCK])
{
    uint64_t h = 1469598103934665603ull;
    for (const char *c = tenant; *c != '\0'; c++) {
        h = mix(h, (uint8_t)*c);
    }
    h = mix(mix(mix(mix(mix(h, prompt + 1), block + 1), part + 1), weights), made_ns);
    memcpy(out, &made_ns, sizeof made_ns);
    for (uint32_t i = sizeof made_ns; i < BLOCK; i++) {
        h = mix(h, i + 1);
        out[i] = (uint8_t)(h >> 17);
    }
}

/* For the story: whose bytes are these? */
static void tell_origin(const struct sim_engine *engine, const struct request *request,
                        uint32_t block, uint32_t part, const uint8_t *bytes, char *out, size_t cap)
{
    uint8_t want[BLOCK];
    uint64_t made_ns;
    uint32_t n = 0;
    memcpy(&made_ns, bytes, sizeof made_ns);
    for (uint64_t weights = 1; weights < 400; weights++) {
        content(engine->tenant, request->prompt, block, part, weights, made_ns, want);
        if (memcmp(want, bytes, BLOCK) == 0) {
            (void)snprintf(out, cap, "STALE: computed by weights %llu",
                           (unsigned long long)weights);
            return;
        }
    }
    for (uint32_t i = 0; i < BLOCK; i++) {
        n += bytes[i] == POISON;
    }
    (void)snprintf(out, cap, "TORN: of no weights; %u of %u bytes are of released pages", n, BLOCK);
}

/* ---- memory ---- */

static void check_old(const struct sim_engine *engine, const struct memory *memory)
{
    for (size_t i = 0; memory->old != NULL && i < memory->len; i++) {
        if (memory->old[i] != POISON) {
            sim_fail("P3: byte %zu of pages that %s has given up was written", i, engine->instance);
        }
    }
}

static void unmap(const struct sim_engine *engine, struct memory *memory)
{
    if (memory->fd < 0) {
        return;
    }
    check_old(engine, memory);
    if (memory->old != NULL) {
        (void)munmap(memory->old, memory->len);
    }
    memset(memory->at, POISON, memory->len);
    memory->old = memory->at;
    memory->at = NULL;
    (void)close(memory->fd);
    memory->fd = -1;
}

static void map(struct memory *memory)
{
    memory->generation++;
    memory->aside = false;
    if (memory->fd >= 0) {
        return;
    }
    memory->fd = memfd_create("sim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory->fd < 0 || ftruncate(memory->fd, (off_t)memory->len) != 0 ||
        fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        sim_fail("no memory for an engine");
    }
    memory->at = mmap(NULL, memory->len, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    kvb_assert(memory->at != MAP_FAILED);
}

static uint8_t *slot(struct rank *rank, const struct request *request, uint32_t block)
{
    size_t which = (size_t)(request - rank->engine->requests) * BLOCKS + block;
    return rank->memories[KV].at + which * BLOCK;
}

/* ---- sending ---- */

static uint64_t send(struct rank *rank, uint16_t type, struct kvb_writer *writer, int fd)
{
    uint64_t seq = ++rank->last_seq;
    sim_wire_send(rank->wire, type, 0, seq, writer, fd);
    return seq;
}

static void register_tag(struct rank *rank, enum tag tag)
{
    struct memory *memory = &rank->memories[tag];
    struct kvb_link_region region = {
        .region = tag, .len = memory->len, .generation = memory->generation};
    (void)snprintf(region.tag, sizeof region.tag, "%s", tag_names[tag]);
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1 << 16);
    kvb_link_region_pack(&writer, &region);
    (void)send(rank, KVB_LINK_REGISTER_REGION, &writer, fcntl(memory->fd, F_DUPFD_CLOEXEC, 0));
}

static void fill_state(const struct rank *rank, struct kvb_engine_state *state)
{
    const struct sim_engine *engine = rank->engine;
    *state = (struct kvb_engine_state){
        .paused = engine->paused && kvb_list_empty(&engine->pauses),
        .pause_mode = engine->pause_mode,
        .weight_change_running = engine->updating,
        .weights_written = rank->weights_written,
        .local_reset_done = true, /* it has no cache of its own */
        .ntags = TAGS,
    };
    for (int t = 0; t < TAGS; t++) {
        (void)snprintf(state->tags[t].tag, KVB_NAME_MAX, "%s", tag_names[t]);
        state->tags[t].residency = rank->memories[t].fd >= 0 ? KVB_RESIDENT
                                   : rank->memories[t].aside ? KVB_OFFLOADED
                                                             : KVB_DISCARDED;
    }
}

static void say_hello(struct rank *rank)
{
    const struct sim_engine *engine = rank->engine;
    struct kvb_link_hello hello = {
        .version = KVB_LINK_VERSION,
        .roles = rank->index == 0 ? KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER : KVB_ROLE_WORKER,
        .flags = KVB_ENGINE_FINGERPRINTS,
        .rank = rank->index,
        .world_size = engine->nranks,
        .local_world_size = engine->nranks,
        .block_tokens = 16,
        .lineage = rank->lineage.lineage,
        .token = rank->lineage.token,
        .nretired = rank->lineage.nretired,
    };
    (void)snprintf(hello.instance, sizeof hello.instance, "%s", engine->instance);
    (void)snprintf(hello.tenant, sizeof hello.tenant, "%s", engine->tenant);
    (void)snprintf(hello.layout, sizeof hello.layout, "sim");
    memcpy(hello.lineage_name, rank->lineage.name, sizeof hello.lineage_name);
    memcpy(hello.retired, rank->lineage.retired, sizeof hello.retired);
    fill_state(rank, &hello.state);
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1 << 16);
    kvb_link_hello_pack(&writer, &hello);
    (void)send(rank, KVB_LINK_HELLO, &writer, -1);
}

/* ---- answers to the daemon ---- */

static void reply_now(struct answer *answer)
{
    struct rank *rank = answer->rank;
    if (rank->wire == answer->wire && rank->wire != NULL) {
        sim_wire_send(rank->wire, answer->type, KVB_FRAME_REPLY, answer->seq, &answer->writer, -1);
    } else {
        kvb_writer_cleanup(&answer->writer);
    }
    free(answer);
}

static void on_answer_due(struct kvb_timer *timer)
{
    reply_now(kvb_container_of(timer, struct answer, timer));
}

static struct answer *new_answer(struct rank *rank, const struct kvb_frame *frame)
{
    struct answer *answer = calloc(1, sizeof *answer);
    kvb_assert(answer != NULL);
    *answer =
        (struct answer){.rank = rank, .wire = rank->wire, .type = frame->type, .seq = frame->seq};
    kvb_list_init(&answer->link);
    kvb_timer_init(&answer->timer, on_answer_due);
    kvb_writer_init(&answer->writer, 1 << 16);
    return answer;
}

static void reply_in(struct answer *answer, uint64_t ns)
{
    struct kvb_sched *sched = &answer->rank->engine->process->sched;
    kvb_sched_timer_set(sched, &answer->timer, kvb_now_ns(sched->clock) + ns);
}

static void reply_status(struct answer *answer, kvb_status_t status)
{
    kvb_link_status_pack(&answer->writer, status);
    reply_in(answer, sim_between(0, 20) * KVB_NS_PER_MS);
}

/* ---- requests ---- */

static bool loading(const struct request *request)
{
    return request->stage == LOOKUP || request->stage == LOAD;
}

static bool idle(const struct sim_engine *engine, enum kvb_pause_mode mode)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct request *request = &engine->requests[i];
        bool runs = request->stage != FREE && request->stage != STORE && !request->aborted;
        if (mode == KVB_PAUSE_KEEP ? runs && loading(request) : runs) {
            return false;
        }
    }
    return true;
}

static void end_pauses(struct sim_engine *engine, kvb_status_t status)
{
    kvb_list_each(&engine->pauses, link)
    {
        struct answer *answer = kvb_container_of(link, struct answer, link);
        if (status == KVB_OK && !idle(engine, answer->mode)) {
            continue;
        }
        kvb_list_remove(link);
        kvb_list_init(&answer->link);
        reply_status(answer, status);
    }
}

static void finish(struct request *request)
{
    struct sim_engine *engine = request->engine;
    kvb_sched_timer_clear(&engine->process->sched, &request->compute);
    request->stage = FREE;
    end_pauses(engine, KVB_OK);
}

static bool waits(const struct request *request)
{
    return request->seqs[0] != 0 || request->seqs[1] != 0;
}

/* Its memory stays its transfers' until they are over. */
static void drop(struct request *request)
{
    if (request->stage == FREE) {
        return;
    }
    request->aborted = true;
    kvb_sched_timer_clear(&request->engine->process->sched, &request->compute);
    if (!waits(request)) {
        finish(request);
    }
}

static uint32_t make_key(uint32_t prompt, uint32_t block, uint8_t out[32])
{
    return (uint32_t)snprintf((char *)out, 32, "prompt-%u/block-%u", prompt, block);
}

static void send_batch(struct rank *rank, struct request *request, uint16_t type, uint32_t first,
                       uint32_t last)
{
    uint8_t keys[BLOCKS][32], place[32];
    struct kvb_link_entry entries[BLOCKS];
    struct kvb_slice slices[BLOCKS][2];
    uint32_t place_len = make_key(request->prompt, 0, place);
    struct kvb_link_batch batch = {.request = type == KVB_LINK_GET ? request->id : 0,
                                   .token = request->token,
                                   .nentries = last - first,
                                   .entries = entries};
    for (uint32_t b = first; b < last; b++) {
        uint64_t offset = (uint64_t)(slot(rank, request, b) - rank->memories[KV].at);
        uint64_t cut = 1 + sim_below(BLOCK - 1);
        slices[b][0] = (struct kvb_slice){.region = KV, .offset = offset, .len = cut};
        slices[b][1] = (struct kvb_slice){.region = KV, .offset = offset + cut, .len = BLOCK - cut};
        entries[b - first] =
            (struct kvb_link_entry){.key = {keys[b], make_key(request->prompt, b, keys[b])},
                                    .placement = {place, place_len},
                                    .part = rank->index,
                                    .token = request->token,
                                    .nslices = 2,
                                    .slices = slices[b]};
    }
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1 << 20);
    kvb_link_batch_pack(&writer, &batch);
    request->seqs[rank->index] = send(rank, type, &writer, -1);
}

static void send_lookup(struct request *request)
{
    struct sim_engine *engine = request->engine;
    uint8_t bytes[BLOCKS][32];
    struct kvb_link_key keys[BLOCKS];
    for (uint32_t b = 0; b < request->nblocks; b++) {
        keys[b].key = (struct kvb_span){bytes[b], make_key(request->prompt, b, bytes[b])};
        keys[b].placement = keys[0].key;
    }
    struct kvb_link_group group = {.nkeys = request->nblocks, .keys = keys};
    const struct kvb_link_lookup lookup = {
        .request = request->id, .token = request->token, .ngroups = 1, .groups = &group};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1 << 20);
    kvb_link_lookup_pack(&writer, &lookup);
    request->seqs[0] = send(&engine->ranks[0], KVB_LINK_LOOKUP, &writer, -1);
}

static bool whole(const struct sim_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (int t = 0; t < TAGS; t++) {
            if (!engine->ranks[r].attached || engine->ranks[r].memories[t].fd < 0) {
                return false;
            }
        }
    }
    return true;
}

static uint64_t reset_of(uint32_t number, uint64_t weights)
{
    const struct sim_resets *resets = &sim_resets[number];
    uint64_t own_ns = weights < SIM_WEIGHTS_MAX ? resets->own_ns[weights] : 0;
    return own_ns > resets->tenant_ns ? own_ns : resets->tenant_ns;
}

static void begin(struct sim_engine *engine)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct request *request = &engine->requests[i];
        if (request->stage != FREE) {
            continue;
        }
        *request = (struct request){.engine = engine,
                                    .stage = LOOKUP,
                                    .id = ++engine->last_request,
                                    .prompt = (uint32_t)sim_below(PROMPTS),
                                    .nblocks = 1 + (uint32_t)sim_below(BLOCKS),
                                    .token = engine->ranks[0].lineage.token,
                                    .compute = request->compute};
        for (uint32_t r = 0; r < engine->nranks; r++) {
            request->weights[r] = engine->ranks[r].weights;
            request->reset_ns[r] = reset_of(engine->number, request->weights[r]);
        }
        sim_counts.requests++;
        send_lookup(request);
        return;
    }
}

static void compute_in(struct request *request)
{
    struct kvb_sched *sched = &request->engine->process->sched;
    uint64_t ms = sim_chance(50) ? sim_between(100, 3000) : sim_between(1, 150);
    kvb_sched_timer_set(sched, &request->compute, kvb_now_ns(sched->clock) + ms * KVB_NS_PER_MS);
}

/* Computed first and put some time later, whatever has become of the weights by then. */
static void on_computed(struct kvb_timer *timer)
{
    struct request *request = kvb_container_of(timer, struct request, compute);
    struct sim_engine *engine = request->engine;
    if (engine->paused && engine->pause_mode == KVB_PAUSE_KEEP) {
        compute_in(request); /* frozen */
        return;
    }
    if (!whole(engine)) {
        finish(request);
        return;
    }
    bool puts = request->stage == COMPUTED;
    request->stage = puts ? STORE : COMPUTED;
    for (uint32_t r = 0; r < engine->nranks; r++) {
        struct rank *rank = &engine->ranks[r];
        if (puts) {
            send_batch(rank, request, KVB_LINK_PUT, request->good, request->nblocks);
            continue;
        }
        for (uint32_t b = request->good; b < request->nblocks; b++) {
            /* With the weights it has now: put under the token of its beginning all the same. */
            content(engine->tenant, request->prompt, b, r, rank->weights, sim.now_ns,
                    slot(rank, request, b));
        }
    }
    if (puts) {
        end_pauses(engine, KVB_OK);
    } else {
        compute_in(request);
    }
}

/* What it waited for is there. */
static void step(struct request *request)
{
    struct sim_engine *engine = request->engine;
    if (waits(request)) {
        return;
    }
    if (request->aborted || request->stage == STORE) {
        finish(request);
        return;
    }
    if (request->stage == LOOKUP && request->hits > 0 && whole(engine)) {
        request->stage = LOAD;
        request->good = request->hits;
        for (uint32_t r = 0; r < engine->nranks; r++) {
            send_batch(&engine->ranks[r], request, KVB_LINK_GET, 0, request->hits);
        }
        return;
    }
    if (request->good >= request->nblocks) {
        finish(request);
        return;
    }
    request->stage = COMPUTE;
    compute_in(request);
    end_pauses(engine, KVB_OK);
}

static void on_lookup_reply(struct request *request, struct kvb_span payload)
{
    struct kvb_link_lookup_reply reply;
    if (kvb_link_lookup_reply_unpack(payload, &reply) != KVB_OK) {
        sim_fail("an answer to a lookup cannot be read");
    }
    request->hits = reply.status == KVB_OK && reply.ngroups == 1 ? reply.hits[0] : 0;
    if (request->hits > request->nblocks) {
        sim_fail("more hits than keys");
    }
}

static void judge(struct rank *rank, const struct request *request, uint32_t block)
{
    uint8_t want[BLOCK];
    char origin[160];
    const uint8_t *has = slot(rank, request, block);
    uint64_t made_ns;
    memcpy(&made_ns, has, sizeof made_ns);
    content(rank->engine->tenant, request->prompt, block, rank->index,
            request->weights[rank->index], made_ns, want);
    if (memcmp(want, has, BLOCK) != 0) {
        tell_origin(rank->engine, request, block, rank->index, has, origin, sizeof origin);
        sim_fail("%s rank %u (weights %llu) got prompt %u block %u: %s", rank->engine->instance,
                 rank->index, (unsigned long long)request->weights[rank->index], request->prompt,
                 block, origin);
    }
    uint64_t reset_ns = request->reset_ns[rank->index];
    if (made_ns < reset_ns) {
        sim_fail(
            "STALE: %s rank %u got prompt %u block %u, made at %llu ms, after a reset at %llu ms",
            rank->engine->instance, rank->index, request->prompt, block,
            (unsigned long long)(made_ns / KVB_NS_PER_MS),
            (unsigned long long)(reset_ns / KVB_NS_PER_MS));
    }
}

static void on_batch_reply(struct rank *rank, struct request *request, bool put,
                           struct kvb_span payload)
{
    struct kvb_link_batch_reply reply;
    if (kvb_link_batch_reply_unpack(payload, &reply) != KVB_OK) {
        sim_fail("an answer to a batch cannot be read");
    }
    for (uint32_t i = 0; i < reply.nentries; i++) {
        kvb_status_t status = reply.statuses[i];
        bool ok = status == KVB_OK || (put && status == KVB_ERR_EXISTS);
        sim_counts.fenced += status == KVB_ERR_FENCED;
        if (put) {
            sim_counts.stored += ok;
        } else if (ok) {
            sim_counts.got++;
            judge(rank, request, i);
        } else {
            sim_counts.missed++;
            request->good = i < request->good ? i : request->good;
        }
    }
    kvb_link_batch_reply_free(&reply);
}

static struct request *waiting_for(struct rank *rank, uint64_t seq)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct request *request = &rank->engine->requests[i];
        if (request->stage != FREE && request->seqs[rank->index] == seq) {
            return request;
        }
    }
    return NULL;
}

static void on_reply(struct rank *rank, const struct kvb_frame *frame, struct kvb_span payload)
{
    if (frame->type == KVB_LINK_HELLO) {
        struct kvb_link_hello_reply reply;
        if (kvb_link_hello_reply_unpack(payload, &reply) != KVB_OK) {
            sim_fail("an answer to hello cannot be read");
        }
        rank->attached = reply.status == KVB_OK;
        for (int t = 0; rank->attached && t < TAGS; t++) {
            if (rank->memories[t].fd >= 0) {
                rank->memories[t].generation++;
                register_tag(rank, t);
            }
        }
        return;
    }
    struct request *request = waiting_for(rank, frame->seq);
    if (request == NULL) {
        return; /* of a region, a report */
    }
    request->seqs[rank->index] = 0;
    if (frame->type == KVB_LINK_LOOKUP) {
        on_lookup_reply(request, payload);
    } else {
        on_batch_reply(rank, request, frame->type == KVB_LINK_PUT, payload);
    }
    step(request);
}

/* ---- calls of the daemon ---- */

static enum tag tag_of(const char *name)
{
    return strcmp(name, tag_names[KV]) == 0 ? KV : WEIGHTS;
}

static void drop_all(struct sim_engine *engine)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        drop(&engine->requests[i]);
    }
}

static void on_release(struct rank *rank, const struct kvb_link_release *release)
{
    for (uint32_t i = 0; i < release->ntags; i++) {
        enum tag tag = tag_of(release->tags[i].tag);
        struct memory *memory = &rank->memories[tag];
        if (!release->commit) {
            continue;
        }
        for (uint32_t k = 0; tag == KV && k < REQUESTS; k++) {
            struct request *request = &rank->engine->requests[k];
            if (request->stage != FREE && request->seqs[rank->index] != 0 &&
                request->stage != LOOKUP) {
                sim_fail("P3: %s rank %u is to release memory of a transfer that is not over",
                         rank->engine->instance, rank->index);
            }
        }
        if (tag == KV) {
            drop_all(rank->engine);
        }
        memory->aside = release->tags[i].offload && (memory->fd >= 0 || memory->aside);
        if (tag == WEIGHTS && !memory->aside) {
            rank->weights = 1000000 + sim_below(1u << 30); /* nobody's */
        }
        unmap(rank->engine, memory);
    }
}

static void on_restore(struct rank *rank, const struct kvb_link_restore *restore)
{
    for (uint32_t i = 0; i < restore->ntags; i++) {
        map(&rank->memories[tag_of(restore->tags[i])]);
        register_tag(rank, tag_of(restore->tags[i]));
    }
}

static void on_relay(struct rank *rank, const struct kvb_link_relay *relay, struct answer *answer)
{
    struct sim_engine *engine = rank->engine;
    struct kvb_link_relay_reply reply = {.status = KVB_OK, .body = {(const uint8_t *)"{}", 2}};
    sim_weights_changed(engine->number);
    if (strcmp(relay->method, "start_weight_update") == 0) {
        engine->updating = true;
    } else if (strcmp(relay->method, "finish_weight_update") == 0) {
        engine->updating = false;
    } else if (strncmp(relay->method, "update_weights", 14) == 0) {
        char text[64];
        size_t len = relay->body.len < sizeof text - 1 ? relay->body.len : sizeof text - 1;
        memcpy(text, relay->body.data, len);
        text[len] = '\0';
        const char *colon = strchr(text, ':');
        uint64_t weights = colon == NULL ? 0 : strtoull(colon + 1, NULL, 10);
        bool breaks = sim_below(1000) < engine->misbehaves;
        if (rank->memories[WEIGHTS].fd < 0) {
            reply.status = KVB_ERR_BAD_STATE;
        } else {
            rank->weights = breaks ? 1000000 + sim_below(1u << 30) : weights;
            rank->weights_written = true;
            reply.weights_written = true;
            reply.status = breaks ? KVB_ERR_IO : KVB_OK;
        }
    }
    kvb_link_relay_reply_pack(&answer->writer, &reply);
    reply_in(answer, sim_between(1, 60) * KVB_NS_PER_MS);
}

static bool can_resume(const struct sim_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (int t = 0; t < TAGS; t++) {
            if (engine->ranks[r].memories[t].fd < 0) {
                return false;
            }
        }
    }
    return true;
}

static void on_call(struct rank *rank, const struct kvb_frame *frame, struct kvb_span payload)
{
    union {
        struct kvb_link_lineage lineage;
        struct kvb_link_pause pause;
        struct kvb_link_reset_local reset;
        struct kvb_link_release release;
        struct kvb_link_restore restore;
        struct kvb_link_relay relay;
    } msg;
    struct sim_engine *engine = rank->engine;
    kvb_status_t status = KVB_OK;
    if (frame->type == KVB_LINK_EVENT) {
        return;
    }
    struct answer *answer = new_answer(rank, frame);
    bool plain = frame->type == KVB_LINK_PAUSE || frame->type == KVB_LINK_RESUME ||
                 frame->type == KVB_LINK_RELEASE || frame->type == KVB_LINK_RESTORE;
    if (sim_below(1000) < engine->misbehaves) {
        if (plain && sim_chance(500)) { /* refuses, and has done nothing */
            reply_status(answer, KVB_ERR_IO);
            return;
        }
        if (frame->type != KVB_LINK_LINEAGE && frame->type != KVB_LINK_RELAY) {
            free(answer); /* says nothing at all, and does nothing */
            return;
        }
    }
    switch (frame->type) {
    case KVB_LINK_LINEAGE:
        status = kvb_link_lineage_unpack(payload, &msg.lineage);
        if (status == KVB_OK) {
            rank->lineage = msg.lineage;
            rank->weights_written = false;
            sim_shares[engine->number].named |= msg.lineage.name[0] != '\0';
            kvb_link_status_pack(&answer->writer, KVB_OK);
            reply_in(answer, 0); /* in order with what it puts and gets from now on */
        }
        break;
    case KVB_LINK_PAUSE:
        status = kvb_link_pause_unpack(payload, &msg.pause);
        if (status == KVB_OK) {
            engine->paused = true;
            engine->pause_mode = msg.pause.mode;
            answer->mode = msg.pause.mode;
            if (msg.pause.mode == KVB_PAUSE_ABORT) {
                drop_all(engine);
            }
            kvb_list_push_back(&engine->pauses, &answer->link);
            end_pauses(engine, KVB_OK);
        }
        break;
    case KVB_LINK_RESUME:
        if (!can_resume(engine)) {
            sim_fail("P4: %s is to resume while memory is not there", engine->instance);
        }
        engine->paused = false;
        engine->updating = false;
        end_pauses(engine, KVB_ERR_CANCELED);
        reply_status(answer, KVB_OK);
        break;
    case KVB_LINK_RESET_LOCAL:
        kvb_link_reset_local_reply_pack(&answer->writer,
                                        &(struct kvb_link_reset_local_reply){.status = KVB_OK});
        reply_in(answer, sim_between(0, 5) * KVB_NS_PER_MS);
        break;
    case KVB_LINK_RELEASE:
        status = kvb_link_release_unpack(payload, &msg.release);
        if (status == KVB_OK) {
            on_release(rank, &msg.release);
            reply_status(answer, KVB_OK);
        }
        break;
    case KVB_LINK_RESTORE:
        status = kvb_link_restore_unpack(payload, &msg.restore);
        if (status == KVB_OK) {
            on_restore(rank, &msg.restore);
            reply_status(answer, KVB_OK);
        }
        break;
    case KVB_LINK_FINGERPRINT: {
        struct kvb_link_fingerprint_reply reply = {.status = KVB_OK};
        if (rank->memories[WEIGHTS].fd < 0) {
            reply.status = KVB_ERR_BAD_STATE;
        } else {
            (void)snprintf(reply.name, sizeof reply.name, "fp-%llu",
                           (unsigned long long)rank->weights);
        }
        kvb_link_fingerprint_reply_pack(&answer->writer, &reply);
        reply_in(answer, sim_between(0, 10) * KVB_NS_PER_MS);
        break;
    }
    case KVB_LINK_RELAY:
        status = kvb_link_relay_unpack(payload, &msg.relay);
        if (status == KVB_OK) {
            on_relay(rank, &msg.relay, answer);
        }
        break;
    case KVB_LINK_STATE: {
        struct kvb_link_state_reply reply = {.status = KVB_OK};
        fill_state(rank, &reply.state);
        kvb_link_state_reply_pack(&answer->writer, &reply);
        reply_in(answer, 0);
        break;
    }
    default:
        sim_fail("the daemon sent message %u", frame->type);
    }
    if (status != KVB_OK) {
        sim_fail("message %u of the daemon cannot be read", frame->type);
    }
}

/* ---- the wire ---- */

static void on_frame(void *ctx, const struct kvb_frame *frame, struct kvb_span payload)
{
    struct rank *rank = ctx;
    if ((frame->flags & KVB_FRAME_REPLY) != 0) {
        on_reply(rank, frame, payload);
    } else {
        on_call(rank, frame, payload);
    }
}

static void connect_in(struct rank *rank, uint64_t ms)
{
    struct kvb_sched *sched = &rank->engine->process->sched;
    kvb_sched_timer_set(sched, &rank->connect, kvb_deadline_in_ms(sched->clock, ms));
}

/* Its memory is its own again. */
static void on_closed(void *ctx)
{
    struct rank *rank = ctx;
    struct sim_engine *engine = rank->engine;
    rank->wire = NULL;
    rank->attached = false;
    kvb_list_each(&engine->pauses, link)
    {
        struct answer *answer = kvb_container_of(link, struct answer, link);
        if (answer->rank == rank) {
            kvb_list_remove(link);
            kvb_writer_cleanup(&answer->writer);
            free(answer);
        }
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct request *request = &engine->requests[i];
        if (request->stage != FREE) {
            request->seqs[rank->index] = 0;
            drop(request);
        }
    }
    connect_in(rank, sim_between(50, 800));
}

static const struct sim_wire_ops wire_ops = {.frame = on_frame, .closed = on_closed};

static void on_connect(struct kvb_timer *timer)
{
    struct rank *rank = kvb_container_of(timer, struct rank, connect);
    if (rank->wire != NULL) { /* not admitted yet: gives it up, and `closed` follows */
        if (!rank->attached) {
            sim_wire_shut(rank->wire);
        }
        return;
    }
    rank->wire = sim_wire_connect(rank->engine->process, &wire_ops, rank);
    if (rank->wire != NULL) {
        rank->attached = false;
        say_hello(rank);
    }
    connect_in(rank, rank->wire == NULL ? sim_between(100, 1000) : 12000);
}

/* ---- its life ---- */

static void on_tick(struct kvb_timer *timer)
{
    struct sim_engine *engine = kvb_container_of(timer, struct sim_engine, tick);
    struct kvb_sched *sched = &engine->process->sched;
    if (!engine->paused && whole(engine)) {
        begin(engine);
    }
    kvb_sched_timer_set(sched, timer,
                        kvb_now_ns(sched->clock) + sim_between(5, 120) * KVB_NS_PER_MS);
}

struct sim_engine *sim_engine_start(uint32_t number, uint32_t machine, uint32_t nranks,
                                    const char *tenant)
{
    struct sim_engine *engine = calloc(1, sizeof *engine);
    kvb_assert(engine != NULL);
    (void)snprintf(engine->instance, sizeof engine->instance, "engine-%u", number);
    (void)snprintf(engine->tenant, sizeof engine->tenant, "%s", tenant);
    engine->process = sim_process_start(engine->instance, machine);
    engine->number = number;
    engines[number] = engine;
    sim_weights_changed(number);
    engine->nranks = nranks;
    engine->last_request = sim_draw() >> 8;
    kvb_list_init(&engine->pauses);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        engine->requests[i].engine = engine;
        kvb_timer_init(&engine->requests[i].compute, on_computed);
    }
    for (uint32_t r = 0; r < nranks; r++) {
        struct rank *rank = &engine->ranks[r];
        rank->engine = engine;
        rank->index = r;
        rank->weights = 1; /* what everybody begins with */
        rank->memories[KV] = (struct memory){.fd = -1, .len = KV_LEN};
        rank->memories[WEIGHTS] = (struct memory){.fd = -1, .len = WEIGHT_LEN};
        map(&rank->memories[KV]);
        map(&rank->memories[WEIGHTS]);
        kvb_timer_init(&rank->connect, on_connect);
        connect_in(rank, sim_between(1, 300));
    }
    kvb_timer_init(&engine->tick, on_tick);
    kvb_sched_timer_set(&engine->process->sched, &engine->tick,
                        kvb_deadline_in_ms(engine->process->sched.clock, 5));
    return engine;
}

struct sim_process *sim_engine_process(const struct sim_engine *engine)
{
    return engine->process;
}

void sim_engine_kill(struct sim_engine *engine)
{
    sim_process_kill(engine->process, false);
    sim_wire_died(engine->process);
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (int t = 0; t < TAGS; t++) {
            if (engine->ranks[r].memories[t].fd >= 0) {
                (void)close(engine->ranks[r].memories[t].fd);
            }
        }
    }
}

void sim_engine_misbehave(struct sim_engine *engine, uint32_t in_1000)
{
    engine->misbehaves = in_1000;
}

bool sim_engine_serves(const struct sim_engine *engine)
{
    return !engine->process->dead && !engine->paused && whole(engine);
}

void sim_engine_check(struct sim_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (int t = 0; t < TAGS; t++) {
            check_old(engine, &engine->ranks[r].memories[t]);
        }
    }
}

void sim_weights_changed(uint32_t number)
{
    sim_shares[number].named = false;
    sim_shares[number].changes++;
}

uint64_t sim_weights_of(uint32_t number)
{
    return engines[number] == NULL ? SIM_WEIGHTS_MAX : sim_engine_weights(engines[number]);
}

uint64_t sim_engine_weights(const struct sim_engine *engine)
{
    return engine->ranks[0].weights;
}
