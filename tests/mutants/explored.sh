#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rules of the connector and of a shard's tickets, taken out one at a time: the search of all states (tests/explore) must find
# each. A test is PROGRAM:LENS.
#
# usage: explored.sh BUILD_DIR [NAME…]     (names: only those; exit 1: one was not found, or no longer applies)
# shellcheck source=tests/mutants/mutate.sh
. "$(dirname "$(readlink -f "$0")")/mutate.sh"

program_of() { echo "${1%%:*}"; }

# What it found becomes the word that is shown.
run() {
    timeout 280 "$tmp/test" --lens "${1#*:}" >"$tmp/found"
    local rc=$?
    sed -n 's/^VIOLATION //p' "$tmp/found" | cut -c1-90 | tr -c 'a-zA-Z0-9\n' '_' | sed 's/^/FAIL: /'
    return "$rc"
}

connector=server/connector
# ---- P4: undone, and all of it ----
try rollback_is_skipped $connector/operation.c connector_explorer:alone \
    'kvp_plan_undo(&op->plan, done, &op->before, &op->undo);' \
    'kvp_plan_undo(&op->plan, 0, &op->before, &op->undo);'
try undo_does_not_register $connector/plan.h:$connector/plan.c,$connector/steps.c,$connector/operation.c connector_explorer:alone \
    'false, false, KVP_STEP_RESTORE, KVP_STEP_REGISTER)' 'false, false, KVP_STEP_RESTORE)'
try undo_lets_it_sleep $connector/plan.h:$connector/plan.c,$connector/steps.c,$connector/operation.c connector_explorer:alone \
    'X(STOP, "pause", SCHEDULER, false, false, KVP_STEP_UNSTOP)' 'X(STOP, "pause", SCHEDULER, false, false, 0)'
try one_rank_s_failure_is_none $connector/steps.c connector_explorer:alone \
    'if (status != KVB_OK && op->step_status == KVB_OK) {' 'if (status != KVB_OK && op->left > 1) {'
try forward_only_gives_up_at_once $connector/operation.c connector_explorer:alone \
    '    op->plan.steps[op->plan.nsteps++] = KVP_STEP_DISCARD;
' ''
try where_tags_should_be_is_forgotten $connector/operation.c connector_explorer:asleep \
    '            instance->want[i] = op->before.tags[i].residency;' '            (void)instance;'
try cancel_resumes_a_pause $connector/operation.c connector_explorer:clients \
    'op->before.scheduler == KVP_SCHEDULER_RUNNING) { /* a pause' 'op->before.scheduler <= 9) { /* a pause'
try failed_resume_stays_done $connector/steps.c connector_explorer:steps \
    'if (running && (!resident || stoppers != 0)) {' 'if (running && !resident) {'
# ---- P5: bounded, answered once ----
try answered_twice $connector/operation.c connector_explorer:alone \
    '            caller->done(caller->arg, &outcome);' \
    '            caller->done(caller->arg, &outcome);
            caller->done(caller->arg, &outcome);'
try never_answered_when_its_turn_is_over $connector/operation.c connector_explorer:steps \
    '    set_timer(op, on_turn_over, op->record.deadline_ns);
' ''
try state_has_no_deadline $connector/steps.c connector_explorer:alone \
    'kvp_instance_bound(op->instance, KVB_LINK_STATE));' 'KVB_NEVER);'
try drain_has_no_deadline $connector/operation.c connector_explorer:alone \
    'op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.drain_ms);
    op->record' 'op->drain_deadline_ns = KVB_NEVER;
    op->record'
try forward_without_end $connector/operation.c connector_explorer:alone \
    'op->tries >= bounds->forward_tries || ' ''
try a_gone_rank_is_waited_for_for_good $connector/operation.c connector_explorer:dies \
    '        set_timer(op, on_gone, kvp_instance_in_ms(instance, GONE_MS));
' ''
try nobody_asks_a_silent_rank_again $connector/steps.c connector_explorer:alone \
    'session->unknown = true;
            kvp_instance_schedule_reconcile(instance);' 'session->unknown = true;'
# ---- P3: nothing pinned that is gone, and the truth ----
try unregister_is_skipped $connector/steps.c connector_explorer:alone \
    '        return on_ranks(op, who, ask_unregister);' '        return false;'
try memory_goes_before_it_is_unregistered $connector/plan.c connector_explorer:alone \
    '        add(plan, KVP_STEP_UNREGISTER);
        add(plan, KVP_STEP_OFFLOAD);
    }
    if (plan->nrelease > 0) {
        add(plan, KVP_STEP_DISCARD);
    }' '    }
    if (plan->nrelease > 0) {
        add(plan, KVP_STEP_DISCARD);
        add(plan, KVP_STEP_UNREGISTER);
    }'
try registered_by_guess $connector/steps.c connector_explorer:alone \
    '        return on_ranks(op, who, ask_restore);' '        return false;'
try partial_wake_says_all $connector/steps.c connector_explorer:asleep \
    'if (tag == NULL || (call->tags & (1u << i)) == 0) {
            continue;
        }
        tag->residency =' 'if (tag == NULL) {
            continue;
        }
        tag->residency ='
try a_silent_rank_is_taken_for_what_it_was $connector/steps.c connector_explorer:alone \
    '            session->unknown = true;
' ''
try ranks_that_differ_are_one $connector/steps.c connector_explorer:alone \
    'if (session->unknown || bare || (any && all != tag->residency)) {' 'if (session->unknown) {'
try partial_wake_lifts_all $connector/plan.c connector_explorer:asleep \
    'bool last = plan->nrestore > 0 && plan->nrestore == missing;' 'bool last = plan->nrestore > 0;'
# ---- P1: left, acknowledged, reset, and only then ----
try open_while_asleep $connector/lineage.c connector_explorer:alone \
    '!l->update && l->resident && !l->echoed &&' '!l->update && !l->echoed &&'
try the_word_of_another_rank_s_cache $connector/fleet.c connector_explorer:store \
    'hello_p->local_reset_done && kvb_id_none(cache.id);' 'hello_p->local_reset_done;'
try reset_before_the_leave_is_acknowledged $connector/lineage.c "connector_explorer:store" \
    '    if (l->ack != KVP_ACK_LEFT) {
        l->reset_ask = ask;
    }' '    l->reset_ask = ask;'
try a_cache_of_other_weights $connector/steps.c connector_explorer:dies \
    '                forget_resets(instance);
' ''

core=store/core
# ---- P2: tickets and attempts ----
try ticket_without_deadline $core/core.c ticket_explorer:torn \
    'lease != 0 && lease_at(core, lease)->deadline_ns > now_ns;' 'lease != 0;'
try ticket_is_not_asked_for $core/core.c ticket_explorer:torn \
    'return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : KVB_ERR_TICKET;' 'return KVB_OK;'
try ticket_does_not_keep_the_space $core/core.c ticket_explorer:torn \
    '    kvs_object_relock(core, handle);
    kvs_hold_give' '    kvs_hold_give'
try commit_after_its_deadline $core/core.c ticket_explorer:torn \
    'if (lease_at(core, lease)->deadline_ns <= now_ns) {' 'if (now_ns == 0) {'
try commit_out_of_quarantine $core/core.c ticket_explorer:deaths \
    'if (object->state == OBJECT_QUARANTINED) {
        return KVB_ERR_TIMEOUT;
    }' 'if (object->state == OBJECT_QUARANTINED) {
        kvs_lease_drop(core, lease);
        return KVB_OK;
    }'
try second_commit_replaces $core/core.c ticket_explorer:torn \
    'if (other->group == object->group && other->part == object->part) {' 'if (other == object) {'
try commit_of_a_retired_lineage $core/core.c ticket_explorer:reset \
    'kvb_status_t status = scope_cleared(core, scope_at(core, object->scope))
                              ? KVB_ERR_FENCED
                              : commit_check(core, object);' 'kvb_status_t status = commit_check(core, object);'
try put_under_a_retired_lineage $core/core.c ticket_explorer:reset \
    'if (kvs_lineage_retired(core, where->lineage)) {' 'if (core->ntenants > 99) {'
try writer_s_space_is_free_at_once $core/lease.c ticket_explorer:deaths \
    'if (kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {' 'if (handle != 0) {'
try revoked_is_free_while_it_is_written $core/core.c ticket_explorer:deaths \
    '    if (writer_stopped) {' '    if (writer_stopped || lease != 0) {'
try stopped_before_it_is $core/lease.c ticket_explorer:deaths \
    '    if (handle != 0) {
        session_end(core, handle);
    }
}' '    kvs_core_session_stopped(core, id);
    (void)handle;
}'
try a_dead_reader_s_ticket_stays $core/lease.c ticket_explorer:deaths \
    'if (object_at(core, lease_at(core, lease)->object)->state != OBJECT_QUARANTINED) {' \
    'if (lease_at(core, lease)->kind == LEASE_ATTEMPT && object_at(core, lease_at(core, lease)->object)->state != OBJECT_QUARANTINED) {'
try what_was_promised_is_evicted $core/lease.c ticket_explorer:held \
    '    kvs_object_lock(core, object, &plan);
    return true;' '    return true;'

finish explored
