#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bugs of the kinds that others have shipped (tests/README.md), planted one at a time, that the simulation must find: it was
# written for none of them. The seed that found each is printed.
#
# usage: planted.sh BUILD_DIR [NAME…]     (names: only those; exit 1: one was not found, or no longer applies)
# shellcheck source=tests/mutants/mutate.sh
. "$(dirname "$(readlink -f "$0")")/mutate.sh"

tasks=server/link/tasks.c
# B02: the engine's stay is over, and what was begun in it still counts.
try get_of_an_earlier_stay $tasks simulate \
    'if (!unfenced && !kvb_token_equal(token, stay->token)) {' 'if (false && !unfenced) {'
# B02, many machines: a reset is answered although a member has not left.
try reset_before_the_last_member_left store/coordinator/etcd_retire.c simulate \
    'return kvs_mirror_find(mirror, KVS_KEY_LEFT, key) != NULL;' 'return key[0] != 0;'
try retirement_is_not_told store/coordinator/etcd_retire.c simulate \
    '    if (tell_member(member, entry->key, record, entry->create_rev)) {' \
    '    if (tell_member == NULL || record->n > 0) {'
# B01, B41: memory goes while a transfer still moves its bytes.
try drain_is_not_awaited $tasks simulate \
    '} else if (transfers_none(rank) || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {' '} else {'
# B06: work is scheduled before everything is awake.
try wake_resumes_too_early server/connector/plan.c simulate \
    '        if (fsm->tags[i].residency == KVB_RESIDENT) {
            continue;' '        if (fsm->tags[i].residency == KVB_RESIDENT || i > 0) {
            continue;'
# B31: who differs in weights shares.
try any_name_will_do store/coordinator/etcd_member.c simulate \
    '    kvs_etcd_encode(name, sizeof name, op->text);
    return kvs_etcd_key' '    kvs_etcd_encode(name, sizeof name, "any");
    return kvs_etcd_key'

finish planted
