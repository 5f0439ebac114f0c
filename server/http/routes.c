/* SPDX-License-Identifier: Apache-2.0 */
#include "http/routes.h"

#include "http/percent.h"

#include <string.h>

#define P(name) (1u << KVP_PARAM_##name)

/* Which parameters a route reads; the others are ignored there, as unknown ones are everywhere. */
static const uint32_t route_params[KVP_ROUTE_COUNT] = {
    [KVP_ROUTE_is_paused] = KVP_TAKES_INSTANCE,
    [KVP_ROUTE_is_sleeping] = KVP_TAKES_INSTANCE,
    [KVP_ROUTE_pause] = KVP_TAKES_INSTANCE | P(mode) | P(clear_cache) |
                        P(wait_for_inflight_requests) | P(reset_external),
    [KVP_ROUTE_resume] = KVP_TAKES_INSTANCE,
    [KVP_ROUTE_sleep] = KVP_TAKES_INSTANCE | P(level) | P(mode) | P(reset_external),
    [KVP_ROUTE_wake_up] = KVP_TAKES_INSTANCE | P(tags) | P(weight_version),
    [KVP_ROUTE_release_kv_cache_memory] = KVP_TAKES_INSTANCE | P(reset_external),
    [KVP_ROUTE_reset_prefix_cache] =
        KVP_TAKES_INSTANCE | P(reset_running_requests) | P(reset_external) | P(strict),
    [KVP_ROUTE_init_weight_transfer_engine] = KVP_TAKES_INSTANCE,
    [KVP_ROUTE_start_weight_update] = KVP_TAKES_INSTANCE | P(weight_version),
    [KVP_ROUTE_update_weights] = KVP_TAKES_INSTANCE | P(weight_version),
    [KVP_ROUTE_finish_weight_update] = KVP_TAKES_INSTANCE | P(weight_version),
    [KVP_ROUTE_update_weight_version] = KVP_TAKES_INSTANCE | P(new_version),
    [KVP_ROUTE_weight_info] = KVP_TAKES_INSTANCE,
    [KVP_ROUTE_collective_rpc] = KVP_TAKES_INSTANCE | P(weight_version),
    [KVP_ROUTE_get_world_size] = KVP_TAKES_INSTANCE,
};

/* Bodies that go on to the engine may be large (lists of weights, handles); the rest are small. */
static const uint32_t route_body_max[KVP_ROUTE_COUNT] = {
    [KVP_ROUTE_init_weight_transfer_engine] = KVP_BODY_MAX_RELAY,
    [KVP_ROUTE_start_weight_update] = KVP_BODY_MAX_RELAY,
    [KVP_ROUTE_update_weights] = KVP_BODY_MAX_RELAY,
    [KVP_ROUTE_finish_weight_update] = KVP_BODY_MAX_RELAY,
    [KVP_ROUTE_collective_rpc] = KVP_BODY_MAX_RELAY,
};

#undef P

const struct kvp_route kvp_routes[KVP_ROUTE_COUNT] = {
#define X(method_, path_, operation_, role_, where_)                                               \
    {.id = KVP_ROUTE_##operation_,                                                                 \
     .method = KVP_##method_,                                                                      \
     .path = (path_),                                                                              \
     .operation = #operation_,                                                                     \
     .role = KVP_ROLE_##role_,                                                                     \
     .where = KVP_##where_},
    KVP_ROUTES(X)
#undef X
};

uint32_t kvp_route_params(const struct kvp_route *route)
{
    return route_params[route->id];
}

uint32_t kvp_route_body_max(const struct kvp_route *route)
{
    uint32_t max = route_body_max[route->id];
    return max != 0 ? max : KVP_BODY_MAX;
}

const char *kvp_route_allow(const struct kvp_route *route)
{
    return route->method == KVP_GET ? "GET, HEAD" : "POST";
}

static bool method_is(const struct kvp_route *route, const char *method)
{
    if (route->method == KVP_GET) {
        return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    }
    return strcmp(method, "POST") == 0;
}

/* The segments of a request's path, decoded, one after the other with their NULs. */
#define SEGMENTS_MAX 8
struct segments {
    uint32_t n;
    const char *at[SEGMENTS_MAX];
    char text[4 * KVP_PATH_ARG_MAX];
};

/* FOUND: all read. FOUND_NOTHING: such a path cannot be in the table. */
static enum kvp_found split(const char *path, size_t len, struct segments *segments)
{
    const char *end = path + len;
    size_t used = 0;

    segments->n = 0;
    if (len == 0 || *path != '/') {
        return KVP_FOUND_NOTHING;
    }
    if (len > 1 && end[-1] == '/') {
        end--;
    }
    while (path < end) {
        const char *begin = path + 1;
        const char *slash = memchr(begin, '/', (size_t)(end - begin));
        path = slash != NULL ? slash : end;
        if (path == begin || segments->n == SEGMENTS_MAX) {
            return KVP_FOUND_NOTHING;
        }
        char *out = segments->text + used;
        kvb_status_t status = kvp_percent_decode(begin, (size_t)(path - begin), false, out,
                                                 sizeof segments->text - used);
        if (status != KVB_OK) {
            return status == KVB_ERR_INVALID ? KVP_FOUND_BAD_PATH : KVP_FOUND_NOTHING;
        }
        used += strlen(out) + 1;
        segments->at[segments->n++] = out;
    }
    return KVP_FOUND;
}

/* Does the template fit? *arg_p is the segment that its {…} stands for, or NULL. */
static bool fits(const char *path, const struct segments *segments, const char **arg_p)
{
    const char *arg = NULL;

    for (uint32_t i = 0; i < segments->n; i++) {
        if (*path != '/') {
            return false;
        }
        path++;
        size_t len = strcspn(path, "/");
        if (*path == '{') {
            arg = segments->at[i];
            if (strlen(arg) >= KVP_PATH_ARG_MAX) {
                return false;
            }
        } else if (strlen(segments->at[i]) != len || memcmp(segments->at[i], path, len) != 0) {
            return false;
        }
        path += len;
    }
    *arg_p = arg;
    return *path == '\0';
}

enum kvp_found kvp_route_find(const char *method, const char *path, size_t path_len,
                              const struct kvp_route **route_p, char arg[KVP_PATH_ARG_MAX])
{
    struct segments segments;
    enum kvp_found found = split(path, path_len, &segments);

    if (found != KVP_FOUND) {
        return found;
    }
    found = KVP_FOUND_NOTHING;
    for (uint32_t i = 0; i < KVP_ROUTE_COUNT; i++) {
        const char *value;
        if (!fits(kvp_routes[i].path, &segments, &value)) {
            continue;
        }
        *route_p = &kvp_routes[i];
        if (method_is(&kvp_routes[i], method)) {
            strcpy(arg, value != NULL ? value : "");
            return KVP_FOUND;
        }
        found = KVP_FOUND_OTHER_METHOD;
    }
    return found;
}
