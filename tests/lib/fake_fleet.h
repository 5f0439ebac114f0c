/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LIB_FAKE_FLEET_H
#define TESTS_LIB_FAKE_FLEET_H

#include "cluster.h"
#include "connector/instance.h"

/*
 * Stands in for server/connector and the coordinator where control is tested: remembers what was
 * asked and ends it when and as the test says. Not for use beside the real ones: it defines the
 * same functions.
 */
#define FAKE_INSTANCES 4
#define FAKE_CALLS     256
#define FAKE_RECORDS   4
#define FAKE_RESETS    16
#define FAKE_FLEET_IDS 1000u

struct fake_call {
    bool open;
    struct kvp_ask ask; /* body is the caller's, so a test sees whether it is still there */
    char instance[KVB_NAME_MAX]; /* "" = the only one */
    char request_id[64];
    kvp_outcome_fn done;
    void *arg;
    uint64_t id;
};

struct kvp_fleet {
    struct kvp_view views[FAKE_INSTANCES];
    uint32_t nviews;
    struct fake_call calls[FAKE_CALLS]; /* in the order asked; the oldest are forgotten */
    uint32_t ncalls;
    kvb_status_t status; /* of every request */
    kvb_status_t cancel_status;
    uint64_t canceled[FAKE_CALLS];
    uint32_t ncanceled;
    uint32_t nids; /* that were taken: the nth is FAKE_FLEET_IDS + n */
    struct kvp_operation_record records[FAKE_RECORDS];
    uint32_t nrecords;
    struct kvp_left leavings[FAKE_RECORDS];
    uint32_t nleavings;
};

/* An attached, running instance of tenant `default` with tags kv_cache and weights resident. */
struct kvp_view *fake_fleet_add(struct kvp_fleet *fleet, const char *name);
struct fake_call *fake_fleet_last(struct kvp_fleet *fleet);
/* Calls done with the outcome; view and operation id are filled in. */
void fake_fleet_finish(struct kvp_fleet *fleet, struct fake_call *call, struct kvp_outcome outcome);
/* Ends every open call that way. */
void fake_fleet_finish_all(struct kvp_fleet *fleet, struct kvp_outcome outcome);

struct fake_name {
    struct kvs_space space;
    const char *name;
    uint32_t members;
};
struct kvs_coordinator {
    struct fake_name names[4];
    uint32_t nnames;
    struct kvs_coord_request *resets[FAKE_RESETS]; /* in progress */
    uint32_t nresets;
    char reset_tenant[KVB_NAME_MAX];
    uint64_t reset_deadline_ns;
    const char *instance_text;  /* of the one instance that it tells of; NULL: there is none */
    const char *instance_name;  /* NULL: far */
    bool instance_own;          /* this process told it */
    const char *instance_again; /* another one that it tells of; NULL: none */
};
/* Ends every reset in progress. */
void fake_coordinator_finish(struct kvs_coordinator *coordinator, kvb_status_t status);

struct kvp_cluster {
    struct kvp_cluster_node nodes[4];
    uint32_t nnodes;
    struct kvp_cluster_tenant tenants[4];
    uint32_t ntenants;
    uint32_t silent;
    bool etcd;
    uint64_t left_out;
    uint64_t away_ns;                              /* 0: it can be reached */
    kvb_status_t status;                           /* of every question */
    struct kvp_cluster_tenants *asks[FAKE_RESETS]; /* not answered yet */
    uint32_t nasks;
    kvb_status_t quota_status; /* of every quota; IN_PROGRESS: quota_request is to be ended */
    char quota_tenant[KVB_NAME_MAX];
    uint64_t quota_bytes;
    struct kvs_coord_request *quota_request;
    /* what each of the nodes says when it is listed: OK, with so many objects (keys "node/number",
     * numbered by place.object, 3 to a step), or a failure; IN_PROGRESS: list_ask is to be ended */
    kvb_status_t list_status[4];
    uint32_t list_objects[4];
    struct kvp_cluster_list *list_ask;
    uint32_t nlists;
    struct kvs_list asked_list; /* of the last one: what was asked */
};
/* Answers every question. */
void fake_cluster_finish(struct kvp_cluster *cluster);

#endif
