/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One step: rollout, the way to the next weights, rollout, and then the promises. Some requests
 * are in flight when the way begins, on purpose: half done ones that a pause aborts or keeps, and
 * in fault runs a hail of gets.
 *
 * What is promised (and judged, but in fault runs): a request that ran after the way, whose blocks
 * were all looked up or computed and put in the present stay, hits entirely when it is read again
 * from the store alone: by whoever ran it, and by the other one if both hold the same weights under
 * one name.
 */
#include "parts.h"
#include "rehearse.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STALLED_MAX    4  /* requests held halfway; fewer than an engine runs at a time */
#define JUDGED_MAX     8  /* requests whose blocks are promised, of each side and step */
#define HAIL           32 /* requests of a hail, of each side */
#define HAIL_RECENT    8  /* from how far back its first half is drawn */
#define LOADING_WANTED 6
#define WELL_MS        20000 /* bound until every node is used again */

struct plan {
    enum kve_form form;
    enum kve_naming naming;
    enum kve_happening happening;
};

/* In turn. Every second one of a form tells kvplane something else. */
static const struct plan plans[] = {
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, 0},     {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, 0},
    {KVE_FORM_RELEASE, KVE_NAMING_VERSION, 0},     {KVE_FORM_RESET, KVE_NAMING_VERSION, 0},
    {KVE_FORM_NAP, KVE_NAMING_VERSION, 0},         {KVE_FORM_SLEEP_2, KVE_NAMING_NONE, 0},
    {KVE_FORM_KEEP, KVE_NAMING_VERSION, 0},        {KVE_FORM_PLAIN, KVE_NAMING_NONE, 0},
    {KVE_FORM_SLEEP_1, KVE_NAMING_FINGERPRINT, 0}, {KVE_FORM_NAP, KVE_NAMING_FINGERPRINT, 0},
    {KVE_FORM_KEEP, KVE_NAMING_NONE, 0},           {KVE_FORM_SLEEP_2, KVE_NAMING_VERSION, 0},
};
/* An engine or a daemon that died knows no version that it saw change: a fingerprint names. */
static const struct plan cluster_plans[] = {
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, KVE_HAPPENS_NOTHING},
    {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_STORE_KILLED},
    {KVE_FORM_RESET, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_ETCD_AWAY},
    {KVE_FORM_KEEP, KVE_NAMING_VERSION, KVE_HAPPENS_STORE_FROZEN},
    {KVE_FORM_RELEASE, KVE_NAMING_VERSION, KVE_HAPPENS_ETCD_MEMBER_KILLED},
    {KVE_FORM_SLEEP_1, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_DAEMON_KILLED},
    {KVE_FORM_NAP, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_STORE_CUT},
    {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_ENGINE_KILLED},
    {KVE_FORM_SLEEP_2, KVE_NAMING_VERSION, KVE_HAPPENS_ETCD_AWAY},
    {KVE_FORM_RESET, KVE_NAMING_VERSION, KVE_HAPPENS_STORE_CUT},
    {KVE_FORM_PLAIN, KVE_NAMING_NONE, KVE_HAPPENS_STORE_FROZEN},
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, KVE_HAPPENS_ETCD_AWAY},
};
#define TENANT_RESET_EVERY 4 /* steps */

/* ---- runs ---- */

static const char *const ev_done[] = {"done", "error", NULL};
static const char *const ev_stalled[] = {"stalled", "done", "error", NULL};

struct run {
    struct kve_side *side;
    json_int_t id; /* 0: nothing was to be run */
    bool rollout;  /* its requests count as the trace's */
    uint32_t count;
};

/* indexes is taken. */
static bool start(struct kve_rehearsal *r, struct run *run, struct kve_side *side, json_t *indexes,
                  bool rollout, bool use_cache, bool stall)
{
    *run =
        (struct run){.side = side, .rollout = rollout, .count = (uint32_t)json_array_size(indexes)};
    if (run->count == 0) {
        json_decref(indexes);
        return true;
    }
    run->id = ++r->last_id;
    return kve_side_tell(r, side,
                         json_pack("{s:s,s:I,s:o,s:b,s:b}", "cmd", "run", "id", run->id, "indexes",
                                   indexes, "use_cache", use_cache, "stall", stall));
}

/* Waits for its end; unfinished_p (may be NULL) gets what a pause aborted, counts_p what happened.
 */
static bool finish(struct kve_rehearsal *r, struct run *run, json_t *unfinished,
                   struct kve_counts *counts_p)
{
    struct kve_counts counts = {0};
    json_t *event;

    if (run->id == 0) {
        return true;
    }
    if (!kve_side_await(r, run->side, ev_done, run->id, &event)) {
        return false;
    }
    kve_counts_add_json(&counts, json_object_get(event, "counts"));
    if (unfinished != NULL) {
        json_array_extend(unfinished, json_object_get(event, "unfinished"));
    }
    json_decref(event);
    if (run->rollout) {
        r->requests_done += counts.requests;
        r->row->requests += counts.requests;
    }
    if (counts_p != NULL) {
        *counts_p = counts;
    }
    run->id = 0;
    return true;
}

static json_t *range(uint32_t first, uint32_t count)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer((json_int_t)first + i));
    }
    return list;
}

/* Both learn the id, so that its bytes are known wherever they turn up. */
static bool see(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights)
{
    return kve_side_obeys(r, side,
                          json_pack("{s:s,s:[I]}", "cmd", "see", "weights", (json_int_t)weights));
}

/* ---- the way to the next weights ---- */

struct way {
    struct plan plan;
    uint64_t weights; /* that both will hold */
    bool bracket;     /* start, update, finish; else one rpc */
    const char *mode; /* of the pause before A sleeps */
};

/* B never sleeps: its weights change in flight, with its requests kept or simply running. */
static bool update_b(struct kve_rehearsal *r, const struct way *way)
{
    struct kve_side *b = &r->b;
    bool keep = way->plan.form == KVE_FORM_KEEP || way->bracket;
    bool done = true;

    if (!kve_form_updates(way->plan.form)) {
        return true;
    }
    if (keep) {
        done = kve_side_post(r, b, KVE_ANY, NULL, NULL,
                             "/pause?mode=keep&clear_cache=false&instance=%s", b->instance);
    }
    done = done && (way->bracket ? kve_side_update_bracket(r, b, way->weights, way->plan.naming)
                                 : kve_side_update_rpc(r, b, way->weights, way->plan.naming));
    if (done && keep) {
        done = kve_side_post(r, b, KVE_ANY, NULL, NULL, "/resume?instance=%s", b->instance);
    }
    kve_side_named(b, way->weights, way->plan.naming);
    return done;
}

static bool get_up(struct kve_rehearsal *r, const struct way *way)
{
    const char *a = r->a.instance;
    double *ms = &r->row->wake_ms;
    char version[64];
    bool done = true;

    kve_version_of(way->weights, version);
    switch (way->plan.form) {
    case KVE_FORM_SLEEP_1:
        done =
            kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/wake_up?tags=weights&instance=%s", a) &&
            kve_side_update_bracket(r, &r->a, way->weights, way->plan.naming) &&
            kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/wake_up?tags=kv_cache&instance=%s", a) &&
            kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/resume?instance=%s", a);
        break;
    case KVE_FORM_SLEEP_2:
        /* The wake of the last tag ends the update and starts the scheduler: no resume. */
        done = kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/wake_up?tags=weights&instance=%s", a) &&
               kve_side_update_rpc(r, &r->a, way->weights, way->plan.naming) &&
               kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/wake_up?tags=kv_cache&instance=%s", a);
        break;
    case KVE_FORM_RELEASE:
        done = kve_side_update_bracket(r, &r->a, way->weights, way->plan.naming) &&
               kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/wake_up?tags=kv_cache&instance=%s", a);
        break;
    case KVE_FORM_NAP:
        /* Nothing was loaded; the version says so once more, or the fingerprint does. */
        done = way->plan.naming == KVE_NAMING_VERSION
                   ? kve_side_post(r, &r->a, KVE_ANY, ms, NULL,
                                   "/wake_up?weight_version=%s&instance=%s", version, a)
                   : kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/wake_up?instance=%s", a);
        break;
    case KVE_FORM_PLAIN:
        done = kve_side_update_bracket(r, &r->a, way->weights, way->plan.naming) &&
               kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/resume?instance=%s", a);
        break;
    case KVE_FORM_KEEP:
        done = (way->bracket ? kve_side_update_bracket(r, &r->a, way->weights, way->plan.naming)
                             : kve_side_update_rpc(r, &r->a, way->weights, way->plan.naming)) &&
               kve_side_post(r, &r->a, KVE_ANY, ms, NULL, "/resume?instance=%s", a);
        break;
    case KVE_FORM_RESET:
        return true; /* the names of both stay */
    }
    kve_side_named(&r->a, way->weights, way->plan.naming);
    return done;
}

/* ---- promises ---- */

static uint64_t blocks_of(const struct kve_rehearsal *r, uint32_t first, uint32_t count)
{
    uint64_t n = 0;

    for (uint32_t i = first; i < first + count; i++) {
        n += r->trace.requests[i].nblocks;
    }
    return n;
}

/* What is expected of blocks that are read again. */
enum promise {
    NOTHING,
    HOPED, /* something happens to the cluster: each may miss */
    PROMISED
};

/* Reads requests again from the store alone. Always done, also where nothing is promised: what
 * comes is checked all the same. */
static bool read_again(struct kve_rehearsal *r, struct kve_side *side, uint32_t first,
                       uint32_t count, enum promise promise, const char *whose)
{
    struct kve_counts counts = {0};
    uint64_t blocks = blocks_of(r, first, count);
    char reasons[256] = "";
    struct run run;

    if (!start(r, &run, side, range(first, count), false, false, false) ||
        !finish(r, &run, NULL, &counts)) {
        return false;
    }
    if (promise == NOTHING || r->fault != NULL) {
        return true;
    }
    if (promise == HOPED) {
        r->row->hoped += blocks;
        r->row->had += counts.hits;
        return true;
    }
    r->row->promised += blocks;
    r->row->kept += counts.hits;
    if (counts.hits < blocks) {
        for (size_t i = 0; i < KVE_MISS_COUNT; i++) {
            size_t len = strlen(reasons);
            if (counts.missed[i] > 0) {
                snprintf(reasons + len, sizeof reasons - len, " %s=%" PRIu64, kve_miss_names[i],
                         counts.missed[i]);
            }
        }
        kve_rehearse_fail(
            r, "%s had to get what %s put, and missed %" PRIu64 " of %" PRIu64 " blocks:%s",
            side->instance, whose, blocks - counts.hits, blocks, reasons);
    }
    return true;
}

/* ---- the step ---- */

static uint32_t at_most(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/*
 * In fault runs: requests at random, from the store alone, on both. They keep the small store
 * turning over, so that space is used again while a held transfer still names it, and they are what
 * is in flight when the way begins.
 */
struct hail {
    struct run a, b;
};

/* First those that ran just before `next` and should hit, then any, which push those out. */
static json_t *draw_hail(struct kve_rehearsal *r, uint32_t next)
{
    json_t *list = json_array();
    uint32_t recent = at_most(next, HAIL_RECENT);

    for (uint32_t i = 0; i < HAIL; i++) {
        uint64_t index = i < HAIL / 2 && recent > 0 ? next - 1 - kve_rehearse_draw(r, recent)
                                                    : kve_rehearse_draw(r, r->trace.nrequests);
        json_array_append_new(list, json_integer((json_int_t)index));
    }
    return list;
}

static bool start_hail(struct kve_rehearsal *r, struct hail *hail, uint32_t next_a, uint32_t next_b)
{
    memset(hail, 0, sizeof *hail);
    return r->fault == NULL ||
           (start(r, &hail->a, &r->a, draw_hail(r, next_a), false, false, false) &&
            start(r, &hail->b, &r->b, draw_hail(r, next_b), false, false, false));
}

static bool end_hail(struct kve_rehearsal *r, struct hail *hail)
{
    return finish(r, &hail->a, NULL, NULL) && finish(r, &hail->b, NULL, NULL);
}

/* Rollout up to the way; some of it is still in flight when this returns. */
struct rollout {
    struct run a_done, a_late, b_done, b_late;
    struct hail hail;
    uint32_t first_late[2], nlate[2]; /* of the trace; A's and B's */
};

static bool start_rollout(struct kve_rehearsal *r, struct rollout *rollout, uint32_t first,
                          uint32_t na, uint32_t nb, bool stall_a, bool stall_b)
{
    uint32_t a_late = at_most(na / 2, STALLED_MAX), b_late = at_most(nb / 2, STALLED_MAX);
    uint32_t a_done = na - a_late, b_done = nb - b_late;
    json_t *event;

    *rollout = (struct rollout){.first_late = {first + a_done, first + na + b_done},
                                .nlate = {a_late, b_late}};
    if (!start(r, &rollout->a_done, &r->a, range(first, a_done), true, true, false) ||
        !start(r, &rollout->b_done, &r->b, range(first + na, b_done), true, true, false) ||
        !finish(r, &rollout->a_done, NULL, NULL) || !finish(r, &rollout->b_done, NULL, NULL)) {
        return false;
    }
    if (!start(r, &rollout->a_late, &r->a, range(rollout->first_late[0], a_late), true, true,
               stall_a) ||
        !start(r, &rollout->b_late, &r->b, range(first + na + b_done, b_late), true, true,
               stall_b)) {
        return false;
    }
    for (size_t i = 0; i < 2; i++) {
        struct run *late = i == 0 ? &rollout->a_late : &rollout->b_late;
        if (late->id == 0 || !(i == 0 ? stall_a : stall_b)) {
            continue;
        }
        if (!kve_side_await(r, late->side, ev_stalled, late->id, &event)) {
            return false;
        }
        /* Prompts that hit entirely end without stalling: finish() wants to see that again. */
        if (strcmp(json_string_value(json_object_get(event, "event")), "done") == 0) {
            json_array_append(late->side->engine->child.events, event);
        }
        json_decref(event);
    }
    if (stall_a) {
        return true; /* kept requests: a hail would push out what they put */
    }
    /* Each gets first what the other one put. */
    return start_hail(r, &rollout->hail, first + na + b_done, first + a_done) &&
           (r->fault == NULL || kve_side_await_loading(r, &r->a, LOADING_WANTED));
}

static bool end_rollout(struct kve_rehearsal *r, struct rollout *rollout)
{
    json_t *unfinished = json_array();
    struct run again = {0};
    bool done = finish(r, &rollout->a_late, unfinished, NULL) &&
                finish(r, &rollout->b_late, unfinished, NULL) && end_hail(r, &rollout->hail);

    /* A trainer sends what a pause aborted once more. */
    done = done && start(r, &again, &r->a, json_deep_copy(unfinished), true, true, false) &&
           finish(r, &again, NULL, NULL);
    json_decref(unfinished);
    return done;
}

/* Adds what both engines have counted so far to *counts, and keeps the first bad byte's story. */
static bool add_stats(struct kve_rehearsal *r, struct kve_counts *counts)
{
    struct kve_side *sides[] = {&r->a, &r->b};

    for (size_t i = 0; i < 2; i++) {
        const char *story;
        json_t *object;
        if (!kve_side_stats(r, sides[i], &object)) {
            return false;
        }
        kve_counts_add_json(counts, object);
        kve_counts_add(counts, &sides[i]->past, 1);
        story = json_string_value(json_object_get(object, "story"));
        if (story != NULL && story[0] != '\0') {
            kve_rehearse_story(r, "%s", story);
        }
        json_decref(object);
    }
    return true;
}

/* A node that cannot be reached is a miss. */
static bool judge_answers(struct kve_rehearsal *r)
{
    uint64_t other = r->row->counts.missed[KVE_MISS_other];

    return !r->cluster || other == 0 ||
           kve_rehearse_fail(r, "%" PRIu64 " blocks were answered with an error that is no miss",
                             other);
}

/* The way itself; B's update falls before, into or after A's. */
static bool go(struct kve_rehearsal *r, const struct way *way)
{
    uint64_t kv_cache = 0, weights = 0;
    uint64_t when = kve_rehearse_draw(r, 3);
    bool sleeps = kve_form_sleeps(way->plan.form);

    if (!kve_region_bytes(r, "kv_cache", &kv_cache) || !kve_region_bytes(r, "weights", &weights)) {
        return false;
    }
    r->row->awake_bytes = kv_cache + weights;
    kve_table_progress(r, "on the way");
    return (when != 0 || update_b(r, way)) &&
           kve_side_lie_down(r, &r->a, way->plan.form, way->mode, &r->row->sleep_ms) &&
           (!sleeps || kve_judge_asleep(r, way->plan.form != KVE_FORM_RELEASE)) &&
           (when != 1 || update_b(r, way)) && get_up(r, way) && (when != 2 || update_b(r, way));
}

/* Where the bytes of requests kept across an update would turn up, if they did. */
static bool read_late(struct kve_rehearsal *r, const struct rollout *rollout)
{
    struct kve_side *sides[] = {&r->a, &r->b};

    for (size_t i = 0; i < 4; i++) {
        if (!read_again(r, sides[i / 2], rollout->first_late[i % 2], rollout->nlate[i % 2], NOTHING,
                        sides[i % 2]->instance)) {
            return false;
        }
    }
    return true;
}

/* What runs after the way: of the trace, A's requests and then B's. */
struct span {
    uint32_t first, na, nb;
};

static bool after(struct kve_rehearsal *r, struct span span, enum promise promise)
{
    uint32_t first = span.first, first_b = span.first + span.na;
    uint32_t a_judged = at_most(span.na, JUDGED_MAX), b_judged = at_most(span.nb, JUDGED_MAX);
    bool shared =
        r->a.weights == r->b.weights && r->a.name[0] != '\0' && strcmp(r->a.name, r->b.name) == 0;
    enum promise both = shared ? promise : NOTHING;
    struct run runs[4];
    struct hail hail;

    r->row->shared = shared;
    kve_table_progress(r, "rollout");
    if (!start_hail(r, &hail, first, first) ||
        !start(r, &runs[0], &r->a, range(first, a_judged), true, false, false) ||
        !start(r, &runs[1], &r->b, range(first_b, b_judged), true, false, false) ||
        !start(r, &runs[2], &r->a, range(first + a_judged, span.na - a_judged), true, true,
               false) ||
        !start(r, &runs[3], &r->b, range(first_b + b_judged, span.nb - b_judged), true, true,
               false)) {
        return false;
    }
    for (size_t i = 0; i < 4; i++) {
        if (!finish(r, &runs[i], NULL, NULL)) {
            return false;
        }
    }
    kve_table_progress(r, "promises");
    return read_again(r, &r->b, first, a_judged, both, "A") &&
           read_again(r, &r->a, first_b, b_judged, both, "B") &&
           read_again(r, &r->a, first, a_judged, promise, "A") &&
           read_again(r, &r->b, first_b, b_judged, promise, "B") && end_hail(r, &hail);
}

/* What a reset cleared, or was put before by others under another state: the store has none of it
 * for this side. Bytes cannot tell, the weights are the same. */
static bool judge_cleared(struct kve_rehearsal *r, struct kve_side *side, uint32_t index)
{
    struct kve_counts counts = {0};
    struct run run;

    if (!start(r, &run, side, range(index, 1), false, false, false) ||
        !finish(r, &run, NULL, &counts)) {
        return false;
    }
    if (counts.hits > 0) {
        r->row->counts.stale += counts.hits;
        return kve_rehearse_fail(r, "%s got %" PRIu64 " blocks that its reset had cleared",
                                 side->instance, counts.hits);
    }
    return true;
}

/* A node that was left alone is used again once somebody asks it. */
static bool use_until_well(struct kve_rehearsal *r, struct span span)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, WELL_MS));

    while (!kve_cluster_well(r)) {
        if (kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            return kve_rehearse_fail(r, "not all nodes are used again");
        }
        if (!after(r, span, HOPED)) {
            return false;
        }
    }
    return true;
}

/* Goes on under what happens for as long as it lasts, and after it until the cluster is whole. */
static bool endure(struct kve_rehearsal *r, const struct way *way, struct span span)
{
    enum kve_happening happening = way->plan.happening;
    bool b_too = kve_rehearse_draw(r, 2) == 0;
    bool away = r->away;
    pid_t engine = r->a.engine->child.pid;
    struct run run;

    if (!after(r, span, HOPED)) {
        return false;
    }
    if (away && (!kve_side_reset_external(r, &r->a, NULL) || !judge_cleared(r, &r->a, span.first) ||
                 (b_too && (!kve_side_reset_external(r, &r->b, NULL) ||
                            !judge_cleared(r, &r->b, span.first))))) {
        return false;
    }
    if (!start(r, &run, &r->a, range(span.first, span.na), false, false, false) ||
        !kve_happening_middle(r, happening)) {
        return false;
    }
    if (r->a.engine->child.pid != engine) {
        run.id = 0; /* it went with its engine, whose next life knows of nobody's bytes */
        for (uint64_t weights = 1; weights <= r->last_weights; weights++) {
            if (!see(r, &r->a, weights)) {
                return false;
            }
        }
    }
    if (!finish(r, &run, NULL, NULL) || !kve_side_await_open(r, &r->a) ||
        (away && r->a.engine->child.pid != engine && !judge_cleared(r, &r->a, span.first))) {
        return false;
    }
    while (!kve_happening_over(r)) {
        if (!after(r, span, HOPED)) {
            return false;
        }
    }
    if (!kve_happening_end(r, happening) || !kve_side_await_open(r, &r->a) ||
        !kve_side_await_open(r, &r->b)) {
        return false;
    }
    if (!away) {
        return use_until_well(r, span);
    }
    /* Both have their names again, and nothing was put under them yet. */
    return r->a.name[0] == '\0' || r->b.name[0] == '\0' ||
           (kve_await_empty(r, "after the coordinator was back") &&
            judge_cleared(r, &r->a, span.first));
}

static bool play(struct kve_rehearsal *r, const struct way *way, uint32_t first, uint32_t count)
{
    uint32_t quarter = count / 4;
    const struct span span = {first + 2 * quarter, count - 3 * quarter, quarter};
    enum kve_happening happening = way->plan.happening;
    bool early = happening != KVE_HAPPENS_NOTHING && kve_rehearse_draw(r, 2) == 0;
    bool keep = way->plan.form == KVE_FORM_KEEP;
    /* Only where a resume will come for them. */
    bool stall_a = keep || (r->fault == NULL && way->bracket && way->plan.form != KVE_FORM_RESET);
    bool stall_b = keep || (way->bracket && kve_form_updates(way->plan.form));
    struct rollout rollout;

    kve_table_progress(r, "rollout");
    return kve_side_fingerprint(r, &r->a, way->plan.naming == KVE_NAMING_FINGERPRINT) &&
           kve_side_fingerprint(r, &r->b, way->plan.naming == KVE_NAMING_FINGERPRINT) &&
           see(r, &r->a, way->weights) && see(r, &r->b, way->weights) &&
           (!early || kve_happening_begin(r, happening)) &&
           start_rollout(r, &rollout, first, quarter, quarter, stall_a, stall_b) &&
           (early || kve_happening_begin(r, happening)) && go(r, way) && end_rollout(r, &rollout) &&
           kve_side_await_open(r, &r->a) && kve_side_await_open(r, &r->b) &&
           kve_side_check_held(r, &r->a) && kve_side_check_held(r, &r->b) &&
           read_late(r, &rollout) && (happening == KVE_HAPPENS_NOTHING || endure(r, way, span)) &&
           after(r, span, PROMISED);
}

static struct plan plan_of(const struct kve_rehearsal *r, uint32_t step)
{
    struct plan plan;

    if (!r->cluster) {
        return plans[step % (sizeof plans / sizeof plans[0])];
    }
    plan = cluster_plans[step % (sizeof cluster_plans / sizeof cluster_plans[0])];
    if (plan.happening != KVE_HAPPENS_NOTHING && r->happening != NULL) {
        plan.happening = kve_happening_of(r->happening, plan.happening);
    }
    return plan;
}

static bool play_step(struct kve_rehearsal *r, uint32_t step)
{
    uint32_t first = (uint32_t)((uint64_t)r->requests * step / r->steps);
    uint32_t count = (uint32_t)((uint64_t)r->requests * (step + 1) / r->steps) - first;
    struct way way = {.plan = plan_of(r, step)};
    struct kve_counts before = {0};
    bool done, reset;

    if (!kve_happening_possible(r, way.plan.happening)) {
        way.plan.happening = KVE_HAPPENS_NOTHING;
    }
    kve_rehearse_row(r, step, way.plan.form, way.plan.naming,
                     kve_happening_label(way.plan.happening));
    way.weights = kve_form_updates(way.plan.form) ? ++r->last_weights : r->a.weights;
    way.bracket = kve_rehearse_draw(r, 2) == 0;
    way.mode = kve_rehearse_draw(r, 4) == 0 ? "abort" : "keep";
    reset = (step + 1) % TENANT_RESET_EVERY == 0 || way.plan.happening != KVE_HAPPENS_NOTHING;
    done = add_stats(r, &before) && play(r, &way, first, count) && (!reset || kve_tenant_reset(r));
    /* What was counted is shown also when the step broke off. */
    if (!add_stats(r, &r->row->counts)) {
        return false;
    }
    kve_counts_add(&r->row->counts, &before, -1);
    return done && judge_answers(r);
}

static kvb_status_t load_trace(struct kve_rehearsal *r)
{
    struct kve_trace_error error;
    kvb_status_t status;

    if (r->trace_path == NULL) {
        return kve_trace_generate(r->seed, r->requests, &r->trace);
    }
    status = kve_trace_load(r->trace_path, r->requests, &r->trace, &error);
    if (status != KVB_OK) {
        kve_trace_tell("kvplane rehearse", r->trace_path, &error);
        return status;
    }
    if (r->trace.nrequests < r->requests) {
        fprintf(stderr,
                "kvplane rehearse: %s has %" PRIu32 " requests, %" PRIu32 " were asked for\n",
                r->trace_path, r->trace.nrequests, r->requests);
        return KVB_ERR_INVALID;
    }
    return KVB_OK;
}

static void forget_trace(struct kve_rehearsal *r)
{
    kve_trace_cleanup(&r->trace);
}

const struct kve_play kve_play_trace = {
    .step = "step",
    .steps = 12,
    .prepare = load_trace,
    .play = play_step,
    .head = kve_trace_table_head,
    .row = kve_trace_table_row,
    .end = kve_trace_table_end,
    .cleanup = forget_trace,
};
