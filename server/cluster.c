/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster.h"

#include "metrics.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * One `place` for each node that the coordinator tells of. A node that goes, or is replaced, leaves
 * the client at once and stays in `leaving` until nothing of it is under way: its calls (the client
 * says when) and questions for its tenants (counted here).
 */
enum { SAMPLE_MS = 2000 };
#define MISSED_MS (24u * 3600 * 1000) /* a node that went without saying so is told of as down */

struct place {
    struct kvb_list link; /* cluster.places, or leaving */
    struct kvp_cluster *cluster;
    struct kvs_node_record record;
    struct kvs_node *node; /* NULL: not used */
    bool own;
    bool refused;       /* there is no way to it that may be taken, which was told */
    bool says_draining; /* the node itself, which may be sooner than the coordinator */
    struct {
        bool up;
        kvb_status_t why;
    } told[KVS_WAYS_MAX];  /* what was logged of its ways */
    bool removed;          /* leaving: the client has let go */
    uint32_t asks;         /* questions for tenants under way */
    struct kvb_event gone; /* nothing of it is under way: freed, not inside its own callbacks */
    /* figures at the last sample, and what came of the one before */
    uint64_t sampled_ns;
    struct kvs_remote_status sample;
    double puts, put_bytes, gets, get_bytes;
    /* what the client thinks of it, when it was last asked */
    struct kvs_client_node health;
};

/* A node that went without saying so. */
struct missed {
    struct kvb_list link;
    char name[64];
    uint64_t until_ns;
};

struct quota {
    struct kvb_list link;
    struct kvp_cluster *cluster;
    char tenant[64];
    uint64_t bytes;
    bool known;  /* the coordinator told it */
    bool wanted; /* it is to be told: */
    bool asking;
    uint64_t wanted_bytes;
    struct kvs_coord_request request;
};

struct kvp_cluster {
    struct kvp_cluster_params params;
    struct kvb_list places;
    struct kvb_list leaving;
    struct kvb_list quotas;
    struct kvb_list missed; /* the longest first */
    struct kvb_timer sample;
    bool reachable;
    bool was_reachable;
    uint64_t away_ns; /* since when it is not, and was */
    /* once stopping */
    bool stopping;
    bool withdrawing;
    uint32_t asks; /* of all places */
    struct kvs_coord_request withdraw;
    struct kvb_timer stop_bound;
    void (*stopped)(void *ctx);
    void *stopped_ctx;
};

/* ---- quotas ---- */

/* A node's part of what a tenant may use is that of its capacity in all that is not leaving. */
static uint64_t own_part(const struct kvp_cluster *cluster, uint64_t bytes)
{
    uint64_t own = cluster->params.own.capacity_bytes;
    unsigned __int128 capacity = own; /* what others say of theirs adds up to anything */
    if (bytes == UINT64_MAX) {
        return bytes;
    }
    kvb_list_each(&cluster->places, link)
    {
        const struct place *place = kvb_container_of(link, struct place, link);
        if (!place->own && !place->record.draining) {
            capacity += place->record.capacity_bytes;
        }
    }
    return (uint64_t)((unsigned __int128)bytes * own / capacity);
}

static kvb_status_t share_quota(const struct kvp_cluster *cluster, const struct quota *quota)
{
    if (cluster->params.share == NULL || !quota->known) {
        return KVB_OK;
    }
    uint64_t bytes = own_part(cluster, quota->bytes);
    kvb_status_t status = kvs_share_set_quota(cluster->params.share, quota->tenant, bytes);
    if (status != KVB_OK) {
        KVB_LOG_LIMITED(ERROR, "a tenant's quota cannot be kept here",
                        KVB_STR("tenant", quota->tenant), KVB_U64("bytes", bytes),
                        KVB_STATUS(status));
    }
    return status;
}

static void share_quotas(struct kvp_cluster *cluster)
{
    kvb_list_each(&cluster->quotas, link)
    {
        (void)share_quota(cluster, kvb_container_of(link, struct quota, link)); /* it has logged */
    }
}

static struct quota *find_quota(const struct kvp_cluster *cluster, const char *tenant)
{
    kvb_list_each(&cluster->quotas, link)
    {
        struct quota *quota = kvb_container_of(link, struct quota, link);
        if (strcmp(quota->tenant, tenant) == 0) {
            return quota;
        }
    }
    return NULL;
}

static struct quota *add_quota(struct kvp_cluster *cluster, const char *tenant)
{
    struct quota *quota = find_quota(cluster, tenant);
    if (quota == NULL) {
        quota = calloc(1, sizeof *quota);
        if (quota == NULL) {
            return NULL;
        }
        quota->cluster = cluster;
        quota->bytes = UINT64_MAX;
        (void)snprintf(quota->tenant, sizeof quota->tenant, "%s", tenant);
        kvb_list_push_back(&cluster->quotas, &quota->link);
    }
    return quota;
}

static void on_quota_told(struct kvs_coord_request *request, kvb_status_t status)
{
    struct quota *quota = kvb_container_of(request, struct quota, request);
    quota->asking = false;
    quota->wanted = quota->wanted && status != KVB_OK; /* when it can be reached again */
}

static void tell_quota(struct quota *quota)
{
    if (quota->wanted && !quota->asking) {
        quota->asking = true;
        quota->request = (struct kvs_coord_request){.done = on_quota_told};
        kvs_coordinator_set_quota(quota->cluster->params.coordinator, quota->tenant,
                                  quota->wanted_bytes, &quota->request);
    }
}

kvb_status_t kvp_cluster_want_quota(struct kvp_cluster *cluster, const char *tenant, uint64_t bytes)
{
    struct quota *quota = add_quota(cluster, tenant);
    if (quota == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (cluster->params.alone) {
        quota->known = true;
        quota->bytes = bytes;
        return share_quota(cluster, quota);
    }
    quota->wanted = true;
    quota->wanted_bytes = bytes;
    return KVB_OK;
}

kvb_status_t kvp_cluster_set_quota(struct kvp_cluster *cluster, const char *tenant, uint64_t bytes,
                                   struct kvs_coord_request *request)
{
    struct quota *quota = find_quota(cluster, tenant);
    if (quota != NULL && (cluster->params.alone || cluster->reachable)) {
        quota->wanted = false; /* what the configuration says is not told any more */
    }
    if (!cluster->params.alone) {
        kvs_coordinator_set_quota(cluster->params.coordinator, tenant, bytes, request);
        return KVB_IN_PROGRESS;
    }
    if (quota == NULL && bytes == UINT64_MAX) {
        return KVB_OK;
    }
    return kvp_cluster_want_quota(cluster, tenant, bytes);
}

static uint64_t quota_of(const struct kvp_cluster *cluster, const char *tenant)
{
    const struct quota *quota = find_quota(cluster, tenant);
    return quota != NULL && quota->known ? quota->bytes : UINT64_MAX;
}

/* ---- places ---- */

static struct place *find_place(const struct kvp_cluster *cluster, const char *name)
{
    kvb_list_each(&cluster->places, link)
    {
        struct place *place = kvb_container_of(link, struct place, link);
        if (strcmp(place->record.name, name) == 0) {
            return place;
        }
    }
    return NULL;
}

static void place_free(struct place *place)
{
    kvb_sched_unpost(&place->gone);
    kvb_list_remove(&place->link);
    if (place->node != NULL && !place->own) {
        kvs_remote_destroy(place->node);
    }
    free(place);
}

static void on_place_gone(struct kvb_event *event)
{
    place_free(kvb_container_of(event, struct place, gone));
}

static void finish_leaving(struct place *place)
{
    if (place->removed && place->asks == 0) {
        kvb_sched_post(place->cluster->params.sched, &place->gone);
    }
}

static void show(const struct place *place, bool there);
static void forget(struct kvp_cluster *cluster, const char *name);

/* It is not missed any more: it is back, it was given up, or it is missed anew. */
static void forget_missed(struct kvp_cluster *cluster, const char *name)
{
    kvb_list_each(&cluster->missed, link)
    {
        struct missed *missed = kvb_container_of(link, struct missed, link);
        if (strcmp(missed->name, name) == 0) {
            kvb_list_remove(&missed->link);
            free(missed);
        }
    }
}

/* Shown as down, for a time. */
static void miss(const struct place *place)
{
    struct kvp_cluster *cluster = place->cluster;
    struct missed *missed = malloc(sizeof *missed);
    show(place, false);
    if (missed != NULL) { /* else for good */
        memcpy(missed->name, place->record.name, sizeof missed->name);
        missed->until_ns = kvb_deadline_in_ms(cluster->params.sched->clock, MISSED_MS);
        kvb_list_push_back(&cluster->missed, &missed->link);
    }
}

static void give_up_missed(struct kvp_cluster *cluster, uint64_t now_ns)
{
    struct kvb_list *link;
    while ((link = kvb_list_first(&cluster->missed)) != NULL) {
        struct missed *missed = kvb_container_of(link, struct missed, link);
        if (missed->until_ns > now_ns) {
            return;
        }
        forget(cluster, missed->name);
        kvb_list_remove(&missed->link);
        free(missed);
    }
}

static void on_removed(void *ctx, struct kvs_node *node)
{
    struct place *place = ctx;
    kvb_assert(node == place->node && !place->removed);
    place->removed = true;
    finish_leaving(place);
}

static bool readable_only(const struct place *place)
{
    return place->record.draining || place->says_draining;
}

static void place_leave(struct place *place)
{
    struct kvp_cluster *cluster = place->cluster;
    if (readable_only(place)) { /* it said so before it went */
        forget(cluster, place->record.name);
    } else {
        miss(place);
    }
    kvb_list_remove(&place->link);
    kvb_list_push_back(&cluster->leaving, &place->link);
    if (place->node == NULL || kvs_client_remove_node(cluster->params.client, place->record.name,
                                                      on_removed, place) != KVB_OK) {
        place->removed = true;
        finish_leaving(place);
    }
}

static void place_set(const struct place *place)
{
    if (place->node != NULL) {
        kvb_status_t status =
            kvs_client_set_node(place->cluster->params.client, place->record.name,
                                place->record.capacity_bytes, readable_only(place));
        kvb_assert(status == KVB_OK); /* it was added */
    }
}

/* A way that came, or went, is told once. */
static void tell_ways(struct place *place, struct kvs_node *node, const char *used)
{
    struct kvs_way_status way;
    for (uint32_t i = 0; kvs_remote_way(node, i, &way); i++) {
        if (way.up == place->told[i].up && way.why == place->told[i].why) {
            continue;
        }
        if (way.up) {
            KVB_LOG(INFO, "store node reached", KVB_STR("node", place->record.name),
                    KVB_STR("transport", way.by), KVB_STR("used", used != NULL ? used : "none"));
        } else {
            KVB_LOG(WARN, "store node cannot be reached", KVB_STR("node", place->record.name),
                    KVB_STR("transport", way.by), KVB_STATUS(way.why),
                    KVB_STR("used", used != NULL ? used : "none"));
        }
        place->told[i].up = way.up;
        place->told[i].why = way.why;
    }
}

static void on_remote_changed(void *ctx, struct kvs_node *node,
                              const struct kvs_remote_status *status)
{
    struct place *place = ctx;
    tell_ways(place, node, status->by);
    if (place->says_draining != status->draining) {
        place->says_draining = status->draining;
        if (find_place(place->cluster, place->record.name) == place) { /* not leaving */
            place_set(place);
        }
    }
}

/* Connects to it and gives it a place in the choice. A failure is tried again with each sample. */
static void place_use(struct place *place)
{
    struct kvp_cluster_params *params = &place->cluster->params;
    if (params->client == NULL || place->node != NULL || place->own) {
        return;
    }
    const struct kvt_tcp_peer_config tcp = {.common = params->common,
                                            .address = place->record.address};
    const struct kvt_rdma_peer_config rdma = {.common = params->common,
                                              .memory = params->rdma,
                                              .io = params->io,
                                              .address = place->record.rdma};
    struct kvs_remote_config remote = {
        .sched = params->sched,
        .regions = params->regions,
        .changed = on_remote_changed,
        .ctx = place,
    };
    uint32_t nways = 0;
    if (params->rdma != NULL && place->record.rdma[0] != '\0') {
        remote.ways[nways++] = (struct kvs_way){&kvs_by_rdma, &rdma};
    }
    if (!params->rdma_only) {
        remote.ways[nways++] = (struct kvs_way){&kvs_by_tcp, &tcp};
    }
    if (nways == 0) {
        if (!place->refused) {
            KVB_LOG(ERROR,
                    "a store node cannot be used: it is not reached by rdma, and transport allows "
                    "nothing else",
                    KVB_STR("node", place->record.name));
            place->refused = true;
        }
        return;
    }
    struct kvs_node *node;
    kvb_status_t status = kvs_remote_create(&remote, &node);
    if (status == KVB_OK) {
        status = kvs_client_add_node(params->client, place->record.name, node,
                                     place->record.capacity_bytes);
        if (status != KVB_OK) {
            kvs_remote_destroy(node);
        }
    }
    if (status != KVB_OK) {
        KVB_LOG_LIMITED(ERROR, "a store node cannot be used", KVB_STR("node", place->record.name),
                        KVB_STR("address", place->record.address), KVB_STATUS(status));
        return;
    }
    place->node = node;
    place_set(place);
}

/* What a place of that name goes in front of: they are kept by name, for people. */
static struct kvb_list *behind_of(struct kvp_cluster *cluster, const char *name)
{
    kvb_list_each(&cluster->places, link)
    {
        if (strcmp(kvb_container_of(link, struct place, link)->record.name, name) > 0) {
            return link;
        }
    }
    return &cluster->places;
}

static struct place *place_add(struct kvp_cluster *cluster, const struct kvs_node_record *record)
{
    struct place *place = calloc(1, sizeof *place);
    if (place != NULL) {
        place->cluster = cluster;
        place->record = *record;
        kvb_event_init(&place->gone, on_place_gone);
        kvb_list_push_back(behind_of(cluster, record->name), &place->link);
    }
    return place;
}

/* ---- what the coordinator tells ---- */

static bool same_life(const struct kvs_node_record *a, const struct kvs_node_record *b)
{
    return a->incarnation == b->incarnation && strcmp(a->address, b->address) == 0 &&
           strcmp(a->rdma, b->rdma) == 0;
}

static void on_own_record(const struct kvp_cluster *cluster, const struct kvs_node_record *record)
{
    const struct kvs_node_record *own = &cluster->params.own;
    if (record->incarnation != own->incarnation && strcmp(record->address, own->address) != 0) {
        KVB_LOG_LIMITED(ERROR,
                        "another process gives its share the same name: choose another node-name "
                        "for one of them",
                        KVB_STR("node", own->name), KVB_STR("address", record->address));
    }
}

static void on_node(void *ctx, const struct kvs_node_record *record)
{
    struct kvp_cluster *cluster = ctx;
    struct place *place = find_place(cluster, record->name);
    if (cluster->params.share != NULL && strcmp(record->name, cluster->params.own.name) == 0) {
        on_own_record(cluster, record);
        return;
    }
    if (place != NULL && same_life(&place->record, record)) {
        place->record = *record;
        place_set(place);
    } else {
        if (place != NULL) {
            place_leave(place);
        }
        KVB_LOG(INFO, place != NULL ? "store node came back" : "store node joined",
                KVB_STR("node", record->name), KVB_STR("address", record->address),
                KVB_U64("capacity_bytes", record->capacity_bytes));
        forget_missed(cluster, record->name);
        place = place_add(cluster, record);
        if (place == NULL) {
            KVB_LOG_LIMITED(ERROR, "no memory for a store node", KVB_STR("node", record->name));
            return;
        }
        place_use(place);
    }
    share_quotas(cluster);
}

static void on_node_gone(void *ctx, const char *name)
{
    struct kvp_cluster *cluster = ctx;
    struct place *place = find_place(cluster, name);
    if (place != NULL && !place->own) {
        KVB_LOG(INFO, "store node left", KVB_STR("node", name));
        place_leave(place);
        share_quotas(cluster);
    }
}

static void on_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    const struct kvp_cluster *cluster = ctx;
    if (cluster->params.share != NULL) {
        kvs_share_retire(cluster->params.share, lineages, n);
    }
}

static void on_quota(void *ctx, const char *tenant, uint64_t bytes)
{
    struct kvp_cluster *cluster = ctx;
    struct quota *quota = add_quota(cluster, tenant);
    if (quota == NULL) {
        KVB_LOG_LIMITED(ERROR, "no memory for a tenant's quota", KVB_STR("tenant", tenant));
        return;
    }
    quota->known = true;
    quota->bytes = bytes;
    (void)share_quota(cluster, quota); /* it has logged */
}

static void on_reachable(void *ctx, bool reachable)
{
    struct kvp_cluster *cluster = ctx;
    if (cluster->reachable && !reachable) {
        cluster->away_ns = kvb_now_ns(cluster->params.sched->clock);
    }
    cluster->reachable = reachable;
    cluster->was_reachable = cluster->was_reachable || reachable;
    if (reachable) {
        kvb_list_each(&cluster->quotas, link)
        {
            tell_quota(kvb_container_of(link, struct quota, link));
        }
    }
}

static const struct kvs_watch_ops watch_ops = {.node = on_node,
                                               .node_gone = on_node_gone,
                                               .retired = on_retired,
                                               .quota = on_quota,
                                               .reachable = on_reachable};

/* ---- figures ---- */

static void read_status(const struct place *place, struct kvs_remote_status *status_p)
{
    struct kvp_cluster *cluster = place->cluster;
    *status_p = (struct kvs_remote_status){.capacity_bytes = place->record.capacity_bytes};
    if (place->own) {
        struct kvs_share_stats stats;
        kvs_share_stats(cluster->params.share, &stats);
        *status_p = (struct kvs_remote_status){.up = true,
                                               .by = "local",
                                               .draining = place->record.draining,
                                               .incarnation = place->record.incarnation,
                                               .heard_ns = kvb_now_ns(cluster->params.sched->clock),
                                               .capacity_bytes = stats.core.share_bytes,
                                               .used_bytes = stats.core.used_bytes,
                                               .objects = stats.core.objects,
                                               .puts = stats.puts,
                                               .put_bytes = stats.put_bytes,
                                               .gets = stats.gets,
                                               .get_bytes = stats.get_bytes};
    } else if (place->node != NULL) {
        kvs_remote_status(place->node, status_p);
    }
}

/* A node that started anew counts from 0. */
static double rate(uint64_t now, uint64_t before, uint64_t ns)
{
    return now < before || ns == 0 ? 0 : (double)(now - before) * 1e9 / (double)ns;
}

static void sample(struct place *place, uint64_t now_ns)
{
    struct kvs_remote_status status;
    read_status(place, &status);
    if (place->sampled_ns != 0) {
        uint64_t ns = now_ns - place->sampled_ns;
        place->puts = rate(status.puts, place->sample.puts, ns);
        place->put_bytes = rate(status.put_bytes, place->sample.put_bytes, ns);
        place->gets = rate(status.gets, place->sample.gets, ns);
        place->get_bytes = rate(status.get_bytes, place->sample.get_bytes, ns);
    }
    place->sample = status;
    place->sampled_ns = now_ns;
}

static void take_health(void *arg, const struct kvs_client_node *node)
{
    struct place *place = find_place(arg, node->name);
    if (place != NULL) {
        place->health = *node;
    }
}

static void ask_health(struct kvp_cluster *cluster)
{
    if (cluster->params.client != NULL) {
        kvs_client_each_node(cluster->params.client, take_health, cluster);
    }
}

void kvp_cluster_each_node(struct kvp_cluster *cluster,
                           void (*each)(void *arg, const struct kvp_cluster_node *node), void *arg)
{
    ask_health(cluster);
    kvb_list_each(&cluster->places, link)
    {
        const struct place *place = kvb_container_of(link, struct place, link);
        struct kvp_cluster_node node = {.record = &place->record,
                                        .used = place->node != NULL,
                                        .own = place->own,
                                        .sick = place->health.sick,
                                        .sick_ns = place->health.sick_ns,
                                        .sick_times = place->health.sick_times,
                                        .calls = place->health.calls,
                                        .failures = place->health.failures,
                                        .in_flight = place->health.in_flight,
                                        .last_failure = place->health.last_failure,
                                        .failed_ns = place->health.failed_ns,
                                        .puts = place->puts,
                                        .put_bytes = place->put_bytes,
                                        .gets = place->gets,
                                        .get_bytes = place->get_bytes};
        read_status(place, &node.status);
        while (!place->own && place->node != NULL && node.nways < KVS_WAYS_MAX &&
               kvs_remote_way(place->node, node.nways, &node.ways[node.nways])) {
            node.nways++;
        }
        each(arg, &node);
    }
}

static void show(const struct place *place, bool there)
{
    struct kvb_metrics *metrics = place->cluster->params.metrics;
    const char *values[] = {place->record.name};
    const struct kvs_remote_status *status = &place->sample;
    const struct {
        enum kvp_metric which;
        double value;
    } shown[] = {
        {KVP_M_NODE_UP, there && (place->own || status->up)},
        {KVP_M_NODE_SICK, there && place->health.sick},
        {KVP_M_NODE_CAPACITY, there ? (double)place->record.capacity_bytes : 0},
        {KVP_M_NODE_USED, there ? (double)status->used_bytes : 0},
        {KVP_M_NODE_OBJECTS, there ? (double)status->objects : 0},
        {KVP_M_NODE_CALLS, (double)place->health.calls},
        {KVP_M_NODE_FAILURES, (double)place->health.failures},
    };
    for (size_t i = 0; metrics != NULL && i < sizeof shown / sizeof shown[0]; i++) {
        kvb_series_set(kvb_series(metrics, shown[i].which, values), shown[i].value);
    }
}

static const enum kvp_metric of_node[] = {
    KVP_M_NODE_UP,          KVP_M_NODE_SICK,  KVP_M_NODE_CAPACITY, KVP_M_NODE_USED,
    KVP_M_NODE_OBJECTS,     KVP_M_NODE_CALLS, KVP_M_NODE_FAILURES, KVP_M_CONNECTIONS,
    KVP_M_CONNECTION_BYTES, KVP_M_LANES,
};

static void forget(struct kvp_cluster *cluster, const char *name)
{
    struct kvb_metrics *metrics = cluster->params.metrics;
    const char *values[] = {name};
    for (size_t i = 0; metrics != NULL && i < sizeof of_node / sizeof of_node[0]; i++) {
        kvb_series_drop(metrics, of_node[i], values, 1);
    }
}

static void show_connections(const struct place *place)
{
    struct kvb_metrics *metrics = place->cluster->params.metrics;
    struct kvs_way_status way;
    if (metrics == NULL || place->node == NULL || place->own) {
        return;
    }
    for (uint32_t i = 0; kvs_remote_way(place->node, i, &way); i++) {
        kvp_metrics_peer(metrics, place->record.name, way.by, &way.stats);
    }
}

static void on_sample(struct kvb_timer *timer)
{
    struct kvp_cluster *cluster = kvb_container_of(timer, struct kvp_cluster, sample);
    struct kvb_sched *sched = cluster->params.sched;
    uint64_t now_ns = kvb_now_ns(sched->clock);
    ask_health(cluster);
    give_up_missed(cluster, now_ns);
    kvb_list_each(&cluster->places, link)
    {
        struct place *place = kvb_container_of(link, struct place, link);
        place_use(place);
        sample(place, now_ns);
        show(place, true);
        show_connections(place);
    }
    kvb_sched_timer_set(sched, timer, kvb_deadline_in_ms(sched->clock, SAMPLE_MS));
}

/* ---- tenants ---- */

struct gathering {
    struct kvp_cluster *cluster;
    struct kvp_cluster_tenants *ask;
    struct kvb_event event; /* done never comes inside the call */
    uint32_t open;          /* nodes that have not answered yet, and one for the beginning */
    uint32_t silent;
    struct kvp_cluster_tenant *tenants;
    uint32_t n;
    uint32_t cap;
};

struct asking {
    struct gathering *gathering;
    struct place *place;
    struct kvs_remote_tenants ask;
};

static void add_figures(struct gathering *gathering, const char *tenant,
                        const struct kvs_core_tenant_stats *stats)
{
    struct kvp_cluster_tenant *found = NULL;
    for (uint32_t i = 0; i < gathering->n && found == NULL; i++) {
        if (strcmp(gathering->tenants[i].tenant, tenant) == 0) {
            found = &gathering->tenants[i];
        }
    }
    if (found == NULL) {
        if (gathering->n == gathering->cap) {
            uint32_t cap = gathering->cap * 2 + 16;
            struct kvp_cluster_tenant *tenants = realloc(gathering->tenants, cap * sizeof *tenants);
            if (tenants == NULL) {
                return; /* one tenant less in a list for people */
            }
            gathering->tenants = tenants;
            gathering->cap = cap;
        }
        found = &gathering->tenants[gathering->n++];
        *found = (struct kvp_cluster_tenant){.quota_bytes = quota_of(gathering->cluster, tenant)};
        (void)snprintf(found->tenant, sizeof found->tenant, "%s", tenant);
    }
    found->used_bytes += stats->used_bytes;
    found->objects += stats->objects;
}

static void finish_stop(struct kvp_cluster *cluster);

static void gathering_answered(struct gathering *gathering)
{
    if (--gathering->open > 0) {
        return;
    }
    struct kvp_cluster *cluster = gathering->cluster;
    gathering->ask->done(gathering->ask, gathering->tenants, gathering->n, gathering->silent);
    free(gathering->tenants);
    free(gathering);
    cluster->asks--;
    finish_stop(cluster);
}

static void on_gathering(struct kvb_event *event)
{
    gathering_answered(kvb_container_of(event, struct gathering, event));
}

static void on_tenants(struct kvs_remote_tenants *ask, kvb_status_t status)
{
    struct asking *asking = kvb_container_of(ask, struct asking, ask);
    struct gathering *gathering = asking->gathering;
    struct place *place = asking->place;
    if (status != KVB_OK) {
        gathering->silent++;
    }
    for (uint32_t i = 0; status == KVB_OK && i < ask->n; i++) {
        add_figures(gathering, ask->tenants[i].tenant, &ask->tenants[i].stats);
    }
    free(asking);
    place->asks--;
    finish_leaving(place);
    gathering_answered(gathering);
}

static void add_own(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    add_figures(arg, tenant, stats);
}

static void ask_place(struct gathering *gathering, struct place *place, uint64_t deadline_ns)
{
    if (place->own) {
        kvs_share_each_tenant(gathering->cluster->params.share, add_own, gathering);
        return;
    }
    struct asking *asking = place->node != NULL ? calloc(1, sizeof *asking) : NULL;
    if (asking == NULL) {
        gathering->silent++;
        return;
    }
    asking->gathering = gathering;
    asking->place = place;
    asking->ask.done = on_tenants;
    if (kvs_remote_tenants(place->node, deadline_ns, &asking->ask) != KVB_OK) {
        gathering->silent++;
        free(asking);
        return;
    }
    gathering->open++;
    place->asks++;
}

kvb_status_t kvp_cluster_ask_tenants(struct kvp_cluster *cluster, uint64_t deadline_ns,
                                     struct kvp_cluster_tenants *ask)
{
    if (cluster->stopping) {
        return KVB_ERR_CANCELED;
    }
    struct gathering *gathering = calloc(1, sizeof *gathering);
    if (gathering == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    gathering->cluster = cluster;
    gathering->ask = ask;
    gathering->open = 1;
    kvb_event_init(&gathering->event, on_gathering);
    cluster->asks++;
    kvb_list_each(&cluster->places, link)
    {
        ask_place(gathering, kvb_container_of(link, struct place, link), deadline_ns);
    }
    kvb_sched_post(cluster->params.sched, &gathering->event);
    return KVB_OK;
}

/* ---- objects ---- */

struct listing {
    struct place *place;
    struct kvp_cluster_list *ask;
    struct kvs_remote_list remote;
    struct kvb_event event; /* done never comes inside the call */
};

static void listed(struct listing *listing, kvb_status_t status)
{
    struct kvp_cluster *cluster = listing->place->cluster;
    listing->place->asks--;
    finish_leaving(listing->place);
    listing->ask->done(listing->ask, status);
    free(listing);
    cluster->asks--;
    finish_stop(cluster);
}

static void on_listed(struct kvs_remote_list *ask, kvb_status_t status)
{
    listed(kvb_container_of(ask, struct listing, remote), status);
}

static void on_own_listed(struct kvb_event *event)
{
    struct listing *listing = kvb_container_of(event, struct listing, event);
    kvs_share_list(listing->place->cluster->params.share, listing->ask->list);
    listed(listing, KVB_OK);
}

static kvb_status_t list_on(struct place *place, uint64_t deadline_ns, struct kvp_cluster_list *ask)
{
    struct listing *listing = calloc(1, sizeof *listing);
    kvb_status_t status = KVB_OK;
    if (listing == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    listing->place = place;
    listing->ask = ask;
    listing->remote = (struct kvs_remote_list){.done = on_listed, .list = ask->list};
    kvb_event_init(&listing->event, on_own_listed);
    if (place->own) {
        kvb_sched_post(place->cluster->params.sched, &listing->event);
    } else {
        status = kvs_remote_list(place->node, deadline_ns, &listing->remote);
    }
    if (status != KVB_OK) {
        free(listing);
        return status;
    }
    place->asks++;
    place->cluster->asks++;
    return KVB_OK;
}

kvb_status_t kvp_cluster_ask_list(struct kvp_cluster *cluster, const char *node,
                                  uint64_t deadline_ns, struct kvp_cluster_list *ask)
{
    struct place *place = find_place(cluster, node);
    return cluster->stopping                    ? KVB_ERR_CANCELED
           : place == NULL                      ? KVB_ERR_NOT_FOUND
           : !place->own && place->node == NULL ? KVB_ERR_UNAVAILABLE
                                                : list_on(place, deadline_ns, ask);
}

/* ---- life ---- */

bool kvp_cluster_reachable(const struct kvp_cluster *cluster)
{
    return cluster->reachable;
}

bool kvp_cluster_was_reachable(const struct kvp_cluster *cluster)
{
    return cluster->was_reachable;
}

uint64_t kvp_cluster_away_ns(const struct kvp_cluster *cluster)
{
    return cluster->reachable ? 0 : cluster->away_ns;
}

uint64_t kvp_cluster_left_out(const struct kvp_cluster *cluster, const char **reason_p)
{
    struct kvt_rdma_memory_stats stats = {.left_out = 0};
    if (cluster->params.rdma != NULL) {
        kvt_rdma_memory_stats(cluster->params.rdma, &stats);
        *reason_p = kvt_rdma_memory_reason(cluster->params.rdma);
    }
    return stats.left_out;
}

bool kvp_cluster_alone(const struct kvp_cluster *cluster)
{
    return cluster->params.alone;
}

static kvb_status_t add_own_share(struct kvp_cluster *cluster)
{
    const struct kvp_cluster_params *params = &cluster->params;
    struct place *place = place_add(cluster, &params->own);
    if (place == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    place->own = true;
    if (params->client != NULL) {
        kvb_status_t status = kvs_client_add_node(params->client, params->own.name, params->local,
                                                  params->own.capacity_bytes);
        if (status != KVB_OK) {
            return status;
        }
        place->node = params->local;
    }
    return params->alone ? KVB_OK : kvs_coordinator_announce(params->coordinator, &params->own);
}

static void on_stop_bound(struct kvb_timer *timer);

kvb_status_t kvp_cluster_create(const struct kvp_cluster_params *params,
                                struct kvp_cluster **cluster_p)
{
    struct kvp_cluster *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    cluster->params = *params;
    kvb_list_init(&cluster->places);
    kvb_list_init(&cluster->leaving);
    kvb_list_init(&cluster->quotas);
    kvb_list_init(&cluster->missed);
    kvb_timer_init(&cluster->sample, on_sample);
    kvb_timer_init(&cluster->stop_bound, on_stop_bound);
    kvb_status_t status = params->share != NULL ? add_own_share(cluster) : KVB_OK;
    cluster->reachable = params->alone;
    cluster->was_reachable = params->alone;
    if (status == KVB_OK && !params->alone) {
        status = kvs_coordinator_watch(params->coordinator, &watch_ops, cluster);
    }
    if (status != KVB_OK) {
        kvp_cluster_destroy(cluster);
        return status;
    }
    kvb_sched_timer_set(params->sched, &cluster->sample,
                        kvb_deadline_in_ms(params->sched->clock, SAMPLE_MS));
    *cluster_p = cluster;
    return KVB_OK;
}

void kvp_cluster_drain(struct kvp_cluster *cluster)
{
    struct place *place = find_place(cluster, cluster->params.own.name);
    kvb_assert(place != NULL && place->own);
    place->record.draining = true;
    cluster->params.own.draining = true;
    if (kvs_coordinator_announce(cluster->params.coordinator, &cluster->params.own) != KVB_OK) {
        KVB_LOG(ERROR,
                "no memory to tell that this node leaves"); /* peers hear it by their pings */
    }
    place_set(place);
}

static void finish_stop(struct kvp_cluster *cluster)
{
    if (cluster->stopped != NULL && !cluster->withdrawing && cluster->asks == 0) {
        void (*stopped)(void *ctx) = cluster->stopped;
        cluster->stopped = NULL;
        kvb_sched_timer_clear(cluster->params.sched, &cluster->stop_bound);
        stopped(cluster->stopped_ctx);
    }
}

static void on_withdrawn(struct kvs_coord_request *request, kvb_status_t status)
{
    struct kvp_cluster *cluster = kvb_container_of(request, struct kvp_cluster, withdraw);
    if (status != KVB_OK && status != KVB_ERR_EXISTS) { /* another's by now, as logged */
        KVB_LOG(WARN, "the node could not be withdrawn: others see it until its lease ends",
                KVB_STATUS(status));
    }
    cluster->withdrawing = false;
    finish_stop(cluster);
}

/* Questions have deadlines of their own; the withdrawal is let go: its request stays here. */
static void on_stop_bound(struct kvb_timer *timer)
{
    struct kvp_cluster *cluster = kvb_container_of(timer, struct kvp_cluster, stop_bound);
    if (cluster->withdrawing) {
        KVB_LOG(WARN, "etcd does not answer: others see this node until its lease ends");
        cluster->withdrawing = false;
    }
    finish_stop(cluster);
}

void kvp_cluster_stop(struct kvp_cluster *cluster, uint64_t bound_ms, void (*stopped)(void *ctx),
                      void *ctx)
{
    struct kvb_sched *sched = cluster->params.sched;
    kvb_assert(!cluster->stopping);
    cluster->stopping = true;
    cluster->stopped = stopped;
    cluster->stopped_ctx = ctx;
    if (cluster->params.share != NULL && !cluster->params.alone) {
        cluster->withdrawing = true;
        cluster->withdraw = (struct kvs_coord_request){.done = on_withdrawn};
        kvs_coordinator_withdraw(cluster->params.coordinator, &cluster->withdraw);
        kvb_sched_timer_set(sched, &cluster->stop_bound,
                            kvb_deadline_in_ms(sched->clock, bound_ms));
    } else { /* stopped comes later, also when there is nothing to wait for */
        kvb_sched_timer_set(sched, &cluster->stop_bound, kvb_now_ns(sched->clock));
    }
}

void kvp_cluster_destroy(struct kvp_cluster *cluster)
{
    if (cluster == NULL) {
        return;
    }
    kvb_sched_timer_clear(cluster->params.sched, &cluster->sample);
    kvb_sched_timer_clear(cluster->params.sched, &cluster->stop_bound);
    struct kvb_list *link;
    while ((link = kvb_list_first(&cluster->places)) != NULL ||
           (link = kvb_list_first(&cluster->leaving)) != NULL) {
        place_free(kvb_container_of(link, struct place, link));
    }
    while ((link = kvb_list_pop(&cluster->missed)) != NULL) {
        free(kvb_container_of(link, struct missed, link));
    }
    while ((link = kvb_list_pop(&cluster->quotas)) != NULL) {
        free(kvb_container_of(link, struct quota, link));
    }
    free(cluster);
}
