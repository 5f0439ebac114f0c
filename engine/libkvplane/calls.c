/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUTPUT_MAX (16u << 20) /* bytes waiting to be sent before AGAIN */

kvb_status_t kvplane_calls_init(struct kvplane *kv)
{
    kv->nslots = kv->queue_max + KVB_REGIONS_MAX + 2;
    kvb_assert(kv->nslots < 1u << KVPLANE_SLOT_BITS);
    kv->slots = calloc(kv->nslots, sizeof *kv->slots);
    if (kv->slots == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < kv->nslots; i++) {
        kv->slots[i].next_free = i + 1 < kv->nslots ? i + 2 : 0;
    }
    kv->free_slot = 1;
    return KVB_OK;
}

/* ---- slots ---- */

static struct slot *slot_of(struct kvplane *kv, uint64_t seq)
{
    uint64_t index = seq & ((1u << KVPLANE_SLOT_BITS) - 1);
    return index < kv->nslots && kv->slots[index].seq == seq ? &kv->slots[index] : NULL;
}

/* Who counts a call of this type. */
static uint32_t *counter_of(struct kvplane *kv, uint16_t type)
{
    return type == KVB_LINK_REGISTER_REGION ? &kv->regions_open : &kv->calls_open;
}

/* The one way out of a slot; the caller completes what it gets. */
static struct slot take_slot(struct kvplane *kv, struct slot *slot)
{
    struct slot taken = *slot;
    switch (taken.type) {
    case KVB_LINK_REPORT:
        kv->report_open = false;
        break;
    case KVB_LINK_LEAVE:
        kv->leave_open = false;
        break;
    default:
        --*counter_of(kv, taken.type);
    }
    slot->seq = 0;
    slot->next_free = kv->free_slot;
    kv->free_slot = (uint32_t)(slot - kv->slots) + 1;
    return taken;
}

/* Sends what the writer holds and keeps `call` in a slot until its reply. Takes writer and fd. */
static kvb_status_t submit(struct kvplane *kv, const struct slot *call, struct kvb_writer *writer,
                           int fd)
{
    kvb_assert(kv->free_slot != 0); /* every kind of call has its own bound, and they add up */
    struct slot *slot = &kv->slots[kv->free_slot - 1];
    uint64_t seq = kv->next_seq++ << KVPLANE_SLOT_BITS | (kv->free_slot - 1);
    kvb_status_t status = kvplane_frame_send(kv, writer, call->type, 0, seq, fd);
    if (status != KVB_OK) {
        return status;
    }
    kv->free_slot = slot->next_free;
    *slot = *call;
    slot->seq = seq;
    switch (call->type) {
    case KVB_LINK_REPORT:
        kv->report_open = true;
        break;
    case KVB_LINK_LEAVE:
        kv->leave_open = true;
        break;
    default:
        ++*counter_of(kv, call->type);
    }
    return KVB_OK;
}

/* A daemon ends the session of an engine that calls what its role does not have. */
static bool has_role(const struct kvplane *kv, enum kvb_role role)
{
    return (kv->hello.roles & role) != 0;
}

static kvb_status_t may_submit(const struct kvplane *kv, enum kvb_role role)
{
    if (!has_role(kv, role)) {
        return KVB_ERR_INVALID;
    }
    if (kv->state != SESSION_ATTACHED) {
        return KVB_ERR_BAD_STATE;
    }
    return kv->calls_open >= kv->queue_max || kv->out_bytes >= OUTPUT_MAX ? KVB_ERR_AGAIN : KVB_OK;
}

/* ---- completion ---- */

static void complete_batch(struct kvplane *kv, const struct slot *call)
{
    if (call->fn.batch != NULL) {
        call->fn.batch(call->arg, kv->results, call->n);
    }
}

static void complete_lookup(const struct slot *call, kvb_status_t result, const uint32_t *hits)
{
    static const uint32_t none[KVB_GROUPS_MAX];
    if (call->fn.lookup != NULL) {
        call->fn.lookup(call->arg, result, result == KVB_OK ? hits : none, call->n);
    }
}

static void complete_failed(struct kvplane *kv, const struct slot *call, kvb_status_t result)
{
    switch (call->type) {
    case KVB_LINK_PUT:
    case KVB_LINK_GET:
        for (uint32_t i = 0; i < call->n; i++) {
            kv->results[i] = result;
        }
        complete_batch(kv, call);
        break;
    case KVB_LINK_LOOKUP:
        complete_lookup(call, result, NULL);
        break;
    default:
        if (call->type == KVB_LINK_LEAVE) {
            kvplane_calls_forget_stay(kv); /* what it was told since may be the stay it left */
        }
        if (call->fn.done != NULL) {
            call->fn.done(call->arg, result);
        }
    }
}

void kvplane_calls_fail_all(struct kvplane *kv, kvb_status_t result)
{
    kvb_assert(kv->state == SESSION_DOWN); /* so a callback cannot submit anything new */
    for (uint32_t i = 0; i < kv->nslots; i++) {
        if (kv->slots[i].seq != 0) {
            struct slot call = take_slot(kv, &kv->slots[i]);
            complete_failed(kv, &call, result);
        }
    }
}

static kvb_status_t on_batch_reply(struct kvplane *kv, struct slot *slot, struct kvb_span payload)
{
    struct kvb_link_batch_reply reply;
    kvb_status_t status = kvb_link_batch_reply_unpack(payload, &reply);
    if (status != KVB_OK) {
        return status;
    }
    if (reply.nentries != slot->n) {
        kvb_link_batch_reply_free(&reply);
        return KVB_ERR_PROTOCOL;
    }
    for (uint32_t i = 0; i < reply.nentries; i++) {
        kv->results[i] = reply.statuses[i];
    }
    kvb_link_batch_reply_free(&reply);
    struct slot call = take_slot(kv, slot);
    complete_batch(kv, &call);
    return KVB_OK;
}

static kvb_status_t on_lookup_reply(struct kvplane *kv, struct slot *slot, struct kvb_span payload)
{
    struct kvb_link_lookup_reply reply;
    kvb_status_t status = kvb_link_lookup_reply_unpack(payload, &reply);
    if (status != KVB_OK) {
        return status;
    }
    if (reply.status == KVB_OK && reply.ngroups != slot->n) {
        return KVB_ERR_PROTOCOL;
    }
    for (uint32_t i = 0; reply.status == KVB_OK && i < reply.ngroups; i++) {
        if (reply.hits[i] > slot->nkeys[i]) {
            return KVB_ERR_PROTOCOL;
        }
    }
    struct slot call = take_slot(kv, slot);
    complete_lookup(&call, reply.status, reply.hits);
    return KVB_OK;
}

static kvb_status_t on_status_reply(struct kvplane *kv, struct slot *slot, struct kvb_span payload)
{
    kvb_status_t result;
    kvb_status_t status = kvb_link_status_unpack(payload, &result);
    if (status != KVB_OK) {
        return status;
    }
    struct slot call = take_slot(kv, slot);
    if (call.type == KVB_LINK_REPORT) {
        return kvplane_calls_report(kv);
    }
    if (call.fn.done != NULL) {
        call.fn.done(call.arg, result);
    }
    return KVB_OK;
}

kvb_status_t kvplane_calls_reply(struct kvplane *kv, const struct kvb_frame *frame,
                                 struct kvb_span payload)
{
    struct slot *slot = slot_of(kv, frame->seq);
    if (slot == NULL || slot->type != frame->type) {
        return KVB_ERR_PROTOCOL;
    }
    switch (slot->type) {
    case KVB_LINK_PUT:
    case KVB_LINK_GET:
        return on_batch_reply(kv, slot, payload);
    case KVB_LINK_LOOKUP:
        return on_lookup_reply(kv, slot, payload);
    default:
        return on_status_reply(kv, slot, payload);
    }
}

/* ---- the calls ---- */

int kvplane_register_region(struct kvplane *kv, const struct kvplane_region *region,
                            kvplane_done_fn done, void *arg)
{
    if (!has_role(kv, KVB_ROLE_WORKER) || region->tag == NULL || !kvb_name_valid(region->tag) ||
        region->len == 0 || region->len > INT64_MAX ||
        region->fd_offset > INT64_MAX - region->len || (unsigned)region->kind >= KVB_MEMORY_KINDS) {
        return KVB_ERR_INVALID;
    }
    if (kv->state != SESSION_ATTACHED) {
        return KVB_ERR_BAD_STATE;
    }
    if (kv->regions_open == KVB_REGIONS_MAX) {
        return KVB_ERR_LIMIT;
    }
    int fd = fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return errno == EBADF ? KVB_ERR_INVALID : KVB_ERR_LIMIT;
    }
    struct kvb_link_region msg = {.region = region->region,
                                  .kind = (uint8_t)region->kind,
                                  .flags = region->host_resident ? KVB_REGION_HOST_RESIDENT : 0,
                                  .fd_offset = region->fd_offset,
                                  .len = region->len,
                                  .generation = region->generation};
    strcpy(msg.tag, region->tag);
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, KVB_LINK_REGISTER_REGION);
    kvb_link_region_pack(&writer, &msg);
    struct slot call = {.type = KVB_LINK_REGISTER_REGION, .fn.done = done, .arg = arg};
    return submit(kv, &call, &writer, fd);
}

static kvb_status_t check_key(const void *key, size_t len)
{
    if (key == NULL || len == 0) {
        return KVB_ERR_INVALID;
    }
    return len > KVB_KEY_MAX ? KVB_ERR_TOO_LARGE : KVB_OK;
}

static struct kvb_span span(const void *data, size_t len)
{
    return (struct kvb_span){data, len};
}

static kvb_status_t check_keys(const struct kvplane_keys *keys)
{
    if (keys->group >= KVB_GROUPS_MAX) {
        return KVB_ERR_INVALID;
    }
    kvb_status_t status = keys->nkeys > KVB_ENTRIES_MAX ? KVB_ERR_TOO_LARGE : KVB_OK;
    for (size_t i = 0; i < keys->nkeys && status == KVB_OK; i++) {
        const struct kvplane_key *key = &keys->keys[i];
        status = check_key(key->key, key->len);
        if (status == KVB_OK && key->placement != NULL) {
            status = check_key(key->placement, key->placement_len);
        }
    }
    return status;
}

/* kvb_link_lookup_pack() for arguments as they come: no copy of the key array is needed. */
static void pack_lookup(struct kvb_writer *writer, uint64_t request, kvplane_token token,
                        const struct kvplane_keys *groups, size_t ngroups)
{
    kvb_put_u64(writer, request);
    kvb_put_id(writer, (struct kvb_id){token.hi, token.lo});
    kvb_put_u32(writer, (uint32_t)ngroups);
    for (size_t i = 0; i < ngroups; i++) {
        kvb_put_u32(writer, groups[i].group);
        kvb_put_u32(writer, (uint32_t)groups[i].nkeys);
        for (size_t k = 0; k < groups[i].nkeys; k++) {
            const struct kvplane_key *key = &groups[i].keys[k];
            kvb_put_span(writer, span(key->key, key->len));
            kvb_put_span(writer,
                         span(key->placement, key->placement == NULL ? 0 : key->placement_len));
        }
    }
}

int kvplane_lookup(struct kvplane *kv, uint64_t request, kvplane_token token,
                   const struct kvplane_keys *groups, size_t ngroups, kvplane_lookup_fn done,
                   void *arg)
{
    struct slot call = {.type = KVB_LINK_LOOKUP, .fn.lookup = done, .arg = arg};
    if (ngroups == 0 || ngroups > KVB_GROUPS_MAX) {
        return ngroups == 0 ? KVB_ERR_INVALID : KVB_ERR_TOO_LARGE;
    }
    kvb_status_t status = KVB_OK;
    for (size_t i = 0; i < ngroups && status == KVB_OK; i++) {
        status = check_keys(&groups[i]);
        call.nkeys[i] = (uint32_t)groups[i].nkeys;
    }
    status = status == KVB_OK ? may_submit(kv, KVB_ROLE_SCHEDULER) : status;
    if (status != KVB_OK) {
        return status;
    }
    call.n = (uint32_t)ngroups;
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, KVB_LINK_LOOKUP);
    pack_lookup(&writer, request, token, groups, ngroups);
    return submit(kv, &call, &writer, -1);
}

int kvplane_discard(struct kvplane *kv, uint64_t request)
{
    kvb_status_t status = may_submit(kv, KVB_ROLE_SCHEDULER);
    if (status != KVB_OK) {
        return status;
    }
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, KVB_LINK_DISCARD);
    kvb_link_discard_pack(&writer, request);
    struct slot call = {.type = KVB_LINK_DISCARD};
    return submit(kv, &call, &writer, -1);
}

static kvb_status_t check_entry(const struct kvplane_entry *entry)
{
    kvb_status_t status = check_key(entry->key, entry->key_len);
    if (status == KVB_OK && entry->placement != NULL) {
        status = check_key(entry->placement, entry->placement_len);
    }
    if (status != KVB_OK) {
        return status;
    }
    if (entry->group >= KVB_GROUPS_MAX || entry->part >= KVB_RANKS_MAX || entry->nslices == 0) {
        return KVB_ERR_INVALID;
    }
    if (entry->nslices > KVB_SLICES_MAX) {
        return KVB_ERR_TOO_LARGE;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < entry->nslices; i++) {
        const struct kvplane_slice *slice = &entry->slices[i];
        if (slice->len == 0 || slice->offset > UINT64_MAX - slice->len) {
            return KVB_ERR_INVALID;
        }
        if (slice->len > KVB_VALUE_MAX - sum) {
            return KVB_ERR_TOO_LARGE;
        }
        sum += slice->len;
    }
    return KVB_OK;
}

static void pack_entry(struct kvb_writer *writer, const struct kvplane_entry *entry, bool put)
{
    kvplane_token token = put ? entry->token : (kvplane_token){0, 0};
    kvb_put_span(writer, span(entry->key, entry->key_len));
    kvb_put_span(writer,
                 span(entry->placement, entry->placement == NULL ? 0 : entry->placement_len));
    kvb_put_u32(writer, entry->group);
    kvb_put_u32(writer, entry->part);
    kvb_put_id(writer, (struct kvb_id){token.hi, token.lo});
    kvb_put_u32(writer, (uint32_t)entry->nslices);
    for (size_t i = 0; i < entry->nslices; i++) {
        kvb_put_u32(writer, entry->slices[i].region);
        kvb_put_u64(writer, entry->slices[i].offset);
        kvb_put_u64(writer, entry->slices[i].len);
    }
}

/* kvb_link_batch_pack() for arguments as they come. */
static kvb_status_t batch(struct kvplane *kv, const struct slot *call, uint64_t request,
                          kvplane_token token, const struct kvplane_entry *entries, size_t n)
{
    if (n == 0 || n > KVB_ENTRIES_MAX) {
        return n == 0 ? KVB_ERR_INVALID : KVB_ERR_TOO_LARGE;
    }
    kvb_status_t status = KVB_OK;
    for (size_t i = 0; i < n && status == KVB_OK; i++) {
        status = check_entry(&entries[i]);
    }
    status = status == KVB_OK ? may_submit(kv, KVB_ROLE_WORKER) : status;
    if (status != KVB_OK) {
        return status;
    }
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, call->type);
    kvb_put_u64(&writer, request);
    kvb_put_id(&writer, (struct kvb_id){token.hi, token.lo});
    kvb_put_u32(&writer, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        pack_entry(&writer, &entries[i], call->type == KVB_LINK_PUT);
    }
    return submit(kv, call, &writer, -1);
}

int kvplane_put(struct kvplane *kv, const struct kvplane_entry *entries, size_t n,
                kvplane_batch_fn done, void *arg)
{
    struct slot call = {.type = KVB_LINK_PUT, .n = (uint32_t)n, .fn.batch = done, .arg = arg};
    return batch(kv, &call, 0, (kvplane_token){0, 0}, entries, n);
}

int kvplane_get(struct kvplane *kv, uint64_t request, kvplane_token token,
                const struct kvplane_entry *entries, size_t n, kvplane_batch_fn done, void *arg)
{
    struct slot call = {.type = KVB_LINK_GET, .n = (uint32_t)n, .fn.batch = done, .arg = arg};
    return batch(kv, &call, request, token, entries, n);
}

/* One report at a time is on its way; what changed meanwhile follows it, only the newest. */
kvb_status_t kvplane_calls_report(struct kvplane *kv)
{
    if (kv->load_told || kv->report_open || kv->state != SESSION_ATTACHED) {
        return KVB_OK;
    }
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, KVB_LINK_REPORT);
    kvb_link_load_pack(&writer, &kv->load);
    struct slot call = {.type = KVB_LINK_REPORT};
    kvb_status_t status = submit(kv, &call, &writer, -1);
    kv->load_told = status == KVB_OK;
    return status;
}

int kvplane_report(struct kvplane *kv, uint32_t running, uint32_t waiting, uint32_t loading,
                   uint32_t blocks_held)
{
    if (!has_role(kv, KVB_ROLE_SCHEDULER)) {
        return KVB_ERR_INVALID;
    }
    kv->load = (struct kvb_load){running, waiting, loading, blocks_held};
    kv->load_known = true;
    kv->load_told = false;
    return kvplane_calls_report(kv);
}

void kvplane_calls_forget_stay(struct kvplane *kv)
{
    struct kvb_link_hello *hello = &kv->hello;
    hello->lineage = (struct kvb_lineage){{0, 0}};
    hello->token = (struct kvb_token){{0, 0}};
    hello->lineage_name[0] = '\0';
    hello->weights_name[0] = '\0';
}

int kvplane_leave(struct kvplane *kv, kvplane_done_fn done, void *arg)
{
    if (!has_role(kv, KVB_ROLE_SCHEDULER)) {
        return KVB_ERR_INVALID;
    }
    if (kv->leave_open) {
        return KVB_ERR_AGAIN;
    }
    kvplane_calls_forget_stay(kv);
    if (kv->state == SESSION_GREETING) {
        kvplane_session_detach(kv); /* the hello on its way tells of the stay that ends */
    }
    if (kv->state != SESSION_ATTACHED) {
        return KVB_ERR_BAD_STATE;
    }
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, KVB_LINK_LEAVE);
    struct slot call = {.type = KVB_LINK_LEAVE, .fn.done = done, .arg = arg};
    return submit(kv, &call, &writer, -1);
}
