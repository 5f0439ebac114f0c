/* SPDX-License-Identifier: Apache-2.0 */
#include "door.h"

#include "standing.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

void kvt_door_init(struct kvt_door *door, const char *by, const struct kvt_protocol *protocol,
                   const char *name, uint64_t incarnation)
{
    *door =
        (struct kvt_door){.by = by, .protocol = protocol, .identity = {.incarnation = incarnation}};
    memcpy(door->identity.name, name, strlen(name) + 1);
    kvb_list_init(&door->lanes);
    kvb_list_init(&door->strangers);
}

static struct kvt_guest *guest_of(struct kvb_list *link)
{
    return kvb_container_of(link, struct kvt_guest, link);
}

bool kvt_door_has_room(const struct kvt_door *door, const char *from)
{
    uint32_t n = 0;
    kvb_list_each(&door->lanes, link)
    {
        n += strcmp(guest_of(link)->from, from) == 0;
    }
    return door->admitted < door->lanes_max && n < door->lanes_each_max;
}

struct kvt_guest *kvt_door_oldest(const struct kvt_door *door)
{
    return door->strangers_n == door->strangers_max ? guest_of(kvb_list_first(&door->strangers))
                                                    : NULL;
}

void kvt_door_enter(struct kvt_door *door, struct kvt_guest *guest)
{
    kvb_list_push_back(&door->strangers, &guest->link);
    door->strangers_n++;
}

kvb_status_t kvt_door_admit(struct kvt_door *door, struct kvt_guest *guest,
                            const struct kvt_peer_common *common, const struct kvt_server_ops *ops,
                            void *ctx, uint8_t identity[KVT_PAYLOAD_MAX], size_t *len_p)
{
    kvb_status_t status =
        kvt_identity_make(door->protocol, common, &guest->shake, &door->identity, identity, len_p);
    if (status == KVB_OK) {
        const struct kvt_lane who = {.from = guest->from, .features = guest->shake.features};
        status = ops->opened(ctx, &who, &guest->session);
    }
    if (status != KVB_OK) {
        return status;
    }
    kvb_list_remove(&guest->link);
    door->strangers_n--;
    kvb_list_push_back(&door->lanes, &guest->link);
    door->admitted++;
    door->counted.connects++;
    return KVB_OK;
}

void kvt_door_leave(struct kvt_door *door, struct kvt_guest *guest, bool admitted)
{
    kvb_list_remove(&guest->link);
    *(admitted ? &door->admitted : &door->strangers_n) -= 1;
}

/* ---- what people are told ---- */

void kvt_door_refused(const struct kvt_door *door, const struct kvt_guest *guest, kvb_status_t why)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%s: a connection was refused", door->by);
    KVB_LOG_LIMITED(
        WARN, text, KVB_STR("from", guest->from), KVB_STATUS(why),
        KVB_STR("reason", why == KVB_ERR_REFUSED ? "not the same secret" : kvb_status_text(why)));
}

void kvt_door_lost(struct kvt_door *door, const struct kvt_guest *guest, bool admitted,
                   kvb_status_t why)
{
    char text[64];
    kvt_count_end(&door->counted, admitted, why);
    if (why == KVB_ERR_PROTOCOL) {
        (void)snprintf(text, sizeof text, "%s: a client broke the protocol", door->by);
        KVB_LOG_LIMITED(WARN, text, KVB_STR("from", guest->from));
    }
    (void)snprintf(text, sizeof text, "%s: a connection is closed", door->by);
    KVB_LOG(DEBUG, text, KVB_STR("from", guest->from), KVB_STATUS(why));
}
