/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of four is killed (its process, by SIGKILL) at each call of the daemon in a sleep and in
 * a wake, before and after it has done what it was asked. The instance ends in a truthful state;
 * the others are undone where nothing was discarded; a new process in its place brings it back.
 */
#include "http_client.h"
#include "ranks.h"
#include "types.h"

#include <criterion/criterion.h>

#include <signal.h>

static struct gpu_fleet fleet;
static struct gpu_instance it = {.name = "four", .n = 4};
static const struct gpu_instance *const all[] = {&it};
static const char *const tag_names[RANK_TAGS] = {"kv_cache", "weights"};

static void setup(enum kvplane_memory kind)
{
    it.kind = kind;
    fleet_start(&fleet, "20s", NULL);
    instance_start(&fleet, &it);
}

static void cleanup(void)
{
    instance_stop(&fleet, &it);
    fleet_stop(&fleet);
}

struct before {
    unsigned commits[RANKS_MAX];
    unsigned residency[RANKS_MAX][RANK_TAGS];
};

static struct before look(void)
{
    struct before before;
    for (uint32_t r = 0; r < it.n; r++) {
        before.commits[r] = atomic_load(&it.ranks[r].page->commits);
        for (uint32_t t = 0; t < RANK_TAGS; t++) {
            before.residency[r][t] = atomic_load(&it.ranks[r].page->residency[t]);
        }
    }
    return before;
}

static int64_t registered(const json_t *of)
{
    const json_t *of_rank = json_object_get(of, "registered_regions");
    const json_t *of_all = json_object_get(json_object_get(of, "regions"), "registered");
    return json_integer_value(of_rank != NULL ? of_rank : of_all);
}

static void check_memory(const char *what)
{
    if (it.kind != KVPLANE_MEMORY_HOST) {
        RANKS_UNTIL(cuda_rig_held(&fleet.rig) == fleet_due(&fleet, all, 1), "%s: %llu held", what,
                    (unsigned long long)cuda_rig_held(&fleet.rig));
        return;
    }
    json_t *view = fleet_view(&fleet, &it);
    int64_t regions = registered(view);
    json_decref(view);
    if (regions == 0) {
        RANKS_UNTIL(fleet_host_references(&fleet) == 0, "%s", what);
    } else {
        cr_assert_geq(fleet_host_references(&fleet), regions, "%s", what);
    }
}

static void check_survivors(uint32_t victim, const struct before *before, bool failed,
                            const char *what)
{
    static const char *const texts[] = {"resident", "offloaded", "discarded", "unknown"};
    json_t *view = fleet_view(&fleet, &it);
    char of_rank[16];
    bool committed = false;
    (void)snprintf(of_rank, sizeof of_rank, "rank %u", victim);
    cr_assert(json_is_false(json_object_get(view, "ready")), "%s", what);
    cr_assert_not_null(strstr(json_string_value(json_object_get(view, "message")), of_rank), "%s",
                       what);
    for (uint32_t r = 0; r < it.n; r++) {
        committed = committed || atomic_load(&it.ranks[r].page->commits) != before->commits[r];
    }
    bool asleep_before = before->residency[0][0] != KVPLANE_RESIDENT;
    cr_assert_eq(json_is_true(json_object_get(view, "degraded")),
                 failed && !asleep_before && committed, "%s", what);
    for (uint32_t r = 0; r < it.n; r++) {
        const json_t *state = view_rank(view, r);
        bool attached = json_is_true(json_object_get(state, "attached"));
        cr_assert_eq(attached, r != victim, "%s: rank %u", what, r);
        for (uint32_t t = 0; attached && t < RANK_TAGS; t++) {
            unsigned truth = atomic_load(&it.ranks[r].page->residency[t]);
            const char *said =
                json_string_value(json_object_get(json_object_get(state, "tags"), tag_names[t]));
            cr_assert_str_eq(said, texts[truth], "%s: %s of rank %u", what, tag_names[t], r);
            if (failed && (asleep_before || !committed)) {
                cr_assert_eq(truth, before->residency[r][t], "%s: %s of rank %u is undone", what,
                             tag_names[t], r);
            }
        }
        if (attached && failed && !asleep_before && !committed) {
            cr_assert_eq(registered(state), RANK_TAGS, "%s: rank %u serves on", what, r);
        }
    }
    json_decref(view);
}

static bool agree(void)
{
    return (instance_all(&it, 0, KVPLANE_RESIDENT) || instance_all(&it, 0, KVPLANE_DISCARDED)) &&
           (instance_all(&it, 1, KVPLANE_RESIDENT) || instance_all(&it, 1, KVPLANE_OFFLOADED) ||
            instance_all(&it, 1, KVPLANE_DISCARDED));
}

static bool well(void)
{
    json_t *view = fleet_view(&fleet, &it);
    bool well =
        registered(view) == it.n * RANK_TAGS && json_is_true(json_object_get(view, "ready"));
    json_decref(view);
    return well;
}

/* A new process in its place, and all is well again. */
static void bring_back(uint32_t victim, const char *what)
{
    instance_start_rank(&fleet, &it, victim);
    fleet_wait_attached(&fleet, &it, true);
    RANKS_UNTIL(agree(), "%s: all ranks are brought to one state", what);
    POST_OK(&fleet, &it, "/wake_up");
    cr_assert(instance_all(&it, 0, KVPLANE_RESIDENT), "%s", what);
    cr_assert(instance_all(&it, 1, KVPLANE_RESIDENT), "%s", what);
    RANKS_UNTIL(well(), "%s", what); /* what the new one handed over may be on its way */
    check_memory(what);
}

/* False: it was asked less often. */
static bool kill_at(uint32_t victim, const char *path, bool late, uint32_t n)
{
    struct rank_page *page = it.ranks[victim].page;
    struct before before = look();
    char what[128];
    char of_rank[16];
    char *body = NULL;
    (void)snprintf(what, sizeof what, "%s, rank %u killed %s call %u", path, victim,
                   late ? "after" : "at", n);
    (void)snprintf(of_rank, sizeof of_rank, "rank %u", victim);
    atomic_store(&page->die_late, late);
    atomic_store(&page->die_at, n);
    int code = fleet_post(&fleet, &it, path, &body);
    if (atomic_exchange(&page->die_at, 0) > 0) {
        cr_assert_eq(code, 200, "%s: %d %s", what, code, body);
        free(body);
        return false;
    }
    RANKS_UNTIL(atomic_load(&page->dying) > 0, "%s", what);
    instance_reap(&it, victim);
    cr_assert(code == 200 || strstr(body, of_rank) != NULL, "%s: %s", what, body);
    free(body);
    fleet_wait_attached(&fleet, &it, false);
    check_survivors(victim, &before, code != 200, what);
    check_memory(what);
    bring_back(victim, what);
    return true;
}

static void kill_at_each(uint32_t victim)
{
    static const struct {
        const char *before; /* NULL: awake */
        const char *path;
        uint32_t least;
    } phases[] = {
        {NULL, "/sleep?level=1", 3},
        {NULL, "/sleep?level=2", 2},
        {"/sleep?level=1", "/wake_up", 2},
        {"/sleep?level=2", "/wake_up?tags=kv_cache", 2},
    };
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        for (int late = 0; late < 2; late++) {
            for (uint32_t n = 1;; n++) {
                if (phases[i].before != NULL) {
                    POST_OK(&fleet, &it, phases[i].before);
                }
                if (!kill_at(victim, phases[i].path, late != 0, n)) {
                    cr_assert_gt(n, phases[i].least, "%s: %u calls", phases[i].path, n - 1);
                    break;
                }
            }
            POST_OK(&fleet, &it, "/wake_up");
        }
    }
    instance_moves(&it);
}

Test(gpu_kills, the_rank_that_schedules_is_killed_in_each_phase, .timeout = 500)
{
    setup(KVPLANE_MEMORY_CUDA);
    kill_at_each(0);
    cleanup();
}

Test(gpu_kills, a_rank_is_killed_in_each_phase, .timeout = 500)
{
    setup(KVPLANE_MEMORY_CUDA);
    kill_at_each(2);
    cleanup();
}

Test(gpu_kills, a_rank_with_host_memory_is_killed_in_each_phase, .timeout = 500)
{
    setup(KVPLANE_MEMORY_HOST);
    kill_at_each(0);
    kill_at_each(3);
    cleanup();
}

/* It dies while the daemon registers, or lets go of, its memory: the helper hangs in that call
 * meanwhile. */
static void kill_during(const char *path, enum fake_cuda_call call, uint32_t victim)
{
    struct before before = look();
    cuda_rig_arm(&fleet.rig, 1, FAKE_CUDA_HANG, 0);
    atomic_store(&fleet.rig.control->only, (unsigned)call + 1);
    atomic_store(&fleet.rig.control->victim, fleet_helper_pid(&fleet, &it, victim));
    int fd = fleet_post_start(&fleet, &it, path);
    RANKS_UNTIL(atomic_load(&fleet.rig.control->fired) > 0, "%s hangs", path);
    (void)kill(it.ranks[victim].pid, SIGKILL);
    instance_reap(&it, victim);
    struct http_answer answer = http_receive(fd, false);
    (void)cuda_rig_disarm(&fleet.rig);
    cr_assert_neq(answer.status, 200);
    cr_assert_neq(answer.status, 0, "%s is answered", path);
    http_answer_free(&answer);
    (void)close(fd);
    fleet_wait_attached(&fleet, &it, false);
    check_survivors(victim, &before, true, path);
    check_memory(path);
    bring_back(victim, path);
}

Test(gpu_kills, a_rank_is_killed_while_its_memory_is_being_registered_or_let_go_of, .timeout = 500)
{
    setup(KVPLANE_MEMORY_CUDA);
    for (uint32_t victim = 0; victim < it.n; victim += it.n - 1) {
        kill_during("/sleep?level=1", FAKE_CUDA_mem_unmap, victim);
        POST_OK(&fleet, &it, "/sleep?level=1");
        kill_during("/wake_up", FAKE_CUDA_mem_import, victim);
    }
    instance_moves(&it);
    cleanup();
}
