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

/* Numbers from 0 up, by the hash of what has them. */
struct kvs_numbers {
    uint32_t n, cap; /* a power of two, or 0 */
    uint32_t *heads; /* cap of them: a chain each, as number + 1 */
    struct kvs_number {
        uint64_t hash;
        uint32_t next; /* in its chain, as number + 1 */
    } * at;
};

struct kvs_names {
    uint64_t seed; /* of hashes */
    struct kvb_mutex lock;
    /* guarded by lock: what has each number, and room for as many as they have */
    struct kvs_numbers tenant_numbers, space_numbers;
    struct {
        char name[64];
    } * tenants;
    struct {
        struct kvs_space space;
        uint32_t tenant;
    } * spaces;
};

void kvs_names_init(struct kvs_names *names, uint64_t seed);
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
