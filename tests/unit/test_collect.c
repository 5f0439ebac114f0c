/* SPDX-License-Identifier: Apache-2.0 */
#include "collect.h"
#include "metrics.h"
#include "share_impl.h"

#include "base/clock.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static struct kvp_loop *loop;
static struct kvs_share *share;
static struct kvb_metrics *metrics;
static struct kvp_collect collect;

static void setup(void)
{
    static const struct kvp_loop_ops ops = {.woken = NULL};
    const struct kvs_share_config config = {.bytes = 1 << 20, .shards = 1};
    cr_assert_eq(kvp_loop_create(&ops, NULL, &loop), KVB_OK);
    cr_assert_eq(kvs_share_create(&kvb_random_real, &config, &share), KVB_OK);
    metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    cr_assert_not_null(metrics);
    kvp_collect_init(&collect, metrics, share, loop);
}

static void teardown(void)
{
    kvb_metrics_destroy(metrics);
    kvs_share_destroy(share);
    kvp_loop_destroy(loop);
}

TestSuite(collect, .init = setup, .fini = teardown);

/* A scrape shows, or does not show, that line. */
static bool shows(const char *line)
{
    char *text;
    size_t len;
    cr_assert_eq(kvb_metrics_write(metrics, &text, &len), KVB_OK);
    bool there = strstr(text, line) != NULL;
    free(text);
    return there;
}

Test(collect, what_became_of_puts_and_gets_of_the_share_is_shown_by_result)
{
    static const struct {
        enum kvs_batch_op op;
        kvb_status_t status;
        const char *line;
    } answers[] = {
        {KVS_EXISTS, KVB_OK, "\nkvplane_store_lookups_total{result=\"hit\"} 1\n"},
        {KVS_EXISTS, KVB_ERR_NOT_FOUND, "\nkvplane_store_lookups_total{result=\"miss\"} 1\n"},
        {KVS_PUT, KVB_OK, "\nkvplane_store_puts_total{result=\"ok\"} 1\n"},
        {KVS_PUT, KVB_ERR_EXISTS, "\nkvplane_store_puts_total{result=\"existed\"} 1\n"},
        {KVS_PUT, KVB_ERR_QUOTA, "\nkvplane_store_puts_total{result=\"refused\"} 1\n"},
        {KVS_PUT, KVB_ERR_FENCED, "\nkvplane_store_puts_total{result=\"fenced\"} 1\n"},
        {KVS_PUT, KVB_ERR_IO, "\nkvplane_store_puts_total{result=\"failed\"} 1\n"},
        {KVS_GET, KVB_OK, "\nkvplane_store_gets_total{result=\"ok\"} 1\n"},
        {KVS_GET, KVB_ERR_NOT_FOUND, "\nkvplane_store_gets_total{result=\"missed\"} 1\n"},
        {KVS_GET, KVB_ERR_TICKET, "\nkvplane_store_gets_total{result=\"ticket\"} 1\n"},
        {KVS_GET, KVB_ERR_CHECKSUM, "\nkvplane_store_gets_total{result=\"checksum\"} 1\n"},
        {KVS_GET, KVB_ERR_IO, "\nkvplane_store_gets_total{result=\"failed\"} 1\n"},
        {KVS_REMOVE, KVB_OK, "\nkvplane_store_removed_total 1\n"},
    };
    struct kvs_counts counts = {.puts = 0};
    kvs_share_counts_add(share, &counts);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        cr_expect(!shows(answers[i].line), "%s", answers[i].line);
        kvs_count_answer(&counts, answers[i].op, answers[i].status, 100);
        cr_expect(shows(answers[i].line), "%s", answers[i].line);
    }
    cr_expect(shows("\nkvplane_store_put_bytes_total 100\n"));
    cr_expect(shows("\nkvplane_store_get_bytes_total 100\n"));
    cr_expect(shows("\nkvplane_checksum_failures_total{at=\"get\"} 1\n"));
    cr_expect(shows("\nkvplane_checksum_failures_total{at=\"scrub\"} 0\n"));
    KVS_COUNT(&counts, scrubs, 3);
    KVS_COUNT(&counts, scrubs_bad, 1);
    cr_expect(shows("\nkvplane_checksum_failures_total{at=\"scrub\"} 1\n"));
    cr_expect(shows("\nkvplane_store_scrubs_total{result=\"good\"} 2\n"));
    kvs_share_counts_remove(share, &counts);
    cr_expect(shows("\nkvplane_store_puts_total{result=\"fenced\"} 1\n"), "what was counted stays");
}

Test(collect, an_instance_is_in_one_state_and_of_one_tenant)
{
    struct kvp_view view = {.instance = "a",
                            .tenant = "t",
                            .attached = true,
                            .scheduler = KVP_SCHEDULER_PAUSING,
                            .ntags = 1,
                            .tags = {{"kv_cache", KVB_OFFLOADED}}};
    kvp_collect_instance(&collect, &view);
    cr_expect(shows(
        "\nkvplane_instance_scheduler_state{instance=\"a\",tenant=\"t\",state=\"running\"} 0\n"));
    cr_expect(shows(
        "\nkvplane_instance_scheduler_state{instance=\"a\",tenant=\"t\",state=\"pausing\"} 1\n"));
    cr_expect(shows("tag=\"kv_cache\",state=\"offloaded\"} 1\n"));
    cr_expect(shows("tag=\"kv_cache\",state=\"resident\"} 0\n"));
    cr_expect(shows("\nkvplane_instance_up{instance=\"a\",tenant=\"t\"} 1\n"));
    strcpy(view.tenant, "u");
    kvp_collect_instance(&collect, &view);
    cr_expect(shows("\nkvplane_instance_up{instance=\"a\",tenant=\"u\"} 1\n"));
    cr_expect(!shows("tenant=\"t\""), "it is not that tenant's any more");
}

Test(collect, an_instance_that_comes_back_otherwise_leaves_nothing_of_what_it_was)
{
    struct kvp_view view = {.instance = "a",
                            .tenant = "t",
                            .model = "before",
                            .ntags = 2,
                            .tags = {{"kv_cache", KVB_RESIDENT}, {"weights", KVB_RESIDENT}}};
    struct kvp_view other = view;
    collect.compat = kvp_compat_create(metrics);
    strcpy(other.instance, "b");
    kvp_collect_instance(&collect, &view);
    kvp_collect_instance(&collect, &other);
    cr_expect(shows("instance=\"a\",tenant=\"t\",tag=\"weights\",state=\"resident\"} 1\n"));
    cr_expect(shows("{model_name=\"before\",engine=\"a\",sleep_state=\"awake\"} 1\n"));
    strcpy(view.model, "after");
    view.ntags = 1;
    kvp_collect_instance(&collect, &view);
    cr_expect(!shows("{instance=\"a\",tenant=\"t\",tag=\"weights\""));
    cr_expect(shows("{instance=\"a\",tenant=\"t\",tag=\"kv_cache\",state=\"resident\"} 1\n"));
    cr_expect(!shows("{model_name=\"before\",engine=\"a\""));
    cr_expect(shows("{model_name=\"after\",engine=\"a\",sleep_state=\"awake\"} 1\n"));
    cr_expect(shows("{model_name=\"after\",engine=\"a\",component=\"weights\"} 1\n"));
    cr_expect(shows("instance=\"b\",tenant=\"t\",tag=\"weights\",state=\"resident\"} 1\n"));
    cr_expect(shows("{model_name=\"before\",engine=\"b\",sleep_state=\"awake\"} 1\n"));
    kvp_compat_destroy(collect.compat);
}

Test(collect, a_transfer_is_counted_by_direction_transport_and_result)
{
    struct kvt_slice slices[] = {{.len = 1000}, {.len = 24}};
    struct kvs_item items[] = {{.status = KVB_OK, .slices = slices, .nslices = 2},
                               {.status = KVB_ERR_EXISTS, .slices = slices, .nslices = 2},
                               {.status = KVB_OK, .slices = slices, .nslices = 1},
                               {.status = KVB_OK, .slices = slices, .nslices = 1}};
    struct kvs_batch batch = {.op = KVS_PUT, .items = items, .nitems = 4};
    const struct kvs_node_call call = {.batch = &batch, .n = 4};
    kvp_collect_moved(&collect, "tcp", &call, 2000000);
    cr_expect(
        shows("\nkvplane_transfers_total{direction=\"put\",transport=\"tcp\",result=\"ok\"} 3\n"));
    cr_expect(shows(
        "\nkvplane_transfers_total{direction=\"put\",transport=\"tcp\",result=\"exists\"} 1\n"));
    cr_expect(shows(
        "\nkvplane_transfer_bytes_bucket{direction=\"put\",transport=\"tcp\",le=\"1024\"} 3\n"));
    cr_expect(shows("\nkvplane_transfer_bytes_sum{direction=\"put\",transport=\"tcp\"} 3024\n"));
    cr_expect(shows("\nkvplane_transfer_seconds_sum{direction=\"put\",transport=\"tcp\"} 0.002\n"));
}

Test(collect, steps_that_fail_are_counted_by_why)
{
    kvp_collect_step(&collect, "sleep", "drain", KVB_OK, 1000000000);
    kvp_collect_step(&collect, "sleep", "drain", KVB_ERR_TIMEOUT, 2000000000);
    cr_expect(
        shows("\nkvplane_operation_step_seconds_sum{operation=\"sleep\",step=\"drain\"} 3\n"));
    cr_expect(shows("\nkvplane_operation_step_failures_total{operation=\"sleep\",step=\"drain\","
                    "status=\"timeout\"} 1\n"));
    kvp_collect_left(&collect, "sleep");
    cr_expect(shows("\nkvplane_lineages_left_total{reason=\"sleep\"} 1\n"));
}

Test(collect, calls_that_change_something_are_counted_by_how_they_ended)
{
    static const struct kvp_route sleep = {.operation = "sleep", .role = KVP_ROLE_ADMIN};
    static const struct kvp_route health = {.operation = "health", .role = KVP_ROLE_READ};
    const struct kvp_http_answered answered[] = {{.route = &sleep, .http_status = 200},
                                                 {.route = &sleep, .http_status = 409},
                                                 {.route = &sleep, .http_status = 503},
                                                 {.route = &health, .http_status = 503},
                                                 {.route = NULL, .http_status = 404}};
    for (size_t i = 0; i < sizeof answered / sizeof answered[0]; i++) {
        kvp_collect_answered(&collect, &answered[i]);
    }
    cr_expect(shows("\nkvplane_audited_calls_total{operation=\"sleep\",outcome=\"ok\"} 1\n"));
    cr_expect(shows("\nkvplane_audited_calls_total{operation=\"sleep\",outcome=\"refused\"} 1\n"));
    cr_expect(shows("\nkvplane_audited_calls_total{operation=\"sleep\",outcome=\"failed\"} 1\n"));
    cr_expect(!shows("kvplane_audited_calls_total{operation=\"health\""));
    cr_expect(shows("\nkvplane_http_requests_total{route=\"none\",code=\"404\"} 1\n"));
}
