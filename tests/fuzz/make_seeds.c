/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_seeds FOLDER: writes the seeds of fuzz_link, fuzz_frame, fuzz_kvplane, fuzz_store_wire,
 * fuzz_session and fuzz_rdma below it. Run by hand when those change. */
#include "link_reencode.h"

#include "base/frame.h"
#include "store_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_seed(const char *folder, const char *target, int number, const uint8_t *data,
                       size_t len)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/seed-%02d", folder, target, number);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, len, file) != len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* A record of fuzz_kvplane. */
static void write_record(const char *folder, int number, uint8_t type, uint8_t flags, uint8_t seq,
                         enum link_codec codec)
{
    struct kvb_writer payload;
    struct kvb_writer out;
    kvb_writer_init(&payload, 4096);
    kvb_writer_init(&out, 4096);
    if (codec != LINK_CODECS) {
        link_sample(codec, &payload);
    }
    kvb_put_u8(&out, type);
    kvb_put_u8(&out, flags);
    kvb_put_u8(&out, seq);
    kvb_put_u16(&out, (uint16_t)payload.len);
    kvb_put_bytes(&out, payload.data, payload.len);
    write_seed(folder, "fuzz_kvplane", number, out.data, out.len);
    kvb_writer_cleanup(&payload);
    kvb_writer_cleanup(&out);
}

static const struct {
    uint8_t type, flags, seq;
    enum link_codec codec; /* LINK_CODECS: an empty payload */
} records[] = {
    {KVB_LINK_REGISTER_REGION, KVB_FRAME_REPLY, 0, LINK_status},
    {KVB_LINK_LOOKUP, KVB_FRAME_REPLY, 1, LINK_lookup_reply},
    {KVB_LINK_PUT, KVB_FRAME_REPLY, 2, LINK_batch_reply},
    {KVB_LINK_REPORT, KVB_FRAME_REPLY, 4, LINK_status},
    {KVB_LINK_LINEAGE, 0, 20, LINK_lineage},
    {KVB_LINK_PAUSE, 0, 21, LINK_pause},
    {KVB_LINK_RESUME, 0, 22, LINK_resume},
    {KVB_LINK_RESET_LOCAL, 0, 23, LINK_reset_local},
    {KVB_LINK_RELEASE, 0, 24, LINK_release},
    {KVB_LINK_RESTORE, 0, 25, LINK_restore},
    {KVB_LINK_FINGERPRINT, 0, 26, LINK_CODECS},
    {KVB_LINK_RELAY, 0, 27, LINK_relay},
    {KVB_LINK_STATE, 0, 28, LINK_CODECS},
    {KVB_LINK_EVENT, 0, 29, LINK_discard},
};

/* One record of fuzz_session, behind a right hello. */
static void put_step(struct kvb_writer *out, uint8_t type, uint8_t how, uint8_t seq,
                     const struct kvb_writer *payload)
{
    kvb_put_u8(out, type);
    kvb_put_u8(out, how);
    kvb_put_u8(out, seq);
    kvb_put_u16(out, (uint16_t)payload->len);
    kvb_put_bytes(out, payload->data, payload->len);
}

/* Memory is handed over, and then this; how: see fuzz_session.c. */
static void write_session(const char *folder, int number, uint8_t type, uint8_t how,
                          enum link_codec codec)
{
    static const uint8_t bytes[2] = {1, 2};
    struct kvb_link_key keys[2] = {{{bytes, 2}, {bytes, 1}}, {{bytes, 1}, {NULL, 0}}};
    struct kvb_link_group groups[2] = {{0, 2, keys}, {1, 2, keys}};
    struct kvb_slice slices[2] = {{1, 10, 20}, {1, 4096, 60000}};
    struct kvb_link_entry entries[2] = {{{bytes, 2}, {bytes, 1}, 0, 0, {{3, 4}}, 2, slices},
                                        {{bytes, 1}, {NULL, 0}, 1, 0, {{3, 4}}, 1, slices}};
    struct kvb_writer payload, region, out;
    kvb_writer_init(&payload, 4096);
    kvb_writer_init(&region, 4096);
    kvb_writer_init(&out, 16384);
    kvb_link_region_pack(&region,
                         &(struct kvb_link_region){1, KVB_MEMORY_HOST, 0, "kv_cache", 0, 65536, 3});
    if (codec == LINK_lookup) { /* in the stay that fuzz_session plays */
        kvb_link_lookup_pack(&payload, &(struct kvb_link_lookup){1, {{3, 4}}, 2, groups});
    } else if (codec == LINK_batch) {
        kvb_link_batch_pack(&payload, &(struct kvb_link_batch){1, {{3, 4}}, 2, entries});
    } else if (codec != LINK_CODECS) {
        link_sample(codec, &payload);
    }
    kvb_put_u8(&out, 1);
    put_step(&out, KVB_LINK_REGISTER_REGION, 2, 2, &region);
    put_step(&out, type, how, 3, &payload);
    put_step(&out, type, how | 4, 4, &payload);
    write_seed(folder, "fuzz_session", number, out.data, out.len);
    kvb_writer_cleanup(&out);
    kvb_writer_cleanup(&region);
    kvb_writer_cleanup(&payload);
}

static const struct {
    uint8_t type, how;
    enum link_codec codec;
} steps[] = {
    {KVB_LINK_LOOKUP, 0, LINK_lookup},
    {KVB_LINK_PUT, 0, LINK_batch},
    {KVB_LINK_GET, 0, LINK_batch},
    {KVB_LINK_DISCARD, 0, LINK_discard},
    {KVB_LINK_REPORT, 0, LINK_load},
    {KVB_LINK_HELLO, 0, LINK_hello},
    {KVB_LINK_REGISTER_REGION, 2, LINK_region},
    {KVB_LINK_LINEAGE, 1, LINK_status},
    {KVB_LINK_RESET_LOCAL, 1, LINK_reset_local_reply},
    {KVB_LINK_RELEASE, 1, LINK_status},
    {KVB_LINK_FINGERPRINT, 1, LINK_fingerprint_reply},
    {KVB_LINK_RELAY, 1, LINK_relay_reply},
    {KVB_LINK_STATE, 1, LINK_state_reply},
    {KVB_LINK_STATE, 9, LINK_CODECS},
    {0, 16, LINK_hello},
    {KVB_LINK_EVENT, 34, LINK_discard},
};

/* Memory of both kinds is handed over, and the instance sleeps and wakes: rows of records, of which
 * those of the engine hand over region `region` in its hand-over `generation`. */
struct sleep_step {
    uint8_t type, how; /* 240 and more: what the instance does, see fuzz_session.c */
    uint32_t region;
    uint64_t generation;
    bool device;
};

static void write_sleep(const char *folder, int number, const struct sleep_step *rows, size_t n)
{
    struct kvb_writer out;
    kvb_writer_init(&out, 16384);
    kvb_put_u8(&out, 1);
    for (size_t i = 0; i < n; i++) {
        struct kvb_writer payload;
        kvb_writer_init(&payload, 4096);
        struct kvb_link_region region = {.region = rows[i].region,
                                         .kind = rows[i].device ? KVB_MEMORY_CUDA : KVB_MEMORY_HOST,
                                         .len = 4096,
                                         .generation = rows[i].generation};
        if (region.region > 0) {
            region.fd_offset = (uint64_t)4096 * (region.region - 1);
            strcpy(region.tag, region.region == 2 ? "weights" : "kv_cache");
            kvb_link_region_pack(&payload, &region);
        }
        put_step(&out, rows[i].type, rows[i].how, (uint8_t)(i + 2), &payload);
        kvb_writer_cleanup(&payload);
    }
    write_seed(folder, "fuzz_session", number, out.data, out.len);
    kvb_writer_cleanup(&out);
}

static void write_sleeps(const char *folder)
{
    enum { DRAIN = 240, UNREGISTER, REGISTER, STAY, LOOK, HURRY, STOP_DRAIN, DISCONNECT, DEVICE };
    const uint8_t hand = KVB_LINK_REGISTER_REGION;
    const struct sleep_step plain[] = {
        {hand, 2, 1, 1, false},       {hand, 2, 2, 1, false},      {DRAIN, 0, 0, 0, false},
        {UNREGISTER, 8, 0, 0, false}, {LOOK, 0, 0, 0, false},      {hand, 2, 1, 2, false},
        {hand, 2, 2, 2, false},       {REGISTER, 0, 0, 0, false},  {LOOK, 0, 0, 0, false},
        {STAY, 0, 0, 0, false},       {DISCONNECT, 0, 0, 0, false}};
    const struct sleep_step device[] = {
        {hand, 2, 3, 1, true},        {hand, 2, 1, 1, false},     {LOOK, 0, 0, 0, false},
        {UNREGISTER, 8, 0, 0, false}, {hand, 2, 3, 2, true},      {REGISTER, 8, 0, 0, false},
        {hand, 2, 1, 2, false},       {REGISTER, 8, 0, 0, false}, {LOOK, 0, 0, 0, false}};
    const struct sleep_step broken[] = {
        {hand, 2, 3, 1, true},   {DEVICE, 1, 0, 0, false},     {UNREGISTER, 8, 0, 0, false},
        {LOOK, 0, 0, 0, false},  {UNREGISTER, 8, 0, 0, false}, {DEVICE, 0, 0, 0, false},
        {hand, 2, 3, 2, true},   {REGISTER, 8, 0, 0, false},   {HURRY, 0, 0, 0, false},
        {DRAIN, 1, 0, 0, false}, {STOP_DRAIN, 0, 0, 0, false}};
    write_sleep(folder, 20, plain, sizeof plain / sizeof plain[0]);
    write_sleep(folder, 21, device, sizeof device / sizeof device[0]);
    write_sleep(folder, 22, broken, sizeof broken / sizeof broken[0]);
}

/* Engines that are split, whose daemon makes a layout of it. */
static void write_splits(const char *folder)
{
    static const struct kvb_link_hello hellos[] = {
        {.world_size = 8, .tp_size = 2, .store_tp_size = 4, .layout = "m"},
        {.world_size = 4, .tp_size = 2, .layout = "m"},
        {.world_size = 4, .tp_size = 3, .layout = "m"},
        {.world_size = 2, .store_tp_size = 3, .layout = "m"},
        {.world_size = 1024, .tp_size = 1, .store_tp_size = 2, .layout = "m"},
        {.world_size = 1, .layout = "m@split(tp=2)"},
    };
    for (size_t i = 0; i < sizeof hellos / sizeof hellos[0]; i++) {
        struct kvb_link_hello hello = hellos[i];
        struct kvb_writer out, payload;
        kvb_writer_init(&out, 16384);
        kvb_writer_init(&payload, 16384);
        hello.version = KVB_LINK_VERSION;
        hello.roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER;
        hello.local_world_size = hello.world_size;
        hello.block_tokens = 16;
        strcpy(hello.instance, "e");
        strcpy(hello.tenant, "t");
        kvb_link_hello_pack(&payload, &hello);
        kvb_put_u8(&out, 0);
        put_step(&out, KVB_LINK_HELLO, 0, 1, &payload);
        write_seed(folder, "fuzz_session", 30 + (int)i, out.data, out.len);
        kvb_writer_cleanup(&payload);
        kvb_writer_cleanup(&out);
    }
}

/* Of fuzz_rdma: how many messages of which side go through untouched, and what is put over those
 * that follow. */
static void write_rdma(const char *folder)
{
    static const struct {
        uint8_t untouched; /* 0x80: the node's */
        uint8_t how, at, len;
        uint8_t bytes[16];
    } seeds[] = {
        {0, 4, 0, 0, {0}},                             /* everything as it is */
        {0, 5, 32, 8, {0, 0, 0, 0, 1, 0, 0, 0}},       /* versions of a greeting */
        {1, 5, 32, 4, {1, 2, 3, 4}},                   /* a proof */
        {2, 5, 36, 4, {0xff, 0xff, 0xff, 0xff}},       /* a question's body */
        {2, 5, 24, 4, {0xff, 0xff, 0, 0}},             /* its length */
        {2, 5, 0, 8, {9, 0, 0, 0, 0xff, 0, 0, 0}},     /* number and room */
        {3, 7, 8, 16, {0x4b, 0x56, 0x50, 0x31, 0x12}}, /* a message of 16 bytes */
        {6, 5, 32, 4, {99, 0, 0, 0}},                  /* what is through with */
        {0x80, 5, 32, 4, {2, 0, 0, 0}},                /* a challenge */
        {0x81, 5, 32, 4, {1, 2, 3, 4}},                /* who the node is */
        {0x82, 5, 32, 4, {0xff, 0xff, 0xff, 0xff}},    /* a grant or an answer: how many */
        {0x83, 5, 36, 4, {0xff, 0xff, 0xff, 0xff}},    /* the extents of an answer */
        {0x83, 5, 48, 8, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, /* an address */
        {0x84, 5, 56, 8, {1, 0, 0, 0, 1, 2, 3, 4}}, /* a length, and a key */
    };
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        struct kvb_writer out;
        kvb_writer_init(&out, 64);
        kvb_put_u8(&out, seeds[i].untouched);
        kvb_put_u8(&out, seeds[i].how);
        kvb_put_u8(&out, seeds[i].at);
        kvb_put_u8(&out, seeds[i].len);
        kvb_put_bytes(&out, seeds[i].bytes, seeds[i].len);
        write_seed(folder, "fuzz_rdma", (int)i, out.data, out.len);
        kvb_writer_cleanup(&out);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    for (enum link_codec codec = 0; codec < LINK_CODECS; codec++) {
        struct kvb_writer out;
        kvb_writer_init(&out, 4096);
        kvb_put_u8(&out, (uint8_t)codec);
        link_sample(codec, &out);
        write_seed(argv[1], "fuzz_link", codec, out.data, out.len);
        kvb_writer_cleanup(&out);
    }
    for (enum store_codec codec = 0; codec < STORE_CODECS; codec++) {
        struct kvb_writer out;
        kvb_writer_init(&out, 4096);
        kvb_put_u8(&out, (uint8_t)codec);
        store_sample(codec, &out);
        write_seed(argv[1], "fuzz_store_wire", (int)codec, out.data, out.len);
        kvb_writer_cleanup(&out);
    }
    static const struct kvb_frame frames[] = {{1, 0, 1, 0}, {6, KVB_FRAME_REPLY, 77, 4096}};
    for (int i = 0; i < 2; i++) {
        uint8_t header[KVB_FRAME_HEADER_LEN];
        kvb_frame_pack(&frames[i], header);
        write_seed(argv[1], "fuzz_frame", i, header, sizeof header);
    }
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        write_record(argv[1], (int)i, records[i].type, records[i].flags, records[i].seq,
                     records[i].codec);
    }
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        write_session(argv[1], (int)i, steps[i].type, steps[i].how, steps[i].codec);
    }
    write_sleeps(argv[1]);
    write_splits(argv[1]);
    write_rdma(argv[1]);
    return 0;
}
