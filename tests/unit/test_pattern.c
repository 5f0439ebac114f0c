/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern.h"

#include <criterion/criterion.h>

#include <string.h>

enum { LEN = 1003 }; /* not a multiple of the word */

static const struct kve_pattern_source source = {
    .tenant = "default", .layout = "tiny", .weights = 5, .key = "block-1", .key_len = 7};
static const uint64_t others[] = {1, 2, 3, 4, 5};

static enum kve_verdict check(const unsigned char *buf, struct kve_finding *finding)
{
    return kve_pattern_check(&source, buf, LEN, others, sizeof others / sizeof others[0], finding);
}

Test(pattern, what_was_filled_is_good)
{
    unsigned char buf[LEN];
    struct kve_finding finding;

    for (size_t len = 0; len < 40; len++) {
        kve_pattern_fill(&source, buf, len);
        cr_assert_eq(kve_pattern_check(&source, buf, len, NULL, 0, &finding), KVE_GOOD);
    }
    kve_pattern_fill(&source, buf, LEN);
    cr_assert_eq(check(buf, &finding), KVE_GOOD);
}

Test(pattern, one_flipped_bit_anywhere_is_found_and_placed)
{
    unsigned char buf[LEN];
    struct kve_finding finding;

    kve_pattern_fill(&source, buf, LEN);
    for (size_t offset = 0; offset < LEN; offset++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            buf[offset] ^= (unsigned char)(1u << bit);
            cr_assert_eq(check(buf, &finding), KVE_TORN);
            cr_assert_eq(finding.offset, offset);
            cr_assert_eq(finding.bad_bytes, 1);
            cr_assert_eq(finding.got, buf[offset]);
            buf[offset] ^= (unsigned char)(1u << bit);
            cr_assert_eq(finding.expected, buf[offset]);
        }
    }
}

Test(pattern, the_same_block_of_other_weights_is_stale_and_names_them)
{
    unsigned char buf[LEN];
    struct kve_finding finding;
    struct kve_pattern_source old = source;

    old.weights = 3;
    kve_pattern_fill(&old, buf, LEN);
    cr_assert_eq(check(buf, &finding), KVE_STALE);
    cr_assert_eq(finding.weights, 3);
    cr_assert_geq(finding.bad_bytes, LEN / 2);
}

Test(pattern, a_mix_of_two_weights_is_torn)
{
    unsigned char buf[LEN];
    struct kve_finding finding;
    struct kve_pattern_source old = source;

    old.weights = 3;
    kve_pattern_fill(&source, buf, LEN);
    kve_pattern_fill(&old, buf, 8);
    cr_assert_eq(check(buf, &finding), KVE_TORN);
    cr_assert_eq(finding.offset, 0);
}

Test(pattern, anything_else_of_the_name_makes_other_bytes)
{
    struct kve_pattern_source different[4] = {source, source, source, source};
    unsigned char buf[LEN];
    struct kve_finding finding;

    different[0].tenant = "defaul";
    different[1].layout = "tinz";
    different[2].key = "block-2";
    different[3].key_len = 6;
    for (size_t i = 0; i < 4; i++) {
        kve_pattern_fill(&different[i], buf, LEN);
        cr_assert_eq(check(buf, &finding), KVE_TORN, "%zu", i);
        cr_assert_gt(finding.bad_bytes, LEN * 9 / 10, "%zu", i);
    }
}

Test(pattern, a_name_moved_across_its_parts_makes_other_bytes)
{
    struct kve_pattern_source a = source, b = source;
    unsigned char buf[LEN];
    struct kve_finding finding;

    a.tenant = "ab";
    a.layout = "c";
    b.tenant = "a";
    b.layout = "bc";
    kve_pattern_fill(&a, buf, LEN);
    cr_assert_eq(kve_pattern_check(&b, buf, LEN, NULL, 0, &finding), KVE_TORN);
}

Test(pattern, a_tail_that_was_never_written_shows)
{
    unsigned char buf[LEN];
    struct kve_finding finding;

    kve_pattern_poison(buf, LEN);
    kve_pattern_fill(&source, buf, LEN - 8);
    cr_assert_eq(check(buf, &finding), KVE_TORN);
    cr_assert_geq(finding.offset, LEN - 8);
    cr_assert(finding.poison);
}
