/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What happens to a cluster while a step is played: it begins before or in the middle of a rollout,
 * and ends after a while, when everything is asked to be whole again. Each is a row of one table.
 */
#include "rehearse.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define NOTICE_MS                                                                                  \
    20000 /* bound until daemons see that the coordinator, or a node, is away or back */

/* ---- waiting ---- */

/* Asks a process until done() likes its answer. what: for the story. */
static bool await_answer(struct kve_rehearsal *r, const struct kve_process *process,
                         const char *path,
                         bool (*done)(const struct kve_rehearsal *r, const json_t *answer),
                         const char *what)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, NOTICE_MS));

    for (;;) {
        const struct timespec pause = {.tv_nsec = 5000000};
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status =
            kve_rest_call(process->rest, "GET", path, NULL, &http_status, &answer);
        bool good = status == KVB_OK && http_status == 200 && done(r, answer);
        json_decref(answer);
        if (good) {
            return true;
        }
        if (kve_rehearse_stop != 0 || kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            return kve_rehearse_fail(r, "%s: %s, %s, %ld: %.700s", process->name, what,
                                     kvb_status_text(status), http_status,
                                     status == KVB_OK ? kve_rest_text(process->rest) : "");
        }
        nanosleep(&pause, NULL);
    }
}

static bool is_reachable(const struct kve_rehearsal *r, const json_t *answer)
{
    (void)r;
    return json_is_true(
        json_object_get(json_object_get(answer, "lineage"), "coordinator_reachable"));
}

static bool is_away(const struct kve_rehearsal *r, const json_t *answer)
{
    return !is_reachable(r, answer);
}

static bool is_detached(const struct kve_rehearsal *r, const json_t *answer)
{
    (void)r;
    return json_is_false(json_object_get(answer, "attached"));
}

static bool await_instance(struct kve_rehearsal *r, const struct kve_side *side,
                           bool (*done)(const struct kve_rehearsal *r, const json_t *answer),
                           const char *what)
{
    char path[128];

    snprintf(path, sizeof path, "/v1/kvplane/instances/%s", side->instance);
    return await_answer(r, side->daemon, path, done, what);
}

static bool await_both(struct kve_rehearsal *r,
                       bool (*done)(const struct kve_rehearsal *r, const json_t *answer),
                       const char *what)
{
    return await_instance(r, &r->a, done, what) && await_instance(r, &r->b, done, what);
}

/* How many nodes the daemon knows of, and how many of them are in such a state. */
static size_t count_nodes(const json_t *answer, const char *state, size_t *all_p)
{
    const json_t *nodes = json_object_get(answer, "nodes");
    size_t n = 0;

    *all_p = json_array_size(nodes);
    for (size_t i = 0; i < *all_p; i++) {
        const json_t *said = json_object_get(json_array_get(nodes, i), "state");
        n += json_is_string(said) && strcmp(json_string_value(said), state) == 0;
    }
    return n;
}

static size_t nodes_of(const struct kve_rehearsal *r)
{
    size_t n = 0;

    for (uint32_t i = 0; i < r->stage.nprocesses; i++) {
        n += r->stage.processes[i].share;
    }
    return n;
}

/* Also those that it still leaves alone: only being used shows that they are well. */
static bool reaches_all_nodes(const struct kve_rehearsal *r, const json_t *answer)
{
    size_t all, up = count_nodes(answer, "up", &all);

    return all == nodes_of(r) && up + count_nodes(answer, "sick", &all) == all;
}

static bool uses_all_nodes(const struct kve_rehearsal *r, const json_t *answer)
{
    size_t all, up = count_nodes(answer, "up", &all);

    return all == nodes_of(r) && up == all;
}

bool kve_cluster_well(struct kve_rehearsal *r)
{
    const struct kve_process *daemons[] = {r->a.daemon, r->b.daemon};
    bool well = true;

    for (size_t i = 0; i < 2 && well; i++) {
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status = kve_rest_call(daemons[i]->rest, "GET", "/v1/kvplane/nodes", NULL,
                                            &http_status, &answer);
        well = status == KVB_OK && uses_all_nodes(r, answer);
        json_decref(answer);
    }
    return well;
}

static bool await_whole(struct kve_rehearsal *r)
{
    return await_both(r, is_reachable, "the coordinator does not come back") &&
           await_answer(r, r->a.daemon, "/v1/kvplane/nodes", reaches_all_nodes,
                        "the nodes do not come back") &&
           await_answer(r, r->b.daemon, "/v1/kvplane/nodes", reaches_all_nodes,
                        "the nodes do not come back");
}

/* ---- store nodes ---- */

static void strike_store(struct kve_rehearsal *r)
{
    r->struck = &r->stage.stores[kve_rehearse_draw(r, r->stage.nstores)];
}

static bool kill_store(struct kve_rehearsal *r)
{
    strike_store(r);
    kve_process_kill(r->struck);
    return true;
}

static bool freeze_store(struct kve_rehearsal *r)
{
    strike_store(r);
    kve_process_freeze(r->struck, true);
    return true;
}

static bool cut_store(struct kve_rehearsal *r)
{
    return kve_net_cut(&r->stage.net, true) == KVB_OK ||
           kve_rehearse_fail(r, "cannot take the link down");
}

static bool mend_store(struct kve_rehearsal *r)
{
    return (kve_net_cut(&r->stage.net, false) == KVB_OK ||
            kve_rehearse_fail(r, "cannot take the link up")) &&
           await_whole(r);
}

/* Whatever was killed or frozen. */
static bool bring_back(struct kve_rehearsal *r)
{
    if (r->struck->frozen) {
        kve_process_freeze(r->struck, false);
    } else if (!kve_process_start(r, r->struck)) {
        return false;
    }
    return await_whole(r);
}

/* ---- etcd ---- */

static bool kill_leader(struct kve_rehearsal *r)
{
    r->struck = &r->stage.members[0];
    for (size_t i = 0; i < r->stage.nmembers; i++) {
        struct kve_process *member = &r->stage.members[i];
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status =
            kve_rest_call(member->rest, "GET", "/metrics", NULL, &http_status, &answer);
        json_decref(answer);
        if (status == KVB_OK &&
            strstr(kve_rest_text(member->rest), "\netcd_server_is_leader 1\n") != NULL) {
            r->struck = member;
        }
    }
    kve_process_kill(r->struck);
    return true;
}

/* Now and then the daemons have noticed before the trainer's next call; else they may find out by
 * it. */
static bool went_away(struct kve_rehearsal *r)
{
    r->away = true;
    r->pending = kve_rehearse_draw(r, 2) == 0;
    return !r->pending || await_both(r, is_away, "does not notice that the coordinator is away");
}

static bool freeze_etcd(struct kve_rehearsal *r)
{
    for (size_t i = 0; i < r->stage.nmembers; i++) {
        kve_process_freeze(&r->stage.members[i], true);
    }
    return went_away(r);
}

static bool kill_etcd(struct kve_rehearsal *r)
{
    for (size_t i = 0; i < r->stage.nmembers; i++) {
        kve_process_kill(&r->stage.members[i]);
    }
    return went_away(r);
}

static bool bring_etcd_back(struct kve_rehearsal *r)
{
    for (size_t i = 0; i < r->stage.nmembers; i++) {
        struct kve_process *member = &r->stage.members[i];
        if (member->frozen) {
            kve_process_freeze(member, false);
        } else if (!kve_process_spawn(r, member)) {
            return false;
        }
    }
    for (size_t i = 0; i < r->stage.nmembers; i++) {
        if (!kve_process_await(r, &r->stage.members[i])) {
            return false;
        }
    }
    r->away = false;
    r->pending = false;
    return await_whole(r);
}

/* ---- while etcd is away ---- */

/* A version vouches only for who has seen it change; who died has not. */
static void forget_version(struct kve_side *side)
{
    if (strncmp(side->name, "fp", 2) != 0) {
        side->name[0] = '\0';
    }
}

static bool kill_daemon(struct kve_rehearsal *r)
{
    kve_process_kill(r->a.daemon);
    forget_version(&r->a);
    r->a.unseen = true;
    return kve_process_start(r, r->a.daemon) && kve_process_await(r, r->a.engine) &&
           (!r->pending || await_instance(r, &r->a, is_away, "does not notice that etcd is away"));
}

static bool kill_engine(struct kve_rehearsal *r)
{
    struct kve_side *a = &r->a;
    json_t *stats;

    if (!kve_side_stats(r, a, &stats)) {
        return false;
    }
    kve_counts_add_json(&a->past, stats);
    json_decref(stats);
    kve_process_kill(a->engine);
    forget_version(a);
    a->unseen = false; /* the next life says what it was started with */
    kve_side_engine_args(r, a, a->name[0] != '\0');
    return await_instance(r, a, is_detached, "does not notice that its engine died") &&
           kve_process_start(r, a->engine);
}

/* ---- the table ---- */

static bool nothing(struct kve_rehearsal *r)
{
    (void)r;
    return true;
}

static const struct {
    const char *label, *what;
    uint32_t seconds;
} texts[KVE_HAPPENING_COUNT] = {[KVE_HAPPENS_NOTHING] = {"", "", 0},
#define X(name, label, seconds, what) [KVE_HAPPENS_##name] = {label, what, seconds},
                                KVE_HAPPENINGS(X)
#undef X
};

static const struct {
    bool (*begin)(struct kve_rehearsal *r);
    bool (*middle)(struct kve_rehearsal *r);
    bool (*end)(struct kve_rehearsal *r);
} acts[KVE_HAPPENING_COUNT] = {
    [KVE_HAPPENS_NOTHING] = {nothing, nothing, nothing},
    [KVE_HAPPENS_STORE_KILLED] = {kill_store, nothing, bring_back},
    [KVE_HAPPENS_STORE_FROZEN] = {freeze_store, nothing, bring_back},
    [KVE_HAPPENS_STORE_CUT] = {cut_store, nothing, mend_store},
    [KVE_HAPPENS_ETCD_MEMBER_KILLED] = {kill_leader, nothing, bring_back},
    [KVE_HAPPENS_ETCD_AWAY] = {freeze_etcd, nothing, bring_etcd_back},
    [KVE_HAPPENS_DAEMON_KILLED] = {kill_etcd, kill_daemon, bring_etcd_back},
    [KVE_HAPPENS_ENGINE_KILLED] = {kill_etcd, kill_engine, bring_etcd_back},
};

void kve_happenings_list(void)
{
    for (size_t i = 1; i < KVE_HAPPENING_COUNT; i++) {
        printf("%-20s %s (%" PRIu32 " s)\n", texts[i].label, texts[i].what, texts[i].seconds);
    }
    printf("%-20s each in turn, and now and then none\n%-20s\n", "all", "none");
}

enum kve_happening kve_happening_of(const char *label, enum kve_happening planned)
{
    size_t i = 1;

    if (strcmp(label, "all") == 0) {
        return planned;
    }
    if (strcmp(label, "none") == 0) {
        return KVE_HAPPENS_NOTHING;
    }
    while (i < KVE_HAPPENING_COUNT && strcmp(texts[i].label, label) != 0) {
        i++;
    }
    return (enum kve_happening)i;
}

const char *kve_happening_label(enum kve_happening happening)
{
    return texts[happening].label;
}

/* NULL: it can be. */
static const char *why_not(const struct kve_rehearsal *r, enum kve_happening happening)
{
    if (happening == KVE_HAPPENS_STORE_CUT && !r->stage.net.made) {
        return r->skipped;
    }
    if (happening == KVE_HAPPENS_ETCD_MEMBER_KILLED && r->stage.nmembers == 1) {
        return "this etcd has one member: without it there is none";
    }
    return NULL;
}

bool kve_happening_possible(struct kve_rehearsal *r, enum kve_happening happening)
{
    const char *why = why_not(r, happening);

    if (why != NULL && (r->told_skipped & 1u << happening) == 0) {
        fprintf(r->json ? stderr : stdout, "SKIP: %s: %s\n", texts[happening].label, why);
        r->told_skipped |= 1u << happening;
    }
    return why == NULL;
}

bool kve_happening_begin(struct kve_rehearsal *r, enum kve_happening happening)
{
    uint32_t seconds = r->happens_seconds > 0 ? r->happens_seconds : texts[happening].seconds;

    kve_table_progress(r, texts[happening].label);
    r->nhappened += happening != KVE_HAPPENS_NOTHING;
    r->happens_until_ns = kvb_deadline_in_ms(&kvb_clock_real, UINT64_C(1000) * seconds);
    return acts[happening].begin(r);
}

bool kve_happening_middle(struct kve_rehearsal *r, enum kve_happening happening)
{
    return acts[happening].middle(r);
}

bool kve_happening_over(const struct kve_rehearsal *r)
{
    return kvb_now_ns(&kvb_clock_real) >= r->happens_until_ns;
}

bool kve_happening_end(struct kve_rehearsal *r, enum kve_happening happening)
{
    kve_table_progress(r, "until the cluster is whole");
    return acts[happening].end(r);
}
