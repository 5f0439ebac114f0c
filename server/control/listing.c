/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of a tenant, a page at a time. Nodes are walked in the order of their names, each in
 * the order of its own index, so that a page costs what it shows and no node sorts anything. The
 * cursor is a node and a place there. A node that does not answer is named, and the walk goes on
 * with the next one.
 */
#include "control/pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIST_MS = 2000, /* of the whole page: it ends where it has got by then */
    NODE_MS = 500,  /* a node that has not answered a question by then is silent */
};

struct listing {
    struct kvb_list link; /* control.listings */
    struct kvp_control *control;
    struct kvp_request *request; /* NULL: replied already */
    uint64_t until_ns;
    uint32_t limit;
    uint32_t nsilent;
    bool incomplete; /* for want of memory: no page that lacks something is told */
    json_t *objects;
    json_t *silent;
    char node[64]; /* that is asked, or is next; "": there is none */
    struct kvp_cluster_list ask;
    struct kvs_list list;
};

static void listing_free(struct listing *listing)
{
    struct kvp_control *control = listing->control;
    kvb_list_remove(&listing->link);
    json_decref(listing->objects);
    json_decref(listing->silent);
    free(listing);
    kvp_control_settle(control);
}

/* ---- the answer ---- */

static json_t *object_json(const struct listing *listing, const struct kvs_listed *object)
{
    char lineage[KVB_ID_HEX_LEN + 1];
    kvb_id_format(object->lineage.id, lineage);
    return json_pack("{s:o, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s}", "key",
                     kvp_key_json(object->key, object->key_len), "tenant", listing->list.tenant,
                     "layout", object->layout, "lineage", lineage, "group",
                     (json_int_t)object->group, "part", (json_int_t)object->part, "bytes",
                     (json_int_t)object->len, "pin", kvp_pin_text(object->pin), "node",
                     listing->node);
}

static void reply(struct listing *listing)
{
    const struct kvs_list_place *place = &listing->list.place;
    json_t *next = listing->node[0] == '\0'
                       ? json_null()
                       : json_sprintf("objects:%s/%" PRIu32 ".%" PRIu32 ".%" PRIu32, listing->node,
                                      place->shard, place->bucket, place->object);
    if (listing->request != NULL && listing->incomplete) {
        json_decref(next);
        kvp_control_reply_error(listing->control, listing->request, KVB_ERR_NO_MEMORY, NULL,
                                "no memory for the list: ask for fewer with limit");
    } else if (listing->request != NULL) {
        json_t *body = json_pack("{s:s, s:O, s:O, s:I, s:o}", "namespace", listing->list.tenant,
                                 "objects", listing->objects, "silent", listing->silent,
                                 "nodes_silent", (json_int_t)listing->nsilent, "next", next);
        kvp_control_reply(listing->control, listing->request, 200, body, 0);
    } else {
        json_decref(next);
    }
    listing_free(listing);
}

/* ---- the walk ---- */

struct search {
    struct listing *listing;
    bool or_same;
    char found[64]; /* "": none yet */
};

static void look_at_node(void *arg, const struct kvp_cluster_node *node)
{
    struct search *search = arg;
    const char *name = node->record->name;
    int order = strcmp(name, search->listing->node);
    if ((order > 0 || (order == 0 && search->or_same)) &&
        (search->found[0] == '\0' || strcmp(name, search->found) < 0)) {
        (void)snprintf(search->found, sizeof search->found, "%s", name);
    }
}

/* To the first node after the one it is at, or that one if it is still there: from its place. */
static void go_on(struct listing *listing, bool or_same)
{
    struct search search = {.listing = listing, .or_same = or_same};
    kvp_cluster_each_node(listing->control->config.cluster, look_at_node, &search);
    if (strcmp(search.found, listing->node) != 0) {
        strcpy(listing->node, search.found);
        listing->list.place = (struct kvs_list_place){0};
    }
}

static void is_silent(struct listing *listing, kvb_status_t status)
{
    listing->nsilent++;
    json_t *silent =
        json_pack("{s:s, s:s}", "node", listing->node, "result", kvb_status_label(status));
    if (json_array_append_new(listing->silent, silent) != 0) {
        listing->incomplete = true;
    }
    go_on(listing, false);
}

/* Asks on, until somebody has to answer; or ends it. */
static void walk(struct listing *listing)
{
    const struct kvp_control_config *config = &listing->control->config;
    while (listing->node[0] != '\0' && listing->request != NULL) {
        uint64_t now_ns = kvb_now_ns(config->clock);
        uint32_t n = (uint32_t)json_array_size(listing->objects);
        uint64_t deadline_ns = kvb_deadline_in_ms(config->clock, NODE_MS);
        if (n >= listing->limit || now_ns >= listing->until_ns) {
            break;
        }
        listing->list.max = listing->limit - n < KVS_LIST_MAX ? listing->limit - n : KVS_LIST_MAX;
        kvb_status_t status = kvp_cluster_ask_list(
            config->cluster, listing->node,
            deadline_ns < listing->until_ns ? deadline_ns : listing->until_ns, &listing->ask);
        if (status == KVB_OK) {
            return;
        }
        is_silent(listing, status);
    }
    reply(listing);
}

static void on_listed(struct kvp_cluster_list *ask, kvb_status_t status)
{
    struct listing *listing = kvb_container_of(ask, struct listing, ask);
    if (status != KVB_OK) {
        is_silent(listing, status);
    } else {
        for (uint32_t i = 0; i < listing->list.n; i++) {
            json_t *object = object_json(listing, &listing->list.at[i]);
            if (json_array_append_new(listing->objects, object) != 0) {
                listing->incomplete = true;
            }
        }
        if (!listing->list.more) {
            go_on(listing, false);
        }
    }
    walk(listing);
}

/* ---- the question ---- */

/* NODE/SHARD.BUCKET.OBJECT, or nothing. */
static bool read_cursor(const char *after, struct listing *listing)
{
    struct kvs_list_place *place = &listing->list.place;
    const char *slash = strchr(after, '/');
    int end = 0;
    if (after[0] == '\0') {
        return true;
    }
    if (slash == NULL || slash == after || (size_t)(slash - after) >= sizeof listing->node ||
        sscanf(slash, "/%" SCNu32 ".%" SCNu32 ".%" SCNu32 "%n", &place->shard, &place->bucket,
               &place->object, &end) != 3 ||
        slash[end] != '\0') {
        return false;
    }
    memcpy(listing->node, after, (size_t)(slash - after));
    return true;
}

void kvp_list_objects(struct kvp_control *control, struct kvp_request *request)
{
    const struct kvp_params *params = &request->params;
    const char *after = kvp_page_after(control, request, "objects");
    if (after == NULL) {
        return;
    }
    struct listing *listing = calloc(1, sizeof *listing);
    if (listing == NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        return;
    }
    if (!read_cursor(after, listing)) {
        free(listing);
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "query.cursor",
                                "query.cursor: must be what this list gave as next");
        return;
    }
    listing->control = control;
    listing->request = request;
    listing->until_ns = kvb_deadline_in_ms(control->config.clock, LIST_MS);
    listing->limit = kvp_page_limit(params);
    listing->objects = json_array();
    listing->silent = json_array();
    listing->ask = (struct kvp_cluster_list){.done = on_listed, .list = &listing->list};
    strcpy(listing->list.tenant, params->namespace);
    (void)snprintf(listing->list.layout, sizeof listing->list.layout, "%s", params->layout);
    listing->list.lineage.id = params->lineage;
    kvb_list_push_back(&control->listings, &listing->link);
    go_on(listing, true);
    walk(listing);
}

void kvp_listings_close(struct kvp_control *control)
{
    kvb_list_each(&control->listings, link)
    {
        struct listing *listing = kvb_container_of(link, struct listing, link);
        if (listing->request != NULL) {
            kvp_inbox_reply_closed(&control->inbox, listing->request);
            listing->request = NULL;
        }
    }
}
