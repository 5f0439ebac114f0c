/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LINK_REENCODE_H
#define TESTS_LINK_REENCODE_H

/* Every message of the engine link behind one function: read a payload and write it again. What can
 * be read has one form only, so the bytes must come out as they went in. */
#include "base/link.h"

#define LINK_PLAIN(X)                                                                              \
    X(hello, kvb_link_hello)                                                                       \
    X(hello_reply, kvb_link_hello_reply)                                                           \
    X(region, kvb_link_region)                                                                     \
    X(lookup_reply, kvb_link_lookup_reply)                                                         \
    X(load, kvb_load)                                                                              \
    X(lineage, kvb_link_lineage)                                                                   \
    X(pause, kvb_link_pause)                                                                       \
    X(resume, kvb_link_resume)                                                                     \
    X(reset_local, kvb_link_reset_local)                                                           \
    X(reset_local_reply, kvb_link_reset_local_reply)                                               \
    X(release, kvb_link_release)                                                                   \
    X(restore, kvb_link_restore)                                                                   \
    X(fingerprint_reply, kvb_link_fingerprint_reply)                                               \
    X(relay, kvb_link_relay)                                                                       \
    X(relay_reply, kvb_link_relay_reply)                                                           \
    X(state_reply, kvb_link_state_reply)
#define LINK_WITH_ARRAYS(X)                                                                        \
    X(lookup, kvb_link_lookup)                                                                     \
    X(batch, kvb_link_batch)                                                                       \
    X(batch_reply, kvb_link_batch_reply)

enum link_codec {
#define X(name, type) LINK_##name,
    LINK_PLAIN(X) LINK_WITH_ARRAYS(X)
#undef X
        LINK_status,
    LINK_discard,
    LINK_CODECS
};

/* Reads the payload and, on success, packs it into *out. */
static inline kvb_status_t link_reencode(enum link_codec codec, struct kvb_span payload,
                                         struct kvb_writer *out)
{
    kvb_status_t status = KVB_ERR_INTERNAL;
    switch (codec) {
#define X(name, type)                                                                              \
    case LINK_##name: {                                                                            \
        struct type msg;                                                                           \
        status = kvb_link_##name##_unpack(payload, &msg);                                          \
        if (status == KVB_OK) {                                                                    \
            kvb_link_##name##_pack(out, &msg);                                                     \
        }                                                                                          \
        break;                                                                                     \
    }
        LINK_PLAIN(X)
#undef X
#define X(name, type)                                                                              \
    case LINK_##name: {                                                                            \
        struct type msg;                                                                           \
        status = kvb_link_##name##_unpack(payload, &msg);                                          \
        if (status == KVB_OK) {                                                                    \
            kvb_link_##name##_pack(out, &msg);                                                     \
            kvb_link_##name##_free(&msg);                                                          \
        }                                                                                          \
        break;                                                                                     \
    }
        LINK_WITH_ARRAYS(X)
#undef X
    case LINK_status: {
        kvb_status_t value;
        status = kvb_link_status_unpack(payload, &value);
        if (status == KVB_OK) {
            kvb_link_status_pack(out, value);
        }
        break;
    }
    case LINK_discard: {
        uint64_t request;
        status = kvb_link_discard_unpack(payload, &request);
        if (status == KVB_OK) {
            kvb_link_discard_pack(out, request);
        }
        break;
    }
    case LINK_CODECS:
        break;
    }
    return status;
}

/* One good message of each kind, with every optional part in it. */
static inline void link_sample(enum link_codec codec, struct kvb_writer *out)
{
    static const uint8_t bytes[4] = {0, 1, 0xff, 2};
    struct kvb_span key = {bytes, 4};
    struct kvb_link_key keys[2] = {{key, {bytes, 3}}, {{bytes, 1}, {NULL, 0}}};
    struct kvb_link_group groups[2] = {{0, 2, keys}, {15, 1, keys}};
    struct kvb_slice slices[2] = {{1, 10, 20}, {2, 30, 40}};
    struct kvb_link_entry entries[2] = {{key, {bytes, 2}, 1, 2, {{3, 4}}, 2, slices},
                                        {key, {NULL, 0}, 0, 0, {{0, 0}}, 1, slices}};
    kvb_status_t statuses[3] = {KVB_OK, KVB_ERR_NOT_FOUND, KVB_ERR_FENCED};
    struct kvb_engine_state state = {
        .last_operation = 7,
        .paused = true,
        .pause_mode = KVB_PAUSE_KEEP,
        .weights_written = true,
        .ntags = 2,
        .tags = {{"kv_cache", KVB_DISCARDED}, {"weights", KVB_OFFLOADED}},
    };
    switch (codec) {
    case LINK_hello:
        kvb_link_hello_pack(out, &(struct kvb_link_hello){.version = KVB_LINK_VERSION,
                                                          .roles = KVB_ROLE_WORKER,
                                                          .flags = KVB_ENGINE_FINGERPRINTS,
                                                          .rank = 1,
                                                          .world_size = 2,
                                                          .local_world_size = 2,
                                                          .tp_size = 1,
                                                          .store_tp_size = 4,
                                                          .block_tokens = 16,
                                                          .ngroups = 2,
                                                          .groups = {{16, 0}, {32, 1024}},
                                                          .instance = "llm-0",
                                                          .tenant = "default",
                                                          .layout = "m/fp16 \xc3\xa9",
                                                          .model = "llm",
                                                          .max_model_len = 4096,
                                                          .weights_name = "v1",
                                                          .lineage = {{1, 2}},
                                                          .token = {{3, 4}},
                                                          .lineage_name = "v0",
                                                          .nretired = 1,
                                                          .retired = {{{5, 6}}},
                                                          .state = state});
        break;
    case LINK_hello_reply:
        kvb_link_hello_reply_pack(
            out, &(struct kvb_link_hello_reply){KVB_ERR_REFUSED, "set --tenant", 9});
        break;
    case LINK_region:
        kvb_link_region_pack(out,
                             &(struct kvb_link_region){1, KVB_MEMORY_CUDA, KVB_REGION_HOST_RESIDENT,
                                                       "kv_cache", 4096, 8192, 3});
        break;
    case LINK_lookup:
        kvb_link_lookup_pack(out, &(struct kvb_link_lookup){1, {{2, 3}}, 2, groups});
        break;
    case LINK_lookup_reply:
        kvb_link_lookup_reply_pack(out, &(struct kvb_link_lookup_reply){KVB_OK, 2, {5, 0}});
        break;
    case LINK_batch:
        kvb_link_batch_pack(out, &(struct kvb_link_batch){1, {{2, 3}}, 2, entries});
        break;
    case LINK_batch_reply:
        kvb_link_batch_reply_pack(out, &(struct kvb_link_batch_reply){3, statuses});
        break;
    case LINK_load:
        kvb_link_load_pack(out, &(struct kvb_load){1, 2, 3, 4});
        break;
    case LINK_lineage:
        kvb_link_lineage_pack(out, &(struct kvb_link_lineage){.lineage = {{1, 2}},
                                                              .token = {{3, 4}},
                                                              .name = "v2",
                                                              .left = true,
                                                              .nretired = 2,
                                                              .retired = {{{5, 6}}, {{7, 8}}}});
        break;
    case LINK_pause:
        kvb_link_pause_pack(out, &(struct kvb_link_pause){1, KVB_PAUSE_WAIT});
        break;
    case LINK_resume:
        kvb_link_resume_pack(out, &(struct kvb_link_resume){1});
        break;
    case LINK_reset_local:
        kvb_link_reset_local_pack(out, &(struct kvb_link_reset_local){1, true});
        break;
    case LINK_reset_local_reply:
        kvb_link_reset_local_reply_pack(out,
                                        &(struct kvb_link_reset_local_reply){KVB_ERR_BUSY, 12});
        break;
    case LINK_release:
        kvb_link_release_pack(
            out, &(struct kvb_link_release){1, true, 2, {{"kv_cache", false}, {"weights", true}}});
        break;
    case LINK_restore:
        kvb_link_restore_pack(out, &(struct kvb_link_restore){1, 2, {"kv_cache", "weights"}});
        break;
    case LINK_fingerprint_reply:
        kvb_link_fingerprint_reply_pack(out, &(struct kvb_link_fingerprint_reply){KVB_OK, "fp"});
        break;
    case LINK_relay:
        kvb_link_relay_pack(out, &(struct kvb_link_relay){1, "collective_rpc:x", {bytes, 4}});
        break;
    case LINK_relay_reply:
        kvb_link_relay_reply_pack(out, &(struct kvb_link_relay_reply){KVB_OK, true, {bytes, 3}});
        break;
    case LINK_state_reply:
        kvb_link_state_reply_pack(out, &(struct kvb_link_state_reply){KVB_OK, state});
        break;
    case LINK_status:
        kvb_link_status_pack(out, KVB_ERR_TIMEOUT);
        break;
    case LINK_discard:
        kvb_link_discard_pack(out, 17);
        break;
    case LINK_CODECS:
        break;
    }
}

#endif
