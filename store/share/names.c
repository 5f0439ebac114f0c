/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include "base/assert.h"
#include "store/core.h"

#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

void kvs_names_init(struct kvs_names *names, uint64_t seed)
{
    *names = (struct kvs_names){.seed = seed};
    kvb_mutex_init(&names->lock, "store names");
}

static void numbers_cleanup(struct kvs_numbers *numbers)
{
    free(numbers->heads);
    free(numbers->at);
}

void kvs_names_cleanup(struct kvs_names *names)
{
    numbers_cleanup(&names->tenant_numbers);
    numbers_cleanup(&names->space_numbers);
    free(names->tenants);
    free(names->spaces);
    kvb_mutex_cleanup(&names->lock);
}

/* ---- numbers ---- */

static void link_number(struct kvs_numbers *numbers, uint32_t number)
{
    uint32_t *head = &numbers->heads[numbers->at[number].hash & (numbers->cap - 1)];
    numbers->at[number].next = *head;
    *head = number + 1;
}

/* Makes room for one more, here and in the array of what has the numbers. */
static kvb_status_t grow(struct kvs_numbers *numbers, void **array, size_t each, uint32_t max)
{
    if (numbers->n >= max) {
        return KVB_ERR_LIMIT;
    }
    if (numbers->n < numbers->cap) {
        return KVB_OK;
    }
    uint32_t cap = numbers->cap == 0 ? 16 : numbers->cap * 2;
    void *grown = realloc(*array, cap * each);
    if (grown == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *array = grown;
    struct kvs_number *at = realloc(numbers->at, cap * sizeof *at);
    if (at == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    numbers->at = at;
    uint32_t *heads = calloc(cap, sizeof *heads);
    if (heads == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    free(numbers->heads);
    numbers->heads = heads;
    numbers->cap = cap;
    for (uint32_t i = 0; i < numbers->n; i++) {
        link_number(numbers, i);
    }
    return KVB_OK;
}

static uint32_t add_number(struct kvs_numbers *numbers, uint64_t hash)
{
    numbers->at[numbers->n].hash = hash;
    link_number(numbers, numbers->n);
    return numbers->n++;
}

/* Each number with this hash, as number + 1, 0 behind the last; of 0 the first. */
static uint32_t next_number(const struct kvs_numbers *numbers, uint64_t hash, uint32_t link)
{
    if (numbers->cap == 0) {
        return 0;
    }
    link = link == 0 ? numbers->heads[hash & (numbers->cap - 1)] : numbers->at[link - 1].next;
    while (link != 0 && numbers->at[link - 1].hash != hash) {
        link = numbers->at[link - 1].next;
    }
    return link;
}

/* ---- tenants ---- */

static uint64_t hash_tenant(const struct kvs_names *names, const char *tenant)
{
    return XXH3_64bits_withSeed(tenant, strlen(tenant), names->seed);
}

static bool find_tenant_locked(const struct kvs_names *names, const char *tenant,
                               uint32_t *tenant_p)
{
    kvb_mutex_assert_held(&names->lock);
    uint64_t hash = hash_tenant(names, tenant);
    for (uint32_t link = 0; (link = next_number(&names->tenant_numbers, hash, link)) != 0;) {
        if (strcmp(names->tenants[link - 1].name, tenant) == 0) {
            *tenant_p = link - 1;
            return true;
        }
    }
    return false;
}

static kvb_status_t tenant_locked(struct kvs_names *names, const char *tenant, uint32_t *tenant_p)
{
    if (find_tenant_locked(names, tenant, tenant_p)) {
        return KVB_OK;
    }
    if (strlen(tenant) >= sizeof names->tenants[0].name) {
        return KVB_ERR_INVALID;
    }
    void *tenants = names->tenants;
    kvb_status_t status =
        grow(&names->tenant_numbers, &tenants, sizeof names->tenants[0], KVS_CORE_TENANT_MAX + 1);
    names->tenants = tenants;
    if (status != KVB_OK) {
        return status;
    }
    uint32_t number = add_number(&names->tenant_numbers, hash_tenant(names, tenant));
    memset(&names->tenants[number], 0, sizeof names->tenants[0]);
    memcpy(names->tenants[number].name, tenant, strlen(tenant));
    *tenant_p = number;
    return KVB_OK;
}

/* ---- spaces ---- */

static uint64_t hash_space(const struct kvs_names *names, const struct kvs_space *space)
{
    uint64_t of_tenant = hash_tenant(names, space->tenant);
    return XXH3_64bits_withSeed(space->layout, strlen(space->layout), of_tenant);
}

static bool find_space_locked(const struct kvs_names *names, const struct kvs_space *space,
                              uint32_t *space_p)
{
    uint64_t hash = hash_space(names, space);
    for (uint32_t link = 0; (link = next_number(&names->space_numbers, hash, link)) != 0;) {
        const struct kvs_space *other = &names->spaces[link - 1].space;
        if (strcmp(other->tenant, space->tenant) == 0 &&
            strcmp(other->layout, space->layout) == 0) {
            *space_p = link - 1;
            return true;
        }
    }
    return false;
}

static kvb_status_t add_space_locked(struct kvs_names *names, const struct kvs_space *space,
                                     uint32_t *space_p)
{
    uint32_t tenant;
    kvb_status_t status = tenant_locked(names, space->tenant, &tenant);
    if (status != KVB_OK) {
        return status;
    }
    void *spaces = names->spaces;
    status = grow(&names->space_numbers, &spaces, sizeof names->spaces[0], KVS_SPACES_MAX);
    names->spaces = spaces;
    if (status != KVB_OK) {
        return status;
    }
    *space_p = add_number(&names->space_numbers, hash_space(names, space));
    names->spaces[*space_p].space = *space;
    names->spaces[*space_p].tenant = tenant;
    return KVB_OK;
}

static kvb_status_t look_up_space(struct kvs_names *names, const struct kvs_space *space, bool make,
                                  uint32_t *space_p, uint32_t *tenant_p)
{
    kvb_status_t status = KVB_OK;
    uint32_t found = 0;

    kvb_mutex_lock(&names->lock);
    if (!find_space_locked(names, space, &found)) {
        status = make ? add_space_locked(names, space, &found) : KVB_ERR_NOT_FOUND;
    }
    if (status == KVB_OK) {
        *space_p = found;
        *tenant_p = names->spaces[found].tenant;
    }
    kvb_mutex_unlock(&names->lock);
    return status;
}

kvb_status_t kvs_names_space(struct kvs_names *names, const struct kvs_space *space,
                             uint32_t *space_p, uint32_t *tenant_p)
{
    return look_up_space(names, space, true, space_p, tenant_p);
}

kvb_status_t kvs_names_find_space(struct kvs_names *names, const struct kvs_space *space,
                                  uint32_t *space_p, uint32_t *tenant_p)
{
    return look_up_space(names, space, false, space_p, tenant_p);
}

kvb_status_t kvs_names_tenant(struct kvs_names *names, const char *tenant, uint32_t *tenant_p)
{
    kvb_mutex_lock(&names->lock);
    kvb_status_t status = tenant_locked(names, tenant, tenant_p);
    kvb_mutex_unlock(&names->lock);
    return status;
}

kvb_status_t kvs_names_find_tenant(struct kvs_names *names, const char *tenant, uint32_t *tenant_p)
{
    kvb_mutex_lock(&names->lock);
    bool found = find_tenant_locked(names, tenant, tenant_p);
    kvb_mutex_unlock(&names->lock);
    return found ? KVB_OK : KVB_ERR_NOT_FOUND;
}

uint32_t kvs_names_ntenants(struct kvs_names *names)
{
    kvb_mutex_lock(&names->lock);
    uint32_t n = names->tenant_numbers.n;
    kvb_mutex_unlock(&names->lock);
    return n;
}

void kvs_names_tenant_text(struct kvs_names *names, uint32_t tenant, char text[64])
{
    kvb_mutex_lock(&names->lock);
    kvb_assert(tenant < names->tenant_numbers.n);
    memcpy(text, names->tenants[tenant].name, sizeof names->tenants[0].name);
    kvb_mutex_unlock(&names->lock);
}

void kvs_names_space_text(struct kvs_names *names, uint32_t space, struct kvs_space *space_p)
{
    kvb_mutex_lock(&names->lock);
    kvb_assert(space < names->space_numbers.n);
    *space_p = names->spaces[space].space;
    kvb_mutex_unlock(&names->lock);
}
