/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include "base/assert.h"
#include "store/core.h"

#include <stdlib.h>
#include <string.h>

void kvs_names_init(struct kvs_names *names)
{
    *names = (struct kvs_names){0};
    kvb_mutex_init(&names->lock, "store names");
}

void kvs_names_cleanup(struct kvs_names *names)
{
    free(names->tenants);
    free(names->spaces);
    kvb_mutex_cleanup(&names->lock);
}

/* Makes room for one more. */
static kvb_status_t grow(void **array, size_t each, uint32_t n, uint32_t *cap, uint32_t max)
{
    if (n < *cap) {
        return KVB_OK;
    }
    if (n >= max) {
        return KVB_ERR_LIMIT;
    }
    uint32_t more = *cap == 0 ? 16 : *cap * 2;
    void *grown = realloc(*array, more * each);
    if (grown == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *array = grown;
    *cap = more;
    return KVB_OK;
}

static bool find_tenant_locked(const struct kvs_names *names, const char *tenant,
                               uint32_t *tenant_p)
{
    kvb_mutex_assert_held(&names->lock);
    for (uint32_t i = 0; i < names->ntenants; i++) {
        if (strcmp(names->tenants[i].name, tenant) == 0) {
            *tenant_p = i;
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
    kvb_status_t status = grow(&tenants, sizeof names->tenants[0], names->ntenants,
                               &names->tenants_cap, KVS_CORE_TENANT_MAX + 1);
    names->tenants = tenants;
    if (status != KVB_OK) {
        return status;
    }
    memset(&names->tenants[names->ntenants], 0, sizeof names->tenants[0]);
    memcpy(names->tenants[names->ntenants].name, tenant, strlen(tenant));
    *tenant_p = names->ntenants++;
    return KVB_OK;
}

static bool find_space_locked(const struct kvs_names *names, const struct kvs_space *space,
                              uint32_t *space_p)
{
    for (uint32_t i = 0; i < names->nspaces; i++) {
        if (strcmp(names->spaces[i].space.tenant, space->tenant) == 0 &&
            strcmp(names->spaces[i].space.layout, space->layout) == 0) {
            *space_p = i;
            return true;
        }
    }
    return false;
}

static kvb_status_t add_space_locked(struct kvs_names *names, const struct kvs_space *space)
{
    uint32_t tenant;
    kvb_status_t status = tenant_locked(names, space->tenant, &tenant);
    if (status != KVB_OK) {
        return status;
    }
    void *spaces = names->spaces;
    status =
        grow(&spaces, sizeof names->spaces[0], names->nspaces, &names->spaces_cap, KVS_SPACES_MAX);
    names->spaces = spaces;
    if (status != KVB_OK) {
        return status;
    }
    names->spaces[names->nspaces].space = *space;
    names->spaces[names->nspaces].tenant = tenant;
    names->nspaces++;
    return KVB_OK;
}

static kvb_status_t look_up_space(struct kvs_names *names, const struct kvs_space *space, bool make,
                                  uint32_t *space_p, uint32_t *tenant_p)
{
    kvb_status_t status = KVB_OK;
    uint32_t found = 0;

    kvb_mutex_lock(&names->lock);
    if (!find_space_locked(names, space, &found)) {
        found = names->nspaces;
        status = make ? add_space_locked(names, space) : KVB_ERR_NOT_FOUND;
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
    uint32_t n = names->ntenants;
    kvb_mutex_unlock(&names->lock);
    return n;
}

void kvs_names_tenant_text(struct kvs_names *names, uint32_t tenant, char text[64])
{
    kvb_mutex_lock(&names->lock);
    kvb_assert(tenant < names->ntenants);
    memcpy(text, names->tenants[tenant].name, sizeof names->tenants[0].name);
    kvb_mutex_unlock(&names->lock);
}

void kvs_names_space_text(struct kvs_names *names, uint32_t space, struct kvs_space *space_p)
{
    kvb_mutex_lock(&names->lock);
    kvb_assert(space < names->nspaces);
    *space_p = names->spaces[space].space;
    kvb_mutex_unlock(&names->lock);
}
