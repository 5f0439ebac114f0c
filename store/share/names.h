/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_NAMES_H
#define STORE_NODE_NAMES_H

#include "base/mutex.h"
#include "store/client.h"

/*
 * The small integers that stand for tenants and spaces in the shards (store/core.h, naming): given
 * out from 0 up, never taken back. Any thread.
 */
#define KVS_SPACES_MAX 65536u

struct kvs_names {
    struct kvb_mutex lock;
    struct { /* guarded by lock */
        char name[64];
    } * tenants;
    struct {
        struct kvs_space space;
        uint32_t tenant;
    } * spaces;
    uint32_t ntenants, tenants_cap;
    uint32_t nspaces, spaces_cap;
};

void kvs_names_init(struct kvs_names *names);
void kvs_names_cleanup(struct kvs_names *names);

/* Finds or gives out. LIMIT, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_names_space(struct kvs_names *names, const struct kvs_space *space,
                                          uint32_t *space_p, uint32_t *tenant_p);
KVB_MUST_USE kvb_status_t kvs_names_tenant(struct kvs_names *names, const char *tenant,
                                           uint32_t *tenant_p);
/* NOT_FOUND. */
KVB_MUST_USE kvb_status_t kvs_names_find_space(struct kvs_names *names,
                                               const struct kvs_space *space, uint32_t *space_p,
                                               uint32_t *tenant_p);
KVB_MUST_USE kvb_status_t kvs_names_find_tenant(struct kvs_names *names, const char *tenant,
                                                uint32_t *tenant_p);
void kvs_names_space_text(struct kvs_names *names, uint32_t space, struct kvs_space *space_p);
uint32_t kvs_names_ntenants(struct kvs_names *names);
void kvs_names_tenant_text(struct kvs_names *names, uint32_t tenant, char text[64]);

#endif
