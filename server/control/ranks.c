/* SPDX-License-Identifier: Apache-2.0 */
#include "control/pages.h"

#include "transport/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

json_t *kvp_tags_json(const struct kvb_tag_state *states, uint32_t n)
{
    json_t *tags = json_object();
    for (uint32_t i = 0; i < n; i++) {
        kvp_json_set_text(tags, states[i].tag, kvb_residency_text(states[i].residency));
    }
    return tags;
}

static json_t *helper_json(const struct kvt_device_info *info)
{
    json_t *held = json_object();
#define X(member) kvp_json_set_u64(held, #member, info->member);
    KVT_DEVICE_HOLDINGS(X)
#undef X
    json_t *json = json_pack("{s:b, s:I, s:I, s:I, s:o}", "running", info->pid != 0, "starts",
                             (json_int_t)info->starts, "kills", (json_int_t)info->kills, "failures",
                             (json_int_t)info->failures, "held", held);
    if (info->pid != 0) {
        kvp_json_set_u64(json, "pid", (uint64_t)info->pid);
    }
    kvp_json_set_text(json, "last_cause", info->cause);
    bool direct = info->registrations > 0;
    (void)json_object_update_new(json, json_pack("{s:s, s:s, s:s, s:I}", "gpu_rdma",
                                                 info->direct ? "direct" : "staged", "path",
                                                 direct ? "direct" : "pool", "integrity",
                                                 direct ? "transport" : "checksum",
                                                 "direct_transfers", (json_int_t)info->moves));
    kvp_json_set_text(json, "pool_cause", info->pool_cause);
    return json;
}

/* ---- regions ---- */

static json_t *region_json(const struct kvp_region_view *view)
{
    return json_pack("{s:I, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:b, s:I}", "id",
                     (json_int_t)view->number, "tag", view->tag, "kind", view->kind, "state",
                     view->state, "current", view->current, "generation",
                     (json_int_t)view->generation, "bytes", (json_int_t)view->bytes, "pinned_bytes",
                     (json_int_t)view->pinned_bytes, "kept_across_sleep", view->kept_across_sleep,
                     "transfers", (json_int_t)view->transfers);
}

static void add_region(void *arg, const struct kvp_region_view *view)
{
    (void)json_array_append_new(arg, region_json(view));
}

static json_t *regions_json(const struct kvp_rank_view *view)
{
    json_t *list = json_array();
    kvp_rank_each_region(view, add_region, list);
    return list;
}

/* ---- queues ---- */

static json_t *queue_json(const struct kvp_queue_view *view)
{
    return json_pack("{s:I, s:I, s:f, s:I}", "queued", (json_int_t)view->queued, "running",
                     (json_int_t)view->running, "oldest_age_ms", (double)view->oldest_age_ns / 1e6,
                     "bytes", (json_int_t)view->bytes);
}

static json_t *queues_json(const struct kvp_rank_view *view)
{
    json_t *queues = json_object();
    for (int i = 0; i < KVP_QUEUE_KINDS; i++) {
        (void)json_object_set_new(queues, kvp_queue_text((enum kvp_queue)i),
                                  queue_json(&view->queues[i]));
    }
    return queues;
}

/* ---- ranks ---- */

static void add_rank(void *arg, const struct kvp_rank_view *view)
{
    json_t *json =
        json_pack("{s:I, s:b}", "rank", (json_int_t)view->rank, "attached", view->attached);
    if (view->attached) {
        (void)json_object_update_new(
            json,
            json_pack("{s:b, s:b, s:b, s:o, s:I, s:I, s:o, s:o}", "worker", view->worker,
                      "scheduler", view->scheduler, "answers", !view->unknown, "tags",
                      kvp_tags_json(view->tags, view->ntags), "registered_regions",
                      (json_int_t)view->regions, "registered_bytes", (json_int_t)view->region_bytes,
                      "regions", regions_json(view), "queues", queues_json(view)));
    }
    if (view->device != NULL) {
        (void)json_object_set_new(json, "helper", helper_json(view->device));
    }
    (void)json_array_append_new(arg, json);
}

json_t *kvp_ranks_json(struct kvp_control *control, const char *instance)
{
    json_t *ranks = json_array();
    kvp_fleet_each_rank(control->config.fleet, instance, add_rank, ranks);
    return ranks;
}

/* ---- lists over all of them ---- */

struct listing {
    struct kvp_control *control;
    struct kvp_page page;
    void (*add)(void *arg, const struct kvp_rank_view *view);
    const char *instance;
    const struct kvp_rank_view *rank;
};

/* Begins every row; a scheduler without memory has no rank of its own. */
static json_t *row_json(const struct listing *listing, json_t *rest)
{
    json_t *row = json_pack("{s:s, s:I}", "instance", listing->instance, "rank",
                            (json_int_t)listing->rank->rank);
    (void)json_object_update_new(row, rest);
    return row;
}

/* The number, then what is its own now before what it replaced. */
static void list_region(void *arg, const struct kvp_region_view *view)
{
    struct listing *listing = arg;
    char key[KVP_PAGE_KEY_MAX];
    (void)snprintf(key, sizeof key, "%s/%04u/%010u/%u/%020" PRIu64, listing->instance,
                   listing->rank->rank, view->number, view->current ? 0u : 1u, view->generation);
    if (kvp_page_wants(&listing->page, key)) {
        kvp_page_add(&listing->page, key, row_json(listing, region_json(view)));
    }
}

static void list_regions(void *arg, const struct kvp_rank_view *view)
{
    struct listing *listing = arg;
    listing->rank = view;
    kvp_rank_each_region(view, list_region, listing);
}

static void list_queues(void *arg, const struct kvp_rank_view *view)
{
    struct listing *listing = arg;
    listing->rank = view;
    for (int i = 0; view->attached && i < KVP_QUEUE_KINDS; i++) {
        const char *queue = kvp_queue_text((enum kvp_queue)i);
        char key[KVP_PAGE_KEY_MAX];
        (void)snprintf(key, sizeof key, "%s/%04u/%d/%s", listing->instance, view->rank,
                       view->worker ? 0 : 1, queue);
        if (kvp_page_wants(&listing->page, key)) {
            json_t *rest = json_pack("{s:s}", "queue", queue);
            (void)json_object_update_new(rest, queue_json(&view->queues[i]));
            kvp_page_add(&listing->page, key, row_json(listing, rest));
        }
    }
}

static void each_instance(void *arg, const struct kvp_view *view)
{
    struct listing *listing = arg;
    listing->instance = view->instance;
    kvp_fleet_each_rank(listing->control->config.fleet, view->instance, listing->add, listing);
}

/* Of one instance, or of all. */
static void read_list(struct kvp_control *control, struct kvp_request *request, const char *name,
                      void (*add)(void *arg, const struct kvp_rank_view *view))
{
    struct listing listing = {.control = control, .add = add};
    struct kvp_view view;
    bool one = request->instance[0] != '\0';
    if ((one && !kvp_find_instance(control, request, &view)) ||
        !kvp_page_begin(control, request, name, &listing.page)) {
        return;
    }
    if (one) {
        each_instance(&listing, &view);
    } else {
        kvp_fleet_each(control->config.fleet, each_instance, &listing);
    }
    kvp_control_reply(control, request, 200, kvp_page_end(&listing.page), 0);
}

void kvp_read_regions(struct kvp_control *control, struct kvp_request *request)
{
    read_list(control, request, "regions", list_regions);
}

void kvp_read_queues(struct kvp_control *control, struct kvp_request *request)
{
    read_list(control, request, "queues", list_queues);
}
