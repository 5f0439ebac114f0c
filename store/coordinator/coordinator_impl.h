/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_COORDINATOR_IMPL_H
#define STORE_COORDINATOR_IMPL_H

#include "store/coordinator.h"

/* What a coordinator gives; store/coordinator.h says what each must do. */
struct kvs_coordinator_ops {
    kvb_status_t (*open)(struct kvs_coordinator *coordinator, const char *instance,
                         const struct kvs_space *space, const struct kvs_member_ops *ops, void *ctx,
                         struct kvs_member **member_p);
    void (*close)(struct kvs_member *member);
    void (*resolve)(struct kvs_member *member, const char *name, struct kvs_coord_request *request);
    void (*check)(struct kvs_member *member, const char *name, struct kvb_lineage lineage,
                  struct kvs_coord_request *request);
    void (*leave)(struct kvs_member *member, const char *name);
    void (*abandon)(struct kvs_member *member, struct kvb_lineage lineage);
    void (*left)(struct kvs_member *member, uint64_t retirement);
    void (*retire)(struct kvs_member *member, const struct kvb_lineage *lineages, uint32_t n,
                   const char *name, uint64_t deadline_ns, struct kvs_coord_request *request);
    void (*tenant_reset)(struct kvs_coordinator *coordinator, const char *tenant,
                         struct kvs_member *member, uint64_t deadline_ns,
                         struct kvs_coord_request *request);
    void (*step)(struct kvs_member *member, uint64_t epoch, uint64_t step,
                 struct kvs_coord_request *request);
    void (*each_name)(struct kvs_coordinator *coordinator,
                      void (*each)(void *arg, const struct kvs_space *space, const char *name,
                                   struct kvb_lineage lineage, uint32_t members),
                      void *arg);
    void (*destroy)(struct kvs_coordinator *coordinator);
    kvb_status_t (*watch)(struct kvs_coordinator *coordinator, const struct kvs_watch_ops *ops,
                          void *ctx);
    kvb_status_t (*announce)(struct kvs_coordinator *coordinator,
                             const struct kvs_node_record *record);
    void (*withdraw)(struct kvs_coordinator *coordinator, struct kvs_coord_request *request);
    void (*set_quota)(struct kvs_coordinator *coordinator, const char *tenant, uint64_t bytes,
                      struct kvs_coord_request *request);
    kvb_status_t (*publish)(struct kvs_member *member, const char *text);
    void (*each_instance)(struct kvs_coordinator *coordinator,
                          void (*each)(void *arg, const struct kvs_instance_record *record),
                          void *arg);
};

struct kvs_coordinator {
    const struct kvs_coordinator_ops *ops;
};
struct kvs_member {
    struct kvs_coordinator *coordinator;
};

/* ---- requests, for every coordinator ---- */

/* It is open from here on; impl.state is the coordinator's. */
void kvs_request_begin(struct kvb_list *requests, struct kvs_coordinator *coordinator,
                       struct kvs_member *member, struct kvs_coord_request *request);
/* Its answer comes in a later turn. Once. */
void kvs_request_answer(struct kvb_sched *sched, struct kvs_coord_request *request,
                        kvb_status_t status);
/* All that are open complete now, CANCELED; disown: what their state says of them (not NULL). */
void kvs_request_cancel_all(struct kvb_list *requests, void (*disown)(void *state));

#endif
