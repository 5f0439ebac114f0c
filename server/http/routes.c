/* SPDX-License-Identifier: Apache-2.0 */
#include "http/routes.h"

#include "base/percent.h"

#include <string.h>

enum { GET = 1, HEAD = 2, POST = 4 };

static unsigned method_bit(const char *method)
{
    return strcmp(method, "GET") == 0    ? GET
           : strcmp(method, "HEAD") == 0 ? HEAD
           : strcmp(method, "POST") == 0 ? POST
                                         : 0u;
}

/* A HEAD must be without effect, which a GET that an engine of old takes for a verb is not. */
static unsigned methods_of(const struct kvp_route *route)
{
    if (route->method == KVP_POST) {
        return POST;
    }
    return route->role == KVP_ROLE_ADMIN ? GET : GET | HEAD;
}

const char *kvp_route_allow(const struct kvp_route_table *table, const struct kvp_route *route)
{
    static const char *const texts[] = {
        [GET] = "GET",
        [GET | HEAD] = "GET, HEAD",
        [POST] = "POST",
        [GET | POST] = "GET, POST",
        [GET | HEAD | POST] = "GET, HEAD, POST",
    };
    unsigned methods = 0;
    for (uint32_t i = 0; i < table->n; i++) {
        if (strcmp(table->routes[i].path, route->path) == 0) {
            methods |= methods_of(&table->routes[i]);
        }
    }
    return texts[methods];
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
    if (end[-1] == '/') {
        end--; /* of "/" nothing is left: no segment */
    }
    while (path < end) {
        const char *begin = path + 1;
        const char *slash = memchr(begin, '/', (size_t)(end - begin));
        path = slash != NULL ? slash : end;
        if (path == begin || segments->n == SEGMENTS_MAX) {
            return KVP_FOUND_NOTHING;
        }
        char *out = segments->text + used;
        kvb_status_t status = kvb_percent_decode(begin, (size_t)(path - begin), false, out,
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
    return *path == '\0' || (segments->n == 0 && strcmp(path, "/") == 0);
}

enum kvp_found kvp_route_find(const struct kvp_route_table *table, const char *method,
                              const char *path, size_t path_len, const struct kvp_route **route_p,
                              char arg[KVP_PATH_ARG_MAX])
{
    struct segments segments;
    enum kvp_found found = split(path, path_len, &segments);

    if (found != KVP_FOUND) {
        return found;
    }
    found = KVP_FOUND_NOTHING;
    for (uint32_t i = 0; i < table->n; i++) {
        const char *value;
        if (!fits(table->routes[i].path, &segments, &value)) {
            continue;
        }
        *route_p = &table->routes[i];
        if ((methods_of(&table->routes[i]) & method_bit(method)) != 0) {
            strcpy(arg, value != NULL ? value : "");
            return KVP_FOUND;
        }
        found = KVP_FOUND_OTHER_METHOD;
    }
    return found;
}
