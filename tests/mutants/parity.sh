#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes out, one at a time, each thing that upstream's authors took out of their sleep mode and their reset to see their
# tests fail (and what belongs to the same promises here), and demands that a test of ours fails, too. See tests/parity.md.
#
# usage: parity.sh BUILD_DIR [NAME…]     (names: only those; exit 1: a mutant survived, or no longer applies)
# shellcheck source=tests/mutants/mutate.sh
. "$(dirname "$(readlink -f "$0")")/mutate.sh"

# ---- which regions are given up, and what of them (upstream: region recording, host skip, lengths) ----
regions=server/link/regions.c
try region_recorded $regions test_link '    slot->now = region;
    slot->generation' '    slot->generation'
try host_resident_kept_at_release $regions test_link \
    'if (kvt_region_desc(region->memory)->host_resident ||
            !has_tag(tags, ntags, region->slot->tag)' 'if (!has_tag(tags, ntags, region->slot->tag)'
try host_resident_not_awaited_at_restore $regions test_link \
    'if (!slot->host_resident && has_tag(tags, ntags, slot->tag) && slot->now == NULL) {' \
    'if (has_tag(tags, ntags, slot->tag) && (slot->now == NULL || slot->host_resident)) {'
try only_the_tag_s_regions $regions test_link \
    '            !has_tag(tags, ntags, region->slot->tag) ||
            (state' '            (state'
try replaced_regions_too $regions test_link \
    'state != KVT_REGION_REGISTERING &&
             state != KVT_REGION_DRAINING)' 'state != KVT_REGION_REGISTERING)'
try length_registered transport/region.c "test_region test_transport_contract" \
    'region->memory->map(region->fd, region->desc.fd_offset, region->desc.len, &region->map);' \
    'region->memory->map(region->fd, region->desc.fd_offset, region->desc.len / 2, &region->map);'
try length_unmapped transport/region.c "test_region test_link" \
    'region->memory->unmap(region->map, region->desc.len);' 'region->memory->unmap(region->map, 1);'
try length_checked $regions test_link \
    'slice->offset > len || slice->len > len - slice->offset' 'slice->offset > len'
try only_what_is_handed_over_anew $regions test_link \
    'slot->now == NULL) {
            KVB_LOG(WARN' 'false) {
            KVB_LOG(WARN'
try older_generations_change_nothing $regions test_link \
    'if (msg->generation <= slot->generation) {' 'if (false) {'
try descriptor_goes_with_success $regions test_link \
    '        region->in_op = false;
        if (status == KVB_OK || op->undoes != KVB_OK) {
            drop(region);' '        region->in_op = false;
        if (status == KVB_OK || op->undoes != KVB_OK) {
            (void)region;'

# ---- again is nothing (idempotence), and what is so is remembered (state) ----
plan=server/connector/plan.c
try sleep_again_is_nothing $plan "test_plan test_instance" \
    'if (plan->nrelease == 0 && (!now->opted_out || opt_out)) {' 'if (false) {'
try sleep_never_brings_up $plan "test_plan test_instance" \
    'if (depth(fsm->tags[i].residency) < depth(target)) {' 'if (depth(fsm->tags[i].residency) != depth(target)) {'
try sleep_escalates $plan "test_plan test_instance" \
    'if (depth(fsm->tags[i].residency) < depth(target)) {' 'if (depth(fsm->tags[i].residency) <= 0) {'
try release_again_is_nothing $plan "test_plan test_instance" \
    'if (!named || (plan->nrelease == 0 && (!now->opted_out || opt_out))) {' 'if (!named) {'
try wake_of_what_is_there_is_nothing $plan "test_plan test_instance" \
    '        if (fsm->tags[i].residency == KVB_RESIDENT) {
            continue;' '        if (false) {
            continue;'
try unregister_again_is_nothing $regions test_link \
    '            (state != KVT_REGION_REGISTERED && state != KVT_REGION_REGISTERING &&
             state != KVT_REGION_DRAINING)' '            false'
try state_released transport/region.c "test_region test_link" \
    '    close_fd(region);
    set_state(region, KVT_REGION_UNREGISTERED);' '    close_fd(region);'
try state_registered transport/region.c "test_region test_link" \
    '    region->regions->registered++;
    set_state(region, KVT_REGION_REGISTERED);' '    region->regions->registered++;'
try state_still_registered_after_a_timeout transport/region.c "test_region test_link" \
    '    set_state(region, KVT_REGION_REGISTERED);
    finish_unregister(region, KVB_ERR_TIMEOUT);' '    set_state(region, KVT_REGION_UNREGISTERED);
    finish_unregister(region, KVB_ERR_TIMEOUT);'
try state_of_each_rank server/connector/steps.c "test_sleep_rules test_instance" \
    '                                                            : KVB_DISCARDED;
    }' '                                                            : tag->residency;
    }'
try stopped_by_sleep server/connector/operation.c "test_instance test_sleep_rules" \
    '        fsm->stopped_by |= op->plan.stop;
        fsm->stopped_by &= ~op->plan.lift;' '        fsm->stopped_by &= ~op->plan.lift;'

# ---- all or nothing (upstream: rollback) ----
try failed_unregister_registers_again $regions test_link \
    'register_again(region);' 'drop(region);'
try failed_unregister_admits_again $regions test_link \
    '        admit(rank, (const char(*)[KVB_NAME_MAX])op->tags, op->ntags, true);' '        ;'
try failed_register_unregisters $regions test_link \
    'if (status != KVB_OK && rank->connected) {
        rank->registering.active = false;' 'if (false) {
        rank->registering.active = false;'
try failed_register_in_one_transport transport/region.c test_link \
    '            (void)tell_unregistered(region, link); /* who could not has said so in the log */' '            ;'
try failed_map_unmaps transport/region.c "test_region test_rdma_release" \
    '    if (status != KVB_OK) {
        unmap(region);
        return status;' '    if (status != KVB_OK) {
        return status;'
try undo_of_unregister server/connector/plan.h:$plan "test_plan test_sleep_rules" \
    'X(UNREGISTER, "unregister", WORKERS, false, false, KVP_STEP_RESTORE, KVP_STEP_REGISTER)' \
    'X(UNREGISTER, "unregister", WORKERS, false, false, 0)'
try undo_of_restore server/connector/plan.h:$plan "test_plan test_instance_failures" \
    'X(RESTORE, "restore", WORKERS, false, false, KVP_STEP_UNREGISTER, KVP_STEP_OFFLOAD,            \
      KVP_STEP_RELEASE_BACK)' 'X(RESTORE, "restore", WORKERS, false, false, 0)'
try undo_of_pause server/connector/plan.h:$plan "test_plan test_sleep_rules" \
    'X(STOP, "pause", SCHEDULER, false, false, KVP_STEP_UNSTOP)' 'X(STOP, "pause", SCHEDULER, false, false, 0)'
try undo_at_all server/connector/operation.c test_sleep_rules \
    '        kvp_plan_undo(&op->plan, done, &op->before, &op->undo);' '        (void)done;'
try forward_only_after_the_first_discard server/connector/operation.c "test_instance test_instance_failures" \
    '    if (op->no_return) {
        kvp_op_say' '    if (false) {
        kvp_op_say'
try two_phases_over_all_ranks server/connector/steps.c test_sleep_rules \
    '    case KVP_STEP_UNREGISTER:
        if (plan->nrelease == 0) {' '    case KVP_STEP_UNREGISTER:
        if (true) {'

# ---- drained means all of it (upstream: each drained queue) ----
tasks=server/link/tasks.c
try drained_puts_queued $tasks test_link \
    'return rank->queues[KVP_TASK_PUT].nqueued + rank->queues[KVP_TASK_PUT].nrunning +' \
    'return rank->queues[KVP_TASK_PUT].nrunning +'
try drained_puts_running $tasks test_link \
    'return rank->queues[KVP_TASK_PUT].nqueued + rank->queues[KVP_TASK_PUT].nrunning +' \
    'return rank->queues[KVP_TASK_PUT].nqueued +'
try drained_gets_queued $tasks test_link \
    'rank->queues[KVP_TASK_GET].nqueued + rank->queues[KVP_TASK_GET].nrunning ==' \
    'rank->queues[KVP_TASK_GET].nrunning =='
try drained_gets_running $tasks test_link \
    'rank->queues[KVP_TASK_GET].nqueued + rank->queues[KVP_TASK_GET].nrunning ==' \
    'rank->queues[KVP_TASK_GET].nqueued =='
try aborted_puts_queued $tasks test_link '        end_queued(rank, KVP_TASK_PUT, KVB_ERR_CANCELED);' ''
try aborted_gets_queued $tasks test_link '        end_queued(rank, KVP_TASK_GET, KVB_ERR_CANCELED);' ''
try aborted_puts_running $tasks test_link '        stop_running(rank, KVP_TASK_PUT);' ''
try aborted_gets_running $tasks test_link '        stop_running(rank, KVP_TASK_GET);' ''
puts=it_inflight:InFlight.test_puts_in_flight_are_waited_for_unless_the_sleep_aborts
try wait_aborts_nothing server/connector/steps.c $puts \
    'op->plan.mode == KVB_PAUSE_ABORT;' 'true;'
try abort_waits_for_nothing server/connector/steps.c $puts \
    'op->plan.mode == KVB_PAUSE_ABORT;' 'false;'
try drained_before_the_leaving $plan "test_plan" \
    '    if (stop && resident) {
        add(plan, KVP_STEP_STOP);
        add(plan, KVP_STEP_DRAIN);' '    if (stop && resident) {
        add(plan, KVP_STEP_STOP);'
try drained_after_the_reset $plan "test_plan" \
    '    if (resident) {
        add(plan, KVP_STEP_DRAIN);' '    if (resident) {'
try region_drained transport/region.c "test_region test_link" \
    '    } else if (region->refs == 0 || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {' '    } else {'

# ---- every wait ends (upstream: the bound, the deadline) ----
try drain_has_a_bound $tasks test_link \
    '    kvb_sched_timer_set(rank->sched, &rank->drain.bound, deadline_ns);' '    (void)deadline_ns;'
try drain_not_done_is_told $tasks test_link 'end_drain(rank, KVB_ERR_TIMEOUT);' 'end_drain(rank, KVB_OK);'
try drain_s_bound_is_the_drain_s server/connector/operation.c "test_instance test_sleep_rules" \
    '    op->before = instance->fsm;
    op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.drain_ms);' \
    '    op->before = instance->fsm;
    op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.transfer_ms);'
try pause_has_a_bound server/connector/steps.c test_sleep_rules \
    'KVB_LINK_PAUSE), &msg, op->drain_deadline_ns);' 'KVB_LINK_PAUSE), &msg, KVB_NEVER);'
try region_quiesced_at_its_bound transport/region.c "test_region test_link" \
    '    if (!region->quiescing) {
        quiesce(region);' '    if (!region->quiescing) {
        region->quiescing = true;'
try region_not_quiesced_is_told transport/region.c "test_region test_link" \
    '    finish_unregister(region, KVB_ERR_TIMEOUT);' '    finish_unregister(region, KVB_OK);'
try time_in_the_queue_counts $tasks test_link \
    'if (status == KVB_OK && now_ns - task->since_ns > config->transfer_ms * KVB_NS_PER_MS) {' 'if (false) {'
try message_names_the_drain server/connector/steps.c test_sleep_rules \
    'status == KVB_ERR_TIMEOUT && call->type == KVB_LINK_PAUSE' 'status == KVB_ERR_TIMEOUT && false'

# ---- the reset of the external store (upstream's other change) ----
try reset_leaves $plan "test_plan test_instance" \
    '    leave(plan, true);
    add(plan, KVP_STEP_RESET_SOFT);' '    add(plan, KVP_STEP_RESET_SOFT);'
try reset_retires $plan "test_plan test_instance" \
    '        add(plan, KVP_STEP_RETIRE);' '        ;'
try reset_external_only_if_asked $plan "test_plan test_instance" \
    'if (ask->reset_external != KVP_YES) {' 'if (false) {'
try reset_retires_although_blocks_are_held server/connector/steps.c test_instance \
    '        return KVP_LEAVE_RESET;' '        return KVP_LEAVE_PAUSE;'
try reset_not_done_is_told server/connector/operation.c test_instance \
    '        op->external = KVP_EXTERNAL_FAILED;' '        ;'
try reset_refused_for_held_blocks_is_told server/connector/operation.c test_instance \
    '    if (op->status == KVB_OK) {
        op->status = op->step_status;
    }
    if (op->step_status == KVB_ERR_BUSY' '    if (op->step_status == KVB_ERR_BUSY'
try reset_preempts_only_if_asked $plan "test_plan test_instance" \
    'plan->preempt = ask->reset_running_requests;' 'plan->preempt = true;'
try reset_of_a_sleep_preempts $plan "test_plan test_instance" \
    '    leave(plan, leaving);
    plan->preempt = true;' '    leave(plan, leaving);'
try sleep_leaves $plan "test_plan test_sleep_rules" \
    '    leave(plan, leaving);
    plan->preempt' '    plan->preempt'
try pause_clears $plan "test_plan test_instance" \
    'leave(plan, ask->clear_cache && ask->reset_external != KVP_NO);' ''
try coordinator_away_is_told server/connector/steps.c "test_instance" \
    '                           ? KVP_EXTERNAL_DONE
                           : KVP_EXTERNAL_PENDING;' '                           ? KVP_EXTERNAL_DONE
                           : KVP_EXTERNAL_DONE;'
try reset_joined_before_its_leaving_only server/connector/operation.c test_instance \
    '!(reset && op->leaving_begun)' 'true'

# ---- B05: a sleep of which a step failed has released nothing ----
for step in 'STOP, "pause", SCHEDULER' 'DRAIN, "drain", WORKERS' 'LEAVE, "leave", ALL' 'RESET_LOCAL, "reset_local", SCHEDULER' \
    'UNREGISTER, "unregister", WORKERS' 'OFFLOAD, "offload", WORKERS'; do
    try "failed_${step%%,*}_ends_the_sleep" server/connector/plan.h:$plan test_sleep_rules "X($step, false" "X($step, true"
done
try failed_sleep_says_what_is_so server/connector/operation.c "test_sleep_rules" \
    '"; the instance is now %s", state);' '"; %s", "");'

# ---- B06: nothing starts before the last tag ----
try resume_needs_every_tag $plan "test_plan test_sleep_rules" \
    '    if (!kvp_fsm_all_resident(fsm)) {
        refuse(plan, KVB_ERR_BAD_STATE,
               "memory is not' '    if (false) {
        refuse(plan, KVB_ERR_BAD_STATE,
               "memory is not'
try wake_runs_at_the_last_tag $plan "test_plan test_sleep_rules" \
    'missing == plan->nrestore && plan->lift != 0 && (fsm->stopped_by & ~plan->lift) == 0' 'plan->lift != 0'
try wake_lifts_at_the_last_tag $plan "test_plan test_sleep_rules" \
    'bool last = plan->nrestore > 0 && plan->nrestore == missing;' 'bool last = plan->nrestore > 0;'
try scheduling_is_no_tag_of_memory $plan "test_plan test_sleep_rules" \
    'if (last || (level0 && missing == 0)) {' 'if (last || scheduling) {'
try closed_until_the_last_tag server/connector/steps.c "test_sleep_rules" \
    'KVP_LINEAGE(instance, resident, resident, kvp_instance_random(instance));' \
    'KVP_LINEAGE(instance, resident, true, kvp_instance_random(instance));'
try resume_after_the_registering $plan "test_plan test_sleep_rules" \
    '        add(plan, KVP_STEP_REGISTER);
        add(plan, KVP_STEP_AWAKE);' '        add(plan, KVP_STEP_AWAKE);'

# ---- B10, and requests in flight: what was accepted ends, or runs after the wake ----
try engine_waits_for_loads engine/request.c "test_engine it_inflight" \
    '        if (wanted) {
            return false;' '        if (wanted && mode != KVPLANE_PAUSE_WAIT) {
            return false;'
try engine_keeps_after_loads engine/request.c "test_engine it_inflight" \
    'wanted = wanted && in_transfer(request) &&' 'wanted = false &&'
try engine_uses_nothing_that_failed engine/request.c test_engine \
    '            missed(request, result, 1);
            continue;' '            missed(request, result, 1);'
try counted_under_what_became_of_it $tasks test_link \
    '        if (*each == KVB_OK) {
            const struct' '        if (true) {
            const struct'
try engine_begins_nothing_while_paused engine/request.c "test_engine it_inflight" \
    'if (engine->paused || !resident(engine)) {' 'if (!resident(engine)) {'
try engine_aborts_what_waits engine/request.c "test_engine it_inflight" \
    '        n++;
        engine->nwaiting--;
        kve_request_abort(' '        n++;
        (void)('
try answered_when_closed $tasks test_link \
    '            if (status != KVB_OK) {
                finish(task, status);
            }' ''
try closed_to_what_comes_late $tasks test_link \
    '    if (!uncounted && !stay->open) {' '    if (false) {'

# ---- the gate: what cannot sleep does not start ----
gate=server/gate.c
params=server/http/params.c
try gate_rdma $gate test_gate '{"rdma", NULL,' '{"rdma", EXPORTS,'
try gate_tcp $gate test_gate '{"tcp", NULL,' '{"tcp", EXPORTS,'
try gate_nvlink $gate test_gate '{"nvlink", EXPORTS, NULL}' '{"nvlink", NULL, ""}'
try gate_unknown $gate test_gate '    return "kvplane does not know it";' '    return NULL;'
try gate_protocol $gate test_gate \
    "why = facts->protocol[0] == '\\0' ? NULL" "why = facts->protocol[0] != '#' ? NULL"
try gate_memory $gate test_gate '{"NVLINK", EXPORTS, NULL}' '{"NVLINK", NULL, ""}'
try gate_force_mnnvl $gate test_gate '    {"MC_FORCE_MNNVL", "Mooncake'"'"'s multi-node NVLink"},' ''
try gate_intranode_nvlink $gate test_gate '    {"MC_INTRANODE_NVLINK", "Mooncake'"'"'s NVLink within the host"},' ''
try gate_variables_whatever_their_value $gate test_gate '        if (value != NULL) {' \
    '        if (value != NULL && strcmp(value, "0") != 0) {'
try gate_only_with_sleep_mode server/config.c test_gate \
    'config->sleep_mode ? kvp_gate_check(&facts, error) : KVB_OK' 'kvp_gate_check(&facts, error)'
try gate_with_sleep_mode server/config.c test_gate \
    'config->sleep_mode ? kvp_gate_check(&facts, error) : KVB_OK' 'KVB_OK'
try gate_missing_file_is_an_error server/mooncake.c test_gate \
    '    if (status != KVB_OK) {
        return kvp_refuse(reader->error, "%s: %.*s", by,' '    if (false) {
        return kvp_refuse(reader->error, "%s: %.*s", by,'
try gate_loads_nothing $gate test_gate \
    'kvb_status_t kvp_gate_check(const struct kvp_gate_facts *facts, char *error)
{' 'void *dlopen(const char *, int);
kvb_status_t kvp_gate_check(const struct kvp_gate_facts *facts, char *error)
{
    (void)dlopen("libibverbs.so.1", 1);'
try gate_holds_at_the_routes server/control/control.c "test_control it_gate" \
    'if (control->config.never_sleeps && gives_memory_up(&ask)) {' 'if (false) {'

# ---- the other cases of the list of faults that others shipped (tests/README.md) ----
try b07_the_queue_has_a_limit server/connector/fsm.c "test_fsm" 'if (slot->waiting >= KVP_WAITING_MAX) {' 'if (false) {'
try b14_a_bad_boolean_is_refused $params test_params '    return "must be true or false";
}

static const char *read_text' '    return NULL;
}

static const char *read_text'
try b16_a_level_is_one_of_three $params test_params "text[0] > '0' + LEVEL_MAX" "text[0] > '9'"
try b21_label_values_are_escaped base/metrics.c test_metrics "if (c == '\"' || c == '\\\\' || c == '\\n') {" 'if (false) {'
try b22_a_space_is_its_tenants store/share/names.c "test_node test_share" \
    'names->spaces[*space_p].tenant = tenant;' 'names->spaces[*space_p].tenant = 0;'
try b25_a_ticket_is_looked_at_again store/core/core.c "test_core" \
    'return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK' 'return true ? KVB_OK'
try b30_a_key_is_whole_bytes $params "test_params" '    if (len == 0 || len % 2 != 0 ||' '    if (len == 0 ||'
try b43_alive_whatever_engines_do server/board.c test_board '    if (question == KVP_BOARD_LIVE) {' '    if (false) {'
try b43_ready_only_if_usable server/board.c test_board \
    'question == KVP_BOARD_READY && !view->ready' 'false'
try b48_a_node_that_fails_is_left_alone store/client/health.c test_client \
    'if (++health->in_row[call->op] < limits->failures && !silent) {' 'if (true) {'

finish parity
