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
try between_two_lineages $tasks simulate \
    'if (!uncounted && !stay->open) {' 'if (false && !uncounted) {'
# B02, many machines: a reset is answered although a member has not left.
try reset_before_the_last_member_left store/coordinator/etcd_retire.c simulate \
    'return kvs_mirror_find(mirror, KVS_KEY_LEFT, key) != NULL;' 'return key[0] != 0;'
try retirement_is_not_told store/coordinator/etcd_retire.c simulate \
    '    if (tell_member(member, entry->key, record, entry->create_rev)) {' \
    '    if (tell_member == NULL || record->n > 0) {'
# B02, a process that was stopped: its lease has ended, and it goes on.
try lease_end_is_not_told store/coordinator/etcd_session.c simulate \
    '    kvs_session_lost(etcd);
    while (tell_one_lost(etcd)) {' '    while (false && tell_one_lost(etcd)) {'
# B01, B41: memory goes while a transfer still moves its bytes.
try drain_is_not_awaited $tasks simulate \
    '} else if (transfers_none(rank) || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {' '} else {'
try registration_stays transport/region.c simulate \
    '    close_fd(region);
    set_state(region, KVT_REGION_UNREGISTERED);' '    set_state(region, KVT_REGION_UNREGISTERED);'
# B06: work is scheduled before everything is awake.
try wake_resumes_too_early server/connector/plan.c simulate \
    '        if (fsm->tags[i].residency == KVB_RESIDENT) {
            continue;' '        if (fsm->tags[i].residency == KVB_RESIDENT || i > 0) {
            continue;'
# B11: an error leaves a count above zero, and every later drain waits for ever.
try a_use_is_not_given_back $tasks simulate \
    '        kvp_region_unuse(uses[i]);' '        (void)uses[i];'
# B23: a writer that dies leaves a key nobody can write.
try attempt_of_the_dead_stays store/core/lease.c simulate \
    '        kvs_attempt_quarantine(core, handle);
        break;' '        break;'
# B25: a read that took too long succeeds.
try lost_ticket_is_ok store/core/core.c simulate \
    'return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : KVB_ERR_TICKET;' \
    'return held || core != NULL ? KVB_OK : KVB_ERR_TICKET;'
# B31: who differs in weights shares.
try any_name_will_do store/coordinator/etcd_member.c simulate \
    '    kvs_etcd_encode(name, sizeof name, op->text);
    return kvs_etcd_key' '    kvs_etcd_encode(name, sizeof name, "any");
    return kvs_etcd_key'
# B34: a body whose end did not come is taken for whole.
# B42: after the node is back nobody goes there.
try sick_for_ever store/client/health.c simulate \
    '    if (call->tries) {
        health->trying = false;' '    if (false && call->tries) {
        health->trying = false;'
try a_node_that_came_back_is_the_old_one server/cluster.c simulate \
    'return a->incarnation == b->incarnation && strcmp' 'return a->incarnation != 0 && strcmp'

finish planted
