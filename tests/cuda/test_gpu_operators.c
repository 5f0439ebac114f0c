/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an operator sees when a GPU fails one of two instances: the operation says why and what to
 * do, the other instance works on, and the daemon answers while a call of the driver hangs.
 */
#include "http_client.h"
#include "ranks.h"
#include "types.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>

static struct gpu_fleet fleet;
static struct gpu_instance sick = {.name = "sick", .kind = KVPLANE_MEMORY_CUDA, .n = 2};
static struct gpu_instance fine = {.name = "fine", .kind = KVPLANE_MEMORY_CUDA, .n = 1};
static const struct gpu_instance *const all[] = {&sick, &fine};

static void setup(const char *bound)
{
    fleet_start(&fleet, bound, NULL);
    instance_start(&fleet, &sick);
    instance_start(&fleet, &fine);
}

static void cleanup(void)
{
    instance_stop(&fleet, &sick);
    instance_stop(&fleet, &fine);
    fleet_stop(&fleet);
}

static void check_memory(const char *what)
{
    RANKS_UNTIL(cuda_rig_held(&fleet.rig) == fleet_due(&fleet, all, 2), "%s: %llu held", what,
                (unsigned long long)cuda_rig_held(&fleet.rig));
}

/* The next such call of that rank's helper. Its pid. */
static int arm(enum fake_cuda_call call, enum fake_cuda_action action, uint32_t rank)
{
    int pid = fleet_helper_pid(&fleet, &sick, rank);
    cr_assert_gt(pid, 0);
    cuda_rig_arm(&fleet.rig, 1, action, CUDA_ERROR_ILLEGAL_ADDRESS);
    atomic_store(&fleet.rig.control->only, (unsigned)call + 1);
    atomic_store(&fleet.rig.control->victim, pid);
    return pid;
}

static int64_t helper_figure(uint32_t rank, const char *name)
{
    json_t *view = fleet_view(&fleet, &sick);
    const json_t *helper = json_object_get(view_rank(view, rank), "helper");
    int64_t n = json_integer_value(json_object_get(helper, name));
    json_decref(view);
    return n;
}

static void check_cause(uint32_t rank, const char *words)
{
    json_t *view = fleet_view(&fleet, &sick);
    const json_t *helper = json_object_get(view_rank(view, rank), "helper");
    const char *cause = json_string_value(json_object_get(helper, "last_cause"));
    cr_assert(cause != NULL && strstr(cause, words) != NULL, "%s", cause);
    json_decref(view);
}

static bool metrics_say(const char *line)
{
    struct http_answer answer = http_ask(fleet.port, "GET", "/metrics", NULL, NULL);
    bool there = answer.status == 200 && strstr(answer.body, line) != NULL;
    http_answer_free(&answer);
    return there;
}

/* A line of `kvplane status`. */
static bool status_shows(const char *pattern)
{
    char command[512];
    (void)snprintf(command, sizeof command,
                   KVPLANE_PROGRAM " status --url http://127.0.0.1:%u | grep -Eq '^ +%s'",
                   fleet.port, pattern);
    return system(command) == 0;
}

static void the_other_works(void)
{
    instance_moves(&fine);
    POST_OK(&fleet, &fine, "/sleep?level=1");
    POST_OK(&fleet, &fine, "/wake_up");
    instance_moves(&fine);
}

static void all_is_well(void)
{
    cr_assert(instance_all(&sick, 0, KVPLANE_RESIDENT));
    cr_assert(instance_all(&sick, 1, KVPLANE_RESIDENT));
    instance_moves(&sick);
    check_memory("brought back");
}

Test(gpu_operators, a_lost_context_fails_that_operation_with_its_cause_and_no_other_instance,
     .timeout = 1100)
{
    setup("20s");
    POST_OK(&fleet, &sick, "/sleep?level=1");
    (void)arm(FAKE_CUDA_mem_import, FAKE_CUDA_POISON, 1);
    char *body = NULL;
    cr_assert_neq(fleet_post(&fleet, &sick, "/wake_up", &body), 200);
    cr_assert(cuda_rig_disarm(&fleet.rig));
    cr_assert_not_null(strstr(body, "register failed on rank 1: "), "%s", body);
    cr_assert_not_null(strstr(body, "mem_import: CUDA_ERROR_ILLEGAL_ADDRESS"), "%s", body);
    cr_assert_not_null(strstr(body, "repeat"), "what to do: %s", body);
    cr_assert_not_null(strstr(body, "the instance is now asleep"), "%s", body);
    free(body);
    cr_assert(instance_all(&sick, 0, KVPLANE_DISCARDED), "undone on both ranks");
    cr_assert(instance_all(&sick, 1, KVPLANE_OFFLOADED), "undone on both ranks");
    check_memory("undone");
    check_cause(1, "mem_import: CUDA_ERROR_ILLEGAL_ADDRESS");
    cr_assert_eq(helper_figure(1, "kills"), 1);
    cr_assert_eq(helper_figure(0, "kills"), 0);
    cr_assert(metrics_say("kvplane_cuda_helper_kills_total{instance=\"sick\",rank=\"1\"} 1\n"));
    cr_assert(metrics_say("kvplane_cuda_helpers{instance=\"sick\",rank=\"1\"} 0\n"));
    cr_assert(metrics_say("kvplane_cuda_helpers{instance=\"fine\",rank=\"0\"} 1\n"));
    cr_assert(status_shows("sick +1 +kv_cache discarded, weights offloaded +0 +0 B +- +0 +pool +1 "
                           "+mem_import: CUDA_ERROR_ILLEGAL_ADDRESS"));
    cr_assert(status_shows("fine +0 +kv_cache resident, weights resident +2 +4 MiB +[0-9]+ +"));
    the_other_works();
    POST_OK(&fleet, &sick, "/wake_up");
    cr_assert_eq(helper_figure(1, "starts"), 2);
    all_is_well();
    cleanup();
}

Test(gpu_operators, a_helper_that_somebody_kills_is_told_and_the_next_wake_starts_another,
     .timeout = 1100)
{
    setup("20s");
    POST_OK(&fleet, &sick, "/sleep?level=1");
    (void)arm(FAKE_CUDA_mem_map, FAKE_CUDA_DIE, 0);
    char *body = NULL;
    cr_assert_neq(fleet_post(&fleet, &sick, "/wake_up", &body), 200);
    cr_assert(cuda_rig_disarm(&fleet.rig));
    cr_assert_not_null(strstr(body, "register failed on rank 0: "), "%s", body);
    cr_assert_not_null(strstr(body, "(signal 9)"), "%s", body);
    free(body);
    check_cause(0, "(signal 9)");
    cr_assert_eq(helper_figure(0, "kills"), 0, "not by us");
    cr_assert_eq(helper_figure(0, "failures"), 1);
    POST_OK(&fleet, &sick, "/wake_up");
    all_is_well();
    cleanup();
}

static void start_put(uint32_t rank)
{
    (void)atomic_fetch_add(&sick.ranks[rank].page->ask, 1);
}

static int put_result(uint32_t rank)
{
    struct rank_page *page = sick.ranks[rank].page;
    RANKS_UNTIL(atomic_load(&page->asked) == atomic_load(&page->ask), "the put ends");
    return atomic_load(&page->result);
}

Test(gpu_operators, a_context_lost_in_a_put_costs_that_put_and_is_shown, .timeout = 1100)
{
    setup("20s");
    instance_moves(&sick);
    (void)arm(FAKE_CUDA_stream_sync, FAKE_CUDA_POISON, 0);
    start_put(0);
    cr_assert_neq(put_result(0), KVPLANE_OK);
    cr_assert(cuda_rig_disarm(&fleet.rig));
    check_cause(0, "stream_sync: CUDA_ERROR_ILLEGAL_ADDRESS");
    the_other_works();
    POST_OK(&fleet, &sick, "/sleep?level=1");
    check_memory("asleep");
    POST_OK(&fleet, &sick, "/wake_up");
    all_is_well();
    cleanup();
}

static int64_t regions_of(uint32_t rank)
{
    json_t *view = fleet_view(&fleet, &sick);
    int64_t n = json_integer_value(json_object_get(view_rank(view, rank), "registered_regions"));
    json_decref(view);
    return n;
}

Test(gpu_operators, memory_lost_with_its_helper_is_had_again_without_anybodys_help, .timeout = 1100)
{
    setup("20s");
    for (uint32_t i = 1; i <= 3; i++) {
        int helper = fleet_helper_pid(&fleet, &sick, 1);
        unsigned taken = atomic_load(&sick.ranks[1].page->registered);
        (void)kill(helper, SIGKILL);
        RANKS_UNTIL(atomic_load(&sick.ranks[1].page->registered) == taken + RANK_TAGS,
                    "both regions are handed over anew");
        RANKS_UNTIL(regions_of(1) == RANK_TAGS, "and registered");
        cr_assert_neq(fleet_helper_pid(&fleet, &sick, 1), helper);
        cr_assert_eq(helper_figure(1, "starts"), 1 + i);
        fleet_wait_attached(&fleet, &sick, true);
        all_is_well();
    }
    cr_assert_eq(atomic_load(&sick.ranks[0].page->paused), 0, "nobody was stopped for that");
    POST_OK(&fleet, &sick, "/sleep?level=1");
    check_memory("asleep");
    POST_OK(&fleet, &sick, "/wake_up");
    all_is_well();
    cleanup();
}

static bool unanswered(int fd)
{
    struct pollfd it = {.fd = fd, .events = POLLIN};
    return poll(&it, 1, 0) == 0;
}

/* While the helper of sick's rank 0 hangs in that call: everything else answers and works. The
 * answer is the caller's. */
static struct http_answer hang_in(const char *path, enum fake_cuda_call call)
{
    static const char *const reads[] = {"/health",
                                        "/livez",
                                        "/readyz",
                                        "/metrics",
                                        "/v1/kvplane/instances",
                                        "/v1/kvplane/operations"};
    int helper = arm(call, FAKE_CUDA_HANG, 0);
    int fd = fleet_post_start(&fleet, &sick, path);
    RANKS_UNTIL(atomic_load(&fleet.rig.control->fired) > 0, "%s hangs", path);
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        struct http_answer answer = http_ask(fleet.port, "GET", reads[i], NULL, NULL);
        cr_assert(answer.status == 200 || (strcmp(reads[i], "/readyz") == 0), "%s: %d", reads[i],
                  answer.status);
        cr_assert_neq(answer.status, 0);
        http_answer_free(&answer);
    }
    the_other_works();
    cr_assert(unanswered(fd), "all that was while it hung");
    struct http_answer answer = http_receive(fd, false);
    (void)close(fd);
    (void)cuda_rig_disarm(&fleet.rig);
    RANKS_UNTIL(kill(helper, 0) != 0 && errno == ESRCH, "the helper is gone");
    check_cause(0, "did not answer in time and was killed");
    check_memory(path);
    return answer;
}

Test(gpu_operators, a_call_of_the_driver_that_hangs_holds_up_nothing_else_and_ends_by_its_bound,
     .timeout = 1100)
{
    setup("8s");
    struct http_answer answer = hang_in("/sleep?level=1", FAKE_CUDA_mem_unmap);
    cr_assert_eq(answer.status, 200, "killing is the release that always works: %s", answer.body);
    http_answer_free(&answer);
    POST_OK(&fleet, &sick, "/wake_up");
    all_is_well();
    POST_OK(&fleet, &sick, "/sleep?level=1");
    answer = hang_in("/wake_up", FAKE_CUDA_mem_import);
    cr_assert_neq(answer.status, 200);
    cr_assert_not_null(strstr(answer.body, "register failed on rank 0: "), "%s", answer.body);
    cr_assert_not_null(strstr(answer.body, "did not answer in time"), "%s", answer.body);
    cr_assert_not_null(strstr(answer.body, "the instance is now asleep"), "%s", answer.body);
    http_answer_free(&answer);
    cr_assert_eq(helper_figure(0, "kills"), 2);
    POST_OK(&fleet, &sick, "/wake_up");
    all_is_well();
    cleanup();
}

Test(gpu_operators, a_copy_that_hangs_does_not_hold_up_a_sleep_that_aborts, .timeout = 1100)
{
    setup("20s");
    instance_moves(&sick);
    (void)arm(FAKE_CUDA_stream_sync, FAKE_CUDA_HANG, 1);
    start_put(1);
    RANKS_UNTIL(atomic_load(&fleet.rig.control->fired) > 0, "the copy hangs");
    POST_OK(&fleet, &sick, "/sleep?level=1&mode=abort");
    (void)cuda_rig_disarm(&fleet.rig);
    cr_assert_neq(put_result(1), KVPLANE_OK);
    check_memory("asleep");
    POST_OK(&fleet, &sick, "/wake_up");
    all_is_well();
    cleanup();
}
