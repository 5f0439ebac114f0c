/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_ROUTES_H
#define SERVER_HTTP_ROUTES_H

#include "connector/instance.h"

#include "store/core.h"
#include "store/share.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * What a route is, and which one a request means. Each program has one table of its own, made from
 * one list (control/routes.h, node/routes.h); its contract is a file of api/, and a test compares
 * the two both ways.
 *
 *   where: PROBE   answered at once in the HTTP thread (never waits: promise P6)
 *          STATIC  a document of the program itself, the same
 *          CONTROL answered by the loop
 *          STREAM  the same; who accepts text/event-stream gets it without an end
 *          PASS    passed on to the engine's own server; of what is in no table
 *   role:  what a token must allow: READ or ADMIN (probes and documents need none)
 *   operation: the operation id of the contract
 */
enum kvp_method { KVP_GET, KVP_POST };
enum kvp_role_needed { KVP_ROLE_READ, KVP_ROLE_ADMIN };
enum kvp_where { KVP_PROBE, KVP_STATIC, KVP_CONTROL, KVP_STREAM, KVP_PASS };

#define KVP_BODY_SMALL (1u << 20)         /* bytes of a request body */
#define KVP_BODY_RELAY KVB_RELAY_BODY_MAX /* of one that is relayed to the engine */

struct kvp_route {
    uint32_t id; /* its index in the table */
    enum kvp_method method;
    const char *path;
    const char *operation;
    enum kvp_role_needed role;
    enum kvp_where where;
    uint32_t body_max; /* bytes of body that it takes */
    /* Which parameters it reads: bits 1 << KVP_PARAM_x, and KVP_TAKES_INSTANCE. The others are
     * ignored there, as unknown ones are everywhere. */
    uint32_t params;
};
struct kvp_route_table {
    const struct kvp_route *routes;
    uint32_t n;
};

/* For lists whose rows are X(method, path, operation, role, where, body, parameters), with INSTANCE
 * and P(name) in the last column; the enum of the ids is PREFIX##operation. */
#define KVP_ROUTE_ROW(prefix, method_, path_, operation_, role_, where_, body_, params_)           \
    [prefix##operation_] = {                                                                       \
        .id = prefix##operation_,                                                                  \
        .method = KVP_##method_,                                                                   \
        .path = (path_),                                                                           \
        .operation = #operation_,                                                                  \
        .role = KVP_ROLE_##role_,                                                                  \
        .where = KVP_##where_,                                                                     \
        .body_max = KVP_BODY_##body_,                                                              \
        .params = (params_),                                                                       \
    },

#define KVP_PATH_ARG_MAX (KVB_KEY_MAX + 1)

enum kvp_found {
    KVP_FOUND,
    KVP_FOUND_NOTHING,      /* 404 */
    KVP_FOUND_OTHER_METHOD, /* 405; *route_p is one of the path, for Allow */
    KVP_FOUND_BAD_PATH      /* 400: a broken or NUL escape */
};
/*
 * The route of a request target's path (raw, without the query). Segments are split first and
 * decoded then, so that an encoded slash stays part of its segment; one trailing slash makes no
 * difference; an empty segment matches nothing. HEAD counts as GET where that
 * changes nothing (role READ). arg gets what {…} stands for,
 * decoded; "" if the path has none.
 */
enum kvp_found kvp_route_find(const struct kvp_route_table *table, const char *method,
                              const char *path, size_t path_len, const struct kvp_route **route_p,
                              char arg[KVP_PATH_ARG_MAX]);
/* The Allow header of the path of a route of that table. */
const char *kvp_route_allow(const struct kvp_route_table *table, const struct kvp_route *route);
/*
 * Every parameter, once, with how it is read: from the query, else from a JSON object body.
 * Booleans in any case (true/false, 1/0, on/off, yes/no, t/f, y/n); of a repeated scalar the last
 * wins; unknown names are ignored; a bad value is 400 with error.param "query.NAME" or "body.NAME"
 * and nothing has happened.
 */
#define KVP_PARAMS(X)                                                                              \
    /* name                       kind   */                                                        \
    X(level, LEVEL) /* 0, 1, 2 */                                                                  \
    X(mode, MODE)   /* abort, wait, keep; retract and in_place (SGLang) */                         \
    X(clear_cache, BOOL)                                                                           \
    X(wait_for_inflight_requests, BOOL) /* old vLLM: true means mode=wait */                       \
    X(reset_external, BOOL)                                                                        \
    X(reset_running_requests, BOOL)                                                                \
    X(all_or_nothing, BOOL) /* of ?instance=* */                                                   \
    X(strict, BOOL)                                                                                \
    X(weight_version, TEXT)                                                                        \
    X(new_version, TEXT)                                                                           \
    X(timeout, SECONDS) /* of flush_cache: how long it may be tried */                             \
    X(tags, TAGS)       /* repeated, or a JSON list or null */                                     \
    X(namespace, NAME)  /* the tenant whose objects are listed */                                  \
    X(tenant, NAME)                                                                                \
    X(layout, TEXT)                                                                                \
    X(lineage, ID)  /* 32 hex digits */                                                            \
    X(key, KEY)     /* of a block: its bytes as hex digits */                                      \
    X(group, COUNT) /* of KV; not given: 0 */                                                      \
    X(part, COUNT)                                                                                 \
    X(force, BOOL)                                                                                 \
    X(pin, PIN)         /* none, soft, hard */                                                     \
    X(pattern, PATTERN) /* of keys: their bytes as hex digits, * any bytes, ? any one */           \
    X(shard, COUNT)                                                                                \
    X(after, NUMBER)                                                                               \
    X(quota_bytes, QUOTA) /* a number, or none */                                                  \
    X(limit, LIMIT)       /* of a page: 1 to 1000 */                                               \
    X(cursor, CURSOR)     /* what the page before gave as `next` */

enum kvp_param {
#define X(name, kind) KVP_PARAM_##name,
    KVP_PARAMS(X)
#undef X
        KVP_PARAM_COUNT
};

#define KVP_TAKES_INSTANCE (1u << KVP_PARAM_COUNT) /* ?instance=NAME, from the query only */
#define KVP_EVERY_INSTANCE "*"                     /* as NAME: of operations alone */

#define KVP_LIMIT_MAX  1000u
#define KVP_CURSOR_MAX 256

struct kvp_params {
    uint32_t given; /* bit 1 << KVP_PARAM_x: present and not null */
    uint32_t level;
    enum kvp_pause_kind mode;
    bool clear_cache;
    bool wait_for_inflight_requests;
    bool reset_external;
    bool reset_running_requests;
    bool all_or_nothing;
    bool strict;
    char weight_version[KVB_WEIGHTS_NAME_MAX];
    char new_version[KVB_WEIGHTS_NAME_MAX];
    uint32_t timeout; /* ms */
    uint32_t ntags;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    char namespace[KVB_NAME_MAX];
    char tenant[KVB_NAME_MAX];
    char layout[KVB_WEIGHTS_NAME_MAX];
    struct kvb_id lineage;
    struct {
        uint16_t len;
        uint8_t bytes[KVB_KEY_MAX];
    } key;
    uint32_t group;
    uint32_t part;
    bool force;
    enum kvs_pin pin;
    struct {
        uint16_t len;
        uint8_t bytes[KVS_PATTERN_MAX];
    } pattern; /* as kvs_share_sweep() takes it */
    uint32_t shard;
    uint64_t after;
    uint64_t quota_bytes; /* UINT64_MAX: none */
    uint32_t limit;
    char cursor[KVP_CURSOR_MAX];
};

static inline bool kvp_given(const struct kvp_params *params, enum kvp_param which)
{
    return (params->given & (1u << which)) != 0;
}

#endif
