/* SPDX-License-Identifier: Apache-2.0 */
#include "link_reencode.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static struct kvb_writer writer_of(void)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64u << 20);
    return writer;
}

/* Reads exactly these bytes, in a block of exactly their size, so that ASan sees one read too many.
 */
static kvb_status_t read_exact(enum link_codec codec, const uint8_t *data, size_t len,
                               struct kvb_writer *out)
{
    uint8_t *copy = malloc(len == 0 ? 1 : len);
    if (len > 0) {
        memcpy(copy, data, len);
    }
    kvb_status_t status = link_reencode(codec, (struct kvb_span){copy, len}, out);
    free(copy);
    return status;
}

Test(link_codec, every_message_comes_back_as_it_was)
{
    for (enum link_codec codec = 0; codec < LINK_CODECS; codec++) {
        struct kvb_writer sample = writer_of();
        struct kvb_writer again = writer_of();
        link_sample(codec, &sample);
        cr_assert_eq(sample.status, KVB_OK);
        cr_assert_eq(read_exact(codec, sample.data, sample.len, &again), KVB_OK, "codec %d", codec);
        cr_assert_eq(again.len, sample.len);
        cr_assert(memcmp(again.data, sample.data, sample.len) == 0, "codec %d", codec);
        kvb_writer_cleanup(&sample);
        kvb_writer_cleanup(&again);
    }
}

Test(link_codec, fields_keep_their_places)
{
    struct kvb_writer out = writer_of();
    link_sample(LINK_hello, &out);
    struct kvb_link_hello hello;
    cr_assert_eq(kvb_link_hello_unpack((struct kvb_span){out.data, out.len}, &hello), KVB_OK);
    cr_assert_eq(hello.rank, 1);
    cr_assert_eq(hello.tp_size, 1);
    cr_assert_eq(hello.store_tp_size, 4);
    cr_assert_eq(hello.block_tokens, 16);
    cr_assert_eq(hello.ngroups, 2);
    cr_assert_eq(hello.groups[1].block_tokens, 32);
    cr_assert_eq(hello.groups[1].window_tokens, 1024);
    cr_assert_str_eq(hello.instance, "llm-0");
    cr_assert_str_eq(hello.lineage_name, "v0");
    cr_assert_eq(hello.lineage.id.lo, 2);
    cr_assert_eq(hello.token.id.hi, 3);
    cr_assert_eq(hello.retired[0].id.hi, 5);
    cr_assert_eq(hello.state.tags[1].residency, KVB_OFFLOADED);
    cr_assert(hello.state.paused && hello.state.weights_written);
    cr_assert_not(hello.state.weight_change_running || hello.state.local_reset_done);
    kvb_writer_cleanup(&out);
    out = writer_of();
    link_sample(LINK_batch, &out);
    struct kvb_link_batch batch;
    cr_assert_eq(kvb_link_batch_unpack((struct kvb_span){out.data, out.len}, &batch), KVB_OK);
    cr_assert_eq(batch.entries[0].slices[1].offset, 30);
    cr_assert_eq(batch.entries[0].token.id.lo, 4);
    cr_assert_eq(batch.entries[1].slices[0].len, 20);
    cr_assert_eq(batch.entries[1].placement.len, 0);
    kvb_link_batch_free(&batch);
    cr_assert_null(batch.entries);
    kvb_writer_cleanup(&out);
    out = writer_of();
    link_sample(LINK_lookup, &out);
    struct kvb_link_lookup lookup;
    cr_assert_eq(kvb_link_lookup_unpack((struct kvb_span){out.data, out.len}, &lookup), KVB_OK);
    cr_assert_eq(lookup.groups[1].group, 15);
    cr_assert_eq(lookup.groups[0].keys[1].key.len, 1);
    cr_assert_eq(lookup.groups[0].keys[1].placement.len, 0);
    cr_assert_eq(lookup.groups[1].keys[0].key.len, 4);
    cr_assert_eq(lookup.groups[1].keys[0].placement.len, 3);
    kvb_link_lookup_free(&lookup);
    kvb_writer_cleanup(&out);
}

Test(link_codec, every_truncation_and_anything_left_over_is_refused)
{
    for (enum link_codec codec = 0; codec < LINK_CODECS; codec++) {
        struct kvb_writer sample = writer_of();
        struct kvb_writer again = writer_of();
        link_sample(codec, &sample);
        for (size_t cut = 0; cut < sample.len; cut++) {
            cr_assert_eq(read_exact(codec, sample.data, cut, &again), KVB_ERR_PROTOCOL,
                         "codec %d cut at %zu", codec, cut);
        }
        kvb_put_u8(&sample, 0);
        cr_assert_eq(read_exact(codec, sample.data, sample.len, &again), KVB_ERR_PROTOCOL,
                     "codec %d", codec);
        cr_assert_eq(again.len, 0);
        kvb_writer_cleanup(&sample);
    }
}

/* Whatever a changed byte makes of a message: it is refused, or it means exactly its bytes. */
Test(link_codec, a_changed_byte_is_refused_or_means_what_it_says)
{
    for (enum link_codec codec = 0; codec < LINK_CODECS; codec++) {
        struct kvb_writer sample = writer_of();
        link_sample(codec, &sample);
        for (size_t at = 0; at < sample.len; at++) {
            uint8_t good = sample.data[at];
            for (unsigned value = 0; value < 256; value++) {
                struct kvb_writer again = writer_of();
                sample.data[at] = (uint8_t)value;
                kvb_status_t status = read_exact(codec, sample.data, sample.len, &again);
                cr_assert(status == KVB_OK || status == KVB_ERR_PROTOCOL ||
                              (codec == LINK_hello && at < 2 && status == KVB_ERR_UNSUPPORTED),
                          "codec %d byte %zu value %u: %d", codec, at, value, status);
                cr_assert(status != KVB_OK || (again.len == sample.len &&
                                               memcmp(again.data, sample.data, again.len) == 0),
                          "codec %d byte %zu value %u", codec, at, value);
                kvb_writer_cleanup(&again);
            }
            sample.data[at] = good;
        }
        kvb_writer_cleanup(&sample);
    }
}

/* What a struct packs to is read back, or refused, as `wanted` says. */
#define EXPECT(codec, message, wanted)                                                             \
    do {                                                                                           \
        struct kvb_writer packed_ = writer_of();                                                   \
        struct kvb_writer again_ = writer_of();                                                    \
        kvb_link_##codec##_pack(&packed_, message);                                                \
        cr_assert_eq(packed_.status, KVB_OK);                                                      \
        cr_assert_eq(read_exact(LINK_##codec, packed_.data, packed_.len, &again_), wanted);        \
        kvb_writer_cleanup(&packed_);                                                              \
        kvb_writer_cleanup(&again_);                                                               \
    } while (0)
#define ACCEPTS(codec, message) EXPECT(codec, message, KVB_OK)
#define REFUSES(codec, message) EXPECT(codec, message, KVB_ERR_PROTOCOL)

/* The same for bytes that no struct can hold; takes the writer. */
static void expect_bytes(enum link_codec codec, struct kvb_writer *packed, kvb_status_t wanted)
{
    struct kvb_writer again = writer_of();
    cr_assert_eq(packed->status, KVB_OK);
    cr_assert_eq(read_exact(codec, packed->data, packed->len, &again), wanted, "codec %d", codec);
    kvb_writer_cleanup(packed);
    kvb_writer_cleanup(&again);
}

static struct kvb_link_hello good_hello(void)
{
    return (struct kvb_link_hello){.version = KVB_LINK_VERSION,
                                   .roles = 3,
                                   .world_size = 1,
                                   .local_world_size = 1,
                                   .block_tokens = 1,
                                   .instance = "i",
                                   .tenant = "t",
                                   .layout = "l"};
}

static void fill(char *out, size_t len)
{
    memset(out, 'x', len);
    out[len] = '\0';
}

Test(link_codec, hello_is_checked_field_by_field)
{
    struct kvb_link_hello hello = good_hello();
    ACCEPTS(hello, &hello);
    hello.version++;
    EXPECT(hello, &hello, KVB_ERR_UNSUPPORTED);
    hello = good_hello(), hello.roles = 0;
    REFUSES(hello, &hello);
    hello.roles = 4;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.flags = 4;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.rank = 1;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.world_size = KVB_RANKS_MAX, hello.rank = KVB_RANKS_MAX - 1;
    ACCEPTS(hello, &hello);
    hello.world_size++;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.world_size = 0;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.local_world_size = 0;
    REFUSES(hello, &hello);
    hello.local_world_size = 2;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.ngroups = KVB_GROUPS_MAX + 1;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.ngroups = 1, hello.groups[0].block_tokens = 0;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.block_tokens = 0;
    REFUSES(hello, &hello);
    hello = good_hello(), hello.instance[0] = '\0';
    REFUSES(hello, &hello);
    strcpy(hello.instance, "a b");
    REFUSES(hello, &hello);
    hello = good_hello(), strcpy(hello.tenant, "a/b");
    REFUSES(hello, &hello);
    hello = good_hello(), hello.layout[0] = '\0';
    REFUSES(hello, &hello);
    strcpy(hello.layout, "two\nlines");
    REFUSES(hello, &hello);
    strcpy(hello.layout, "\xc3(");
    REFUSES(hello, &hello);
    hello = good_hello(), strcpy(hello.weights_name, "\x01");
    REFUSES(hello, &hello);
}

Test(link_codec, an_echo_is_whole_or_absent)
{
    struct kvb_link_hello hello = good_hello();
    hello.token.id.lo = 1;
    REFUSES(hello, &hello);
    hello.lineage.id.hi = 1;
    ACCEPTS(hello, &hello);
    strcpy(hello.lineage_name, "v1");
    ACCEPTS(hello, &hello);
    hello.token.id.lo = 0;
    REFUSES(hello, &hello);
    hello.lineage.id.hi = 0;
    REFUSES(hello, &hello); /* a name of nothing */
    hello = good_hello(), hello.nretired = 1;
    REFUSES(hello, &hello); /* the lineage "none" cannot retire */
    hello.retired[0].id.lo = 1;
    ACCEPTS(hello, &hello);
    struct kvb_link_lineage lineage = {.lineage = {{1, 0}}, .token = {{0, 1}}};
    ACCEPTS(lineage, &lineage);
    lineage.token.id.lo = 0;
    REFUSES(lineage, &lineage);
    lineage = (struct kvb_link_lineage){.token = {{0, 1}}};
    REFUSES(lineage, &lineage);
}

Test(link_codec, names_have_an_alphabet_and_a_length)
{
    for (int c = 1; c < 256; c++) {
        char name[2] = {(char)c, '\0'};
        bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    c == '.' || c == '_' || c == '-';
        cr_assert_eq(kvb_name_valid(name), good, "character %d", c);
    }
    char name[KVB_NAME_MAX + 1];
    fill(name, KVB_NAME_MAX - 1);
    cr_assert(kvb_name_valid(name));
    fill(name, KVB_NAME_MAX);
    cr_assert_not(kvb_name_valid(name));
    cr_assert_not(kvb_name_valid(""));
    for (size_t len = KVB_NAME_MAX - 1; len <= KVB_NAME_MAX; len++) {
        struct kvb_writer out = writer_of();
        kvb_put_u64(&out, 1); /* restore: operation, one tag */
        kvb_put_u32(&out, 1);
        fill(name, len);
        kvb_put_str(&out, name);
        expect_bytes(LINK_restore, &out, len < KVB_NAME_MAX ? KVB_OK : KVB_ERR_PROTOCOL);
    }
    struct kvb_writer out = writer_of();
    kvb_put_u64(&out, 1);
    kvb_put_u32(&out, 1);
    kvb_put_span(&out, (struct kvb_span){(const uint8_t *)"a\0b", 3});
    expect_bytes(LINK_restore, &out, KVB_ERR_PROTOCOL);
}

Test(link_codec, texts_end_at_their_limits)
{
    static const size_t limits[] = {255, 256};
    for (int i = 0; i < 2; i++) {
        kvb_status_t wanted = i == 0 ? KVB_OK : KVB_ERR_PROTOCOL;
        char text[300];
        fill(text, limits[i]);
        struct kvb_writer out = writer_of();
        kvb_put_u32(&out, 0); /* hello reply */
        kvb_put_str(&out, text);
        kvb_put_u64(&out, 1);
        expect_bytes(LINK_hello_reply, &out, wanted);
        out = writer_of();
        kvb_put_u32(&out, 0); /* fingerprint */
        kvb_put_str(&out, text);
        expect_bytes(LINK_fingerprint_reply, &out, wanted);
        out = writer_of();
        kvb_put_u64(&out, 1); /* relay */
        fill(text, i == 0 ? KVB_RELAY_METHOD_MAX - 1 : KVB_RELAY_METHOD_MAX);
        kvb_put_str(&out, text);
        kvb_put_str(&out, "");
        expect_bytes(LINK_relay, &out, wanted);
    }
    struct kvb_link_relay relay = {.operation = 1};
    REFUSES(relay, &relay); /* no method */
    struct kvb_link_fingerprint_reply fingerprint = {.status = KVB_OK};
    REFUSES(fingerprint_reply, &fingerprint); /* success without a name */
    fingerprint.status = KVB_ERR_UNSUPPORTED;
    ACCEPTS(fingerprint_reply, &fingerprint);
}

Test(link_codec, a_relay_body_ends_at_its_limit)
{
    uint8_t *body = calloc(1, KVB_RELAY_BODY_MAX + 1);
    struct kvb_link_relay relay = {1, "m", {body, KVB_RELAY_BODY_MAX}};
    struct kvb_link_relay_reply reply = {KVB_OK, false, {body, KVB_RELAY_BODY_MAX}};
    ACCEPTS(relay, &relay);
    ACCEPTS(relay_reply, &reply);
    relay.body.len++;
    reply.body.len++;
    REFUSES(relay, &relay);
    REFUSES(relay_reply, &reply);
    free(body);
}

/* n tags named a, b, c, … as `each` writes them. */
static struct kvb_writer tags_of(uint32_t n, int bytes_after, bool with_operation)
{
    struct kvb_writer out = writer_of();
    if (with_operation) {
        kvb_put_u64(&out, 1);
    }
    if (bytes_after == 1 && with_operation) {
        kvb_put_u8(&out, 0); /* release: commit */
    }
    kvb_put_u32(&out, n);
    for (uint32_t i = 0; i < n; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        kvb_put_str(&out, name);
        for (int b = 0; b < bytes_after; b++) {
            kvb_put_u8(&out, 0);
        }
    }
    return out;
}

Test(link_codec, tags_end_at_their_limit_and_no_tag_comes_twice)
{
    for (uint32_t n = KVB_TAGS_MAX; n <= KVB_TAGS_MAX + 1; n++) {
        kvb_status_t wanted = n == KVB_TAGS_MAX ? KVB_OK : KVB_ERR_PROTOCOL;
        struct kvb_writer out = tags_of(n, 1, true);
        expect_bytes(LINK_release, &out, wanted);
        out = tags_of(n, 0, true);
        expect_bytes(LINK_restore, &out, wanted);
        struct kvb_writer tags = tags_of(n, 1, false);
        out = writer_of();
        kvb_put_u32(&out, 0); /* state reply: status, operation, five bytes */
        kvb_put_u64(&out, 1);
        kvb_put_bytes(&out, "\0\0\0\0\0", 5);
        kvb_put_bytes(&out, tags.data, tags.len);
        kvb_writer_cleanup(&tags);
        expect_bytes(LINK_state_reply, &out, wanted);
    }
    struct kvb_link_release release = {1, false, 2, {{"a", false}, {"a", true}}};
    REFUSES(release, &release);
    struct kvb_link_restore restore = {1, 3, {"a", "b", "a"}};
    REFUSES(restore, &restore);
    struct kvb_link_state_reply state = {.state = {.ntags = 2, .tags = {{"a", 0}, {"a", 0}}}};
    REFUSES(state_reply, &state);
}

Test(link_codec, retirements_end_at_their_limit)
{
    for (uint32_t n = KVB_RETIRED_MAX; n <= KVB_RETIRED_MAX + 1; n++) {
        struct kvb_writer out = writer_of();
        kvb_put_id(&out, (struct kvb_id){1, 1});
        kvb_put_id(&out, (struct kvb_id){1, 1});
        kvb_put_str(&out, "");
        kvb_put_u8(&out, 0);
        kvb_put_u32(&out, n);
        for (uint32_t i = 0; i < n; i++) {
            kvb_put_id(&out, (struct kvb_id){1, i});
        }
        expect_bytes(LINK_lineage, &out, n == KVB_RETIRED_MAX ? KVB_OK : KVB_ERR_PROTOCOL);
    }
}

Test(link_codec, numbers_that_name_something_are_in_range)
{
    struct kvb_link_pause pause = {1, KVB_PAUSE_KEEP};
    ACCEPTS(pause, &pause);
    pause.mode = (enum kvb_pause_mode)3;
    REFUSES(pause, &pause);
    struct kvb_link_state_reply state = {.state = {.ntags = 1, .tags = {{"a", KVB_UNKNOWN}}}};
    ACCEPTS(state_reply, &state);
    state.state.tags[0].residency = (enum kvb_residency)4;
    REFUSES(state_reply, &state);
    struct kvb_link_reset_local_reply reset = {KVB_IN_PROGRESS, 0};
    REFUSES(reset_local_reply, &reset); /* a reply is final */
    reset.status = (kvb_status_t)-9999;
    REFUSES(reset_local_reply, &reset);
    reset.status = KVB_ERR_PROTOCOL;
    ACCEPTS(reset_local_reply, &reset); /* it may be reported, though */
    struct kvb_writer out = writer_of();
    kvb_put_u64(&out, 1);
    kvb_put_u8(&out, 2); /* not a bool */
    expect_bytes(LINK_reset_local, &out, KVB_ERR_PROTOCOL);
}

Test(link_codec, a_region_lies_within_a_file)
{
    struct kvb_link_region good = {1, 0, 0, "t", INT64_MAX - 1, 1, 0};
    struct kvb_link_region region = good;
    ACCEPTS(region, &region);
    region.len = 0;
    REFUSES(region, &region);
    region = good, region.len = 2;
    REFUSES(region, &region);
    region = good, region.fd_offset = UINT64_MAX;
    REFUSES(region, &region);
    region = good, region.fd_offset = 0, region.len = UINT64_MAX;
    REFUSES(region, &region);
    region = good, region.kind = KVB_MEMORY_KINDS;
    REFUSES(region, &region);
    region = good, region.flags = 2;
    REFUSES(region, &region);
    region = good, region.tag[0] = '\0';
    REFUSES(region, &region);
}

Test(link_codec, a_lookup_ends_at_its_limits)
{
    static const uint8_t bytes[KVB_KEY_MAX + 1];
    struct kvb_link_key *keys = calloc(KVB_ENTRIES_MAX + 1, sizeof *keys);
    struct kvb_link_group groups[KVB_GROUPS_MAX + 1];
    for (int i = 0; i <= KVB_ENTRIES_MAX; i++) {
        keys[i] = (struct kvb_link_key){.key = {bytes, 1}};
    }
    for (int i = 0; i <= KVB_GROUPS_MAX; i++) {
        groups[i] = (struct kvb_link_group){0, 1, keys};
    }
    struct kvb_link_lookup lookup = {.ngroups = KVB_GROUPS_MAX, .groups = groups};
    ACCEPTS(lookup, &lookup);
    lookup.ngroups++;
    REFUSES(lookup, &lookup);
    lookup.ngroups = 0;
    REFUSES(lookup, &lookup);
    lookup.ngroups = 1;
    groups[0].group = KVB_GROUPS_MAX - 1;
    ACCEPTS(lookup, &lookup);
    groups[0].group++;
    REFUSES(lookup, &lookup);
    groups[0] = (struct kvb_link_group){0, 0, keys}; /* a group without keys */
    ACCEPTS(lookup, &lookup);
    groups[0].nkeys = KVB_ENTRIES_MAX;
    ACCEPTS(lookup, &lookup);
    groups[0].nkeys++;
    REFUSES(lookup, &lookup);
    groups[0].nkeys = 1;
    keys[0].key.len = KVB_KEY_MAX;
    ACCEPTS(lookup, &lookup);
    keys[0].key.len++;
    REFUSES(lookup, &lookup);
    keys[0].key.len = 1;
    keys[0].placement = (struct kvb_span){bytes, KVB_KEY_MAX};
    ACCEPTS(lookup, &lookup);
    keys[0].placement.len++;
    REFUSES(lookup, &lookup);
    keys[0].placement.len = 0;
    keys[0].key.len = 0;
    REFUSES(lookup, &lookup);
    free(keys);
    struct kvb_link_lookup_reply reply = {.ngroups = 1, .hits = {KVB_ENTRIES_MAX}};
    ACCEPTS(lookup_reply, &reply);
    reply.hits[0]++;
    REFUSES(lookup_reply, &reply);
    struct kvb_writer out = writer_of();
    kvb_put_u32(&out, 0);
    kvb_put_u32(&out, KVB_GROUPS_MAX + 1);
    for (int i = 0; i <= KVB_GROUPS_MAX; i++) {
        kvb_put_u32(&out, 0);
    }
    expect_bytes(LINK_lookup_reply, &out, KVB_ERR_PROTOCOL);
}

Test(link_codec, a_batch_ends_at_its_limits)
{
    static const uint8_t bytes[KVB_KEY_MAX + 1];
    struct kvb_slice slices[KVB_SLICES_MAX + 1];
    for (int i = 0; i <= KVB_SLICES_MAX; i++) {
        slices[i] = (struct kvb_slice){1, 0, 1};
    }
    struct kvb_link_entry *entries = calloc(KVB_ENTRIES_MAX + 1, sizeof *entries);
    for (int i = 0; i <= KVB_ENTRIES_MAX; i++) {
        entries[i] = (struct kvb_link_entry){.key = {bytes, 1}, .nslices = 1, .slices = slices};
    }
    struct kvb_link_entry *entry = &entries[0];
    const struct kvb_link_entry good = entries[0];
    struct kvb_link_batch batch = {.nentries = KVB_ENTRIES_MAX, .entries = entries};
    ACCEPTS(batch, &batch);
    batch.nentries++;
    REFUSES(batch, &batch);
    batch.nentries = 0;
    REFUSES(batch, &batch);
    batch.nentries = 1;
    entry->key.len = KVB_KEY_MAX;
    ACCEPTS(batch, &batch);
    entry->key.len++;
    REFUSES(batch, &batch);
    entry->key.len = 0;
    REFUSES(batch, &batch);
    *entry = good, entry->placement = (struct kvb_span){bytes, KVB_KEY_MAX};
    ACCEPTS(batch, &batch);
    entry->placement.len++;
    REFUSES(batch, &batch);
    *entry = good, entry->group = KVB_GROUPS_MAX - 1, entry->part = KVB_RANKS_MAX - 1;
    ACCEPTS(batch, &batch);
    entry->group++;
    REFUSES(batch, &batch);
    *entry = good, entry->part = KVB_RANKS_MAX;
    REFUSES(batch, &batch);
    *entry = good, entry->nslices = KVB_SLICES_MAX;
    ACCEPTS(batch, &batch);
    entry->nslices++;
    REFUSES(batch, &batch);
    entry->nslices = 0;
    REFUSES(batch, &batch);
    free(entries);
    struct kvb_writer out = writer_of();
    kvb_put_u32(&out, KVB_ENTRIES_MAX + 1);
    for (int i = 0; i <= KVB_ENTRIES_MAX; i++) {
        kvb_put_u32(&out, 0);
    }
    expect_bytes(LINK_batch_reply, &out, KVB_ERR_PROTOCOL);
    out = writer_of();
    kvb_put_u32(&out, 0);
    expect_bytes(LINK_batch_reply, &out, KVB_ERR_PROTOCOL);
}

Test(link_codec, slices_add_up_to_a_value)
{
    static const uint8_t bytes[1];
    struct {
        struct kvb_slice slices[2];
        kvb_status_t wanted;
    } cases[] = {
        {{{1, 0, KVB_VALUE_MAX - 1}, {1, 0, 1}}, KVB_OK},
        {{{1, 0, KVB_VALUE_MAX}, {1, 0, 1}}, KVB_ERR_PROTOCOL},
        {{{1, 0, 1}, {1, 0, KVB_VALUE_MAX}}, KVB_ERR_PROTOCOL},
        {{{1, 0, 1}, {1, 0, UINT64_MAX}}, KVB_ERR_PROTOCOL},     /* the sum wraps to 0 */
        {{{1, 0, UINT64_MAX}, {1, 0, 2}}, KVB_ERR_PROTOCOL},     /* wraps to 1 */
        {{{1, UINT64_MAX - 1, 1}, {1, 0, 1}}, KVB_OK},           /* ends at the last byte */
        {{{1, UINT64_MAX, 1}, {1, 0, 1}}, KVB_ERR_PROTOCOL},     /* offset + length wraps */
        {{{1, 0, 1}, {1, UINT64_MAX - 5, 7}}, KVB_ERR_PROTOCOL}, /* so does this */
        {{{1, 0, 1}, {1, 0, 0}}, KVB_ERR_PROTOCOL},              /* an empty slice */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvb_link_entry entry = {.key = {bytes, 1}, .nslices = 2, .slices = cases[i].slices};
        struct kvb_link_batch batch = {.nentries = 1, .entries = &entry};
        EXPECT(batch, &batch, cases[i].wanted);
    }
}

/* A count may claim what the payload cannot hold; nothing is allocated for the claim. */
Test(link_codec, a_count_is_measured_against_what_is_left)
{
    struct kvb_writer out = writer_of();
    kvb_put_u64(&out, 1);
    kvb_put_id(&out, (struct kvb_id){1, 1});
    kvb_put_u32(&out, KVB_ENTRIES_MAX);
    expect_bytes(LINK_batch, &out, KVB_ERR_PROTOCOL);
    out = writer_of();
    kvb_put_u32(&out, UINT32_MAX);
    expect_bytes(LINK_batch_reply, &out, KVB_ERR_PROTOCOL);
}

Test(link_codec, the_largest_messages_fit_the_table)
{
    static const uint16_t numbers[] = {
#define X(name, id, label, dir, max, bound) id,
        KVB_LINK_MESSAGES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct kvb_link_info *info = kvb_link_info(numbers[i]);
        cr_assert_not_null(info);
        cr_assert_eq(info->type, numbers[i]);
        cr_assert(info->dir == 'E' || info->dir == 'D');
    }
    cr_assert_null(kvb_link_info(0));
    cr_assert_null(kvb_link_info(999));
    struct kvb_link_hello hello = good_hello();
    struct kvb_link_state_reply state = {.state = {.ntags = KVB_TAGS_MAX}};
    struct kvb_link_release release = {.ntags = KVB_TAGS_MAX};
    struct kvb_link_restore restore = {.ntags = KVB_TAGS_MAX};
    struct kvb_link_lineage lineage = {.nretired = KVB_RETIRED_MAX};
    struct kvb_link_fingerprint_reply fingerprint = {.status = KVB_OK};
    struct kvb_link_hello_reply refusal = {.status = KVB_ERR_REFUSED};
    struct kvb_link_region region = {.len = 1};
    for (int i = 0; i < KVB_TAGS_MAX; i++) {
        fill(state.state.tags[i].tag, KVB_NAME_MAX - 1);
        fill(release.tags[i].tag, KVB_NAME_MAX - 1);
        fill(restore.tags[i], KVB_NAME_MAX - 1);
    }
    hello.state = state.state;
    hello.nretired = KVB_RETIRED_MAX;
    fill(hello.layout, KVB_LAYOUT_MAX - 1);
    fill(hello.model, KVB_MODEL_MAX - 1);
    fill(hello.weights_name, KVB_WEIGHTS_NAME_MAX - 1);
    fill(hello.lineage_name, KVB_WEIGHTS_NAME_MAX - 1);
    fill(lineage.name, KVB_WEIGHTS_NAME_MAX - 1);
    fill(fingerprint.name, KVB_WEIGHTS_NAME_MAX - 1);
    fill(refusal.reason, sizeof refusal.reason - 1);
    fill(region.tag, KVB_NAME_MAX - 1);
#define FITS(codec, number, message)                                                               \
    do {                                                                                           \
        struct kvb_writer out = writer_of();                                                       \
        kvb_link_##codec##_pack(&out, message);                                                    \
        cr_assert_leq(out.len, kvb_link_info(number)->max, #codec);                                \
        kvb_writer_cleanup(&out);                                                                  \
    } while (0)
    FITS(hello, KVB_LINK_HELLO, &hello);
    FITS(hello_reply, KVB_LINK_HELLO, &refusal);
    FITS(region, KVB_LINK_REGISTER_REGION, &region);
    FITS(state_reply, KVB_LINK_STATE, &state);
    FITS(release, KVB_LINK_RELEASE, &release);
    FITS(restore, KVB_LINK_RESTORE, &restore);
    FITS(lineage, KVB_LINK_LINEAGE, &lineage);
    FITS(fingerprint_reply, KVB_LINK_FINGERPRINT, &fingerprint);
    FITS(load, KVB_LINK_REPORT, &(struct kvb_load){0});
    FITS(pause, KVB_LINK_PAUSE, &(struct kvb_link_pause){0});
    FITS(resume, KVB_LINK_RESUME, &(struct kvb_link_resume){0});
    FITS(reset_local, KVB_LINK_RESET_LOCAL, &(struct kvb_link_reset_local){0});
    FITS(reset_local_reply, KVB_LINK_RESET_LOCAL, &(struct kvb_link_reset_local_reply){0});
#undef FITS
}

Test(link_codec, messages_have_numbers_and_names_of_their_own)
{
    static const uint16_t numbers[] = {
#define X(name, id, label, dir, max, bound) id,
        KVB_LINK_MESSAGES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        cr_assert_gt(strlen(kvb_link_info(numbers[i])->label), 0);
        for (size_t k = 0; k < i; k++) {
            cr_assert_neq(numbers[i], numbers[k]);
            cr_assert_str_neq(kvb_link_info(numbers[i])->label, kvb_link_info(numbers[k])->label);
        }
    }
}

Test(link_codec, words_have_their_texts)
{
    cr_assert_str_eq(kvb_residency_text(KVB_OFFLOADED), "offloaded");
    cr_assert_str_eq(kvb_residency_text(KVB_UNKNOWN), "unknown");
    cr_assert_str_eq(kvb_pause_mode_text(KVB_PAUSE_KEEP), "keep");
}
