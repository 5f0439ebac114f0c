/* SPDX-License-Identifier: Apache-2.0 */
#include "control/routes.h"
#include "http/routes.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static enum kvp_found find(const char *method, const char *path, const char **operation_p,
                           char arg[KVP_PATH_ARG_MAX])
{
    const struct kvp_route *route = NULL;
    enum kvp_found found =
        kvp_route_find(&kvp_route_table, method, path, strlen(path), &route, arg);
    *operation_p = route != NULL ? route->operation : "";
    return found;
}

Test(routes, every_route_is_found_by_its_own_path_with_and_without_a_slash)
{
    char arg[KVP_PATH_ARG_MAX];

    for (uint32_t i = 0; i < KVP_ROUTE_COUNT; i++) {
        const struct kvp_route *want = &kvp_routes[i];
        char path[256];
        for (int slash = 0; slash < (want->path[1] == '\0' ? 1 : 2); slash++) { /* not "//" */
            const struct kvp_route *route = NULL;
            snprintf(path, sizeof path, "%s%s", want->path, slash ? "/" : "");
            const char *method = want->method == KVP_GET ? "GET" : "POST";
            enum kvp_found found =
                kvp_route_find(&kvp_route_table, method, path, strlen(path), &route, arg);
            cr_expect_eq(found, KVP_FOUND, "%s", path);
            cr_expect_eq(route, want, "%s", path);
        }
    }
}

Test(routes, what_matches_and_what_does_not)
{
    static const struct {
        const char *method;
        const char *path;
        enum kvp_found found;
        const char *operation;
        const char *arg;
    } cases[] = {
        {"HEAD", "/health", KVP_FOUND, "health", ""},
        {"GET", "/v1/kvplane/instances/a.b-c_1", KVP_FOUND, "get_instance", "a.b-c_1"},
        {"GET", "/v1/kvplane/instances/a%2Fb", KVP_FOUND, "get_instance", "a/b"},
        {"GET", "/v1/kvplane/instances/%61/", KVP_FOUND, "get_instance", "a"},
        {"GET", "/v1/kvplane/instances/a+b", KVP_FOUND, "get_instance", "a+b"},
        {"POST", "/v1/kvplane/tenants/t/reset", KVP_FOUND, "reset_tenant", "t"},
        {"POST", "/%73leep", KVP_FOUND, "sleep", ""},
        {"POST", "/pause%2F", KVP_FOUND_NOTHING, "", ""},
        {"POST", "/v1%2Fkvplane/instances", KVP_FOUND_NOTHING, "", ""},
        {"GET", "//health", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/health//", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/v1//kvplane/instances", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/v1/kvplane/tenants//reset", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/", KVP_FOUND, "page", ""},
        {"POST", "/", KVP_FOUND_OTHER_METHOD, "page", ""},
        {"GET", "//", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/page/main.js", KVP_FOUND, "page_file", "main.js"},
        {"GET", "", KVP_FOUND_NOTHING, "", ""},
        {"GET", "health", KVP_FOUND_NOTHING, "", ""},
        {"OPTIONS", "*", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/healt", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/healthz", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/health/x", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/Health", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/../health", KVP_FOUND_NOTHING, "", ""},
        {"GET", "/a/b/c/d/e/f/g/h/i/j/k", KVP_FOUND_NOTHING, "", ""},
        {"POST", "/sleep%00", KVP_FOUND_BAD_PATH, "", ""},
        {"POST", "/sleep%0", KVP_FOUND_BAD_PATH, "", ""},
        {"POST", "/sleep%", KVP_FOUND_BAD_PATH, "", ""},
        {"POST", "/%zz", KVP_FOUND_BAD_PATH, "", ""},
        {"GET", "/sleep", KVP_FOUND_OTHER_METHOD, "sleep", ""},
        {"HEAD", "/sleep", KVP_FOUND_OTHER_METHOD, "sleep", ""},
        {"PUT", "/sleep", KVP_FOUND_OTHER_METHOD, "sleep", ""},
        {"POST", "/health", KVP_FOUND_OTHER_METHOD, "health", ""},
        {"get", "/health", KVP_FOUND_OTHER_METHOD, "health", ""},
    };
    char arg[KVP_PATH_ARG_MAX];
    const char *operation;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        arg[0] = '\0';
        enum kvp_found found = find(cases[i].method, cases[i].path, &operation, arg);
        cr_expect_eq(found, cases[i].found, "%s %s: %d", cases[i].method, cases[i].path, found);
        cr_expect_str_eq(operation, cases[i].operation, "%s", cases[i].path);
        cr_expect_str_eq(arg, cases[i].arg, "%s", cases[i].path);
    }
}

Test(routes, a_segment_may_be_as_long_as_a_key_and_no_longer)
{
    char path[2048] = "/v1/kvplane/tenants/";
    char arg[KVP_PATH_ARG_MAX];
    const char *operation;
    size_t prefix = strlen(path);

    memset(path + prefix, 'x', KVB_KEY_MAX);
    cr_expect_eq(find("GET", path, &operation, arg), KVP_FOUND);
    cr_expect_eq(strlen(arg), KVB_KEY_MAX);
    memset(path + prefix, 'x', KVB_KEY_MAX + 1);
    cr_expect_eq(find("GET", path, &operation, arg), KVP_FOUND_NOTHING);
    memset(path + prefix, 'x', sizeof path - prefix - 1);
    cr_expect_eq(find("GET", path, &operation, arg), KVP_FOUND_NOTHING);
}

Test(routes, a_nul_byte_in_the_path_is_refused)
{
    static const char path[] = "/sleep\0x";
    const struct kvp_route *route;
    char arg[KVP_PATH_ARG_MAX];
    cr_expect_eq(kvp_route_find(&kvp_route_table, "POST", path, sizeof path - 1, &route, arg),
                 KVP_FOUND_BAD_PATH);
}
