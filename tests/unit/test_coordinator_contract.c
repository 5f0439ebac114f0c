/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every coordinator promises (store/coordinator.h; DESIGN.md section 4). Each test runs
 * against each row of `kinds`; a new coordinator adds a row.
 */
#include "etcd_rig.h"
#include "sim_sched.h"

#include "base/log.h"
#include "store/coordinator.h"

#include <criterion/criterion.h>

#include <stdlib.h>

struct world;
struct kind {
    const char *name;
    uint64_t grace_ms;
    /* What is asked takes effect inside the call, and time passes only when it is let. */
    bool exact;
    int many; /* names */
    void (*open)(struct world *world);
    void (*close)(struct world *world);
    void (*set_reachable)(struct world *world, bool reachable);
    /* Something may have happened; false: nothing is left that could. */
    bool (*go_on)(struct world *world);
    void (*pass)(struct world *world, uint64_t ms);
};

struct world {
    struct sim_sched sim;
    struct real_loop loop;
    struct etcd_rig rig;
    struct kvb_sched *sched;
    const struct kind *kind;
    struct kvs_coordinator *coordinator;
    struct kvb_lineage retired[64]; /* at the nodes */
    uint32_t nretired;
    struct kvb_lineage held[4]; /* lineages under which a node holds objects of tenant "t" */
    uint32_t nheld;
    kvb_status_t lineages_status;
    bool reachable;
    uint64_t give_up_ns;
};

static void node_retire(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    struct world *world = ctx;
    cr_assert_gt(n, 0);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_lt(world->nretired, 64);
        world->retired[world->nretired++] = lineages[i];
    }
}

static kvb_status_t node_lineages(void *ctx, const char *tenant, struct kvb_lineage **lineages_p,
                                  uint32_t *n_p)
{
    struct world *world = ctx;
    if (world->lineages_status != KVB_OK) {
        return world->lineages_status;
    }
    uint32_t n = strcmp(tenant, "t") == 0 ? world->nheld : 0;
    struct kvb_lineage *lineages = malloc((n + 1) * sizeof *lineages);
    memcpy(lineages, world->held, n * sizeof *lineages);
    *lineages_p = lineages;
    *n_p = n;
    return KVB_OK;
}

static const struct kvs_reclaim_ops reclaim = {.retire = node_retire, .lineages = node_lineages};

static bool is_retired(const struct world *world, struct kvb_lineage lineage)
{
    for (uint32_t i = 0; i < world->nretired; i++) {
        if (kvb_lineage_equal(world->retired[i], lineage)) {
            return true;
        }
    }
    return false;
}

/* ---- embedded ---- */

static void embedded_open(struct world *world)
{
    sim_init(&world->sim, sim_seed(1));
    world->sched = &world->sim.sched;
    cr_assert_eq(kvs_embedded_create(world->sched, world->kind->grace_ms, &reclaim, world,
                                     &world->coordinator),
                 KVB_OK);
}

static void embedded_close(struct world *world)
{
    kvs_coordinator_destroy(world->coordinator);
    sim_cleanup(&world->sim);
}

static void embedded_set_reachable(struct world *world, bool reachable)
{
    kvs_embedded_set_reachable(world->coordinator, reachable);
}

static bool embedded_go_on(struct world *world)
{
    return sim_turn(&world->sim) <= world->sim.now_ns;
}

static void embedded_pass(struct world *world, uint64_t ms)
{
    sim_advance(&world->sim, ms);
}

/* ---- etcd ---- */

static void watch_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    node_retire(ctx, lineages, n);
}

static const struct kvs_watch_ops watch_ops = {.retired = watch_retired};

static void on_etcd_open(struct world *world)
{
    char prefix[64];
    real_init(&world->loop, sim_seed(1));
    world->sched = &world->loop.sim.sched;
    etcd_rig_open(&world->rig, &world->loop, NULL, etcd_rig_prefix(prefix), world->kind->grace_ms);
    world->coordinator = world->rig.coordinator;
    cr_assert_eq(kvs_coordinator_watch(world->coordinator, &watch_ops, world), KVB_OK);
}

static void on_etcd_close(struct world *world)
{
    etcd_rig_close(&world->rig);
    real_cleanup(&world->loop);
}

static void on_etcd_set_reachable(struct world *world, bool reachable)
{
    etcd_rig_set_reachable(&world->rig, reachable);
}

static bool on_etcd_go_on(struct world *world)
{
    if (world->give_up_ns == 0) {
        world->give_up_ns = kvb_deadline_in_ms(&kvb_clock_real, ETCD_RIG_LIMIT_MS);
    }
    real_step(&world->loop, world->give_up_ns);
    return real_now_ns() < world->give_up_ns;
}

static void on_etcd_pass(struct world *world, uint64_t ms)
{
    real_run_for(&world->loop, ms);
}

static const struct kind kinds[] = {
    {"embedded", 60000, true, 4100, embedded_open, embedded_close, embedded_set_reachable,
     embedded_go_on, embedded_pass},
    {"etcd", 1000, false, 100, on_etcd_open, on_etcd_close, on_etcd_set_reachable, on_etcd_go_on,
     on_etcd_pass},
};

static bool there(const struct kind *kind)
{
    return kind->exact || getenv(ETCD_RIG_ENV) != NULL;
}

#define EACH_KIND(kind)                                                                            \
    for (const struct kind *kind = kinds; kind < kinds + sizeof kinds / sizeof kinds[0]; kind++)   \
        if (there(kind))

static void world_open(struct world *world, const struct kind *kind)
{
    memset(world, 0, sizeof *world);
    world->kind = kind;
    world->reachable = true;
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    kind->open(world);
}

static void world_close(struct world *world)
{
    world->kind->close(world);
}

static void set_reachable(struct world *world, bool reachable)
{
    world->reachable = reachable;
    world->kind->set_reachable(world, reachable);
}

static uint64_t in_ms(const struct world *world, uint64_t ms)
{
    return kvb_deadline_in_ms(world->sched->clock, ms);
}

static void pass(struct world *world, uint64_t ms)
{
    world->kind->pass(world, ms);
}

/* For what must not happen. */
static void settle(struct world *world)
{
    pass(world, world->kind->exact ? 0 : 100);
}

#define EVENTUALLY(world, condition)                                                               \
    do {                                                                                           \
        (world)->give_up_ns = 0;                                                                   \
        for (bool more_ = true; !(condition);) {                                                   \
            cr_assert(more_, "%s: never: %s", (world)->kind->name, #condition);                    \
            more_ = (world)->kind->go_on(world);                                                   \
        }                                                                                          \
    } while (0)

/* An instance: notes what it hears, in order. */
enum heard { TOLD, TOLD_TENANT, AWAY, BACK, ANSWER };
struct word {
    enum heard heard;
    struct kvb_lineage lineage;
    uint64_t retirement;
};
struct instance {
    struct world *world;
    struct kvs_member *member;
    bool inside; /* a call of ours is running: nothing may be heard */
    bool leaves; /* answers at once when told */
    uint32_t nwords;
    struct word words[64];
};

static void hear(struct instance *instance, struct word word)
{
    cr_assert(!instance->inside, "heard inside a call");
    cr_assert_lt(instance->nwords, 64);
    instance->words[instance->nwords++] = word;
}

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    struct instance *instance = ctx;
    hear(instance, (struct word){TOLD, lineage, retirement});
    if (instance->leaves) {
        kvs_member_left(instance->member, retirement);
    }
}

static void on_told_tenant(void *ctx, uint64_t retirement)
{
    struct instance *instance = ctx;
    hear(instance, (struct word){.heard = TOLD_TENANT, .retirement = retirement});
    if (instance->leaves) {
        kvs_member_left(instance->member, retirement);
    }
}

static void on_reachable(void *ctx, bool reachable)
{
    hear(ctx, (struct word){.heard = reachable ? BACK : AWAY});
}

static const struct kvs_member_ops member_ops = {
    .told = on_told, .told_tenant = on_told_tenant, .reachable = on_reachable};

static bool check(struct instance *instance, const char *name, struct kvb_lineage lineage);

static void join(struct instance *instance, struct world *world, const char *name,
                 const char *tenant, const char *layout)
{
    *instance = (struct instance){.world = world, .leaves = true};
    struct kvs_space space = {0};
    (void)strncpy(space.tenant, tenant, sizeof space.tenant - 1);
    (void)strncpy(space.layout, layout, sizeof space.layout - 1);
    cr_assert_eq(
        kvs_member_open(world->coordinator, name, &space, &member_ops, instance, &instance->member),
        KVB_OK);
    if (world->reachable) { /* then the others know it */
        (void)check(instance, "nothing", (struct kvb_lineage){{0, 0}});
        instance->nwords = 0;
    }
}

static bool was_told(const struct instance *instance, struct kvb_lineage lineage)
{
    for (uint32_t i = 0; i < instance->nwords; i++) {
        if (instance->words[i].heard == TOLD &&
            kvb_lineage_equal(instance->words[i].lineage, lineage)) {
            return true;
        }
    }
    return false;
}

struct ask {
    struct kvs_coord_request request;
    struct instance *instance; /* may be NULL */
    bool done;
    kvb_status_t status;
};

static void on_answer(struct kvs_coord_request *request, kvb_status_t status)
{
    struct ask *ask = kvb_container_of(request, struct ask, request);
    cr_assert(!ask->done, "answered twice");
    ask->done = true;
    ask->status = status;
    if (ask->instance != NULL) {
        hear(ask->instance, (struct word){.heard = ANSWER, .lineage = request->lineage});
    }
}

static struct ask *asked(struct ask *ask, struct instance *instance)
{
    *ask = (struct ask){.request.done = on_answer, .instance = instance};
    return ask;
}

static kvb_status_t finish(struct world *world, struct ask *ask)
{
    cr_assert(!ask->done, "answered inside the call");
    if (world->kind->exact) {
        cr_assert(sim_run_until_true(&world->sim, &ask->done, 10 * world->kind->grace_ms));
    } else {
        EVENTUALLY(world, ask->done);
    }
    return ask->status;
}

static struct kvb_lineage resolve(struct instance *instance, const char *name)
{
    struct ask ask;
    kvs_member_resolve(instance->member, name, &asked(&ask, instance)->request);
    cr_assert_eq(finish(instance->world, &ask), KVB_OK);
    cr_assert(!kvb_id_none(ask.request.lineage.id));
    return ask.request.lineage;
}

static bool check(struct instance *instance, const char *name, struct kvb_lineage lineage)
{
    struct ask ask;
    kvs_member_check(instance->member, name, lineage, &asked(&ask, instance)->request);
    cr_assert_eq(finish(instance->world, &ask), KVB_OK);
    return ask.request.bound;
}

static kvb_status_t retire(struct instance *instance, struct kvb_lineage lineage, const char *name,
                           uint64_t bound_ms)
{
    struct ask ask;
    kvs_member_retire(instance->member, &lineage, kvb_id_none(lineage.id) ? 0 : 1, name,
                      in_ms(instance->world, bound_ms), &asked(&ask, NULL)->request);
    return finish(instance->world, &ask);
}

static const struct kvb_lineage nothing;

struct names {
    uint32_t n;
    uint32_t members;
};
static void count_name(void *arg, const struct kvs_space *space, const char *name,
                       struct kvb_lineage lineage, uint32_t members)
{
    (void)space, (void)name, (void)lineage;
    struct names *names = arg;
    names->n++;
    names->members += members;
}
static struct names names_of(struct world *world)
{
    struct names names = {0};
    kvs_coordinator_each_name(world->coordinator, count_name, &names);
    return names;
}

/* ---- names ---- */

Test(coordinator_contract, one_name_is_one_lineage_within_a_space_and_only_there)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b, other_layout, other_tenant;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        join(&other_layout, &world, "c", "t", "m");
        join(&other_tenant, &world, "d", "u", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        cr_assert(kvb_lineage_equal(v1, resolve(&b, "v1")));
        cr_assert(!kvb_lineage_equal(v1, resolve(&other_layout, "v1")));
        cr_assert(!kvb_lineage_equal(v1, resolve(&other_tenant, "v1")));
        cr_assert(!kvb_lineage_equal(v1, resolve(&b, "v2")));
        cr_assert(kvb_lineage_equal(v1, resolve(&b, "v1")), "back to an earlier version");
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        kvs_member_close(other_layout.member);
        kvs_member_close(other_tenant.member);
        world_close(&world);
    }
}

Test(coordinator_contract, refuses_names_that_are_none)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a;
        struct ask ask;
        char longest[257];
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        memset(longest, 'x', sizeof longest);
        longest[256] = '\0';
        kvs_member_resolve(a.member, "", &asked(&ask, &a)->request);
        cr_assert_eq(finish(&world, &ask), KVB_ERR_INVALID);
        kvs_member_resolve(a.member, longest, &asked(&ask, &a)->request);
        cr_assert_eq(finish(&world, &ask), KVB_ERR_INVALID);
        longest[255] = '\0';
        (void)resolve(&a, longest);
        kvs_member_close(a.member);
        world_close(&world);
    }
}

Test(coordinator_contract, a_name_without_members_is_forgotten_after_the_grace_and_retired)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        (void)resolve(&b, "v1");
        kvs_member_leave(a.member, "v1");
        pass(&world, 2 * kind->grace_ms);
        cr_assert(check(&b, "v1", v1), "b is still in it");
        kvs_member_leave(b.member, "v1");
        pass(&world, kind->exact ? kind->grace_ms - 1 : kind->grace_ms / 4);
        cr_assert(kvb_lineage_equal(v1, resolve(&a, "v1")), "within the grace it comes back");
        pass(&world, 2 * kind->grace_ms);
        cr_assert(!is_retired(&world, v1));
        kvs_member_leave(a.member, "v2");
        settle(&world);
        cr_assert_eq(names_of(&world).members, 1, "leaving another name is nothing");
        kvs_member_close(a.member);
        EVENTUALLY(&world, names_of(&world).members == 0);
        pass(&world, kind->grace_ms + 1);
        EVENTUALLY(&world, is_retired(&world, v1));
        cr_assert_eq(world.nretired, 1);
        EVENTUALLY(&world, names_of(&world).n == 0);
        cr_assert(!check(&b, "v1", v1));
        cr_assert(!kvb_lineage_equal(v1, resolve(&b, "v1")));
        kvs_member_close(b.member);
        world_close(&world);
    }
}

Test(coordinator_contract, a_member_counts_in_one_name_at_a_time)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        (void)resolve(&a, "v2");
        EVENTUALLY(&world, names_of(&world).n == 2);
        EVENTUALLY(&world, names_of(&world).members == 1);
        cr_assert(check(&a, "v1", v1), "counts it in again");
        cr_assert(!check(&a, "v1", nothing));
        pass(&world, kind->grace_ms + 1);
        EVENTUALLY(&world, names_of(&world).n == 1); /* v2 lost its member */
        cr_assert(check(&a, "v1", v1));
        kvs_member_close(a.member);
        world_close(&world);
    }
}

Test(coordinator_contract, names_nobody_is_in_do_not_pile_up)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        char name[32];
        for (int i = 0; i < kind->many; i++) {
            a.nwords = 0;
            world.nretired = 0;
            (void)snprintf(name, sizeof name, "v%d", i);
            (void)resolve(&a, name);
        }
        cr_assert_leq(names_of(&world).n, 4096);
        EVENTUALLY(&world, names_of(&world).members == 1);
        world.nretired = 0;
        kvs_member_close(a.member);
        world_close(&world);
    }
}

/* ---- retiring ---- */

Test(coordinator_contract, success_waits_for_every_member_of_the_space)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b, c, elsewhere;
        struct ask ask;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        join(&c, &world, "c", "t", "l");
        join(&elsewhere, &world, "d", "u", "l");
        b.leaves = c.leaves = false;
        struct kvb_lineage v1 = resolve(&a, "v1");
        (void)resolve(&b, "v1");
        (void)resolve(&c, "v1");
        kvs_member_leave(c.member, "v1"); /* left, but its engine has not acknowledged it yet */
        kvs_member_leave(a.member, "v1");
        kvs_member_retire(a.member, &v1, 1, NULL, in_ms(&world, 10000),
                          &asked(&ask, NULL)->request);
        EVENTUALLY(&world, is_retired(&world, v1)); /* the nodes need not wait */
        EVENTUALLY(&world, was_told(&b, v1));
        EVENTUALLY(&world, was_told(&c, v1));
        settle(&world);
        cr_assert(!was_told(&a, v1), "it has left already");
        cr_assert_eq(elsewhere.nwords, 0, "another tenant hears nothing");
        cr_assert(!ask.done);
        kvs_member_left(b.member, b.words[b.nwords - 1].retirement);
        kvs_member_left(b.member, b.words[b.nwords - 1].retirement);
        kvs_member_left(b.member, 12345);
        settle(&world);
        cr_assert(!ask.done);
        kvs_member_left(c.member, c.words[c.nwords - 1].retirement);
        EVENTUALLY(&world, ask.done);
        cr_assert_eq(ask.status, KVB_OK);
        cr_assert(!check(&b, "v1", v1));
        cr_assert(!kvb_lineage_equal(v1, resolve(&b, "v1")), "the name stands for another now");
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        kvs_member_close(c.member);
        kvs_member_close(elsewhere.member);
        world_close(&world);
    }
}

Test(coordinator_contract, one_that_does_not_leave_is_fenced_and_the_answer_says_so)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        b.leaves = false;
        struct kvb_lineage v1 = resolve(&a, "v1");
        (void)resolve(&b, "v1");
        uint64_t end_ns = in_ms(&world, 500);
        cr_assert_eq(retire(&a, v1, NULL, 500), KVB_ERR_TIMEOUT);
        cr_assert(!kind->exact || in_ms(&world, 0) <= end_ns + KVB_NS_PER_MS);
        cr_assert_geq(in_ms(&world, 0), end_ns, "as long as it may");
        EVENTUALLY(&world, is_retired(&world, v1));
        cr_assert(!check(&b, "v1", v1), "its binding ended");
        EVENTUALLY(&world, was_told(&b, v1));
        kvs_member_left(b.member, b.words[b.nwords - 1].retirement);
        b.leaves = true;
        cr_assert_eq(retire(&a, v1, NULL, 10000), KVB_OK, "a retry works");
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

Test(coordinator_contract, a_member_that_goes_away_is_not_waited_for)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        struct ask ask;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        b.leaves = false;
        struct kvb_lineage v1 = resolve(&a, "v1");
        kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, &asked(&ask, NULL)->request);
        EVENTUALLY(&world, was_told(&b, v1));
        settle(&world);
        cr_assert(!ask.done);
        kvs_member_close(b.member);
        EVENTUALLY(&world, ask.done);
        cr_assert_eq(ask.status, KVB_OK);
        kvs_member_close(a.member);
        world_close(&world);
    }
}

Test(coordinator_contract, retires_by_name_what_the_name_stands_for_now)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        struct kvb_lineage v1 = resolve(&b, "v1");
        cr_assert_eq(retire(&a, nothing, "v1", 10000), KVB_OK);
        EVENTUALLY(&world, is_retired(&world, v1));
        cr_assert(was_told(&b, v1));
        world.nretired = 0;
        cr_assert_eq(retire(&a, nothing, "unknown", 10000), KVB_OK);
        settle(&world);
        cr_assert_eq(world.nretired, 0);
        struct kvb_lineage private_ = {{1, 2}};
        cr_assert_eq(retire(&a, private_, "unknown", 10000), KVB_OK);
        EVENTUALLY(&world, is_retired(&world, private_));
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

Test(coordinator_contract, an_answer_that_names_a_lineage_never_follows_the_word_that_it_is_retired)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        struct ask asks[4], retires[2];
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        b.nwords = 0;
        kvs_member_retire(a.member, &(struct kvb_lineage){{7, 7}}, 1, NULL, KVB_NEVER,
                          &asked(&retires[0], NULL)->request);
        kvs_member_resolve(b.member, "v1", &asked(&asks[0], &b)->request);
        kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, &asked(&retires[1], NULL)->request);
        kvs_member_resolve(b.member, "v1", &asked(&asks[1], &b)->request);
        EVENTUALLY(&world, asks[0].done && asks[1].done && was_told(&b, v1));
        EVENTUALLY(&world, was_told(&b, (struct kvb_lineage){{7, 7}}));
        for (uint32_t i = 0; i < b.nwords; i++) {
            for (uint32_t before = 0; b.words[i].heard == ANSWER && before < i; before++) {
                cr_assert(b.words[before].heard != TOLD ||
                          !kvb_lineage_equal(b.words[before].lineage, b.words[i].lineage));
            }
        }
        cr_assert(!kind->exact ||
                  (b.nwords == 4 && b.words[0].heard == TOLD && b.words[1].heard == ANSWER &&
                   b.words[2].heard == TOLD && kvb_lineage_equal(b.words[1].lineage, v1) &&
                   !kvb_lineage_equal(b.words[3].lineage, v1)));
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

Test(coordinator_contract, nobody_retires_what_a_name_of_another_tenant_stands_for)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "u", "l");
        struct kvb_lineage v1 = resolve(&b, "v1");
        EVENTUALLY(&world, names_of(&world).n == 1); /* as far as this process has heard */
        cr_assert_eq(retire(&a, v1, "v1", 10000), KVB_OK);
        kvs_member_abandon(a.member, v1);
        pass(&world, kind->exact ? 0 : 500);
        cr_assert(!is_retired(&world, v1));
        cr_assert(check(&b, "v1", v1));
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

Test(coordinator_contract, an_abandoned_private_lineage_is_retired_but_not_a_named_one)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        struct kvb_lineage private_ = {{3, 4}};
        kvs_member_abandon(a.member, private_);
        kvs_member_abandon(a.member, v1);
        EVENTUALLY(&world, is_retired(&world, private_));
        cr_assert(!is_retired(&world, v1));
        kvs_member_close(a.member);
        world_close(&world);
    }
}

/* ---- tenant reset ---- */

Test(coordinator_contract, a_tenant_reset_makes_all_leave_named_or_private_and_retires_everything)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b, other_layout, elsewhere;
        struct ask ask;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        join(&other_layout, &world, "c", "t", "m");
        join(&elsewhere, &world, "d", "u", "l");
        b.leaves = false; /* private */
        struct kvb_lineage v1 = resolve(&a, "v1");
        struct kvb_lineage m1 = resolve(&other_layout, "v1");
        struct kvb_lineage u1 = resolve(&elsewhere, "v1");
        world.held[0] = (struct kvb_lineage){{9, 9}};
        world.nheld = 1;
        a.nwords = elsewhere.nwords = 0;
        kvs_tenant_reset(world.coordinator, "t", a.member, in_ms(&world, 20000),
                         &asked(&ask, NULL)->request);
        EVENTUALLY(&world, is_retired(&world, v1) && is_retired(&world, m1));
        /* elsewhere what only a node knows is left to eviction: nobody can read it any more */
        cr_assert(!kind->exact || is_retired(&world, world.held[0]));
        EVENTUALLY(&world, b.nwords > 0 && other_layout.nwords > 0);
        settle(&world);
        cr_assert(!is_retired(&world, u1));
        cr_assert_eq(a.nwords, 0, "who asks has left");
        cr_assert_eq(elsewhere.nwords, 0);
        cr_assert_eq(other_layout.words[other_layout.nwords - 1].heard, TOLD_TENANT);
        cr_assert(!ask.done, "b has not left");
        cr_assert_eq(b.words[0].heard, TOLD_TENANT);
        cr_assert_eq(b.words[0].retirement, ask.request.epoch);
        kvs_member_left(b.member, b.words[0].retirement);
        EVENTUALLY(&world, ask.done);
        cr_assert_eq(ask.status, KVB_OK);

        b.leaves = true;
        kvs_tenant_reset(world.coordinator, "t", NULL, KVB_NEVER, &asked(&ask, NULL)->request);
        cr_assert_eq(finish(&world, &ask), KVB_OK);
        cr_assert_eq(a.words[0].heard, TOLD_TENANT, "asked by nobody: all are told");
        cr_assert(check(&elsewhere, "v1", u1));
        kvs_tenant_reset(world.coordinator, "none", NULL, KVB_NEVER, &asked(&ask, NULL)->request);
        cr_assert_eq(finish(&world, &ask), KVB_OK);
        world.lineages_status = KVB_ERR_NO_MEMORY;
        v1 = resolve(&a, "v1");
        if (kind->exact) {
            kvs_tenant_reset(world.coordinator, "t", NULL, KVB_NEVER, &asked(&ask, NULL)->request);
            cr_assert_eq(finish(&world, &ask), KVB_ERR_NO_MEMORY);
            cr_assert(check(&a, "v1", v1), "and nothing happened");
        }
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        kvs_member_close(other_layout.member);
        kvs_member_close(elsewhere.member);
        world_close(&world);
    }
}

Test(coordinator_contract, resets_of_a_tenant_at_one_time_all_succeed)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        struct ask asks[3];
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        (void)resolve(&a, "v1");
        b.leaves = false;
        for (int i = 0; i < 3; i++) {
            kvs_tenant_reset(world.coordinator, "t", NULL, in_ms(&world, 20000),
                             &asked(&asks[i], NULL)->request);
        }
        EVENTUALLY(&world, b.nwords == 3);
        settle(&world);
        for (uint32_t i = 0; i < b.nwords; i++) { /* has left: each of them hears it */
            cr_assert_eq(b.words[i].heard, TOLD_TENANT);
            kvs_member_left(b.member, b.words[i].retirement);
        }
        for (int i = 0; i < 3; i++) {
            EVENTUALLY(&world, asks[i].done);
            cr_assert_eq(asks[i].status, KVB_OK, "reset %d: %s", i,
                         kvb_status_text(asks[i].status));
        }
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

/* ---- steps (rule 7) ---- */

static kvb_status_t step(struct instance *instance, uint64_t epoch, uint64_t number,
                         struct kvb_lineage *lineage_p)
{
    struct ask ask;
    kvs_member_step(instance->member, epoch, number, &asked(&ask, NULL)->request);
    kvb_status_t status = finish(instance->world, &ask);
    if (status == KVB_OK) {
        *lineage_p = ask.request.lineage;
    }
    return status;
}

Test(coordinator_contract, the_first_of_a_step_makes_its_lineage_and_the_others_join_it)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b, late;
        struct ask ask;
        struct kvb_lineage a1 = {{0}}, b1 = {{0}}, a2 = {{0}}, b2 = {{0}}, a3 = {{0}};
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        cr_assert_eq(step(&a, 0, 1, &a1), KVB_ERR_FENCED, "before any reset all are out of step");
        kvs_tenant_reset(world.coordinator, "t", a.member, KVB_NEVER, &asked(&ask, NULL)->request);
        cr_assert_eq(finish(&world, &ask), KVB_OK);
        uint64_t epoch = ask.request.epoch;
        join(&late, &world, "c", "t", "l"); /* attached between two steps */

        cr_assert_eq(step(&a, epoch, 1, &a1), KVB_OK);
        cr_assert_eq(step(&b, epoch, 1, &b1), KVB_OK);
        cr_assert(kvb_lineage_equal(a1, b1));
        cr_assert_eq(step(&a, epoch, 1, &b1), KVB_OK, "asked again: the same");
        cr_assert(kvb_lineage_equal(a1, b1));
        cr_assert_eq(step(&late, epoch, 1, &b1), KVB_ERR_FENCED, "took no part in the reset");
        cr_assert_eq(step(&b, epoch, 2, &b2), KVB_OK);
        cr_assert(!kvb_lineage_equal(a1, b2));
        cr_assert(!is_retired(&world, a1), "a has not left it yet");
        cr_assert_eq(step(&a, epoch, 1, &a2), KVB_ERR_FENCED, "a step that has passed");
        cr_assert_eq(step(&a, epoch, 2, &a2), KVB_OK);
        cr_assert(kvb_lineage_equal(a2, b2));
        cr_assert_eq(step(&a, epoch, 4, &a3), KVB_ERR_FENCED, "a step skipped");
        cr_assert_eq(step(&a, epoch, 0, &a3), KVB_ERR_FENCED);
        cr_assert_eq(step(&a, epoch, 3, &a3), KVB_OK);
        EVENTUALLY(&world, is_retired(&world, a1)); /* all have left it */

        /* retired in the middle of a step: who comes later gets another */
        cr_assert_eq(retire(&a, a3, NULL, 10000), KVB_OK);
        cr_assert_eq(step(&b, epoch, 3, &b2), KVB_OK);
        cr_assert(!kvb_lineage_equal(a3, b2));

        kvs_tenant_reset(world.coordinator, "t", NULL, KVB_NEVER, &asked(&ask, NULL)->request);
        cr_assert_eq(finish(&world, &ask), KVB_OK);
        EVENTUALLY(&world, is_retired(&world, b2));
        cr_assert_eq(step(&a, epoch, 4, &a3), KVB_ERR_FENCED, "an earlier epoch");
        cr_assert_eq(step(&late, ask.request.epoch, 1, &a3), KVB_OK, "now it takes part");
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        kvs_member_close(late.member);
        world_close(&world);
    }
}

Test(coordinator_contract, one_that_did_not_leave_in_a_reset_took_no_part_in_it)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        struct ask ask;
        struct kvb_lineage lineage;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        b.leaves = false;
        kvs_tenant_reset(world.coordinator, "t", a.member, in_ms(&world, kind->exact ? 100 : 1000),
                         &asked(&ask, NULL)->request);
        cr_assert_eq(finish(&world, &ask), KVB_ERR_TIMEOUT);
        EVENTUALLY(&world, b.nwords > 0);
        kvs_member_left(b.member, b.words[0].retirement);
        cr_assert_eq(step(&a, ask.request.epoch, 1, &lineage), KVB_OK);
        cr_assert_eq(step(&b, ask.request.epoch, 1, &lineage), KVB_ERR_FENCED);
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

/* ---- what cannot be ---- */

Test(coordinator_contract, what_cannot_be_kept_is_refused_and_nothing_of_it_is_there)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct ask asks[4];
        char tenant[100];
        world_open(&world, kind);
        memset(tenant, 't', sizeof tenant - 1);
        tenant[sizeof tenant - 1] = '\0';
        kvb_status_t wrong = kind->exact ? KVB_ERR_UNSUPPORTED : KVB_ERR_INVALID;
        struct kvs_node_record records[4] = {
            {.name = ""}, {.name = "n"}, {.name = "n", .address = "a"}, {.name = "n"}};
        memset(records[1].name, 'n', sizeof records[1].name);
        memset(records[2].address, 'a', sizeof records[2].address);
        memset(records[3].rdma, 'r', sizeof records[3].rdma);
        for (int i = 0; i < 4; i++) { /* without a name, and texts that do not end */
            cr_assert_eq(kvs_coordinator_announce(world.coordinator, &records[i]), wrong);
        }
        kvs_coordinator_set_quota(world.coordinator, tenant, 1, &asked(&asks[0], NULL)->request);
        EVENTUALLY(&world, asks[0].done);
        cr_assert_eq(asks[0].status, wrong);
        if (!kind->exact) {
            kvs_tenant_reset(world.coordinator, tenant, NULL, KVB_NEVER,
                             &asked(&asks[1], NULL)->request);
            EVENTUALLY(&world, asks[1].done);
            cr_assert_eq(asks[1].status, KVB_ERR_INVALID);
        }
        kvs_coordinator_withdraw(world.coordinator, &asked(&asks[2], NULL)->request);
        EVENTUALLY(&world, asks[2].done);
        cr_assert_eq(asks[2].status, KVB_OK, "there is none to withdraw");
        cr_assert_eq(names_of(&world).n, 0);
        world_close(&world);
    }
}

/* ---- out of reach ---- */

Test(coordinator_contract, out_of_reach_everything_is_unavailable_and_nothing_happens)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        struct ask asks[5];
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        a.nwords = 0;
        EVENTUALLY(&world, names_of(&world).members == 1);
        set_reachable(&world, false);
        kvs_member_resolve(a.member, "v2", &asked(&asks[0], NULL)->request);
        kvs_member_check(a.member, "v1", v1, &asked(&asks[1], NULL)->request);
        kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, &asked(&asks[2], NULL)->request);
        kvs_tenant_reset(world.coordinator, "t", a.member, KVB_NEVER,
                         &asked(&asks[3], NULL)->request);
        kvs_member_step(a.member, 1, 1, &asked(&asks[4], NULL)->request);
        kvs_member_abandon(a.member, (struct kvb_lineage){{5, 5}});
        join(&b, &world, "b", "t", "l");
        for (int i = 0; i < 5; i++) {
            EVENTUALLY(&world, asks[i].done);
            cr_assert_eq(asks[i].status, KVB_ERR_UNAVAILABLE);
        }
        EVENTUALLY(&world, a.nwords == 1);
        cr_assert_eq(a.words[0].heard, AWAY);
        EVENTUALLY(&world, b.nwords == 1);
        cr_assert_eq(b.words[0].heard, AWAY, "one that opens meanwhile hears it too");
        cr_assert_eq(world.nretired, 0);
        kvs_member_leave(a.member, "v1");
        cr_assert_eq(names_of(&world).members, 1, "nobody has heard it");
        set_reachable(&world, true);
        EVENTUALLY(&world, names_of(&world).members == 0);
        EVENTUALLY(&world, a.nwords > 0 && a.words[a.nwords - 1].heard == BACK);
        cr_assert(check(&a, "v1", v1));
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

Test(coordinator_contract, an_unavailable_answer_is_followed_by_the_word_that_it_is_back)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a;
        struct ask ask;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        set_reachable(&world, false);
        kvs_member_resolve(a.member, "v1", &asked(&ask, &a)->request);
        set_reachable(&world, true);
        EVENTUALLY(&world, ask.done);
        cr_assert_eq(ask.status, KVB_ERR_UNAVAILABLE);
        EVENTUALLY(&world, a.nwords > 0 && a.words[a.nwords - 1].heard == BACK);
        kvs_member_close(a.member);
        world_close(&world);
    }
}

Test(coordinator_contract, what_was_told_in_an_outage_is_heard_after_it)
{
    EACH_KIND(kind)
    {
        if (!kind->exact) {
            continue; /* who asks and who is told are two processes: test_etcd.c */
        }
        struct world world;
        struct instance a, b;
        struct ask ask;
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        struct kvb_lineage v1 = resolve(&a, "v1");
        b.nwords = 0;
        kvs_member_retire(a.member, &v1, 1, NULL, in_ms(&world, 100), &asked(&ask, NULL)->request);
        set_reachable(&world, false);
        cr_assert_eq(finish(&world, &ask), KVB_ERR_TIMEOUT);
        cr_assert(!was_told(&b, v1));
        set_reachable(&world, true);
        settle(&world);
        cr_assert(was_told(&b, v1));
        kvs_member_close(a.member);
        kvs_member_close(b.member);
        world_close(&world);
    }
}

/* ---- ends ---- */

Test(coordinator_contract, closing_cancels_what_is_open_exactly_once_and_what_it_began_goes_on)
{
    EACH_KIND(kind)
    {
        struct world world;
        struct instance a, b;
        struct ask asks[2];
        world_open(&world, kind);
        join(&a, &world, "a", "t", "l");
        join(&b, &world, "b", "t", "l");
        b.leaves = false;
        struct kvb_lineage v1 = {{1, 1}};
        kvs_member_retire(a.member, &v1, 1, NULL, in_ms(&world, kind->exact ? 100 : 10000),
                          &asked(&asks[0], NULL)->request);
        kvs_member_resolve(a.member, "v1", &asked(&asks[1], NULL)->request);
        kvs_member_close(a.member);
        cr_assert(asks[0].done && asks[1].done);
        cr_assert_eq(asks[0].status, KVB_ERR_CANCELED);
        cr_assert_eq(asks[1].status, KVB_ERR_CANCELED);
        EVENTUALLY(&world, was_told(&b, v1));
        kvs_tenant_reset(world.coordinator, "t", NULL, KVB_NEVER, &asked(&asks[0], NULL)->request);
        kvs_member_close(b.member);
        world_close(&world);
        cr_assert(asks[0].done, "a request of nobody's is answered at the latest here");
    }
}
