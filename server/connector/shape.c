/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/shape.h"

#include <stdio.h>
#include <string.h>

/* Begins what the daemon adds to a layout; no engine may say it. */
#define SPLIT "@split("

static kvb_status_t refuse(char *reason, size_t cap, const char *text)
{
    snprintf(reason, cap, "%s", text);
    return KVB_ERR_REFUSED;
}

static kvb_status_t take_split(const struct kvb_link_hello *hello, struct kvp_shape *shape,
                               char *reason, size_t cap)
{
    shape->world_size = hello->world_size;
    shape->tp_size = hello->tp_size == 0 ? hello->world_size : hello->tp_size;
    if (shape->world_size % shape->tp_size != 0) {
        return refuse(reason, cap,
                      "tp_size does not divide world_size: they are the ranks of one pipeline "
                      "stage and of all");
    }
    shape->store_tp_size = hello->store_tp_size == 0 ? shape->tp_size : hello->store_tp_size;
    if (shape->store_tp_size % shape->tp_size != 0) {
        return refuse(reason, cap,
                      "store_tp_size must be a multiple of tp_size: give the largest tp_size of "
                      "the engines that share, or none");
    }
    uint64_t nparts = (uint64_t)shape->store_tp_size * (shape->world_size / shape->tp_size);
    if (nparts > KVB_PARTS_MAX) {
        return refuse(reason, cap,
                      "more than 1024 parts of one block: give a smaller "
                      "store_tp_size");
    }
    shape->nparts = (uint32_t)nparts;
    return KVB_OK;
}

kvb_status_t kvp_shape_make(const struct kvb_link_hello *hello, struct kvp_shape *shape_p,
                            char *reason, size_t reason_cap)
{
    struct kvp_shape shape;
    memset(&shape, 0, sizeof shape);
    kvb_status_t status = take_split(hello, &shape, reason, reason_cap);
    if (status != KVB_OK) {
        return status;
    }
    shape.ngroups = hello->ngroups;
    memcpy(shape.groups, hello->groups, hello->ngroups * sizeof hello->groups[0]);
    if (hello->ngroups == 0) {
        shape.groups[0].block_tokens = hello->block_tokens;
    }
    *shape_p = shape;
    return KVB_OK;
}

bool kvp_shape_equal(const struct kvp_shape *a, const struct kvp_shape *b)
{
    for (uint32_t i = 0; i < KVB_GROUPS_MAX; i++) {
        if (a->groups[i].block_tokens != b->groups[i].block_tokens ||
            a->groups[i].window_tokens != b->groups[i].window_tokens) {
            return false;
        }
    }
    return a->world_size == b->world_size && a->tp_size == b->tp_size &&
           a->store_tp_size == b->store_tp_size && a->ngroups == b->ngroups;
}

kvb_status_t kvp_shape_layout(const struct kvb_link_hello *hello, const struct kvp_shape *shape,
                              char *layout_p, size_t cap, char *reason, size_t reason_cap)
{
    uint32_t stages = shape->world_size / shape->tp_size;
    char split[64] = "";
    if (strstr(hello->layout, SPLIT) != NULL) {
        return refuse(reason, reason_cap,
                      "layout: what begins with " SPLIT " is the daemon's to "
                      "say; leave it out");
    }
    if (hello->store_tp_size != 0) {
        snprintf(split, sizeof split, SPLIT "store_tp=%u,pp=%u)", shape->store_tp_size, stages);
    } else if (shape->world_size > 1) {
        snprintf(split, sizeof split, SPLIT "tp=%u,pp=%u)", shape->tp_size, stages);
    }
    char text[KVB_LAYOUT_MAX + sizeof split];
    int len = snprintf(text, sizeof text, "%s%s", hello->layout, split);
    if (len < 0 || (size_t)len >= cap) {
        snprintf(reason, reason_cap, "layout is too long: at most %zu bytes with this split",
                 cap - 1 - strlen(split));
        return KVB_ERR_REFUSED;
    }
    memcpy(layout_p, text, (size_t)len + 1);
    return KVB_OK;
}

bool kvp_shape_owns(const struct kvp_shape *shape, uint32_t rank, uint32_t part)
{
    uint32_t each = shape->store_tp_size / shape->tp_size;
    return part < shape->nparts && part / each == rank;
}

const struct kvb_link_group_info *kvp_shape_group(const struct kvp_shape *shape, uint32_t group)
{
    if (shape->ngroups == 0) {
        return &shape->groups[0];
    }
    return group < shape->ngroups ? &shape->groups[group] : NULL;
}
