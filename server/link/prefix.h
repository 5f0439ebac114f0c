/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_PREFIX_H
#define LINK_PREFIX_H

#include "base/link.h"

/*
 * The longest prefix of a prompt that all of its KV groups can use (a lookup's answer), found by
 * asking for as few blocks as will do. Pure.
 *
 * A prefix of so many tokens, a multiple of every group's block, can be used by a group of full
 * attention if each of its blocks up to there is there, and by one with a sliding window if those
 * are that the window reaches back to. Groups of full attention are asked first, forward to where
 * the first of them ends; then, from there backward, windows.
 */
struct kvp_prefix_group {
    struct kvb_link_group_info info;
    uint32_t nkeys;
    uint8_t *known;        /* by key: enum kvp_known */
    uint32_t first, asked; /* of the present wave */
};
struct kvp_prefix {
    uint32_t ngroups;
    struct kvp_prefix_group groups[KVB_GROUPS_MAX];
    uint64_t tokens; /* no prefix is longer */
    uint64_t step;   /* the least common multiple of the blocks */
    bool final;
};

/* infos, nkeys: by group. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_prefix_init(struct kvp_prefix *prefix,
                                          const struct kvb_link_group_info *infos,
                                          const uint32_t *nkeys, uint32_t ngroups);
void kvp_prefix_cleanup(struct kvp_prefix *prefix);

/* The next wave: of each group, keys [first, first + asked), at most `room` (not 0) together. Each
 * is to be told before the next one. False: none, what is found is final. */
KVB_MUST_USE bool kvp_prefix_next(struct kvp_prefix *prefix, uint32_t room);
void kvp_prefix_tell(struct kvp_prefix *prefix, uint32_t group, uint32_t key, bool there);

/* What is not known by now counts as not there. */
void kvp_prefix_stop(struct kvp_prefix *prefix);

/* Blocks of that group in the longest usable prefix; 0 until it is final. */
uint32_t kvp_prefix_hits(const struct kvp_prefix *prefix, uint32_t group);

#endif
