/* SPDX-License-Identifier: Apache-2.0 */
#include "control/routes.h"
#include "http/params.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvp_params params;
static char instance[KVB_NAME_MAX];
static struct kvp_param_error wrong;

static char story[8192]; /* what was read, for messages */

static kvb_status_t read_both(enum kvp_route_id route, const char *query, const char *body)
{
    json_t *json = body != NULL ? json_loads(body, 0, NULL) : NULL;
    cr_assert(body == NULL || json != NULL, "%s", body);
    memset(&params, 0, sizeof params);
    memset(&wrong, 0, sizeof wrong);
    instance[0] = '\0';
    kvb_status_t status =
        kvp_params_read(&kvp_routes[route], query, json, &params, instance, &wrong);
    snprintf(story, sizeof story, "%s %s %s: %s", kvp_routes[route].operation,
             query != NULL ? query : "-", body != NULL ? body : "-", wrong.message);
    json_decref(json);
    return status;
}

#define EXPECT_OK(route, query, body)                                                              \
    cr_assert_eq(read_both(KVP_ROUTE_##route, query, body), KVB_OK, "%s", story)
#define EXPECT_BAD(route, query, body, param_)                                                     \
    do {                                                                                           \
        cr_assert_eq(read_both(KVP_ROUTE_##route, query, body), KVB_ERR_INVALID, "%s", story);     \
        cr_expect_str_eq(wrong.param, param_, "%s", story);                                        \
        cr_expect(strlen(wrong.message) > strlen(wrong.param));                                    \
    } while (0)

Test(params, a_page_has_1_to_1000_rows_and_a_cursor_is_plain_text)
{
    char longest[KVP_CURSOR_MAX + 16] = "cursor=";

    EXPECT_OK(list_regions, "limit=1000&cursor=regions:a-1/0._", NULL);
    cr_expect_eq(params.limit, 1000);
    cr_expect_str_eq(params.cursor, "regions:a-1/0._");
    EXPECT_OK(list_regions, "limit=1", NULL);
    cr_expect_eq(params.limit, 1);
    EXPECT_BAD(list_regions, "limit=0", NULL, "query.limit");
    EXPECT_BAD(list_regions, "limit=1001", NULL, "query.limit");
    EXPECT_BAD(list_regions, "limit=4294967297", NULL, "query.limit");
    EXPECT_BAD(list_regions, "limit=-1", NULL, "query.limit");
    EXPECT_BAD(list_regions, "limit=", NULL, "query.limit");
    EXPECT_BAD(list_regions, "cursor=", NULL, "query.cursor");
    EXPECT_BAD(list_regions, "cursor=a%20b", NULL, "query.cursor");
    EXPECT_BAD(list_regions, "cursor=%22", NULL, "query.cursor");
    memset(longest + 7, 'a', KVP_CURSOR_MAX - 1);
    EXPECT_OK(list_regions, longest, NULL);
    longest[7 + KVP_CURSOR_MAX - 1] = 'a';
    EXPECT_BAD(list_regions, longest, NULL, "query.cursor");
}

Test(params, a_quota_is_a_number_of_bytes_or_none)
{
    EXPECT_OK(set_quota, "quota_bytes=999999999999999999", NULL);
    cr_expect_eq(params.quota_bytes, 999999999999999999u);
    EXPECT_OK(set_quota, NULL, "{\"quota_bytes\": \"none\"}");
    cr_expect_eq(params.quota_bytes, UINT64_MAX);
    EXPECT_OK(set_quota, NULL, "{\"quota_bytes\": 12}");
    cr_expect_eq(params.quota_bytes, 12);
    EXPECT_BAD(set_quota, "quota_bytes=1000000000000000000", NULL, "query.quota_bytes");
    EXPECT_BAD(set_quota, "quota_bytes=-1", NULL, "query.quota_bytes");
    EXPECT_BAD(set_quota, "quota_bytes=", NULL, "query.quota_bytes");
    EXPECT_BAD(set_quota, "quota_bytes=None", NULL, "query.quota_bytes");
    EXPECT_BAD(set_quota, NULL, "{\"quota_bytes\": 1.5}", "body.quota_bytes");
}

Test(params, a_pattern_takes_bytes_as_they_are_and_only_bare_stars_as_wild)
{
    struct kvp_params got;
    char of[KVB_NAME_MAX];
    struct kvp_param_error refusal;
    const struct kvp_route route = {.method = KVP_POST, .params = 1u << KVP_PARAM_pattern};
    char long_one[2 * KVS_PATTERN_MAX + 16] = "pattern=";
    cr_assert_eq(kvp_params_read(&route, "pattern=6b2a*5c?003F", NULL, &got, of, &refusal), KVB_OK,
                 "%s", refusal.message);
    cr_expect_eq(got.pattern.len, 10);
    cr_expect_arr_eq(got.pattern.bytes, "k\\**\\\\?\0\\?", 10);
    static const char *const bad[] = {"pattern=", "pattern=6", "pattern=6*", "pattern=xy",
                                      "pattern=6b 6b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(kvp_params_read(&route, bad[i], NULL, &got, of, &refusal), KVB_ERR_INVALID,
                     "%s", bad[i]);
    }
    for (size_t i = 0; i < KVS_PATTERN_MAX / 2 + 1; i++) {
        strcat(long_one, "2a"); /* each takes two */
    }
    cr_expect_eq(kvp_params_read(&route, long_one, NULL, &got, of, &refusal), KVB_ERR_INVALID);
}

Test(params, absent_null_and_empty_mean_not_given)
{
    static const char *const bodies[] = {NULL, "{}", "{\"level\": null, \"mode\": null}"};
    static const char *const queries[] = {NULL, "", "&", "&&", "=true", "other", "other=1&x"};

    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 7; j++) {
            EXPECT_OK(sleep, queries[j], bodies[i]);
            cr_expect_eq(params.given, 0);
            cr_expect_str_eq(instance, "");
        }
    }
}

Test(params, levels_are_0_1_2_and_nothing_else)
{
    static const char *const bad[] = {"",    "3",     "-1", "99",  "1.5", "2 ", " 2",  "+1",
                                      "abc", "%322x", "01", "1e0", "0x1", "٢",  "2%0A"};
    char query[64];

    for (uint32_t level = 0; level <= 2; level++) {
        snprintf(query, sizeof query, "level=%u", level);
        EXPECT_OK(sleep, query, NULL);
        cr_expect(kvp_given(&params, KVP_PARAM_level));
        cr_expect_eq(params.level, level);
        snprintf(query, sizeof query, "{\"level\": %u}", level);
        EXPECT_OK(sleep, NULL, query);
        cr_expect_eq(params.level, level);
        snprintf(query, sizeof query, "{\"level\": \"%u\"}", level);
        EXPECT_OK(sleep, NULL, query);
        cr_expect_eq(params.level, level);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(query, sizeof query, "level=%s", bad[i]);
        EXPECT_BAD(sleep, query, NULL, "query.level");
    }
    EXPECT_BAD(sleep, "level", NULL, "query.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": 3}", "body.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": -1}", "body.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": 1.0}", "body.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": true}", "body.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": [1]}", "body.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": {}}", "body.level");
    EXPECT_BAD(sleep, NULL, "{\"level\": \"\"}", "body.level");
}

Test(params, booleans_in_any_case_and_spelling)
{
    static const char *const yes[] = {"true", "TRUE", "True", "1", "on", "On", "yes", "t", "Y"};
    static const char *const no[] = {"false", "False", "FALSE", "0", "off", "no", "NO", "f", "n"};
    static const char *const bad[] = {"", "2", " true", "true ", "tru", "truee", "none", "-1"};
    char query[64];

    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        snprintf(query, sizeof query, "reset_external=%s", yes[i]);
        EXPECT_OK(reset_prefix_cache, query, NULL);
        cr_expect(params.reset_external && kvp_given(&params, KVP_PARAM_reset_external));
        snprintf(query, sizeof query, "reset_external=%s", no[i]);
        EXPECT_OK(reset_prefix_cache, query, NULL);
        cr_expect(!params.reset_external && kvp_given(&params, KVP_PARAM_reset_external));
        snprintf(query, sizeof query, "{\"reset_external\": \"%s\"}", yes[i]);
        EXPECT_OK(reset_prefix_cache, NULL, query);
        cr_expect(params.reset_external);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(query, sizeof query, "reset_external=%s", bad[i]);
        EXPECT_BAD(reset_prefix_cache, query, NULL, "query.reset_external");
    }
    EXPECT_OK(reset_prefix_cache, NULL, "{\"reset_external\": true}");
    cr_expect(params.reset_external);
    EXPECT_OK(reset_prefix_cache, NULL, "{\"reset_external\": 0}");
    cr_expect(!params.reset_external);
    EXPECT_BAD(reset_prefix_cache, "reset_external", NULL, "query.reset_external");
    EXPECT_BAD(reset_prefix_cache, NULL, "{\"reset_external\": 2}", "body.reset_external");
    EXPECT_BAD(reset_prefix_cache, NULL, "{\"reset_external\": []}", "body.reset_external");
}

Test(params, modes_are_exact)
{
    static const struct {
        const char *text;
        enum kvp_pause_kind mode;
    } modes[] = {{"abort", KVP_MODE_ABORT},
                 {"wait", KVP_MODE_WAIT},
                 {"keep", KVP_MODE_KEEP},
                 {"retract", KVP_MODE_RETRACT},
                 {"in_place", KVP_MODE_KEEP}};
    char query[64];

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        snprintf(query, sizeof query, "mode=%s", modes[i].text);
        EXPECT_OK(pause, query, NULL);
        cr_expect_eq(params.mode, modes[i].mode);
    }
    EXPECT_BAD(pause, "mode=WAIT", NULL, "query.mode");
    EXPECT_BAD(pause, "mode=", NULL, "query.mode");
    EXPECT_BAD(pause, "mode", NULL, "query.mode");
    EXPECT_BAD(pause, "mode=invalid", NULL, "query.mode");
    EXPECT_BAD(pause, NULL, "{\"mode\": 1}", "body.mode");
}

Test(params, the_query_wins_and_the_last_scalar_counts)
{
    EXPECT_OK(sleep, "level=2", "{\"level\": 1, \"mode\": \"keep\"}");
    cr_expect_eq(params.level, 2);
    cr_expect_eq(params.mode, KVP_MODE_KEEP);
    EXPECT_OK(sleep, "level=2", "{\"level\": 77}"); /* not looked at */
    EXPECT_OK(pause, "mode=abort&mode=wait", NULL);
    cr_expect_eq(params.mode, KVP_MODE_WAIT);
    EXPECT_OK(sleep, "level=abc&level=1", NULL);
    cr_expect_eq(params.level, 1);
    EXPECT_BAD(sleep, "level=1&level=abc", NULL, "query.level");
    EXPECT_OK(is_paused, "instance=a&instance=b", NULL);
    cr_expect_str_eq(instance, "b");
    EXPECT_OK(sleep, NULL, "{\"level\": 1, \"level\": 2}");
    cr_expect_eq(params.level, 2);
}

Test(params, tags_add_up_and_an_empty_list_is_given)
{
    EXPECT_OK(wake_up, "tags=weights&tags=kv_cache&tags=weights", NULL);
    cr_expect_eq(params.ntags, 2);
    cr_expect_str_eq(params.tags[0], "weights");
    cr_expect_str_eq(params.tags[1], "kv_cache");
    EXPECT_OK(wake_up, "tags=a,b", NULL);
    cr_expect_eq(params.ntags, 1);
    cr_expect_str_eq(params.tags[0], "a,b");
    EXPECT_OK(wake_up, "tags", NULL);
    cr_expect(kvp_given(&params, KVP_PARAM_tags) && params.ntags == 1 && params.tags[0][0] == 0);
    EXPECT_OK(wake_up, "tags=", NULL);
    cr_expect(kvp_given(&params, KVP_PARAM_tags));
    EXPECT_OK(wake_up, NULL, "{\"tags\": []}");
    cr_expect(kvp_given(&params, KVP_PARAM_tags) && params.ntags == 0);
    EXPECT_OK(wake_up, NULL, "{\"tags\": null}");
    cr_expect(!kvp_given(&params, KVP_PARAM_tags));
    EXPECT_OK(wake_up, NULL, "{\"tags\": [\"weights\", \"x\"]}");
    cr_expect_eq(params.ntags, 2);
    EXPECT_OK(wake_up, NULL, "{\"tags\": \"weights\"}");
    cr_expect_eq(params.ntags, 1);
    EXPECT_OK(wake_up, "tags=weights", "{\"tags\": [\"kv_cache\"]}");
    cr_expect_eq(params.ntags, 1);
    cr_expect_str_eq(params.tags[0], "weights");
    EXPECT_BAD(wake_up, NULL, "{\"tags\": [1]}", "body.tags");
    EXPECT_BAD(wake_up, NULL, "{\"tags\": [[\"weights\"]]}", "body.tags");
    EXPECT_BAD(wake_up, NULL, "{\"tags\": {}}", "body.tags");
    EXPECT_BAD(wake_up, NULL, "{\"tags\": 1}", "body.tags");
    EXPECT_OK(wake_up, "tags=1&tags=2&tags=3&tags=4&tags=5&tags=6&tags=7&tags=8&tags=1", NULL);
    cr_expect_eq(params.ntags, KVB_TAGS_MAX);
    EXPECT_BAD(wake_up, "tags=1&tags=2&tags=3&tags=4&tags=5&tags=6&tags=7&tags=8&tags=9", NULL,
               "query.tags");
}

Test(params, texts_have_limits_and_no_control_characters)
{
    char query[4096] = "weight_version=";
    size_t prefix = strlen(query);

    EXPECT_OK(finish_weight_update, "weight_version=step%2017+b%c3%bc", NULL);
    cr_expect_str_eq(params.weight_version, "step 17 b\xc3\xbc");
    EXPECT_OK(finish_weight_update, NULL, "{\"weight_version\": 17}");
    cr_expect_str_eq(params.weight_version, "17");
    EXPECT_BAD(finish_weight_update, "weight_version=", NULL, "query.weight_version");
    EXPECT_BAD(finish_weight_update, "weight_version", NULL, "query.weight_version");
    EXPECT_BAD(finish_weight_update, "weight_version=a%0Ab", NULL, "query.weight_version");
    EXPECT_BAD(finish_weight_update, "weight_version=%ff", NULL, "query.weight_version");
    EXPECT_BAD(finish_weight_update, NULL, "{\"weight_version\": \"\"}", "body.weight_version");
    EXPECT_BAD(finish_weight_update, NULL, "{\"weight_version\": true}", "body.weight_version");
    EXPECT_BAD(finish_weight_update, NULL, "{\"weight_version\": 1.5}", "body.weight_version");
    memset(query + prefix, 'v', KVB_WEIGHTS_NAME_MAX - 1);
    EXPECT_OK(finish_weight_update, query, NULL);
    cr_expect_eq(strlen(params.weight_version), KVB_WEIGHTS_NAME_MAX - 1);
    memset(query + prefix, 'v', KVB_WEIGHTS_NAME_MAX);
    EXPECT_BAD(finish_weight_update, query, NULL, "query.weight_version");
    memset(query + prefix, 'v', sizeof query - prefix - 1);
    EXPECT_BAD(finish_weight_update, query, NULL, "query.weight_version");
}

Test(params, instances_are_names)
{
    EXPECT_OK(sleep, "instance=engine-0.a_B", NULL);
    cr_expect_str_eq(instance, "engine-0.a_B");
    EXPECT_OK(sleep, NULL, "{\"instance\": \"x\"}"); /* the engine's, perhaps */
    cr_expect_str_eq(instance, "");
    EXPECT_BAD(sleep, "instance=", NULL, "query.instance");
    EXPECT_BAD(sleep, "instance", NULL, "query.instance");
    EXPECT_BAD(sleep, "instance=a%2Fb", NULL, "query.instance");
    EXPECT_BAD(sleep, "instance=a%00b", NULL, "query");
    EXPECT_BAD(sleep, "instance=0123456789012345678901234567890123456789012345678901234567890123",
               NULL, "query.instance");
    EXPECT_OK(list_instances, "instance=", NULL); /* not read there */
}

Test(params, broken_escapes_are_refused_and_foreign_parameters_are_not_judged)
{
    EXPECT_BAD(sleep, "x=%", NULL, "query");
    EXPECT_BAD(sleep, "x=%4", NULL, "query");
    EXPECT_BAD(sleep, "%zz=1", NULL, "query");
    EXPECT_BAD(sleep, "%00=1", NULL, "query");
    EXPECT_OK(resume, "level=abc&mode=5&tags=%31", "{\"level\": \"abc\", \"tags\": 7}");
    cr_expect_eq(params.given, 0);
    EXPECT_OK(sleep, "LEVEL=2&levle=2&level%20=2", NULL);
    cr_expect_eq(params.given, 0);
    EXPECT_OK(sleep, "%6cevel=2", NULL);
    cr_expect_eq(params.level, 2);
}

Test(params, nothing_is_written_when_something_is_wrong)
{
    struct kvp_params before;
    struct kvp_params after;
    char name[KVB_NAME_MAX] = "untouched";

    memset(&before, 0x5a, sizeof before);
    after = before;
    cr_assert_eq(kvp_params_read(&kvp_routes[KVP_ROUTE_sleep], "instance=a&mode=keep&level=9", NULL,
                                 &after, name, &wrong),
                 KVB_ERR_INVALID);
    cr_expect_eq(memcmp(&before, &after, sizeof before), 0);
    cr_expect_str_eq(name, "untouched");
}
