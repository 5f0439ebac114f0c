/* SPDX-License-Identifier: Apache-2.0 */
#include "base/link.h"

#include "base/assert.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/*
 * pack and unpack of one message stand beside each other and list the fields in the same order;
 * that order is the wire format. unpack fills a local struct and copies it out on success. The
 * reader is sticky, so a message is read in a straight line; a check that fails only marks the
 * reader.
 */

static const struct kvb_link_info infos[] = {
#define X(name, id, text, direction, most, bound)                                                  \
    {.type = (id), .label = (text), .dir = (direction), .max = (most), .bound_ms = (bound)},
    KVB_LINK_MESSAGES(X)
#undef X
};

const struct kvb_link_info *kvb_link_info(uint16_t type)
{
    for (size_t i = 0; i < sizeof infos / sizeof infos[0]; i++) {
        if (infos[i].type == type) {
            return &infos[i];
        }
    }
    return NULL;
}

static const char *const residencies[] = {
#define X(name, text) text,
    KVB_RESIDENCY_LIST(X)
#undef X
};
static const char *const pause_modes[] = {
#define X(name, text) text,
    KVB_PAUSE_MODES(X)
#undef X
};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

const char *kvb_residency_text(enum kvb_residency residency)
{
    kvb_assert((size_t)residency < COUNT_OF(residencies));
    return residencies[residency];
}

const char *kvb_pause_mode_text(enum kvb_pause_mode mode)
{
    kvb_assert((size_t)mode < COUNT_OF(pause_modes));
    return pause_modes[mode];
}

bool kvb_name_valid(const char *name)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789._-";
    size_t len = strlen(name);
    return len > 0 && len < KVB_NAME_MAX && strspn(name, alphabet) == len;
}

/* ---- checked reading ---- */

static void require(struct kvb_reader *in, bool holds)
{
    if (!holds) {
        in->status = KVB_ERR_PROTOCOL;
    }
}

static void get_name(struct kvb_reader *in, char out[KVB_NAME_MAX])
{
    kvb_get_str(in, out, KVB_NAME_MAX);
    require(in, kvb_name_valid(out));
}

/* Text that people read: well-formed UTF-8 without control characters; may be empty. */
static void get_text(struct kvb_reader *in, char *out, size_t cap)
{
    kvb_get_str(in, out, cap);
    require(in, kvb_utf8_printable(out, strlen(out)));
}

/* A number below count. */
static uint8_t get_choice(struct kvb_reader *in, size_t count)
{
    uint8_t value = kvb_get_u8(in);
    require(in, value < count);
    return value < count ? value : 0;
}

static void put_status(struct kvb_writer *out, kvb_status_t status)
{
    kvb_put_u32(out, (uint32_t)status);
}

/* A final status of the list: success or a failure. */
static kvb_status_t get_status(struct kvb_reader *in)
{
    int32_t value = (int32_t)kvb_get_u32(in);
    kvb_status_t status = kvb_status_from_wire(value);
    require(in, (int)status == value && value <= 0);
    return status;
}

/* No tag may be named twice: which of the two would hold? */
static void require_new_tag(struct kvb_reader *in, const char *tag, const char *earlier)
{
    require(in, strcmp(tag, earlier) != 0);
}

/* ---- parts ---- */

static void put_state(struct kvb_writer *out, const struct kvb_engine_state *state)
{
    kvb_put_u64(out, state->last_operation);
    kvb_put_u8(out, state->paused);
    kvb_put_u8(out, (uint8_t)state->pause_mode);
    kvb_put_u8(out, state->weight_change_running);
    kvb_put_u8(out, state->weights_written);
    kvb_put_u8(out, state->local_reset_done);
    kvb_put_u32(out, state->ntags);
    for (uint32_t i = 0; i < state->ntags; i++) {
        kvb_put_str(out, state->tags[i].tag);
        kvb_put_u8(out, (uint8_t)state->tags[i].residency);
    }
}

static void get_state(struct kvb_reader *in, struct kvb_engine_state *state)
{
    state->last_operation = kvb_get_u64(in);
    state->paused = kvb_get_bool(in);
    state->pause_mode = (enum kvb_pause_mode)get_choice(in, COUNT_OF(pause_modes));
    state->weight_change_running = kvb_get_bool(in);
    state->weights_written = kvb_get_bool(in);
    state->local_reset_done = kvb_get_bool(in);
    state->ntags = kvb_get_count(in, KVB_TAGS_MAX, 6);
    for (uint32_t i = 0; i < state->ntags; i++) {
        get_name(in, state->tags[i].tag);
        state->tags[i].residency = (enum kvb_residency)get_choice(in, COUNT_OF(residencies));
        for (uint32_t j = 0; j < i; j++) {
            require_new_tag(in, state->tags[i].tag, state->tags[j].tag);
        }
    }
}

static void put_retired(struct kvb_writer *out, uint32_t n, const struct kvb_lineage *retired)
{
    kvb_put_u32(out, n);
    for (uint32_t i = 0; i < n; i++) {
        kvb_put_id(out, retired[i].id);
    }
}

static uint32_t get_retired(struct kvb_reader *in, struct kvb_lineage *retired)
{
    uint32_t n = kvb_get_count(in, KVB_RETIRED_MAX, 16);
    for (uint32_t i = 0; i < n; i++) {
        retired[i].id = kvb_get_id(in);
        require(in, !kvb_id_none(retired[i].id));
    }
    return n;
}

static struct kvb_span get_key(struct kvb_reader *in)
{
    struct kvb_span key = kvb_get_span(in, KVB_KEY_MAX);
    require(in, key.len > 0);
    return key;
}

/* ---- hello ---- */

void kvb_link_hello_pack(struct kvb_writer *out, const struct kvb_link_hello *msg)
{
    kvb_put_u16(out, msg->version);
    kvb_put_u8(out, msg->roles);
    kvb_put_u8(out, msg->flags);
    kvb_put_u32(out, msg->rank);
    kvb_put_u32(out, msg->world_size);
    kvb_put_u32(out, msg->local_world_size);
    kvb_put_u32(out, msg->tp_size);
    kvb_put_u32(out, msg->store_tp_size);
    kvb_put_u32(out, msg->block_tokens);
    kvb_put_u32(out, msg->ngroups);
    for (uint32_t i = 0; i < msg->ngroups && i < KVB_GROUPS_MAX; i++) {
        kvb_put_u32(out, msg->groups[i].block_tokens);
        kvb_put_u32(out, msg->groups[i].window_tokens);
    }
    kvb_put_str(out, msg->instance);
    kvb_put_str(out, msg->tenant);
    kvb_put_str(out, msg->layout);
    kvb_put_str(out, msg->model);
    kvb_put_u32(out, msg->max_model_len);
    kvb_put_str(out, msg->weights_name);
    kvb_put_id(out, msg->lineage.id);
    kvb_put_id(out, msg->token.id);
    kvb_put_str(out, msg->lineage_name);
    put_retired(out, msg->nretired, msg->retired);
    put_state(out, &msg->state);
}

kvb_status_t kvb_link_hello_unpack(struct kvb_span payload, struct kvb_link_hello *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_hello msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.version = kvb_get_u16(&in);
    if (in.status == KVB_OK && msg.version != KVB_LINK_VERSION) {
        return KVB_ERR_UNSUPPORTED; /* what follows is not for us to read */
    }
    msg.roles = kvb_get_u8(&in);
    require(&in, msg.roles != 0 && (msg.roles & ~(KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER)) == 0);
    msg.flags = kvb_get_u8(&in);
    require(&in, (msg.flags & ~(KVB_ENGINE_TRACKS_LINEAGE | KVB_ENGINE_FINGERPRINTS)) == 0);
    msg.rank = kvb_get_u32(&in);
    msg.world_size = kvb_get_u32(&in);
    msg.local_world_size = kvb_get_u32(&in);
    require(&in, msg.world_size <= KVB_RANKS_MAX && msg.rank < msg.world_size);
    require(&in, msg.local_world_size > 0 && msg.local_world_size <= msg.world_size);
    msg.tp_size = kvb_get_u32(&in);
    msg.store_tp_size = kvb_get_u32(&in);
    msg.block_tokens = kvb_get_u32(&in);
    require(&in, msg.block_tokens > 0);
    msg.ngroups = kvb_get_u32(&in);
    require(&in, msg.ngroups <= KVB_GROUPS_MAX);
    for (uint32_t i = 0; in.status == KVB_OK && i < msg.ngroups; i++) {
        msg.groups[i].block_tokens = kvb_get_u32(&in);
        msg.groups[i].window_tokens = kvb_get_u32(&in);
        require(&in, msg.groups[i].block_tokens > 0 &&
                         msg.groups[i].block_tokens <= KVB_GROUP_TOKENS_MAX);
    }
    get_name(&in, msg.instance);
    get_name(&in, msg.tenant);
    get_text(&in, msg.layout, sizeof msg.layout);
    require(&in, msg.layout[0] != '\0');
    get_text(&in, msg.model, sizeof msg.model);
    msg.max_model_len = kvb_get_u32(&in);
    get_text(&in, msg.weights_name, sizeof msg.weights_name);
    msg.lineage.id = kvb_get_id(&in);
    msg.token.id = kvb_get_id(&in);
    get_text(&in, msg.lineage_name, sizeof msg.lineage_name);
    bool echo = !kvb_id_none(msg.token.id);
    require(&in, echo == !kvb_id_none(msg.lineage.id) && (echo || msg.lineage_name[0] == '\0'));
    msg.nretired = get_retired(&in, msg.retired);
    get_state(&in, &msg.state);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_hello_reply_pack(struct kvb_writer *out, const struct kvb_link_hello_reply *msg)
{
    put_status(out, msg->status);
    kvb_put_str(out, msg->reason);
    kvb_put_u64(out, msg->session);
}

kvb_status_t kvb_link_hello_reply_unpack(struct kvb_span payload,
                                         struct kvb_link_hello_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_hello_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.status = get_status(&in);
    get_text(&in, msg.reason, sizeof msg.reason);
    msg.session = kvb_get_u64(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

/* ---- regions ---- */

void kvb_link_region_pack(struct kvb_writer *out, const struct kvb_link_region *msg)
{
    kvb_put_u32(out, msg->region);
    kvb_put_u8(out, msg->kind);
    kvb_put_u8(out, msg->flags);
    kvb_put_str(out, msg->tag);
    kvb_put_u64(out, msg->fd_offset);
    kvb_put_u64(out, msg->len);
    kvb_put_u64(out, msg->generation);
}

kvb_status_t kvb_link_region_unpack(struct kvb_span payload, struct kvb_link_region *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_region msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.region = kvb_get_u32(&in);
    msg.kind = get_choice(&in, KVB_MEMORY_KINDS);
    msg.flags = kvb_get_u8(&in);
    require(&in, (msg.flags & ~KVB_REGION_HOST_RESIDENT) == 0);
    get_name(&in, msg.tag);
    msg.fd_offset = kvb_get_u64(&in);
    msg.len = kvb_get_u64(&in);
    /* Both end up in an off_t. */
    require(&in, msg.len > 0 && msg.len <= INT64_MAX && msg.fd_offset <= INT64_MAX - msg.len);
    msg.generation = kvb_get_u64(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

/* ---- lookup ---- */

void kvb_link_lookup_pack(struct kvb_writer *out, const struct kvb_link_lookup *msg)
{
    kvb_put_u64(out, msg->request);
    kvb_put_id(out, msg->token.id);
    kvb_put_u32(out, msg->ngroups);
    for (uint32_t i = 0; i < msg->ngroups; i++) {
        const struct kvb_link_group *group = &msg->groups[i];
        kvb_put_u32(out, group->group);
        kvb_put_u32(out, group->nkeys);
        for (uint32_t k = 0; k < group->nkeys; k++) {
            kvb_put_span(out, group->keys[k].key);
            kvb_put_span(out, group->keys[k].placement);
        }
    }
}

/* A message has one array of keys (slices), which its groups (entries) share: no allocation per
 * group, and its size is bounded by the payload, not by what the payload claims. */
#define KEY_WIRE_MIN   9  /* length, one byte, length of the placement key */
#define GROUP_WIRE_MIN 8  /* group, count */
#define SLICE_WIRE     20 /* region, offset, length */
#define ENTRY_WIRE_MIN (KEY_WIRE_MIN + 4 + 4 + 16 + 4 + SLICE_WIRE)

static void get_groups(struct kvb_reader *in, struct kvb_link_lookup *msg,
                       struct kvb_link_key *keys)
{
    for (uint32_t i = 0; i < msg->ngroups; i++) {
        struct kvb_link_group *group = &msg->groups[i];
        group->keys = keys;
        group->group = kvb_get_u32(in);
        require(in, group->group < KVB_GROUPS_MAX);
        group->nkeys = kvb_get_count(in, KVB_ENTRIES_MAX, KEY_WIRE_MIN);
        for (uint32_t k = 0; k < group->nkeys && in->status == KVB_OK; k++) {
            keys->key = get_key(in);
            keys->placement = kvb_get_span(in, KVB_KEY_MAX);
            keys++;
        }
    }
}

kvb_status_t kvb_link_lookup_unpack(struct kvb_span payload, struct kvb_link_lookup *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_lookup msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.request = kvb_get_u64(&in);
    msg.token.id = kvb_get_id(&in);
    msg.ngroups = kvb_get_count(&in, KVB_GROUPS_MAX, GROUP_WIRE_MIN);
    require(&in, msg.ngroups > 0);
    if (in.status != KVB_OK) {
        return in.status;
    }
    struct kvb_link_key *keys = calloc((size_t)(in.end - in.at) / KEY_WIRE_MIN + 1, sizeof *keys);
    if (keys == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    msg.groups = calloc(msg.ngroups, sizeof *msg.groups);
    if (msg.groups == NULL) {
        goto err_keys;
    }
    get_groups(&in, &msg, keys);
    status = kvb_reader_finish(&in);
    if (status != KVB_OK) {
        goto err_groups;
    }
    *msg_p = msg;
    return KVB_OK;
err_groups:
    free(msg.groups);
err_keys:
    free(keys);
    return status;
}

void kvb_link_lookup_free(struct kvb_link_lookup *msg)
{
    if (msg->groups != NULL) {
        free(msg->groups[0].keys);
        free(msg->groups);
    }
    *msg = (struct kvb_link_lookup){0};
}

void kvb_link_lookup_reply_pack(struct kvb_writer *out, const struct kvb_link_lookup_reply *msg)
{
    put_status(out, msg->status);
    kvb_put_u32(out, msg->ngroups);
    for (uint32_t i = 0; i < msg->ngroups; i++) {
        kvb_put_u32(out, msg->hits[i]);
    }
}

kvb_status_t kvb_link_lookup_reply_unpack(struct kvb_span payload,
                                          struct kvb_link_lookup_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_lookup_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.status = get_status(&in);
    msg.ngroups = kvb_get_count(&in, KVB_GROUPS_MAX, 4);
    for (uint32_t i = 0; i < msg.ngroups; i++) {
        msg.hits[i] = kvb_get_u32(&in);
        require(&in, msg.hits[i] <= KVB_ENTRIES_MAX);
    }
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

/* ---- put and get ---- */

void kvb_link_batch_pack(struct kvb_writer *out, const struct kvb_link_batch *msg)
{
    kvb_put_u64(out, msg->request);
    kvb_put_id(out, msg->token.id);
    kvb_put_u32(out, msg->nentries);
    for (uint32_t i = 0; i < msg->nentries; i++) {
        const struct kvb_link_entry *entry = &msg->entries[i];
        kvb_put_span(out, entry->key);
        kvb_put_span(out, entry->placement);
        kvb_put_u32(out, entry->group);
        kvb_put_u32(out, entry->part);
        kvb_put_id(out, entry->token.id);
        kvb_put_u32(out, entry->nslices);
        for (uint32_t s = 0; s < entry->nslices; s++) {
            kvb_put_u32(out, entry->slices[s].region);
            kvb_put_u64(out, entry->slices[s].offset);
            kvb_put_u64(out, entry->slices[s].len);
        }
    }
}

static void get_entry(struct kvb_reader *in, struct kvb_link_entry *entry, struct kvb_slice *slices)
{
    entry->key = get_key(in);
    entry->placement = kvb_get_span(in, KVB_KEY_MAX);
    entry->group = kvb_get_u32(in);
    entry->part = kvb_get_u32(in);
    require(in, entry->group < KVB_GROUPS_MAX && entry->part < KVB_RANKS_MAX);
    entry->token.id = kvb_get_id(in);
    entry->slices = slices;
    entry->nslices = kvb_get_count(in, KVB_SLICES_MAX, SLICE_WIRE);
    require(in, entry->nslices > 0);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < entry->nslices && in->status == KVB_OK; s++) {
        struct kvb_slice *slice = &slices[s];
        slice->region = kvb_get_u32(in);
        slice->offset = kvb_get_u64(in);
        slice->len = kvb_get_u64(in);
        require(in, slice->len > 0 && slice->len <= KVB_VALUE_MAX - sum &&
                        slice->offset <= UINT64_MAX - slice->len);
        sum += in->status == KVB_OK ? slice->len : 0;
    }
}

static void get_entries(struct kvb_reader *in, struct kvb_link_batch *msg, struct kvb_slice *slices)
{
    for (uint32_t i = 0; i < msg->nentries && in->status == KVB_OK; i++) {
        get_entry(in, &msg->entries[i], slices);
        slices += msg->entries[i].nslices;
    }
}

kvb_status_t kvb_link_batch_unpack(struct kvb_span payload, struct kvb_link_batch *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_batch msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.request = kvb_get_u64(&in);
    msg.token.id = kvb_get_id(&in);
    msg.nentries = kvb_get_count(&in, KVB_ENTRIES_MAX, ENTRY_WIRE_MIN);
    require(&in, msg.nentries > 0);
    if (in.status != KVB_OK) {
        return in.status;
    }
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    struct kvb_slice *slices = calloc((size_t)(in.end - in.at) / SLICE_WIRE, sizeof *slices);
    if (slices == NULL) {
        return status;
    }
    msg.entries = calloc(msg.nentries, sizeof *msg.entries);
    if (msg.entries == NULL) {
        goto err_slices;
    }
    get_entries(&in, &msg, slices);
    status = kvb_reader_finish(&in);
    if (status != KVB_OK) {
        goto err_entries;
    }
    *msg_p = msg;
    return KVB_OK;
err_entries:
    free(msg.entries);
err_slices:
    free(slices);
    return status;
}

void kvb_link_batch_free(struct kvb_link_batch *msg)
{
    if (msg->entries != NULL) {
        free(msg->entries[0].slices);
        free(msg->entries);
    }
    *msg = (struct kvb_link_batch){0};
}

void kvb_link_batch_reply_pack(struct kvb_writer *out, const struct kvb_link_batch_reply *msg)
{
    kvb_put_u32(out, msg->nentries);
    for (uint32_t i = 0; i < msg->nentries; i++) {
        put_status(out, msg->statuses[i]);
    }
}

kvb_status_t kvb_link_batch_reply_unpack(struct kvb_span payload,
                                         struct kvb_link_batch_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_batch_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.nentries = kvb_get_count(&in, KVB_ENTRIES_MAX, 4);
    require(&in, msg.nentries > 0);
    if (in.status != KVB_OK) {
        return in.status;
    }
    msg.statuses = calloc(msg.nentries, sizeof *msg.statuses);
    if (msg.statuses == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < msg.nentries; i++) {
        msg.statuses[i] = get_status(&in);
    }
    kvb_status_t status = kvb_reader_finish(&in);
    if (status != KVB_OK) {
        free(msg.statuses);
        return status;
    }
    *msg_p = msg;
    return KVB_OK;
}

void kvb_link_batch_reply_free(struct kvb_link_batch_reply *msg)
{
    free(msg->statuses);
    *msg = (struct kvb_link_batch_reply){0};
}

void kvb_link_discard_pack(struct kvb_writer *out, uint64_t request)
{
    kvb_put_u64(out, request);
}

kvb_status_t kvb_link_discard_unpack(struct kvb_span payload, uint64_t *request_p)
{
    struct kvb_reader in;
    kvb_reader_init(&in, payload.data, payload.len);
    uint64_t request = kvb_get_u64(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *request_p = request;
    }
    return status;
}

/* ---- report ---- */

void kvb_link_load_pack(struct kvb_writer *out, const struct kvb_load *msg)
{
    kvb_put_u32(out, msg->running);
    kvb_put_u32(out, msg->waiting);
    kvb_put_u32(out, msg->loading);
    kvb_put_u32(out, msg->blocks_held);
}

kvb_status_t kvb_link_load_unpack(struct kvb_span payload, struct kvb_load *msg_p)
{
    struct kvb_reader in;
    kvb_reader_init(&in, payload.data, payload.len);
    struct kvb_load msg = {0};
    msg.running = kvb_get_u32(&in);
    msg.waiting = kvb_get_u32(&in);
    msg.loading = kvb_get_u32(&in);
    msg.blocks_held = kvb_get_u32(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

/* ---- lifecycle ---- */

void kvb_link_lineage_pack(struct kvb_writer *out, const struct kvb_link_lineage *msg)
{
    kvb_put_id(out, msg->lineage.id);
    kvb_put_id(out, msg->token.id);
    kvb_put_str(out, msg->name);
    kvb_put_u8(out, msg->left);
    put_retired(out, msg->nretired, msg->retired);
}

kvb_status_t kvb_link_lineage_unpack(struct kvb_span payload, struct kvb_link_lineage *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_lineage msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.lineage.id = kvb_get_id(&in);
    msg.token.id = kvb_get_id(&in);
    require(&in, !kvb_id_none(msg.lineage.id) && !kvb_id_none(msg.token.id));
    get_text(&in, msg.name, sizeof msg.name);
    msg.left = kvb_get_bool(&in);
    msg.nretired = get_retired(&in, msg.retired);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_pause_pack(struct kvb_writer *out, const struct kvb_link_pause *msg)
{
    kvb_put_u64(out, msg->operation);
    kvb_put_u8(out, (uint8_t)msg->mode);
}

kvb_status_t kvb_link_pause_unpack(struct kvb_span payload, struct kvb_link_pause *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_pause msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.operation = kvb_get_u64(&in);
    msg.mode = (enum kvb_pause_mode)get_choice(&in, COUNT_OF(pause_modes));
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_resume_pack(struct kvb_writer *out, const struct kvb_link_resume *msg)
{
    kvb_put_u64(out, msg->operation);
}

kvb_status_t kvb_link_resume_unpack(struct kvb_span payload, struct kvb_link_resume *msg_p)
{
    struct kvb_reader in;
    kvb_reader_init(&in, payload.data, payload.len);
    struct kvb_link_resume msg = {.operation = kvb_get_u64(&in)};
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_reset_local_pack(struct kvb_writer *out, const struct kvb_link_reset_local *msg)
{
    kvb_put_u64(out, msg->operation);
    kvb_put_u8(out, msg->preempt);
}

kvb_status_t kvb_link_reset_local_unpack(struct kvb_span payload,
                                         struct kvb_link_reset_local *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_reset_local msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.operation = kvb_get_u64(&in);
    msg.preempt = kvb_get_bool(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_reset_local_reply_pack(struct kvb_writer *out,
                                     const struct kvb_link_reset_local_reply *msg)
{
    put_status(out, msg->status);
    kvb_put_u32(out, msg->blocks_held);
}

kvb_status_t kvb_link_reset_local_reply_unpack(struct kvb_span payload,
                                               struct kvb_link_reset_local_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_reset_local_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.status = get_status(&in);
    msg.blocks_held = kvb_get_u32(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_release_pack(struct kvb_writer *out, const struct kvb_link_release *msg)
{
    kvb_put_u64(out, msg->operation);
    kvb_put_u8(out, msg->commit);
    kvb_put_u32(out, msg->ntags);
    for (uint32_t i = 0; i < msg->ntags; i++) {
        kvb_put_str(out, msg->tags[i].tag);
        kvb_put_u8(out, msg->tags[i].offload);
    }
}

kvb_status_t kvb_link_release_unpack(struct kvb_span payload, struct kvb_link_release *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_release msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.operation = kvb_get_u64(&in);
    msg.commit = kvb_get_bool(&in);
    msg.ntags = kvb_get_count(&in, KVB_TAGS_MAX, 6);
    for (uint32_t i = 0; i < msg.ntags; i++) {
        get_name(&in, msg.tags[i].tag);
        msg.tags[i].offload = kvb_get_bool(&in);
        for (uint32_t j = 0; j < i; j++) {
            require_new_tag(&in, msg.tags[i].tag, msg.tags[j].tag);
        }
    }
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_restore_pack(struct kvb_writer *out, const struct kvb_link_restore *msg)
{
    kvb_put_u64(out, msg->operation);
    kvb_put_u32(out, msg->ntags);
    for (uint32_t i = 0; i < msg->ntags; i++) {
        kvb_put_str(out, msg->tags[i]);
    }
}

kvb_status_t kvb_link_restore_unpack(struct kvb_span payload, struct kvb_link_restore *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_restore msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.operation = kvb_get_u64(&in);
    msg.ntags = kvb_get_count(&in, KVB_TAGS_MAX, 5);
    for (uint32_t i = 0; i < msg.ntags; i++) {
        get_name(&in, msg.tags[i]);
        for (uint32_t j = 0; j < i; j++) {
            require_new_tag(&in, msg.tags[i], msg.tags[j]);
        }
    }
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_fingerprint_reply_pack(struct kvb_writer *out,
                                     const struct kvb_link_fingerprint_reply *msg)
{
    put_status(out, msg->status);
    kvb_put_str(out, msg->name);
}

kvb_status_t kvb_link_fingerprint_reply_unpack(struct kvb_span payload,
                                               struct kvb_link_fingerprint_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_fingerprint_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.status = get_status(&in);
    get_text(&in, msg.name, sizeof msg.name);
    require(&in, msg.status != KVB_OK || msg.name[0] != '\0');
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_relay_pack(struct kvb_writer *out, const struct kvb_link_relay *msg)
{
    kvb_put_u64(out, msg->operation);
    kvb_put_str(out, msg->method);
    kvb_put_span(out, msg->body);
}

kvb_status_t kvb_link_relay_unpack(struct kvb_span payload, struct kvb_link_relay *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_relay msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.operation = kvb_get_u64(&in);
    get_text(&in, msg.method, sizeof msg.method);
    require(&in, msg.method[0] != '\0');
    msg.body = kvb_get_span(&in, KVB_RELAY_BODY_MAX);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_relay_reply_pack(struct kvb_writer *out, const struct kvb_link_relay_reply *msg)
{
    put_status(out, msg->status);
    kvb_put_u8(out, msg->weights_written);
    kvb_put_span(out, msg->body);
}

kvb_status_t kvb_link_relay_reply_unpack(struct kvb_span payload,
                                         struct kvb_link_relay_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_relay_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.status = get_status(&in);
    msg.weights_written = kvb_get_bool(&in);
    msg.body = kvb_get_span(&in, KVB_RELAY_BODY_MAX);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_state_reply_pack(struct kvb_writer *out, const struct kvb_link_state_reply *msg)
{
    put_status(out, msg->status);
    put_state(out, &msg->state);
}

kvb_status_t kvb_link_state_reply_unpack(struct kvb_span payload,
                                         struct kvb_link_state_reply *msg_p)
{
    struct kvb_reader in;
    struct kvb_link_state_reply msg = {0};
    kvb_reader_init(&in, payload.data, payload.len);
    msg.status = get_status(&in);
    get_state(&in, &msg.state);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *msg_p = msg;
    }
    return status;
}

void kvb_link_status_pack(struct kvb_writer *out, kvb_status_t status)
{
    put_status(out, status);
}

kvb_status_t kvb_link_status_unpack(struct kvb_span payload, kvb_status_t *status_p)
{
    struct kvb_reader in;
    kvb_reader_init(&in, payload.data, payload.len);
    kvb_status_t value = get_status(&in);
    kvb_status_t status = kvb_reader_finish(&in);
    if (status == KVB_OK) {
        *status_p = value;
    }
    return status;
}
