# SPDX-License-Identifier: Apache-2.0
"""The table of mutants.py.

row(name, promise, rule, file, tests, old, new): the rule, in words; `old` is once in the file, and `new` in its place takes the
rule out; each of the tests, separated by commas, is asked until one fails. A header is followed by the sources that are compiled
with it, after a colon.
planted(name, case, kind, how, file, tool, old, new): a bug of the list of faults that others have shipped.
"""
from collections import namedtuple

Row = namedtuple("Row", "name promise rule file tests old new")
Planted = namedtuple("Planted", "name bug kind how file tests old new")
Planted.promise = property(lambda self: self.bug)
Planted.rule = property(lambda self: self.how)
ROWS, PLANTED = [], []


def row(*values):
    ROWS.append(Row(*values))


def planted(*values):
    PLANTED.append(Planted(*values))


# ---- lineages (design, section 4) ----
row("closed_while_updating", "P1", "closed while a weight change runs", "server/connector/lineage.c", "lineage_explorer update-track",
    "l->ack != KVP_ACK_LEFT && !l->update && l->resident && !l->echoed &&",
    "l->ack != KVP_ACK_LEFT && l->resident && !l->echoed &&")
row("closed_until_acknowledged", "P1", "closed until the leaving is acknowledged", "server/connector/lineage.c", "test_lineage",
    "return l->attached && l->ack != KVP_ACK_LEFT && !l->update",
    "return l->attached && !l->update")
row("closed_until_local_reset", "P1", "closed until the local cache was reset", "server/connector/lineage.c", "lineage_explorer update rollback",
    "(l->local_reset_done || l->tracks);",
    "true;")
row("closed_while_echo_unchecked", "P1", "closed while an echoed lineage is not yet compared", "server/connector/lineage.c", "lineage_explorer lease-reset-cd",
    r"""l->resident && !l->echoed &&
           (l->local""",
    r"""l->resident &&
           (l->local""")
row("token_of_the_stay_at_leave", "P1", "a new token at every leave", "server/connector/lineage.c", "lineage_explorer rollback rollback-track update",
    r"""l->token.id = kvb_id_draw(random);
    name_clear(l->joined_name);""",
    "name_clear(l->joined_name);")
row("token_of_the_stay_at_join", "P1", "a new token at every join", "server/connector/lineage.c", "test_lineage",
    r"""l->token.id = kvb_id_draw(random);
    l->last_lineage = lineage;""",
    r"""l->token.id = lineage.id;
    l->last_lineage = lineage;""")
row("living_daemon_wins", "P1", "a living daemon's lineage wins over an echo", "server/connector/lineage.c", "lineage_explorer reset-link",
    "} else if (!hello->living) {",
    "} else if (true) {")
row("resolve_void_after_leave", "P1", "a name asked before a leave is void after it", "server/connector/lineage.c", "lineage_explorer update-ce-fp",
    r"""l->resolve_ask = 0;
    l->fingerprint_ask = 0;
    l->check_ask = 0;""",
    r"""l->fingerprint_ask = 0;
    l->check_ask = 0;""")
row("fingerprint_void_after_leave", "P1", "a fingerprint asked before a leave is void after it", "server/connector/lineage.c", "lineage_explorer update-fp rollback",
    r"""l->resolve_ask = 0;
    l->fingerprint_ask = 0;
    l->check_ask = 0;""",
    r"""l->resolve_ask = 0;
    l->check_ask = 0;""")
row("fingerprint_only_resident", "P1", "a fingerprint is computed only with everything resident", "server/connector/lineage.c", "test_lineage",
    "l->coordinator && l->ack == KVP_ACKED && l->resident && !l->update &&",
    "l->coordinator && l->ack == KVP_ACKED && !l->update &&")
row("fingerprint_only_without_update", "P1", "a fingerprint is computed only without a weight change", "server/connector/lineage.c", "test_lineage",
    "l->coordinator && l->ack == KVP_ACKED && l->resident && !l->update &&",
    "l->coordinator && l->ack == KVP_ACKED && l->resident &&")
row("fingerprint_void_asleep", "P1", "a fingerprint asked is void when memory goes", "server/connector/lineage.c", "test_lineage",
    r"""if (!resident) {
        l->fingerprint_ask = 0;
    }""",
    "")
row("no_name_taken_to_sleep", "P1", "a name is not taken into a sleep", "server/connector/lineage.c", "lineage_explorer sleep optout",
    r"""} else if (!l->opted_out && (kvp_lineage_named(l) || l->name[0] != '\0')) {""",
    "} else if (false) {")
row("version_proven", "P1", "a version vouches only if it was seen to change", "server/connector/lineage.c", "test_lineage",
    "if (!l->proven) {",
    "if (false) {")
row("version_first_not_believed", "P1", "the first version proves nothing", "server/connector/lineage.c", "lineage_explorer const const-cd",
    r"""if (l->version[0] == '\0') {""",
    "if (false) {")
row("version_constant", "P1", "a version that does not change vouches for nothing", "server/connector/lineage.c", "lineage_explorer const-sleep const-cd",
    r"""if (l->changed) {
            l->unnamed = KVP_PRIVATE_SAME_VERSION;""",
    r"""if (false) {
            l->unnamed = KVP_PRIVATE_SAME_VERSION;""")
row("written_counts_as_change", "P1", "weights that were written count as a weight change", "server/connector/lineage.c", "test_lineage",
    r"""leave_for(l, KVP_LEAVE_WRITTEN, random, out);
    name_clear(l->last_name);""",
    "name_clear(l->last_name);")
row("written_is_a_change", "P1", "weights that were written are others than those of the version", "server/connector/lineage.c", "lineage_explorer const-sleep",
    r"""    l->changed = true;
    l->written_since_step = true;
    /* Also""",
    r"""    l->written_since_step = true;
    /* Also""")
row("told_voids_what_is_asked", "P1", "an answer on its way when a retirement is told is void", "server/connector/lineage.c", "lineage_explorer reset-two",
    r"""        l->resolve_ask = 0; /* the answer on its way may name what was just retired */
        l->want_join = true;""",
    "")
row("version_held", "P1", "a version given during a change is held until its end", "server/connector/lineage.c", "test_lineage",
    r"""if (l->held[0] == '\0' || l->update ||""",
    r"""if (l->held[0] == '\0' ||""")
row("cut_short_names_nothing", "P1", "a bracket cut short names nothing", "server/connector/lineage.c", "lineage_explorer cut",
    "if (!clean) {",
    "if (false) {")
row("hello_local_reset", "P1", "hello says whether the local cache was reset", "server/connector/lineage.c", "lineage_explorer update-cd",
    r"""l->token = hello->token;
    l->local_reset_done = hello->local_reset_done;""",
    r"""l->token = hello->token;
    l->local_reset_done = true;""")
row("hello_update_running", "P1", "hello says whether a weight change was running", "server/connector/lineage.c", "lineage_explorer update-cd update-cd-track",
    "l->update = hello->update;",
    "l->update = false;")
row("hello_checked", "P1", "an echoed lineage is compared with the coordinator's", "server/connector/lineage.c", "lineage_explorer live-tenant",
    r"""l->echoed = true;
        check(l, out);""",
    "")
row("hello_private_left", "P1", "an echoed private lineage is left", "server/connector/lineage.c", "test_lineage",
    "} else if (!kvp_lineage_named(l) || !l->coordinator ||",
    "} else if (!l->coordinator ||")
row("attach_without_echo_left", "P1", "an engine without echo has left", "server/connector/lineage.c", "lineage_explorer update-ce update-ce-fp",
    "leave_for(l, KVP_LEAVE_ATTACH, random, out);",
    "send(l, out);")
row("told_leaves", "P1", "a member that is told of a retirement leaves", "server/connector/lineage.c", "lineage_explorer reset",
    r"""leave_for(l, KVP_LEAVE_TOLD, random, out);
    }
    settle(l, out);""",
    r"""}
    settle(l, out);""")
row("told_answers_after_acknowledgement", "P1", "a member answers a retirement only after its engine has left", "server/connector/lineage.c", "test_lineage",
    r"""if (l->ack != KVP_ACK_LEFT || !l->attached) {
        for""",
    r"""{
        for""")
row("retirement_before_join", "P1", "a retirement is delivered before anything is joined", "server/connector/lineage.c", "test_lineage",
    "!l->reset_owned && l->nretired == 0 && !l->starved;",
    "!l->reset_owned && !l->starved;")
row("retirement_kept_by_engine", "P1", "the engine keeps a retirement that was not delivered", "server/connector/lineage.c", "lineage_explorer reset-part-cd",
    "msg_p->nretired = l->nretired;",
    "msg_p->nretired = 0;")
row("retirement_taken_back", "P1", "a new daemon takes the engine's retirements", "server/connector/lineage.c", "lineage_explorer reset-part-cd",
    "i < hello->nretired && l->coordinator",
    "i < 0")
row("retires_own_lineage", "P1", "a reset retires its lineage", "server/connector/lineage.c", "test_lineage",
    "retire_later(l, l->lineage);",
    "")
row("retires_last_name", "P1", "a reset retires the lineage of its last name", "server/connector/lineage.c", "lineage_explorer reset-pause reset-pause-part",
    r"""retire_later(l, l->last_lineage);
        l->retire_name = l->last_name[0] != '\0';""",
    "")
row("tenant_reset_leaves", "P1", "a tenant's reset makes each instance leave", "server/connector/lineage.c", "lineage_explorer tenant",
    "leave_for(l, KVP_LEAVE_TENANT, random, out);",
    "")
row("lost_leaves", "P1", "who lost its lease leaves", "server/connector/lineage.c", "lineage_explorer lease-reset lease-tenant",
    "leave_for(l, KVP_LEAVE_LOST, random, out);",
    "(void)random;")
row("lost_keeps_the_name", "P1", "who lost its lease keeps the name of its weights", "server/connector/lineage.c", "test_lineage",
    "[KVP_LEAVE_##name] = (keeps),",
    "[KVP_LEAVE_##name] = (keeps) && KVP_LEAVE_##name != KVP_LEAVE_LOST,")
row("lost_is_out_of_step", "P1", "who lost its lease is out of step", "server/connector/lineage.c", "test_lineage",
    "l->aligned = false; /* a reset of the tenant may pass unheard */",
    "")
row("starved_waits_for_a_report", "P1", "a refused reset waits until no blocks are held", "server/connector/lineage.c", "test_lineage",
    r"""!l->starved &&
        l->ack""",
    "l->ack")
row("join_only_awake", "P1", "a name is joined only awake", "server/connector/lineage.c", "test_lineage",
    r"""l->ack != KVP_ACK_LEFT && l->resident &&
           !l->update && !l->echoed && !l->reset_owned""",
    r"""l->ack != KVP_ACK_LEFT &&
           !l->update && !l->echoed && !l->reset_owned""")
row("reset_asked_by_itself", "P1", "the local reset is asked for until it succeeds", "server/connector/lineage.c", "lineage_explorer live-update",
    "if (may_reset(l) && l->reset_ask == 0) {",
    "if (false) {")
row("reset_keeps_the_name", "P1", "a reset keeps the name of the weights", "server/connector/lineage.c", "lineage_explorer live-reset",
    "[KVP_LEAVE_##name] = (keeps),",
    "[KVP_LEAVE_##name] = (keeps) && KVP_LEAVE_##name != KVP_LEAVE_RESET,")
row("compares_when_back", "P1", "back in touch, a binding is compared", "server/connector/lineage.c", "test_lineage",
    "if (back && kvp_lineage_named(l) && l->check_ask == 0 && !l->echoed) {",
    "if (false) {")
row("left_at_update_begin", "P1", "a weight change leaves at its begin", "server/connector/lineage.c", "lineage_explorer live-update",
    r"""leave_for(l, KVP_LEAVE_UPDATE_BEGINS, random, out);
        memset""",
    "memset")
row("left_at_update_end", "P1", "a weight change leaves at its end", "server/connector/lineage.c", "lineage_explorer update-track rollback-track",
    "leave_for(l, KVP_LEAVE_UPDATE_ENDS, random, out);",
    "")

# ---- regions, plans, tasks, the gate ----
row("region_recorded", "P3", "a region that was handed over is known, so that it can be given up", "server/link/regions.c", "test_link",
    r"""    slot->now = region;
    slot->generation""",
    "    slot->generation")
row("host_resident_kept_at_release", "P3", "what sleep does not touch stays registered", "server/link/regions.c", "test_link",
    r"""if (kvt_region_desc(region->memory)->host_resident ||
            !has_tag(tags, ntags, region->slot->tag)""",
    "if (!has_tag(tags, ntags, region->slot->tag)")
row("host_resident_not_awaited_at_restore", "P4", "a wake waits for no region that sleep did not touch", "server/link/regions.c", "test_link",
    "if (!slot->host_resident && has_tag(tags, ntags, slot->tag) && slot->now == NULL) {",
    "if (has_tag(tags, ntags, slot->tag) && (slot->now == NULL || slot->host_resident)) {")
row("only_the_tag_s_regions", "P3", "of the regions, those of the tag are given up", "server/link/regions.c", "test_link",
    r"""            !has_tag(tags, ntags, region->slot->tag) ||
            (state""",
    "            (state")
row("replaced_regions_too", "P3", "a region that was replaced and still drains is given up, too", "server/link/regions.c", "test_link",
    r"""state != KVT_REGION_REGISTERING &&
             state != KVT_REGION_DRAINING)""",
    "state != KVT_REGION_REGISTERING)")
row("length_registered", "P3", "the whole region is mapped", "transport/region.c", "test_region, test_transport_contract",
    "region->memory->map(region->fd, region->desc.fd_offset, region->desc.len, &region->map);",
    "region->memory->map(region->fd, region->desc.fd_offset, region->desc.len / 2, &region->map);")
row("length_unmapped", "P3", "the whole region is unmapped", "transport/region.c", "test_region, test_link",
    "region->memory->unmap(region->map, region->desc.len);",
    "region->memory->unmap(region->map, 1);")
row("length_checked", "P2", "a slice lies within its region", "server/link/regions.c", "test_link",
    "slice->offset > len || slice->len > len - slice->offset",
    "slice->offset > len")
row("only_what_is_handed_over_anew", "P3", "a restore registers only what is freshly handed over", "server/link/regions.c", "test_link",
    r"""slot->now == NULL) {
            KVB_LOG(WARN""",
    r"""false) {
            KVB_LOG(WARN""")
row("older_generations_change_nothing", "P3", "what arrives for an older generation changes nothing", "server/link/regions.c", "test_link",
    "if (msg->generation <= slot->generation) {",
    "if (false) {")
row("descriptor_goes_with_success", "P3", "a released region keeps no descriptor", "server/link/regions.c", "test_link",
    r"""        if (status == KVB_OK || op->undoes != KVB_OK) {
            drop(region);""",
    r"""        if (status == KVB_OK || op->undoes != KVB_OK) {
            (void)region;""")
row("sleep_again_is_nothing", "P4", "a sleep while asleep does nothing", "server/connector/plan.c", "test_plan, test_instance",
    "if (plan->nrelease == 0 && (!now->opted_out || opt_out)) {",
    "if (false) {")
row("a_later_sleep_leaves", "P1", "an opt-out is not for a later sleep that does not say it", "server/connector/plan.c", "test_plan",
    "if (plan->nrelease == 0 && (!now->opted_out || opt_out)) {",
    "if (plan->nrelease == 0) {")
row("sleep_never_brings_up", "P4", "a sleep never makes a tag less deeply asleep", "server/connector/plan.c", "test_plan, test_instance",
    "if (depth(fsm->tags[i].residency) < depth(target)) {",
    "if (depth(fsm->tags[i].residency) != depth(target)) {")
row("sleep_escalates", "P4", "level 2 after level 1 discards", "server/connector/plan.c", "test_plan, test_instance",
    "if (depth(fsm->tags[i].residency) < depth(target)) {",
    "if (depth(fsm->tags[i].residency) <= 0) {")
row("release_again_is_nothing", "P4", "a release of what is released does nothing", "server/connector/plan.c", "test_plan, test_instance",
    "if (!named || (plan->nrelease == 0 && (!now->opted_out || opt_out))) {",
    "if (!named) {")
row("wake_of_what_is_there_is_nothing", "P4", "a wake leaves alone what is resident", "server/connector/plan.c", "test_plan, test_instance",
    r"""        if (fsm->tags[i].residency == KVB_RESIDENT) {
            continue;""",
    r"""        if (false) {
            continue;""")
row("unregister_again_is_nothing", "P4", "unregistering twice does nothing the second time", "server/link/regions.c", "test_link",
    r"""            (state != KVT_REGION_REGISTERED && state != KVT_REGION_REGISTERING &&
             state != KVT_REGION_DRAINING)""",
    "            false")
row("state_released", "P3", "a region that is gone says so", "transport/region.c", "test_region, test_link",
    r"""    close_fd(region);
    set_state(region, KVT_REGION_UNREGISTERED);""",
    "    close_fd(region);")
row("state_registered", "P3", "a region that is registered says so", "transport/region.c", "test_region, test_link",
    r"""    region->regions->registered++;
    set_state(region, KVT_REGION_REGISTERED);""",
    "    region->regions->registered++;")
row("state_still_registered_after_a_timeout", "P3", "a region that could not be quiesced is still registered", "transport/region.c", "test_region, test_link",
    r"""    set_state(region, KVT_REGION_REGISTERED);
    finish_unregister(region, KVB_ERR_TIMEOUT);""",
    r"""    set_state(region, KVT_REGION_UNREGISTERED);
    finish_unregister(region, KVB_ERR_TIMEOUT);""")
row("state_of_each_rank", "P4", "what became of a tag is remembered", "server/connector/steps.c", "test_sleep_rules, test_instance",
    r"""                                                            : KVB_DISCARDED;
    }""",
    r"""                                                            : tag->residency;
    }""")
row("stopped_by_sleep", "P4", "who stopped the scheduler is remembered", "server/connector/operation.c", "test_instance, test_sleep_rules",
    r"""        fsm->stopped_by |= op->plan.stop;
        fsm->stopped_by &= ~op->plan.lift;""",
    "        fsm->stopped_by &= ~op->plan.lift;")
row("failed_unregister_registers_again", "P4", "an unregister that failed on one region brings back the others", "server/link/regions.c", "test_link",
    "register_again(region);",
    "drop(region);")
row("failed_unregister_admits_again", "P4", "an unregister that failed admits transfers again", "server/link/regions.c", "test_link",
    "        admit(rank, (const char(*)[KVB_NAME_MAX])op->tags, op->ntags, true);",
    "        ;")
row("failed_register_unregisters", "P4", "a registering that failed half way leaves nothing registered", "server/link/regions.c", "test_link",
    r"""if (status != KVB_OK && rank->connected) {
        rank->registering.active = false;""",
    r"""if (false) {
        rank->registering.active = false;""")
row("failed_register_in_one_transport", "P4", "a registering that one transport refused is undone in the others", "transport/region.c", "test_link",
    "            (void)tell_unregistered(region, link); /* who could not has said so in the log */",
    "            ;")
row("failed_map_unmaps", "P3", "a registering that failed leaves no mapping", "transport/region.c", "test_region, test_rdma_release",
    r"""    if (status != KVB_OK) {
        unmap(region);
        return status;""",
    r"""    if (status != KVB_OK) {
        return status;""")
row("undo_of_unregister", "P4", "what undoes an unregister is a restore and a register", "server/connector/plan.h:server/connector/plan.c", "test_plan, test_sleep_rules",
    'X(UNREGISTER, "unregister", WORKERS, false, false, KVP_STEP_RESTORE, KVP_STEP_REGISTER)',
    'X(UNREGISTER, "unregister", WORKERS, false, false, 0)')
row("undo_of_restore", "P4", "what undoes a restore gives the memory up again", "server/connector/plan.h:server/connector/plan.c", "test_plan, test_instance_failures",
    r"""X(RESTORE, "restore", WORKERS, false, false, KVP_STEP_UNREGISTER, KVP_STEP_OFFLOAD,            \
      KVP_STEP_RELEASE_BACK)""",
    'X(RESTORE, "restore", WORKERS, false, false, 0)')
row("undo_of_pause", "P4", "what undoes a pause lifts it", "server/connector/plan.h:server/connector/plan.c", "test_plan, test_sleep_rules",
    'X(STOP, "pause", SCHEDULER, false, false, KVP_STEP_UNSTOP)',
    'X(STOP, "pause", SCHEDULER, false, false, 0)')
row("undo_at_all", "P4", "a failed operation undoes what it did", "server/connector/operation.c", "test_sleep_rules",
    "        kvp_plan_undo(&op->plan, done, &op->before, &op->undo);",
    "        (void)done;")
row("forward_only_after_the_first_discard", "P4", "after the first discard there is no way back", "server/connector/operation.c", "test_instance, test_instance_failures",
    r"""    if (op->no_return) {
        kvp_op_say""",
    r"""    if (false) {
        kvp_op_say""")
row("two_phases_over_all_ranks", "P4", "no rank releases before every rank has unregistered", "server/connector/steps.c", "test_sleep_rules",
    r"""    case KVP_STEP_UNREGISTER:
        if (plan->nrelease == 0) {""",
    r"""    case KVP_STEP_UNREGISTER:
        if (true) {""")
row("drained_puts_queued", "P3", "drained means no put queued", "server/link/tasks.c", "test_link",
    "return rank->queues[KVP_TASK_PUT].nqueued + rank->queues[KVP_TASK_PUT].nrunning +",
    "return rank->queues[KVP_TASK_PUT].nrunning +")
row("drained_puts_running", "P3", "drained means no put running", "server/link/tasks.c", "test_link",
    "return rank->queues[KVP_TASK_PUT].nqueued + rank->queues[KVP_TASK_PUT].nrunning +",
    "return rank->queues[KVP_TASK_PUT].nqueued +")
row("drained_gets_queued", "P3", "drained means no get queued", "server/link/tasks.c", "test_link",
    "rank->queues[KVP_TASK_GET].nqueued + rank->queues[KVP_TASK_GET].nrunning ==",
    "rank->queues[KVP_TASK_GET].nrunning ==")
row("drained_gets_running", "P3", "drained means no get running", "server/link/tasks.c", "test_link",
    "rank->queues[KVP_TASK_GET].nqueued + rank->queues[KVP_TASK_GET].nrunning ==",
    "rank->queues[KVP_TASK_GET].nqueued ==")
row("aborted_puts_queued", "P5", "an abort ends the puts that wait", "server/link/tasks.c", "test_link",
    "        end_queued(rank, KVP_TASK_PUT, KVB_ERR_CANCELED);",
    "")
row("aborted_gets_queued", "P5", "an abort ends the gets that wait", "server/link/tasks.c", "test_link",
    "        end_queued(rank, KVP_TASK_GET, KVB_ERR_CANCELED);",
    "")
row("aborted_puts_running", "P5", "an abort stops the puts that run", "server/link/tasks.c", "test_link",
    "        stop_running(rank, KVP_TASK_PUT);",
    "")
row("aborted_gets_running", "P5", "an abort stops the gets that run", "server/link/tasks.c", "test_link",
    "        stop_running(rank, KVP_TASK_GET);",
    "")
row("wait_aborts_nothing", "P5", "a sleep that waits aborts no transfer", "server/connector/steps.c", "it_inflight:InFlight.test_puts_in_flight_are_waited_for_unless_the_sleep_aborts",
    "op->plan.mode == KVB_PAUSE_ABORT;",
    "true;")
row("abort_waits_for_nothing", "P5", "a sleep that aborts waits for no transfer", "server/connector/steps.c", "it_inflight:InFlight.test_puts_in_flight_are_waited_for_unless_the_sleep_aborts",
    "op->plan.mode == KVB_PAUSE_ABORT;",
    "false;")
row("drained_before_the_leaving", "P1", "queues are drained before the leaving", "server/connector/plan.c", "test_plan",
    r"""    if (stop && resident) {
        add(plan, KVP_STEP_STOP);
        add(plan, KVP_STEP_DRAIN);""",
    r"""    if (stop && resident) {
        add(plan, KVP_STEP_STOP);""")
row("drained_after_the_reset", "P3", "queues are drained before memory goes", "server/connector/plan.c", "test_plan",
    r"""    if (resident) {
        add(plan, KVP_STEP_DRAIN);""",
    "    if (resident) {")
row("region_drained", "P3", "a region with references is not deregistered", "transport/region.c", "test_region, test_link",
    "    } else if (region->refs == 0 || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {",
    "    } else {")
row("drain_has_a_bound", "P5", "a drain has a deadline", "server/link/tasks.c", "test_link",
    "    kvb_sched_timer_set(rank->sched, &rank->drain.bound, deadline_ns);",
    "    (void)deadline_ns;")
row("drain_not_done_is_told", "P5", "a drain that missed its deadline has failed", "server/link/tasks.c", "test_link",
    "end_drain(rank, KVB_ERR_TIMEOUT);",
    "end_drain(rank, KVB_OK);")
row("drain_s_bound_is_the_drain_s", "P5", "a drain has the bound of drains", "server/connector/operation.c", "test_instance, test_sleep_rules",
    r"""    op->before = instance->fsm;
    op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.drain_ms);""",
    r"""    op->before = instance->fsm;
    op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.transfer_ms);""")
row("pause_has_a_bound", "P5", "a pause has a deadline", "server/connector/steps.c", "test_sleep_rules",
    "KVB_LINK_PAUSE), &msg, op->drain_deadline_ns);",
    "KVB_LINK_PAUSE), &msg, KVB_NEVER);")
row("region_quiesced_at_its_bound", "P5", "a region that does not drain is quiesced at its bound", "transport/region.c", "test_region, test_link",
    r"""    if (!region->quiescing) {
        quiesce(region);""",
    r"""    if (!region->quiescing) {
        region->quiescing = true;""")
row("region_not_quiesced_is_told", "P3", "a quiesce that does not finish fails the operation", "transport/region.c", "test_region, test_link",
    "    finish_unregister(region, KVB_ERR_TIMEOUT);",
    "    finish_unregister(region, KVB_OK);")
row("time_in_the_queue_counts", "P5", "a transfer's bound counts its time in the queue", "server/link/tasks.c", "test_link",
    "if (status == KVB_OK && now_ns - task->since_ns > config->transfer_ms * KVB_NS_PER_MS) {",
    "if (false) {")
row("message_names_the_drain", "P5", "an engine that is not idle in time is told by that name", "server/connector/steps.c", "test_sleep_rules",
    "status == KVB_ERR_TIMEOUT && call->type == KVB_LINK_PAUSE",
    "status == KVB_ERR_TIMEOUT && false")
row("reset_leaves", "P1", "a reset leaves before it resets", "server/connector/plan.c", "test_plan, test_instance",
    r"""    leave(plan, true);
    add(plan, KVP_STEP_RESET_SOFT);""",
    "    add(plan, KVP_STEP_RESET_SOFT);")
row("reset_retires", "P1", "an external reset retires the lineage", "server/connector/plan.c", "test_plan, test_instance",
    "        add(plan, KVP_STEP_RETIRE);",
    "        ;")
row("reset_external_only_if_asked", "P1", "a reset is external only if asked", "server/connector/plan.c", "test_plan, test_instance",
    "if (ask->reset_external != KVP_YES) {",
    "if (false) {")
row("reset_retires_although_blocks_are_held", "P1", "an external reset retires although the local part was refused", "server/connector/steps.c", "test_instance",
    "        return KVP_LEAVE_RESET;",
    "        return KVP_LEAVE_PAUSE;")
row("reset_not_done_is_told", "P1", "a retirement that failed is told", "server/connector/operation.c", "test_instance",
    "        op->external = KVP_EXTERNAL_FAILED;",
    "        ;")
row("reset_refused_for_held_blocks_is_told", "P1", "a reset refused for held blocks is told", "server/connector/operation.c", "test_instance",
    r"""    if (op->status == KVB_OK) {
        op->status = op->step_status;
    }
    if (op->step_status == KVB_ERR_BUSY""",
    "    if (op->step_status == KVB_ERR_BUSY")
row("reset_preempts_only_if_asked", "P4", "a reset preempts only if asked", "server/connector/plan.c", "test_plan, test_instance",
    "plan->preempt = ask->reset_running_requests;",
    "plan->preempt = true;")
row("reset_of_a_sleep_preempts", "P1", "the reset of a sleep preempts what holds blocks", "server/connector/plan.c", "test_plan, test_instance",
    r"""    leave(plan, leaving);
    plan->preempt = true;""",
    "    leave(plan, leaving);")
row("sleep_leaves", "P1", "a sleep leaves the lineage", "server/connector/plan.c", "test_plan, test_sleep_rules",
    r"""    leave(plan, leaving);
    plan->preempt""",
    "    plan->preempt")
row("pause_clears", "P1", "a pause that clears leaves the lineage", "server/connector/plan.c", "test_plan, test_instance",
    "leave(plan, ask->clear_cache && ask->reset_external != KVP_NO);",
    "")
row("coordinator_away_is_told", "P1", "a reset with the coordinator away is not done, and says so", "server/connector/steps.c", "test_instance",
    r"""                           ? KVP_EXTERNAL_DONE
                           : KVP_EXTERNAL_PENDING;""",
    r"""                           ? KVP_EXTERNAL_DONE
                           : KVP_EXTERNAL_DONE;""")
row("reset_joined_before_its_leaving_only", "P1", "a reset is joined only before its leaving", "server/connector/operation.c", "test_instance",
    "!(reset && op->leaving_begun)",
    "true")
row("failed_STOP_ends_the_sleep", "P4", "a sleep whose pause failed releases nothing", "server/connector/plan.h:server/connector/plan.c", "test_sleep_rules",
    'X(STOP, "pause", SCHEDULER, false',
    'X(STOP, "pause", SCHEDULER, true')
row("failed_DRAIN_ends_the_sleep", "P4", "a sleep whose drain failed releases nothing", "server/connector/plan.h:server/connector/plan.c", "test_sleep_rules",
    'X(DRAIN, "drain", WORKERS, false',
    'X(DRAIN, "drain", WORKERS, true')
row("failed_LEAVE_ends_the_sleep", "P4", "a sleep whose leaving failed releases nothing", "server/connector/plan.h:server/connector/plan.c", "test_sleep_rules",
    'X(LEAVE, "leave", ALL, false',
    'X(LEAVE, "leave", ALL, true')
row("failed_RESET_LOCAL_ends_the_sleep", "P4", "a sleep whose local reset failed releases nothing", "server/connector/plan.h:server/connector/plan.c", "test_sleep_rules",
    'X(RESET_LOCAL, "reset_local", SCHEDULER, false',
    'X(RESET_LOCAL, "reset_local", SCHEDULER, true')
row("failed_UNREGISTER_ends_the_sleep", "P4", "a sleep whose unregister failed releases nothing", "server/connector/plan.h:server/connector/plan.c", "test_sleep_rules",
    'X(UNREGISTER, "unregister", WORKERS, false',
    'X(UNREGISTER, "unregister", WORKERS, true')
row("failed_OFFLOAD_ends_the_sleep", "P4", "a sleep whose offload failed discards nothing", "server/connector/plan.h:server/connector/plan.c", "test_sleep_rules",
    'X(OFFLOAD, "offload", WORKERS, false',
    'X(OFFLOAD, "offload", WORKERS, true')
row("failed_sleep_says_what_is_so", "P4", "a sleep that failed says what state the instance is in", "server/connector/operation.c", "test_sleep_rules",
    '"; the instance is now %s", state);',
    '"; %s", "");')
row("resume_needs_every_tag", "P3", "a resume with memory not resident is refused", "server/connector/plan.c", "test_plan, test_sleep_rules",
    r"""    if (!kvp_fsm_all_resident(fsm)) {
        refuse(plan, KVB_ERR_BAD_STATE,
               "memory is not""",
    r"""    if (false) {
        refuse(plan, KVB_ERR_BAD_STATE,
               "memory is not""")
row("wake_runs_at_the_last_tag", "P3", "a wake resumes only with the last tag", "server/connector/plan.c", "test_plan, test_sleep_rules",
    "missing == plan->nrestore && plan->lift != 0 && (fsm->stopped_by & ~plan->lift) == 0",
    "plan->lift != 0")
row("wake_lifts_at_the_last_tag", "P3", "a wake lifts the stops only with the last tag", "server/connector/plan.c", "test_plan, test_sleep_rules",
    "bool last = plan->nrestore > 0 && plan->nrestore == missing;",
    "bool last = plan->nrestore > 0;")
row("scheduling_is_no_tag_of_memory", "P3", 'the tag "scheduling" wakes no memory', "server/connector/plan.c", "test_plan, test_sleep_rules",
    "if (last || (level0 && missing == 0)) {",
    "if (last || scheduling) {")
row("closed_until_the_last_tag", "P1", "an instance is closed until its last tag is resident", "server/connector/steps.c", "test_sleep_rules",
    "KVP_LINEAGE(instance, resident, resident, kvp_instance_random(instance));",
    "KVP_LINEAGE(instance, resident, true, kvp_instance_random(instance));")
row("resume_after_the_registering", "P3", "nothing resumes before memory is registered", "server/connector/plan.c", "test_plan, test_sleep_rules",
    r"""        add(plan, KVP_STEP_REGISTER);
        add(plan, KVP_STEP_AWAKE);
    }
    if (ask->weight_version""",
    r"""        add(plan, KVP_STEP_AWAKE);
    }
    if (ask->weight_version""")
row("engine_waits_for_loads", "P3", "an engine waits for its loads before it is paused", "engine/request.c", "test_engine, it_inflight",
    r"""        if (wanted) {
            return false;""",
    r"""        if (wanted && mode != KVPLANE_PAUSE_WAIT) {
            return false;""")
row("engine_keeps_after_loads", "P3", "an engine freezes a request only after its load", "engine/request.c", "test_engine, it_inflight",
    "wanted = wanted && in_transfer(request) &&",
    "wanted = false &&")
row("engine_uses_nothing_that_failed", "P2", "an engine uses no block whose load failed", "engine/request.c", "test_engine",
    r"""            missed(request, result, 1);
            continue;""",
    "            missed(request, result, 1);")
row("counted_under_what_became_of_it", "P5", "a transfer is counted under what became of it", "server/link/tasks.c", "test_link",
    r"""        if (*each == KVB_OK) {
            const struct""",
    r"""        if (true) {
            const struct""")
row("engine_begins_nothing_while_paused", "P3", "a paused engine begins nothing", "engine/request.c", "test_engine, it_inflight",
    "if (engine->paused || !resident(engine)) {",
    "if (!resident(engine)) {")
row("engine_aborts_what_waits", "P5", "an abort ends what waits in the engine", "engine/request.c", "test_engine, it_inflight",
    r"""        n++;
        engine->nwaiting--;
        kve_request_abort(""",
    r"""        n++;
        (void)(""")
row("answered_when_closed", "P5", "a transfer asked of a closed instance is answered", "server/link/tasks.c", "test_link",
    r"""            if (status != KVB_OK) {
                finish(task, status);
                queued++;
            }""",
    "            queued += status != KVB_OK;")
row("closed_to_what_comes_late", "P1", "a closed instance takes no put", "server/link/tasks.c", "test_link",
    "    if (!uncounted && !stay->open) {",
    "    if (false) {")
row("gate_rdma", "P3", "rdma hands out no key to engine memory", "server/gate.c", "test_gate",
    '{"rdma", NULL,',
    '{"rdma", EXPORTS,')
row("gate_tcp", "P3", "tcp hands out no key to engine memory", "server/gate.c", "test_gate",
    '{"tcp", NULL,',
    '{"tcp", EXPORTS,')
row("gate_nvlink", "P3", "nvlink hands out keys: no sleep", "server/gate.c", "test_gate",
    '{"nvlink", EXPORTS, NULL}',
    '{"nvlink", NULL, ""}')
row("gate_unknown", "P3", "a transport that is not known cannot sleep", "server/gate.c", "test_gate",
    '    return "kvplane does not know it";',
    "    return NULL;")
row("gate_protocol", "P3", "the protocol that is not set is accepted", "server/gate.c", "test_gate",
    r"""why = facts->protocol[0] == '\0' ? NULL""",
    "why = facts->protocol[0] != '#' ? NULL")
row("gate_memory", "P3", "memory that others hold cannot sleep", "server/gate.c", "test_gate",
    '{"NVLINK", EXPORTS, NULL}',
    '{"NVLINK", NULL, ""}')
row("gate_force_mnnvl", "P3", "MC_FORCE_MNNVL forbids sleep", "server/gate.c", "test_gate",
    r"""    {"MC_FORCE_MNNVL", "Mooncake's multi-node NVLink"},""",
    "")
row("gate_intranode_nvlink", "P3", "MC_INTRANODE_NVLINK forbids sleep", "server/gate.c", "test_gate",
    r"""    {"MC_INTRANODE_NVLINK", "Mooncake's NVLink within the host"},""",
    "")
row("gate_variables_whatever_their_value", "P3", "the two variables forbid sleep whatever their value", "server/gate.c", "test_gate",
    "        if (value != NULL) {",
    '        if (value != NULL && strcmp(value, "0") != 0) {')
row("gate_only_with_sleep_mode", "P3", "without sleep mode nothing is asked", "server/config.c", "test_gate",
    "config->sleep_mode ? kvp_gate_check(&facts, error) : KVB_OK",
    "kvp_gate_check(&facts, error)")
row("gate_with_sleep_mode", "P3", "with sleep mode the gate is asked", "server/config.c", "test_gate",
    "config->sleep_mode ? kvp_gate_check(&facts, error) : KVB_OK",
    "KVB_OK")
row("gate_missing_file_is_an_error", "P3", "a Mooncake file that is missing is an error", "server/mooncake.c", "test_gate",
    r"""    if (status != KVB_OK) {
        return kvp_refuse(reader->error, "%s: %.*s", by,""",
    r"""    if (false) {
        return kvp_refuse(reader->error, "%s: %.*s", by,""")
row("gate_loads_nothing", "P3", "the gate loads no library", "server/gate.c", "test_gate",
    r"""kvb_status_t kvp_gate_check(const struct kvp_gate_facts *facts, char *error)
{""",
    r"""void *dlopen(const char *, int);
kvb_status_t kvp_gate_check(const struct kvp_gate_facts *facts, char *error)
{
    (void)dlopen("libibverbs.so.1", 1);""")
row("driven_connector_is_told", "P1", "what a driven server shares by its own connector is cleared where its lineage is left", "server/driver/vllm.c",
    "it_driver:OneServer.test_what_a_server_shares_by_its_own_connector_is_cleared_where_its_lineage_is_left",
    "return known->left && !known->no_connector;",
    "return false && known->left;")
row("driven_connector_that_fails_is_told_of", "P1", "a reset that such a connector has not done is none", "server/driver/vllm.c",
    "it_driver:OneServer.test_what_a_server_shares_by_its_own_connector_is_cleared_where_its_lineage_is_left",
    "} else if (call->engine->known.connector) {",
    "} else if (false) {")
row("driven_resume_is_waited_for", "P3", "a resume of a driven server that is late cannot meet the next sleep", "server/driver/calls.c", "test_driver",
    "call->moves = true; /* one that comes late would meet a sleep */",
    "")
row("driven_moves_do_not_meet", "P4", "what moves memory at a driven server is waited for, also when who asked has been told", "server/driver/calls.c",
    "test_driver",
    "bool keep = call->moves && call->web.impl != NULL;",
    "bool keep = false;")
row("driven_wake_keeps_a_pause", "P4", "a driven server that resumes by itself is paused again", "server/driver/vllm.c", "test_driver",
    "if (known->paused && !known->no_pause) {",
    "if (false) {")
row("driven_broken_is_not_done", "P4", "what broke off at a driven server is asked for, not taken for done", "server/driver/calls.c", "test_driver",
    "kvp_engine_call_end(call, KVB_ERR_TIMEOUT);\n            }\n        }\n    }\n}",
    "kvp_engine_call_end(call, KVB_OK);\n            }\n        }\n    }\n}")
row("driven_foreign_hands_are_seen", "P4", "what somebody else does to a driven server is seen", "server/driver/vllm.c", "test_driver",
    ".tells_state = true,",
    ".tells_state = false,")
row("driven_sglang_is_remembered", "P4", "what cannot be asked of a driven server is not forgotten with a connection", "server/driver/sglang.c", "test_driver",
    "if (call->learning && call->engine->anew) {",
    "if (call->learning) {")
row("driven_level_2_is_not_swallowed", "P4", "a driven server is not told to be deeper asleep than it is", "server/connector/plan.c", "test_driver, it_driver",
    "if (now->sleeps_once && discard &&",
    "if (false && discard &&")
row("driven_level_2_of_all", "P4", "a sleep of level 2 of all goes where it cannot be deepened", "server/control/fan.c", "it_driver",
    "first.operation = fan->sleeps_once ? KVP_OP_PAUSE : KVP_OP_SLEEP;",
    "first.operation = KVP_OP_SLEEP;")
row("vllm_derived_is_of_the_oldest_stay", "P1", "what a vLLM computes from blocks of an earlier stay is of that stay",
    "api/python/kvplane/vllm/scheduler.py", "it_vllm:Groups",
    "                    tracked.oldest = self._block_tokens.get(block, NO_TOKEN)",
    "                    pass")
row("vllm_blocks_remember_their_stay", "P1", "a block of vLLM's cache is of the stay of what it derives from, also for who uses it next",
    "api/python/kvplane/vllm/scheduler.py", "it_vllm:Groups",
    "self._block_tokens[block] = tracked.oldest or NO_TOKEN",
    "self._block_tokens[block] = tracked.token")
row("vllm_reset_is_acknowledged", "P1", "a reset of the vLLM connector is done when the daemon has left, too",
    "api/python/kvplane/vllm/scheduler.py", "it_vllm:Vllm.test_a_reset_that_the_daemon_does_not_acknowledge_is_not_one",
    "if over.wait(self._settings.reset_timeout_s) and results[0] in (link.Result.OK, link.Result.DISCONNECTED):",
    "if over.wait(self._settings.reset_timeout_s) or True:")
row("vllm_preempted_blocks_are_read_first", "P2", "blocks of a preempted request are not written while they are read",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Vllm.test_a_release_that_is_not_over_in_time_gives_nothing_up_and_can_be_tried_again",
    "if self._changed.wait_for(lambda: not mine & self._putting.keys(), TRANSFER_S):",
    "if True:")
row("vllm_sent_is_read", "P2", "vLLM keeps the blocks of a finished request until they are read",
    "api/python/kvplane/vllm/scheduler.py", "it_vllm",
    "        self._sending.add(req_id)\n        return True",
    "        return False")
row("vllm_failed_blocks_are_told", "P2", "blocks that were not loaded are told to vLLM",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Groups",
    "                if loading.failed:\n",
    "                if False:\n")
row("vllm_late_loads_are_dropped", "P2", "what a hung daemon delivers at last is not copied into blocks that are others' by then",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "            if self._is_over(loading):\n                self._free(slots)\n                return\n",
    "")
row("vllm_loads_end_once", "P2", "a load that has ended is not given up, nor the one that the same request has by then",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "        if self._is_over(loading):\n            return\n",
    "")
row("vllm_direct_loads_are_kept", "P2", "blocks that a hung daemon may still write are not given to others",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "        req_id, left = loading.load.req_id, tuple(loading.left)\n        if isinstance(self._memory, Staged):",
    "        req_id, left = loading.load.req_id, tuple(loading.left)\n        if True:")
row("vllm_finished_blocks_are_read_first", "P2", "blocks of a finished request are others' when they have been read",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Groups",
    "if req_id not in self._putting}",
    "}")
row("vllm_silence_is_of_the_daemon", "P5", "a load that waits for slots is not taken for one that a hung daemon has",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "max(loading.since, self._heard) < end]",
    "loading.since < end]")
row("vllm_copies_wait_for_the_gpu", "P2", "what was got is not copied into blocks that the GPU may still use",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "                if event is not None:\n                    event.synchronize()\n                for block, slot, result",
    "                for block, slot, result")
row("vllm_copies_out_are_whole", "P2", "what is copied out for a put is there before it is read",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "                if copied is not None:\n                    copied.synchronize()\n",
    "                pass\n")
row("vllm_release_waits_for_transfers", "P3", "a vLLM's cache is not unmapped while transfers run",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "        if not self._idle(end):",
    "        if False:")
row("vllm_release_waits_for_the_daemon", "P3", "a vLLM's cache is not unmapped before the daemon has let go of it",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "            if not done.wait(max(TRANSFER_S, end - time.monotonic())):",
    "            if False:")
row("vllm_loads_end", "P5", "a request whose load a hung daemon has is computed",
    "api/python/kvplane/vllm/worker.py", "it_vllm:Staging",
    "            for loading in late:\n                loading.late = True\n",
    "            late = []\n")
row("vllm_versions_vouch_until_a_reset", "P1", "the version that a vLLM started with names its weights until its first reset",
    "api/python/kvplane/vllm/pristine.py", "it_vllm:Parts",
    "return asking.connect_ex(_address(settings)) == 0",
    "return True")
row("gate_holds_at_the_routes", "P3", "without sleep mode no route gives memory up", "server/control/control.c", "test_control, it_gate",
    "if (control->config.never_sleeps && gives_memory_up(&ask)) {",
    "if (false) {")
row("b07_the_queue_has_a_limit", "P5", "the queue of operations has a limit", "server/connector/fsm.c", "test_fsm",
    "if (slot->waiting >= KVP_WAITING_MAX && ask->operation != KVP_OP_TAKE_BACK) {",
    "if (false) {")
row("b14_a_bad_boolean_is_refused", "P5", "a boolean that is none is refused", "server/http/params.c", "test_params",
    r"""    return "must be true or false";
}

static const char *read_text""",
    r"""    return NULL;
}

static const char *read_text""")
row("b16_a_level_is_one_of_three", "P5", "a level that is none is refused", "server/http/params.c", "test_params",
    "text[0] > '0' + LEVEL_MAX",
    "text[0] > '9'")
row("b21_label_values_are_escaped", "P7", "label values are escaped", "base/metrics.c", "test_metrics",
    r"""if (c == '"' || c == '\\' || c == '\n') {""",
    "if (false) {")
row("b22_a_space_is_its_tenants", "P7", "a name space belongs to its tenant", "store/share/names.c", "test_node, test_share",
    "names->spaces[*space_p].tenant = tenant;",
    "names->spaces[*space_p].tenant = 0;")
row("b25_a_ticket_is_looked_at_again", "P2", "a read succeeds only if its ticket was still held", "store/core/core.c", "test_core",
    "return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK",
    "return true ? KVB_OK")
row("b30_a_key_is_whole_bytes", "P5", "a key in hex is whole bytes", "server/http/params.c", "test_params",
    "    if (len == 0 || len % 2 != 0 ||",
    "    if (len == 0 ||")
row("b43_alive_whatever_engines_do", "P6", "the process is alive whatever engines do", "server/board.c", "test_board",
    "    if (question == KVP_BOARD_LIVE) {",
    "    if (false) {")
row("b43_ready_only_if_usable", "P6", "ready means usable", "server/board.c", "test_board",
    "question == KVP_BOARD_READY && !view->ready",
    "false")
row("b48_a_node_that_fails_is_left_alone", "P5", "one failure does not yet make a node unusable", "store/client/health.c", "test_client",
    "if (++health->in_row[call->op] < limits->failures && !silent) {",
    "if (true) {")

# ---- base ----
row("base_a_queue_has_a_limit", "P5", "a queue has a limit", "base/queue.c", "test_queue",
    "} else if (queue->len == queue->cap) {",
    "} else if (false) {")
row("base_a_closed_queue_takes_nothing", "P5", "a closed queue takes nothing", "base/queue.c", "test_queue",
    "    if (queue->closed) {",
    "    if (false) {")
row("base_the_earliest_deadline_first", "P5", "of several deadlines the earliest comes first", "base/sched.c", "test_sched",
    "if (sched->heap[parent]->deadline_ns <= timer->deadline_ns) {",
    "if (sched->heap[parent]->deadline_ns >= timer->deadline_ns) {")
row("base_a_head_is_checked", "P2", "a frame whose head was changed on the way is none", "base/frame.c", "test_frame",
    "        kvb_le_get(in + AT_CHECK, 4) != XXH32(in, AT_CHECK, 0) ||\n",
    "")
row("base_nothing_is_read_beyond_the_end", "P5", "nothing is read beyond the end of a message", "base/wire.c", "test_wire",
    "    if (len > (size_t)(reader->end - reader->at)) {",
    "    if (false) {")
row("base_no_tag_twice", "P4", "no tag is named twice in one message", "base/link.c", "test_link_codec",
    "    require(in, strcmp(tag, earlier) != 0);",
    "    (void)tag, (void)earlier, (void)in;")

# ---- store/core: what is found, kept, given back and counted ----
row("core_spaces_are_apart", "P7", "who looks in one space finds nothing of another", "store/core/lineage.c", "test_core",
    "if (scope->space == where->space && kvb_lineage_equal(scope->lineage, where->lineage) &&",
    "if (kvb_lineage_equal(scope->lineage, where->lineage) &&")
row("core_lineages_are_compared", "P1", "a lineage is compared whole, not by its hash", "store/core/lineage.c", "test_core, test_core_collisions",
    "if (scope->space == where->space && kvb_lineage_equal(scope->lineage, where->lineage) &&",
    "if (scope->space == where->space &&")
row("core_what_is_retired_is_out_of_sight", "P1", "what lies under a retired lineage is not found", "store/core/lineage.c", "test_core",
    "        scope->retired = true;\n",
    "")
row("core_what_is_cleared_is_out_of_sight", "P1", "a tenant's reset takes all that it has out of sight", "store/core/lineage.c", "test_core",
    "    t->epoch++;\n",
    "")
row("core_a_retired_lineage_takes_no_put", "P1", "a retired lineage takes no put", "store/core/core.c", "test_core",
    "    if (kvs_lineage_retired(core, where->lineage)) {\n        return KVB_ERR_FENCED;",
    "    if (false) {\n        return KVB_ERR_FENCED;")
row("core_what_was_cleared_meanwhile_is_not_committed", "P1", "what was cleared between reserve and commit is fenced", "store/core/core.c", "test_core",
    "kvb_status_t status = scope_cleared(core, scope_at(core, object->scope))",
    "kvb_status_t status = false")
row("core_the_first_commit_wins", "P2", "committing an existing key keeps the first", "store/core/core.c", "test_core",
    "        if (other->group == object->group && other->part == object->part) {",
    "        if (false) {")
row("core_keys_are_compared", "P2", "a key is compared whole, not by its hash", "store/core/object.c", "test_core_collisions",
    "        if (kvs_object_is(object_at(core, handle), scope, key)) {",
    "        if (object_at(core, handle)->scope == scope && object_at(core, handle)->group == key->group &&\n            object_at(core, handle)->part == key->part) {")
row("core_an_attempt_is_its_session_s", "P2", "tickets and attempts are of one session", "store/core/lease.c", "test_core",
    "return session_at(core, lease->owner)->id == session ? handle : 0;",
    "return session == 0 ? 0 : handle;")
row("core_an_attempt_is_of_this_life", "P2", "tickets and attempts of another incarnation are worth nothing", "store/core/lease.c", "test_core",
    "    if (incarnation != core->incarnation) {",
    "    if (false) {")
row("core_a_ticket_keeps_the_space", "P2", "what has a ticket is not evicted", "store/core/core.c", "test_core, test_core_model",
    "    kvs_object_relock(core, handle);\n    kvs_hold_give(core, handle, holder);",
    "    kvs_hold_give(core, handle, holder);")
row("core_what_is_read_goes_after_its_readers", "P2", "removed under a reader, the space goes when the reader has", "store/core/core.c", "test_core",
    "    if (object->leases != 0) {\n        kvs_object_doom(core, handle);",
    "    if (false) {\n        kvs_object_doom(core, handle);")
row("core_quarantined_until_the_writer_is_stopped", "P2", "space of a late attempt is not used before its writer is stopped", "store/core/lease.c", "test_core",
    "    case LEASE_ATTEMPT:\n        kvs_attempt_quarantine(core, handle);\n        break;",
    "    case LEASE_ATTEMPT: {\n        uint32_t object = lease_at(core, handle)->object;\n        kvs_lease_drop(core, handle);\n        kvs_object_free(core, object);\n        break;\n    }")
row("core_late_commits_are_refused", "P2", "an attempt that is late is not committed", "store/core/core.c", "test_core",
    "    if (lease_at(core, lease)->deadline_ns <= now_ns) {",
    "    if (false) {")
row("core_locked_ones_are_not_victims", "P2", "what somebody reads or writes is no victim", "store/core/evict.c", "test_core, test_core_evict",
    "        if (object->flags & OBJECT_LOCKED) {\n            kvs_queue_remove(core, handle);\n            continue;",
    "        if (false) {\n            kvs_queue_remove(core, handle);\n            continue;")
row("core_a_quota_evicts_its_tenant_s", "P7", "over quota only that tenant's objects go", "store/core/evict.c", "test_core, test_core_evict",
    "    uint32_t victim = next_victim(core, need->tenant + 1, 0, effort);",
    "    uint32_t victim = next_victim(core, core->queued[0] != 0 ? core->queued[0] : need->tenant + 1, 0, effort);")
row("core_a_quota_holds", "P7", "over quota a put has to make room first", "store/core/evict.c", "test_core, test_core_evict",
    "    return need->plan->bytes > t->quota || t->used_bytes > t->quota - need->plan->bytes;",
    "    return need->plan->bytes > t->quota;")
row("core_holds_have_a_limit", "P5", "an instance holds so many bytes and no more", "store/core/lease.c", "test_core",
    "    if (plan.bytes > core->hold_bytes_max - holder->bytes ||\n",
    "    if (\n")
row("core_holds_end_at_their_bound", "P5", "leases end at their deadlines", "store/core/lease.c", "test_core",
    "    while (core->ndue > 0 && due_deadline(core, 0) <= now_ns) {",
    "    while (core->ndue > 0 && due_deadline(core, 0) <= now_ns / 2) {")
row("core_a_put_has_a_bound_of_work", "P5", "a put evicts so much at once and no more", "store/core/evict.c", "test_core, test_core_evict, test_core_space",
    "    while (!roomy(core, &need)) {\n        if (effort.work == 0) {",
    "    while (!roomy(core, &need)) {\n        if (false) {")
row("b23_a_dead_writer_s_space_comes_back", "P2", "space of a writer that is stopped comes back", "store/core/lease.c", "test_core",
    "        kvs_object_stop(core, object);\n",
    "        (void)object;\n")
row("b27_what_is_cleared_is_counted_once", "P2", "used bytes equal what is live, reserved and quarantined", "store/core/lineage.c", "test_core, test_core_model",
    "    core->stats.live_bytes -= bytes;\n    core->stats.value_bytes",
    "    core->stats.live_bytes = 0;\n    core->stats.value_bytes")
row("b29_a_put_that_cannot_be_helped_evicts_nothing", "P7", "a put that no eviction could satisfy evicts nothing", "store/core/evict.c", "test_core, test_core_evict",
    "    if (!kvs_space_could_fit(&core->space, plan) ||\n",
    "    if (kvs_space_could_fit(&core->space, plan) == 2 ||\n")

# ---- store/node, store/service: the life of a put and a get ----
row("node_bytes_are_checked", "P2", "a get whose bytes do not match their checksum fails", "store/node/op.c", "test_node, test_node_steps",
    "op->transfer.checksum != op->found.checksum &&",
    "false &&")
row("node_a_ticket_is_looked_at_again", "P2", "a get succeeds only if its ticket was still held", "store/node/op.c", "test_node, test_node_steps",
    "    kvb_status_t status = get_release(op);\n    if (status == KVB_OK && kvt_slices_gone",
    "    (void)get_release(op);\n    kvb_status_t status = KVB_OK;\n    if (status == KVB_OK && kvt_slices_gone")
row("node_a_failed_put_gives_its_space_back", "P2", "a put that failed leaves no space taken", "store/node/op.c", "test_node, test_node_steps",
    "kvs_core_revoke(op->shard->core, now(op), op->attempt, KVS_LOCAL_SESSION, true);",
    "kvs_core_revoke(op->shard->core, now(op), op->attempt, KVS_LOCAL_SESSION, false);")
row("node_a_put_that_is_stopped_is_not_committed", "P1", "a put that was stopped is not committed", "store/node/op.c", "test_node, test_node_steps",
    "    if (op->stopped != KVB_OK) {\n        put_failed(op, op->stopped);",
    "    if (false) {\n        put_failed(op, op->stopped);")
row("node_a_get_has_its_length", "P2", "a get of another length than was put fails", "store/node/op.c", "test_node",
    "    status = op->found.len == op->len ? copy_extents(op) : KVB_ERR_TOO_LARGE;",
    "    status = copy_extents(op);")
row("service_the_last_word_is_the_ticket_s", "P2", "a node says ok to a get only if the ticket was still held", "store/service/op.c", "test_service, test_node_remote",
    "    kvb_status_t status = release(op);\n    end(op, status, op->found.len);\n    return status;",
    "    kvb_status_t status = release(op);\n    end(op, status, op->found.len);\n    return KVB_OK;")
row("service_only_what_came_whole_is_committed", "P2", "a put that did not come whole is not committed", "store/service/op.c", "test_service, test_node_remote",
    "    if (status != KVB_OK) {\n        put_failed(op, status);\n        return;\n    }\n    op->checksum = checksum;",
    "    op->checksum = checksum;")
row("service_a_put_has_a_bound", "P5", "a put whose body does not come ends at its bound", "store/service/op.c", "test_service",
    "        kvb_sched_timer_set(service->sched, &op->over, put.deadline_ns);\n",
    "")
row("b23_what_a_lost_connection_had_reserved_comes_back", "P2", "space reserved over a connection that is lost comes back", "store/service/op.c", "test_service",
    "    } else if (op->reserved) {\n        revoke(op);",
    "    } else if (op->reserved) {\n        op->reserved = false;")
row("b45_space_is_reclaimed_in_small_steps", "P6", "cleared space is reclaimed in small steps, others between them", "store/share/share.c", "test_share, test_service, test_node",
    "kvs_core_reclaim(shard->core, now_ns, RECLAIM_STEP);",
    "kvs_core_reclaim(shard->core, now_ns, UINT32_MAX);")

# ---- store/coordinator ----
row("b31_names_are_of_their_layout", "P1", "a name is of one layout", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    return strcmp(a->tenant, b->tenant) == 0 && strcmp(a->layout, b->layout) == 0;",
    "    return strcmp(a->tenant, b->tenant) == 0;")
row("coordinator_names_are_of_their_tenant", "P7", "a name is of one tenant", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    return strcmp(a->tenant, b->tenant) == 0 && strcmp(a->layout, b->layout) == 0;",
    "    return strcmp(a->layout, b->layout) == 0;")
row("coordinator_a_retired_lineage_has_no_name", "P1", "a retirement unbinds the name", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    for (uint32_t i = 0; i < nall; i++) {\n        unbind_lineage(embedded, all[i]);\n    }\n",
    "")
row("coordinator_retires_the_name_s_lineage", "P1", "a retirement by name retires what the name stands for", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    if (name != NULL) {\n        all[nall++] = name->lineage;\n    }\n",
    "")
row("coordinator_compares_bindings", "P1", "a binding is compared by its lineage", "store/coordinator/embedded.c", "test_coordinator_contract",
    "request->bound = name != NULL && kvb_lineage_equal(name->lineage, lineage);",
    "request->bound = name != NULL;")
row("coordinator_a_reset_is_its_tenant_s", "P7", "a tenant's reset is told to that tenant's instances alone", "store/coordinator/embedded.c", "test_coordinator_contract",
    "        if (strcmp(member->space.tenant, tenant) != 0 || member == asker) {",
    "        if (member == asker) {")
row("coordinator_a_step_missed_is_not_joined", "P1", "who missed a step does not join it late", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    if (step == 0 || step != lockstep->step) {",
    "    if (step == 0) {")
row("coordinator_a_step_is_of_its_reset", "P1", "who took no part in the last reset joins no step", "store/coordinator/embedded.c", "test_coordinator_contract",
    "            member->epoch = member == asker ? epoch : 0;",
    "            member->epoch = epoch;")
row("coordinator_waits_for_the_leaving", "P1", "a retirement is answered when every member has left", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    tell->heard = true;\n",
    "    tell->heard = true;\n    if (tell->group != NULL) {\n        settle_tell(tell);\n    }\n    if (true) {\n        if (whole_tenant) {\n            ops->told_tenant(ctx, id);\n        } else {\n            ops->told(ctx, lineage, id);\n        }\n        return;\n    }\n")
row("coordinator_a_name_in_use_is_not_forgotten", "P1", "a name that is used again is not forgotten", "store/coordinator/embedded.c", "test_coordinator_contract",
    "    kvb_sched_timer_clear(name->embedded->sched, &name->forget);\n    member->name = name;",
    "    member->name = name;")
row("a_lease_counts_from_the_last_attempt", "P5", "a lease counts from when it was asked for last", "store/coordinator/etcd_http.c", "test_etcd_answers/etcd_answers/a_lease_counts_*",
    "    call->asked_ns = now_ns;",
    "    call->asked_ns = call->impl.attempts > 1 ? call->asked_ns : now_ns;")
row("a_lease_counts_from_the_question", "P3", "a lease counts from when it was asked for, not from when the answer came", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_lease_does_not_*",
    "            lease_lives(etcd, call->asked_ns, ttl);",
    "            lease_lives(etcd, now(etcd), ttl);")
row("a_late_keepalive_is_followed_at_once", "P5", "a keep-alive that took long is followed by the next at once", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_keepalive_that_took_*",
    "    kvb_sched_timer_set(etcd->sched, &etcd->beat_timer, asked_ns + ttl_ns / BEATS_IN_LEASE);",
    "    after_ms(etcd, &etcd->beat_timer, etcd->lease_ttl_ms / BEATS_IN_LEASE);")
row("a_lease_is_kept_alive_when_etcd_is_back", "P5", "a lease that has outlived an outage is kept alive at once", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_lease_that_has_*",
    "    keep_alive(etcd); /* what is left",
    "    /* what is left")
row("etcd_a_lease_ends_here_first", "P1", "a lease has ended here before it ends at etcd", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_lease_does_not_*",
    "&etcd->lease_timer, asked_ns + ttl_ns / 5 * 4);",
    "&etcd->lease_timer, asked_ns + ttl_ns);")
row("etcd_a_lost_lease_is_told_before_anything_else", "P1", "members hear of a lost lease before anything that they had begun", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_process_stopped_*",
    "    while (tell_one_lost(etcd)) {",
    "    while (false && tell_one_lost(etcd)) {")
row("etcd_an_answer_of_a_lost_lease_binds_nothing", "P1", "what was answered under a lease that is lost binds nothing", "store/coordinator/etcd_op.c", "test_etcd_answers/etcd_answers/an_answer_under_*",
    "    if (status == KVB_OK && op->type->leased && op->lease != etcd->lease) {",
    "    if (false && op->type->leased) {")
row("etcd_an_answer_on_its_way_binds_nothing", "P1", "an answer that is on its way when the lease ends binds nothing", "store/coordinator/etcd_member.c", "test_etcd_answers/etcd_answers/an_answer_that_binds_*",
    "        if (request->impl.binds && request->impl.status == KVB_OK) {",
    "        if (false && request->impl.binds) {")
row("etcd_an_overtaken_answer_is_asked_anew", "P1", "an answer that the watch has overtaken is asked anew", "store/coordinator/etcd_member.c", "test_etcd_answers/etcd_answers/an_answer_that_the_watch_*",
    "    if (outdated(op, answer->rev, lineage)) {",
    "    if (false && outdated(op, answer->rev, lineage)) {")
row("etcd_a_lineage_is_bound_once", "P1", "a lineage that was bound is never bound again", "store/coordinator/etcd_member.c", "test_etcd/etcd/a_lineage_that_was_*",
    "    drawn_key(op, key);\n    kvs_txn_when(txn, kvs_wire_if_absent(key));\n",
    "    drawn_key(op, key);\n")
row("etcd_history_that_went_back_is_noticed", "P1", "an etcd whose history went back is joined anew", "store/coordinator/etcd_op.c", "test_etcd_answers/etcd_answers/*history*",
    "    bool rewound = sound && parsed.rev < op->seen_rev;",
    "    bool rewound = sound && parsed.rev == 0;")
row("etcd_a_ping_notices_that_history_went_back", "P1", "a ping notices it where nobody asks", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_ping_*",
    "        if (parsed.rev < etcd->ping_rev) {",
    "        if (parsed.rev == 0) {")
row("etcd_a_member_is_known_before_it_asks", "P1", "a member's record comes before all that it asks", "store/coordinator/etcd_op.c", "test_etcd/etcd/*, test_etcd_answers",
    "    if (member != NULL && member->lease != etcd->lease && !member->closed) {",
    "    if (member != NULL && false) {")
row("etcd_what_was_missed_is_told", "P1", "what a member missed while its record was on its way, it is told", "store/coordinator/etcd_member.c", "test_etcd_answers/etcd_answers/a_member_is_told_*",
    "        kvs_retire_catch_up(member);\n",
    "        (void)0;\n")
row("etcd_a_retirement_waits_for_the_mirror", "P1", "who has left is not judged by what was before", "store/coordinator/etcd_retire.c", "test_etcd_answers/etcd_answers/a_retirement_waits_*",
    "    if (op->etcd->mirror.rev < op->retired_rev) {",
    "    if (op->etcd->mirror.rev == UINT64_MAX) {")
row("etcd_names_are_as_they_were_read", "P1", "what a retirement unbinds is computed from what is there", "store/coordinator/etcd_retire.c", "test_etcd",
    "    kvs_txn_when(txn, kvs_wire_if_prefix_older(\n                          kvs_etcd_key(op->etcd, KVS_KEY_NAME, op->path, NULL, key), rev));\n",
    "")
row("etcd_a_silent_watch_is_replaced", "P5", "a watch that has gone silent is noticed", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_watch_*",
    "            after_ms(etcd, &etcd->ping_timer, etcd->request_ms);",
    "            (void)0;")
row("etcd_half_a_revision_is_heard_again", "P1", "a revision of which half was heard is heard again", "store/coordinator/etcd_session.c", "test_etcd_answers/etcd_answers/a_revision_of_*",
    "etcd->heard_rev > etcd->mirror.rev ? etcd->heard_rev - 1 : etcd->mirror.rev;",
    "etcd->heard_rev;")
row("etcd_what_is_gone_in_a_snapshot_is_gone", "P1", "what is not in a new snapshot has gone", "store/coordinator/etcd_session.c", "test_etcd/etcd/what_was_compacted_*",
    "            if (entry->mark != etcd->mark) {",
    "            if (entry->mark > etcd->mark) {")
row("etcd_a_step_missed_is_not_joined", "P1", "who missed a step does not join it late", "store/coordinator/etcd_member.c", "test_coordinator_contract",
    "    op->fenced = op->step == 0 || op->step != record.step;",
    "    op->fenced = op->step == 0;")
row("etcd_a_step_is_of_its_reset", "P1", "who took no part in the last reset joins no step", "store/coordinator/etcd_member.c", "test_coordinator_contract, test_etcd_answers/etcd_answers/a_step_*",
    "    if (op->number != op->member->epoch) {",
    "    if (op->number == 0) {")
row("etcd_is_told_of_its_own_space", "P7", "a retirement is told to those of its space alone", "store/coordinator/etcd_retire.c", "test_coordinator_contract",
    "strcmp(record->asker, member->id) == 0 ||\n        strncmp(member->path, record->path, strlen(record->path)) != 0) {",
    "strcmp(record->asker, member->id) == 0) {")

# ---- transport/tcp ----
row("transport_memory_that_went_meanwhile", "P3", "a transfer whose memory was given up meanwhile fails", "transport/transport.c", "test_region, test_transport_contract, test_link",
    "    if (status == KVB_OK && kvt_slices_gone(transfer->slices, transfer->nslices)) {",
    "    if (false) {")
row("transport_keeps_its_regions", "P3", "a transfer holds its regions until it ends", "transport/transport.c", "test_region, test_transport_contract, test_link",
    "    kvt_slices_get(transfer->slices, transfer->nslices);\n",
    "")
row("tcp_bodies_are_checked", "P2", "a body that does not match its checksum is refused", "transport/tcp/lane.c", "test_tcp_frames, test_tcp",
    "    if (status == KVB_OK && in->hashed && checksum != in->digest &&\n        !kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {",
    "    if (false) {")
row("tcp_questions_are_checked", "P2", "a question that was changed on the way is none", "transport/tcp/lane.c", "test_tcp_frames",
    "    if (!tcp_text_intact(data, head.text_len)) {",
    "    if (false) {")
row("tcp_a_verdict_is_heard", "P2", "a body that its sender abandoned is not taken", "transport/tcp/lane.c", "test_tcp_frames, test_tcp",
    "    in->mark_ns = 0;\n    if (status == KVB_OK) {\n        status = in->status;\n    }",
    "    in->mark_ns = 0;\n    status = in->status;")
row("tcp_ok_is_for_all_bytes", "P2", "ok to a put is said only to all of its bytes", "transport/tcp/peer.c", "test_tcp_frames",
    "           (head->status != KVB_OK || lane->sending != ask);",
    "           (head->status != KVB_OK || true);")
row("tcp_answers_are_of_their_question", "P2", "a late answer is nobody else's", "transport/tcp/peer.c", "test_tcp_frames, test_tcp",
    "ask->state == ASK_BEGUN && ask->seq == frame->seq && ask->type == frame->type &&",
    "ask->state == ASK_BEGUN && ask->type == frame->type &&")
row("tcp_a_transfer_has_a_bound", "P5", "a transfer ends at its deadline", "transport/tcp/peer.c", "test_tcp, test_tcp_faults",
    "    kvb_sched_timer_set(transport->sched, &ask->deadline, transfer->deadline_ns);\n",
    "")
row("tcp_canceled_bytes_go_nowhere", "P3", "the rest of a canceled get is not written", "transport/tcp/peer.c", "test_tcp, test_transport_contract",
    "    if (lane->receiving == ask) {\n        lane_give_up_in(&lane->lane);\n",
    "    if (lane->receiving == ask) {\n")
row("tcp_canceled_bytes_are_not_read", "P3", "the rest of a canceled put is not read", "transport/tcp/peer.c", "test_tcp, test_transport_contract",
    "    if (lane->sending == ask) {\n        lane_give_up_out(&lane->lane, KVB_ERR_CANCELED);\n        peer->node",
    "    if (lane->sending == ask) {\n        peer->node")
row("tcp_in_flight_is_bounded", "P5", "so many bytes are in flight and no more", "transport/tcp/peer.c", "test_tcp, test_tcp_faults",
    "    if (link == NULL || (peer->bytes > 0 && body_len > room)) {",
    "    if (link == NULL) {")
row("tcp_another_life_is_another_node", "P2", "connections to a node's former life are given up", "transport/tcp/peer.c", "test_tcp_handshake, test_tcp, test_tcp_faults",
    "    if (peer->node.admitted > 0 && identity.incarnation != peer->node.hello.incarnation) {",
    "    if (false) {")
row("tcp_nothing_before_the_handshake", "P7", "who has not proved the secret is asked nothing", "transport/tcp/server.c", "test_tcp_handshake",
    "        kvt_proof_check(&kvt_tcp_protocol, &config->common, &lane->guest.shake, proof);",
    "        KVB_OK;\n    (void)proof;")
row("b32_lengths_fit_their_frame", "P2", "the lengths in a head fit its frame", "transport/tcp/wire.c", "test_tcp_frames",
    " || frame->len != payload_len(head.text_len, head.body_len) ||",
    " ||")
row("b34_a_lost_connection_ends_its_transfers", "P5", "what is in flight ends with its connection", "transport/tcp/peer.c", "test_tcp_faults, test_tcp",
    "    kvb_list_each(&lane->begun, link)\n    {\n        end(kvb_container_of(link, struct ask, link), KVB_ERR_DISCONNECTED);\n    }\n",
    "")
row("b34_silence_ends_a_connection", "P5", "a peer that says nothing for so long is lost", "transport/tcp/lane.c", "test_tcp_faults, test_tcp",
    "        (now_ns >= lane->in.heard_ns + ms(common->silence_ms) ||\n",
    "        (now_ns >= lane->in.heard_ns + 1000 * ms(common->silence_ms) ||\n")
row("b39_idle_connections_go", "P5", "a connection that is idle for so long is closed", "transport/tcp/peer.c", "test_tcp, test_tcp_faults",
    "            now_ns >= lane->used_ns + idle_ns) {",
    "            now_ns >= lane->used_ns + 1000 * idle_ns) {")
row("b39_a_shortage_of_ports_is_ours", "P5", "a shortage of local ports is not taken for a dead peer", "transport/tcp/net_kernel.c", "test_tcp_faults, test_net",
    "    case EADDRNOTAVAIL: /* no local port is left: ours, not the peer's fault */\n",
    "")
row("b41_a_transfer_ends_once", "P5", "the end of a transfer is told once", "transport/tcp/peer.c", "test_tcp_faults, test_tcp",
    "    struct peer *peer = ask->peer;\n    if (ask->over) {\n        return;\n    }\n    ask->over = true;",
    "    struct peer *peer = ask->peer;\n    ask->over = true;")
row("b42_a_node_that_is_away_is_asked_again", "P5", "a node that was away is found again by itself", "transport/tcp/peer.c", "test_tcp_faults, test_tcp_handshake",
    "    kvb_sched_timer_set(peer->base.sched, &peer->retry, peer->retry_ns);\n    kvb_sched_post",
    "    kvb_sched_post")

# ---- transport/rdma: registered, granted, moved, taken back ----
row("rdma_unregister_deregisters", "P3", "an unregistered region has no registration", "transport/rdma/memory.c", "test_rdma_release, test_rdma",
    "        kvb_status_t status = deregister(memory->device, memory->all[i].mr);",
    "        kvb_status_t status = KVB_OK;")
row("rdma_a_registration_that_stands_is_told", "P3", "a registration that could not be taken back is told", "transport/rdma/memory.c", "test_rdma_release, test_rdma_faults, test_rdma_calls",
    "    return kvt_rdma_device_dead(device) ? KVB_OK : KVB_ERR_IO;",
    "    return KVB_OK;")
row("rdma_a_failed_registration_is_told", "P3", "memory that could not be registered is no region", "transport/rdma/memory.c", "test_rdma_faults, test_rdma_release",
    "    if (!memory->optional || status == KVB_ERR_INVALID) {",
    "    if (false) {")
row("rdma_a_transfer_ends_when_its_work_is_back", "P3", "a transfer ends when none of its work is posted", "transport/rdma/peer.c", "test_rdma, test_rdma_messages, test_rdma_lane, test_rdma_release",
    "    } else if (ask->work.posted == 0) {\n        stopped(ask);",
    "    } else if (true) {\n        stopped(ask);")
row("rdma_a_get_is_done_when_all_came_back", "P2", "a get is done when all its reads have come back", "transport/rdma/peer.c", "test_rdma, test_rdma_faults, test_rdma_unhashed",
    "        (!ask->get || ask->work.bytes == ask->body_len)) {",
    "        true) {")
row("rdma_bytes_are_checked", "P2", "a get whose bytes do not match their checksum fails", "transport/rdma/peer.c", "test_rdma, test_rdma_messages, test_rdma_faults",
    "    if (hashed && ask->get && digest != ask->checksum && !kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {",
    "    if (false) {")
row("rdma_quiesced_at_its_bound", "P5", "a transfer that does not stop is quiesced at its bound", "transport/rdma/peer.c", "test_rdma, test_rdma_faults, test_rdma_release",
    "    rlane_fail_by(&ask->lane->lane, KVB_ERR_CANCELED, now_ns + left_ns / 2);",
    "    (void)left_ns;")
row("rdma_granted_space_is_taken_back_with_the_queue_pair", "P2", "granted space is free only when its queue pair is destroyed", "transport/rdma/server.c", "test_rdma_release",
    "        rlane_destroy_queue(&lane->lane, KVB_ERR_TIMEOUT);",
    "        rlane_fail(&lane->lane, KVB_ERR_TIMEOUT);")
row("rdma_a_lane_ends_after_its_queue_pair", "P3", "a lane is not told lost before its queue pair is destroyed", "transport/rdma/lane.c", "test_rdma_lane",
    "        if (!destroy_queue(lane)) {\n            look_again(lane);\n            return false;\n        }",
    "        if (!destroy_queue(lane)) {\n            lane->qp = NULL;\n        }")
row("b34_what_is_not_flushed_ends_all_the_same", "P5", "work whose completions never come ends at a bound", "transport/rdma/lane.c", "test_rdma_faults, test_rdma_lane, test_rdma",
    "    if (lane->out.works > 0 && !late) {",
    "    if (lane->out.works > 0 && (!late || true)) {")
row("rdma_nobody_writes_to_an_engine", "P3", "nobody can reach an engine's memory over a queue pair", "transport/rdma/lane.c", "test_rdma_faults",
    "        attr.qp_access_flags = lane->client ? 0 : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;",
    "        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;")
row("rdma_packets_are_in_step", "P2", "packets are taken in their order alone", "transport/rdma/lane.c", "test_rdma_messages, test_rdma_lane",
    "    if (packet.number != lane->in.next || packet.number == lane->in.told ||",
    "    if (packet.number == lane->in.told ||")
row("b32_extents_add_up", "P2", "the extents of a grant are as long as its body", "transport/rdma/wire.c", "test_rdma_messages",
    "    return len == body_len ? KVB_OK : KVB_ERR_PROTOCOL;",
    "    return KVB_OK;")
row("b36_the_smaller_mtu", "P5", "two ends agree on the smaller MTU", "transport/rdma/lane.c", "test_rdma_faults",
    "    lane->agreed.mtu = min_u32(mtu, info->mtu);",
    "    lane->agreed.mtu = info->mtu;")
row("b36_link_local_is_not_taken", "P5", "an address that others cannot reach is not taken", "transport/rdma/device.c", "test_rdma_faults",
    "    if (link_local(&entry->gid) || (v4_mapped",
    "    if ((v4_mapped")

# ---- server/control: an operation of all instances ----
row("fan_a_failure_is_taken_back", "P4", "what failed on one instance is taken back on the others", "server/control/fan.c", "test_control",
    "    } else if (fan->own.record.status != KVB_OK) {\n        fan->phase = FAN_UNDO;",
    "    } else if (false) {\n        fan->phase = FAN_UNDO;")
row("fan_only_what_was_done_is_taken_back", "P4", "an instance that had nothing to do is not taken back", "server/control/fan.c", "test_control",
    "    if (fan->phase == FAN_FIRST && status == KVB_OK && !outcome->nothing_to_do) {",
    "    if (fan->phase == FAN_FIRST && status == KVB_OK) {")
row("fan_deepens_after_all_sleep", "P4", "no instance discards before all of them sleep", "server/control/fan.c", "test_control",
    "        first.level = 1;\n",
    "")
row("fan_deepens_at_all", "P4", "when all sleep, level 2 discards", "server/control/fan.c", "test_control",
    "    } else if (ask->operation == KVP_OP_SLEEP && ask->level == 2) {",
    "    } else if (false) {")
row("fan_begins_with_all_or_not", "P4", "with one instance away nothing begins", "server/control/fan.c", "test_control",
    "    if (all && fan->own.record.status != KVB_OK) {",
    "    if (false) {")
row("fan_nobody_joins_what_failed", "P4", "nobody joins what is about to be taken back", "server/control/fan.c", "test_control",
    "    if (can && one_fails(control)) {",
    "    if (false) {")
row("fan_a_cancel_takes_back_what_ended", "P4", "a cancel takes back also what has ended", "server/control/fan.c", "test_control",
    "    bool some = fan->all; /* also what has ended is taken back */",
    "    bool some = false;")
row("fan_is_answered_once", "P5", "everyone who asked is answered", "server/control/fan.c", "test_control",
    "        kvb_list_push_back(&fan->askers, &pending->wait_link);\n        return fan->own.record.id;",
    "        return fan->own.record.id;")
row("take_back_lifts_its_own_stop", "P4", "taking back lifts only the stop that it set", "server/connector/plan.c", "test_plan, test_instance",
    "    plan->lift = found->stop & ~found->before.stopped_by;",
    "    plan->lift = found->stop;")
row("take_back_not_over_others", "P4", "what others have built on is not taken back", "server/connector/plan.c", "test_plan, test_instance",
    "    if (found->id != ask->take_back || found->touched) {",
    "    if (found->id != ask->take_back) {")

# ---- server/link: sessions and stays ----
row("link_stays_are_compared", "P1", "what was begun in another stay is fenced", "server/link/tasks.c", "test_link",
    "if (!unfenced && !kvb_token_equal(token, stay->token)) {",
    "if (false && !unfenced) {")
row("link_roles_are_kept", "P3", "a message of the other role ends the connection", "server/link/session.c", "test_link",
    "    if ((session->rank->base.roles & role_of(frame->type)) == 0) {",
    "    if (false) {")
row("link_hello_comes_once", "P3", "hello comes first and once", "server/link/session.c", "test_link",
    "    if ((frame->type == KVB_LINK_HELLO) == session->attached) {",
    "    if (frame->type != KVB_LINK_HELLO && !session->attached) {")
row("link_calls_have_a_bound", "P5", "a call of the engine has a bound", "server/link/session.c", "test_link",
    "    kvb_sched_timer_set(session->owner->config.sched, &call->bound, deadline_ns);\n    pack_call",
    "    pack_call")
row("a_hurried_pause_has_that_bound", "P5", "a pause that is hurried has the earlier bound", "server/link/session.c", "test_link",
    "        if (call->type == KVB_LINK_PAUSE && call->bound.deadline_ns > deadline_ns) {",
    "        if (false) {")
row("a_cancel_hurries_the_pause", "P5", "a cancel does not wait for the bound of the drain it ends", "server/connector/operation.c", "test_instance",
    "            rank->ops->hurry_pauses(rank->impl, bound_ns);\n",
    "")
row("an_open_pause_is_taken_back", "P3", "a pause that timed out is taken back", "server/connector/steps.c", "test_instance",
    "(!running || instance->pause_open)",
    "(!running)")
row("link_answers_are_of_their_question", "P5", "an answer of another type than was asked ends the connection", "server/link/session.c", "test_link",
    "    if (call->type != frame->type) {",
    "    if (false) {")
row("link_late_answers_are_recognised", "P5", "a late answer is recognised and harms nobody", "server/link/session.c", "test_link",
    "        if (frame->seq > session->last_seq) {\n            return KVB_ERR_PROTOCOL;",
    "        if (true) {\n            return KVB_ERR_PROTOCOL;")
row("link_what_is_open_ends_with_the_session", "P5", "every call ends with its session", "server/link/session.c", "test_link",
    "        complete(kvb_container_of(link, struct call, link), KVB_ERR_DISCONNECTED, NULL);",
    "        kvb_list_remove(link);")
row("b03_a_length_has_a_limit", "P5", "a message is as long as its type may be", "server/link/session.c", "test_link",
    "    return frame->len > max ? KVB_ERR_PROTOCOL : KVB_OK;",
    "    return KVB_OK;")

# ---- server/http ----
row("b17_one_end_of_a_body", "P5", "a request with two ends is refused", "server/http/framing.c", "test_http_table",
    "    if (framing->lengths > 0 && framing->encodings > 0) {",
    "    if (false) {")
row("b19_idle_ones_make_room", "P6", "idle clients leave room for a probe", "server/http/connections.c", "test_http/http_own/idle_connections_beyond*",
    '    {KVP_CONNECTION_IDLE, 0, "too many connections: the longest idle one"},\n',
    "")
row("b19_slow_ones_make_room", "P6", "slow clients leave room for a probe", "server/http/connections.c", "test_http/http_own/slow_senders*",
    '    {KVP_CONNECTION_RECEIVING, 0, "too many connections: the slowest sender"},\n',
    "")
row("b19_deaf_ones_make_room", "P6", "clients that do not read leave room for a probe", "server/http/connections.c", "test_http/http_own/those_that_do_not*",
    '    {KVP_CONNECTION_SENDING, KVP_HTTP_SEND_NS,\n     "too many connections: one that does not read its answer"},\n',
    "")
row("b19_heads_have_a_limit", "P5", "a head has a limit", "server/http/head.c", "test_http/http/heads*",
    "    } else if (exchange->framing.headers > KVP_HTTP_HEADERS_MAX ||",
    "    } else if (")

# ---- engine/libkvplane: what an engine links ----
row("libkvplane_a_session_is_of_its_connection", "P5", "an answer to a call of a session that is over is not sent", "engine/libkvplane/upcalls.c", "test_kvplane",
    "    if (call->alive && kv->state == SESSION_ATTACHED) {",
    "    if (kv->state == SESSION_ATTACHED) {")
row("libkvplane_keeps_what_was_not_delivered", "P1", "the engine keeps retirements that were not delivered", "engine/libkvplane/upcalls.c", "test_kvplane",
    "    kv->hello.nretired = msg.nretired;\n",
    "")
row("libkvplane_echoes_the_token", "P1", "the engine says the token that it last acknowledged", "engine/libkvplane/upcalls.c", "test_kvplane",
    "    kv->hello.token = msg.token;\n",
    "")
row("libkvplane_the_name_goes_with_the_weights", "P1", "the name of the weights goes when they are written", "engine/libkvplane/upcalls.c", "test_kvplane",
    "    if (call->writes_weights || answer->weights_written) {",
    "    if (call->writes_weights) {")
row("libkvplane_says_its_last_operation", "P4", "the engine says which operation it last acknowledged", "engine/libkvplane/upcalls.c", "test_kvplane",
    "        kv->hello.state.last_operation = call->operation;",
    "        (void)call;")
row("libkvplane_calls_are_bounded", "P5", "so many calls are open and no more", "engine/libkvplane/calls.c", "test_kvplane",
    "    return kv->calls_open >= kv->queue_max || kv->out_bytes >= OUTPUT_MAX ? KVB_ERR_AGAIN : KVB_OK;",
    "    return KVB_OK;")
row("libkvplane_a_result_for_each_entry", "P2", "an answer has a result for each entry", "engine/libkvplane/calls.c", "test_kvplane",
    "    if (reply.nentries != slot->n) {",
    "    if (false) {")
row("libkvplane_no_more_hits_than_keys", "P2", "a hit is no longer than what was looked up", "engine/libkvplane/calls.c", "test_kvplane",
    "        if (reply.hits[i] > slot->nkeys[i]) {",
    "        if (false) {")
row("libkvplane_answers_are_of_their_call", "P5", "an answer is of the call that it answers", "engine/libkvplane/calls.c", "test_kvplane",
    "    if (slot == NULL || slot->type != frame->type) {",
    "    if (slot == NULL) {")
row("libkvplane_what_is_open_ends_with_the_session", "P5", "every call ends with its session", "engine/libkvplane/calls.c", "test_kvplane",
    "            complete_failed(kv, &call, result);\n",
    "            (void)call;\n")

row("libkvplane_who_leaves_has_no_token", "P1", "who leaves by itself has no token until the daemon has left", "engine/libkvplane/api.c", "test_kvplane",
    "return kv->leave_open ? (kvplane_token){0, 0}",
    "return false ? (kvplane_token){0, 0}")
row("libkvplane_a_leave_unanswered_echoes_nothing", "P1", "who left and had no answer echoes nothing", "engine/libkvplane/calls.c", "test_kvplane",
    "            kvplane_calls_forget_stay(kv); /* what it was told since may be the stay it left */\n",
    "")
row("an_engine_s_leave_is_one", "P1", "an engine that leaves by itself has left", "server/connector/fleet.c", "test_instance",
    "    KVP_LINEAGE(instance, written, kvp_instance_random(instance));\n    kvp_instance_event(instance, \"engine_left\"",
    "    kvp_instance_event(instance, \"engine_left\"")
row("an_engine_s_leave_waits_for_its_ranks", "P1", "it is answered when every rank has acknowledged that", "server/connector/fleet.c", "test_instance",
    "    if (!instance->attached) {\n        kvp_instance_left(instance);",
    "    {\n        kvp_instance_left(instance);")

# ---- connector and tickets, found by the search of all states (tests/explore) ----
row("rollback_is_skipped", "P4", "a failed operation undoes what it did", "server/connector/operation.c", "connector_explorer --lens alone",
    "kvp_plan_undo(&op->plan, done, &op->before, &op->undo);",
    "kvp_plan_undo(&op->plan, 0, &op->before, &op->undo);")
row("undo_does_not_register", "P4", "what undoes an unregister registers again", "server/connector/plan.h:server/connector/plan.c,server/connector/steps.c,server/connector/operation.c", "connector_explorer --lens alone",
    "false, false, KVP_STEP_RESTORE, KVP_STEP_REGISTER)",
    "false, false, KVP_STEP_RESTORE)")
row("undo_lets_it_sleep", "P4", "what undoes a pause lifts it", "server/connector/plan.h:server/connector/plan.c,server/connector/steps.c,server/connector/operation.c", "connector_explorer --lens alone",
    'X(STOP, "pause", SCHEDULER, false, false, KVP_STEP_UNSTOP)',
    'X(STOP, "pause", SCHEDULER, false, false, 0)')
row("one_rank_s_failure_is_none", "P4", "a failure of one rank fails the step", "server/connector/steps.c", "connector_explorer --lens alone",
    "if (status != KVB_OK && op->step_status == KVB_OK) {",
    "if (status != KVB_OK && op->left > 1) {")
row("forward_only_gives_up_at_once", "P4", "after the first discard it is tried again", "server/connector/operation.c", "connector_explorer --lens alone",
    r"""    op->plan.steps[op->plan.nsteps++] = KVP_STEP_DISCARD;
""",
    "")
row("where_tags_should_be_is_forgotten", "P4", "where a failed operation leaves a tag is where it was", "server/connector/operation.c", "connector_explorer --lens asleep",
    "            instance->want[i] = op->before.tags[i].residency;",
    "            (void)instance;")
row("cancel_resumes_a_pause", "P4", "a cancel lifts no pause that stood before", "server/connector/operation.c", "connector_explorer --lens clients",
    "op->before.scheduler == KVP_SCHEDULER_RUNNING) { /* a pause",
    "op->before.scheduler <= 9) { /* a pause")
row("failed_resume_stays_done", "P4", "a resume that failed leaves nothing resumed", "server/connector/steps.c", "connector_explorer --lens steps",
    "if (running && (!resident || stoppers != 0)) {",
    "if (running && !resident) {")
row("answered_twice", "P5", "a request is answered once", "server/connector/operation.c", "connector_explorer --lens alone",
    "            caller->done(caller->arg, &outcome);",
    r"""            caller->done(caller->arg, &outcome);
            caller->done(caller->arg, &outcome);""")
row("never_answered_when_its_turn_is_over", "P5", "a request that waits ends with its turn", "server/connector/operation.c", "connector_explorer --lens steps",
    r"""    set_timer(op, on_turn_over, op->record.deadline_ns);
""",
    "")
row("state_has_no_deadline", "P5", "asking for the state has a deadline", "server/connector/steps.c", "connector_explorer --lens alone",
    "kvp_instance_bound(op->instance, KVB_LINK_STATE));",
    "KVB_NEVER);")
row("drain_has_no_deadline", "P5", "a drain has a deadline", "server/connector/operation.c", "connector_explorer --lens alone",
    r"""op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.drain_ms);
    op->record""",
    r"""op->drain_deadline_ns = KVB_NEVER;
    op->record""")
row("forward_without_end", "P5", "going forward has an end", "server/connector/operation.c", "connector_explorer --lens alone",
    "op->tries >= bounds->forward_tries || ",
    "")
row("a_gone_rank_is_waited_for_for_good", "P5", "a rank that is gone is not waited for", "server/connector/operation.c", "connector_explorer --lens dies",
    r"""        set_timer(op, on_gone, kvp_instance_in_ms(instance, GONE_MS));
""",
    "")
row("nobody_asks_a_silent_rank_again", "P5", "a rank that was silent is asked again", "server/connector/steps.c", "connector_explorer --lens alone",
    r"""session->unknown = true;
            kvp_instance_schedule_reconcile(instance);""",
    "session->unknown = true;")
row("unregister_is_skipped", "P3", "memory goes after it is unregistered", "server/connector/steps.c", "connector_explorer --lens alone",
    "        return on_ranks(op, who, ask_unregister);",
    "        return false;")
row("memory_goes_before_it_is_unregistered", "P3", "unregister comes before release", "server/connector/plan.c", "connector_explorer --lens alone",
    r"""        add(plan, KVP_STEP_UNREGISTER);
        add(plan, KVP_STEP_OFFLOAD);
    }
    if (plan->nrelease > 0) {
        add(plan, KVP_STEP_DISCARD);
    }""",
    r"""    }
    if (plan->nrelease > 0) {
        add(plan, KVP_STEP_DISCARD);
        add(plan, KVP_STEP_UNREGISTER);
    }""")
row("registered_by_guess", "P3", "only what is freshly handed over is registered", "server/connector/steps.c", "connector_explorer --lens alone",
    "        return on_ranks(op, who, ask_restore);",
    "        return false;")
row("partial_wake_says_all", "P3", "a partial wake brings back what was named", "server/connector/steps.c", "connector_explorer --lens asleep",
    r"""if (tag == NULL || (call->tags & (1u << i)) == 0) {
            continue;
        }
        tag->residency =""",
    r"""if (tag == NULL) {
            continue;
        }
        tag->residency =""")
row("a_silent_rank_is_taken_for_what_it_was", "P3", "a rank that was silent is unknown", "server/connector/steps.c", "connector_explorer --lens alone",
    r"""            session->unknown = true;
""",
    "")
row("ranks_that_differ_are_one", "P3", "ranks that differ are not taken for one", "server/connector/steps.c", "connector_explorer --lens alone",
    "if (session->unknown || bare || (any && all != tag->residency)) {",
    "if (session->unknown) {")
row("partial_wake_lifts_all", "P3", "a partial wake lifts nothing", "server/connector/plan.c", "connector_explorer --lens asleep",
    "bool last = plan->nrestore > 0 && plan->nrestore == missing;",
    "bool last = plan->nrestore > 0;")
row("open_while_asleep", "P1", "closed while a tag is not resident", "server/connector/lineage.c", "connector_explorer --lens alone",
    "!l->update && l->resident && !l->echoed &&",
    "!l->update && !l->echoed &&")
row("a_change_whose_start_was_lost", "P1", "a weight change whose end is unknown is still running", "server/connector/fsm.c", "test_fsm",
    """                [KVP_BEV_START_FAILED] = B(NONE, CUT),
                [KVP_BEV_START_LOST] = B(UNKNOWN, NONE),""",
    """                [KVP_BEV_START_FAILED] = B(NONE, CUT),
                [KVP_BEV_START_LOST] = B(NONE, CUT),""")
row("a_change_whose_call_was_lost", "P1", "a weight change whose end is unknown is still running", "server/connector/fsm.c", "test_fsm",
    """                [KVP_BEV_CALL_FAILED] = B(NONE, CUT),
                [KVP_BEV_CALL_LOST] = B(UNKNOWN, NONE),""",
    """                [KVP_BEV_CALL_FAILED] = B(NONE, CUT),
                [KVP_BEV_CALL_LOST] = B(NONE, CUT),""")
row("a_change_that_some_ranks_began", "P4", "a weight change that only some ranks began is running", "server/connector/steps.c", "test_instance",
    "bool begun = unknown || (relayed && op->taken);",
    "bool begun = lost;")
row("no_failure_ends_a_change", "P1", "a weight change whose end is unknown runs on when another call of it fails", "server/connector/steps.c", "test_instance",
    "bool unknown = op->before.bracket == KVP_BRACKET_UNKNOWN;",
    "bool unknown = false;")
row("the_last_leaving_s_acknowledgement_counts", "P4", "the end of a message of a stay that was left since is nobody's", "server/connector/bind.c", "test_instance",
    "if (done.ask == instance->lineage.send_ask) {",
    "if (done.ask != 0) {")
row("a_reset_owns_its_local_reset_until_it_retires", "P4", "a reset into which another comes retires", "server/connector/steps.c", "test_instance",
    "KVP_LINEAGE(instance, disown); /* also where",
    "/* also where")
row("a_retirement_waits_until_the_engine_left_once_more", "P4", "who did not leave is blamed, and nobody else", "server/connector/operation.c", "test_instance",
    "bool comes = l->nretired > 0 && !acked",
    "bool comes = false && !acked")
row("a_leaving_has_a_bound", "P5", "a leaving has a bound, however often others reset", "server/connector/operation.c", "test_instance",
    "} else if (!acked && (failed || over)) {",
    "} else if (!acked && failed) {")
row("what_is_on_its_way_is_not_sent_again", "P5", "what is on its way is not sent again", "server/connector/steps.c", "connector_explorer --lens dies",
    "if (instance->ack_status != KVB_IN_PROGRESS) {",
    "if (instance->attached) {")
row("a_record_without_memory_waits_for_its_turn", "P5", "what found no memory is tried again later, and not at once", "store/coordinator/etcd_member.c", "test_etcd_calls/etcd_calls/a_record_*",
    "if (status == KVB_OK || member->lease == op->etcd->lease) {",
    "if (op->etcd != NULL) {")
row("the_word_of_another_rank_s_cache", "P1", "whose cache was reset is compared", "server/connector/fleet.c", "connector_explorer --lens store",
    "hello_p->local_reset_done && kvb_id_none(cache.id);",
    "hello_p->local_reset_done;")
row("reset_before_the_leave_is_acknowledged", "P1", "leave, acknowledged, then reset", "server/connector/lineage.c", "connector_explorer --lens store",
    r"""    if (l->ack != KVP_ACK_LEFT) {
        l->reset_ask = ask;
    }""",
    "    l->reset_ask = ask;")
row("a_cache_of_other_weights", "P1", "resets of earlier weights are forgotten", "server/connector/steps.c", "connector_explorer --lens dies",
    r"""                forget_resets(instance);
""",
    "")
row("ticket_without_deadline", "P2", "a ticket ends at its deadline", "store/core/core.c", "ticket_explorer --lens torn",
    "lease != 0 && lease_at(core, lease)->deadline_ns > now_ns;",
    "lease != 0;")
row("ticket_is_not_asked_for", "P2", "a read succeeds only if its ticket was still held", "store/core/core.c", "ticket_explorer --lens torn",
    "return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : KVB_ERR_TICKET;",
    "return KVB_OK;")
row("ticket_does_not_keep_the_space", "P2", "what has a ticket is not evicted", "store/core/core.c", "ticket_explorer --lens torn",
    r"""    kvs_object_relock(core, handle);
    kvs_hold_give""",
    "    kvs_hold_give")
row("commit_after_its_deadline", "P2", "an attempt that is late is not committed", "store/core/core.c", "ticket_explorer --lens torn",
    "if (lease_at(core, lease)->deadline_ns <= now_ns) {",
    "if (now_ns == 0) {")
row("commit_out_of_quarantine", "P2", "what is in quarantine is not committed", "store/core/core.c", "ticket_explorer --lens deaths",
    r"""if (object->state == OBJECT_QUARANTINED) {
        return KVB_ERR_TIMEOUT;
    }""",
    r"""if (object->state == OBJECT_QUARANTINED) {
        kvs_lease_drop(core, lease);
        return KVB_OK;
    }""")
row("second_commit_replaces", "P2", "committing an existing key keeps the first", "store/core/core.c", "ticket_explorer --lens torn",
    "if (other->group == object->group && other->part == object->part) {",
    "if (other == object) {")
row("commit_of_a_retired_lineage", "P2", "what was cleared meanwhile is fenced", "store/core/core.c", "ticket_explorer --lens reset",
    r"""kvb_status_t status = scope_cleared(core, scope_at(core, object->scope))
                              ? KVB_ERR_FENCED
                              : commit_check(core, object);""",
    "kvb_status_t status = commit_check(core, object);")
row("put_under_a_retired_lineage", "P2", "a retired lineage takes no put", "store/core/core.c", "ticket_explorer --lens reset",
    "if (kvs_lineage_retired(core, where->lineage)) {",
    "if (core->ntenants > 99) {")
row("writer_s_space_is_free_at_once", "P2", "space of a late attempt stays in quarantine", "store/core/lease.c", "ticket_explorer --lens deaths",
    "if (kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {",
    "if (handle != 0) {")
row("revoked_is_free_while_it_is_written", "P2", "what is revoked under its writer stays in quarantine", "store/core/core.c", "ticket_explorer --lens deaths",
    "    if (writer_stopped) {",
    "    if (writer_stopped || lease != 0) {")
row("stopped_before_it_is", "P2", "a session that ended is not yet stopped", "store/core/lease.c", "ticket_explorer --lens deaths",
    r"""    if (handle != 0) {
        session_end(core, handle);
    }
}""",
    r"""    kvs_core_session_stopped(core, id);
    (void)handle;
}""")
row("a_dead_reader_s_ticket_stays", "P2", "tickets end with their session", "store/core/lease.c", "ticket_explorer --lens deaths",
    "if (object_at(core, lease_at(core, lease)->object)->state != OBJECT_QUARANTINED) {",
    "if (lease_at(core, lease)->kind == LEASE_ATTEMPT && object_at(core, lease_at(core, lease)->object)->state != OBJECT_QUARANTINED) {")
row("what_was_promised_is_evicted", "P2", "what was promised is not evicted", "store/core/lease.c", "ticket_explorer --lens held",
    r"""    kvs_object_lock(core, object, &plan);
    return true;""",
    "    return true;")
row("what_is_not_committed_is_found", "P2", "only what is committed is found", "store/core/core.c", "ticket_explorer --lens torn",
    r"""    kvs_object_set_pin(core, object, put->pin);
    *attempt_p""",
    r"""    kvs_object_set_pin(core, object, put->pin);
    object_at(core, object)->state = OBJECT_LIVE;
    kvs_table_insert(&core->index, object, hash);
    *attempt_p""")
row("another_session_s_attempt", "P2", "tickets and attempts are of one session", "store/core/lease.c", "ticket_explorer --lens torn",
    "return session_at(core, lease->owner)->id == session ? handle : 0;",
    "return session != 0 ? handle : 0;")
row("another_life_s_attempt", "P2", "tickets and attempts of another incarnation are worth nothing", "store/core/lease.c", "ticket_explorer --lens node",
    "    if (incarnation != core->incarnation) {",
    "    if (incarnation == 0) {")
row("a_ticket_outlives_its_release", "P2", "a ticket ends with its release", "store/core/core.c", "ticket_explorer --lens deaths",
    r"""        core->stats.tickets_lost += !held;
        kvs_ticket_end(core, lease);""",
    "        core->stats.tickets_lost += !held;")
row("a_hold_outlives_its_get", "P5", "a hold ends when it is got", "store/core/core.c", "ticket_explorer --lens held",
    r"""    kvs_hold_give(core, handle, holder);
""",
    "")
row("a_hold_has_no_bound", "P5", "leases end at their deadlines", "store/core/lease.c", "ticket_explorer --lens held",
    "    while (core->ndue > 0 && due_deadline(core, 0) <= now_ns) {",
    "    while (core->ndue > 0 && due_deadline(core, 0) == 0) {")
row("what_is_retired_is_found", "P1", "what lies under a retired lineage is not found", "store/core/lineage.c", "ticket_explorer --lens reset",
    "        scope->retired = true;",
    "        scope->retired = core == NULL;")
row("what_is_read_is_evicted", "P2", "what somebody reads or writes is no victim", "store/core/evict.c", "ticket_explorer --lens evict",
    r"""        if (object->flags & OBJECT_LOCKED) {
            kvs_queue_remove(core, handle);
            continue;
        }
        bool wanted""",
    "        bool wanted")
row("what_is_read_goes_at_once", "P2", "removed under a reader, the space goes when the reader has", "store/core/core.c", "ticket_explorer --lens reset",
    r"""    if (object->leases != 0) {
        kvs_object_doom(core, handle);""",
    r"""    if (false) {
        kvs_object_doom(core, handle);""")
row("a_dead_writer_s_space_is_lost", "P2", "space of a writer that is stopped comes back", "store/core/lease.c", "ticket_explorer --lens deaths",
    r"""        kvs_lease_drop(core, lease);
        kvs_object_stop(core, object);""",
    r"""        kvs_lease_drop(core, lease);
        (void)object;""")
row("a_put_that_fails_evicts", "P7", "a put that no eviction could satisfy evicts nothing", "store/core/evict.c", "ticket_explorer --lens evict",
    r"""    if (!kvs_space_could_fit(&core->space, plan) ||""",
    r"""    if ((!kvs_space_could_fit(&core->space, plan) && core->queued[0] == 0) ||""")

# ---- bugs of the kinds that others have shipped ----
planted("get_of_an_earlier_stay", "B02", "a fence left open", "the engine's stay is over, and what was begun in it still counts", "server/link/tasks.c", "simulate",
    "if (!unfenced && !kvb_token_equal(token, stay->token)) {",
    "if (false && !unfenced) {")
planted("reset_before_the_last_member_left", "B02", "an answer too early", "a reset is answered although a member has not left", "store/coordinator/etcd_retire.c", "simulate",
    "return kvs_mirror_find(mirror, KVS_KEY_LEFT, key) != NULL;",
    "return key[0] != 0;")
planted("retirement_is_not_told", "B02", "somebody is not told", "members are not told of a retirement", "store/coordinator/etcd_retire.c", "simulate",
    "    if (tell_member(member, entry->key, record, entry->create_rev)) {",
    "    if (tell_member == NULL || record->n > 0) {")
planted("drain_is_not_awaited", "B01", "memory goes under a transfer", "memory goes while a transfer still moves its bytes", "server/link/tasks.c", "simulate",
    "} else if (transfers_none(rank) || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {",
    "} else {")
planted("wake_resumes_too_early", "B06", "work begins too early", "work is scheduled before everything is awake", "server/connector/plan.c", "simulate",
    r"""        if (fsm->tags[i].residency == KVB_RESIDENT) {
            continue;""",
    r"""        if (fsm->tags[i].residency == KVB_RESIDENT || i > 0) {
            continue;""")
planted("any_name_will_do", "B31", "a key leaves something out", "who differs in weights shares", "store/coordinator/etcd_member.c", "simulate",
    r"""    kvs_etcd_encode(name, sizeof name, op->text);
    return kvs_etcd_key""",
    r"""    kvs_etcd_encode(name, sizeof name, "any");
    return kvs_etcd_key""")
planted("a_wait_that_nobody_ends", "B10", "a request is lost", "a transfer that ends in another stay than it began in is never answered", "server/link/tasks.c", "simulate",
    r"""    finish(task, judge_end(task->rank, task->kind, task->token));
}

/* Fills""",
    r"""    kvb_status_t status = judge_end(task->rank, task->kind, task->token);
    if (status != KVB_ERR_FENCED) {
        finish(task, status);
    }
}

/* Fills""")
planted("a_failed_start_keeps_its_reference", "B11", "a count stays above zero", "a transfer that cannot start leaves its region referenced", "transport/transport.c", "simulate",
    r"""        kvb_list_remove(&transfer->impl.link);
        kvt_slices_put(transfer->slices, transfer->nslices);
    }
    return status;""",
    r"""        kvb_list_remove(&transfer->impl.link);
    }
    return status;""")
planted("used_bytes_are_set_to_zero_too", "B27", "a wrong account", "clearing sets the used bytes to zero, and each free lowers them", "store/core/lineage.c", "simulate",
    r"""    core->stats.live_bytes -= bytes;
    core->stats.value_bytes""",
    r"""    core->stats.live_bytes = 0;
    core->stats.value_bytes""")
planted("a_descriptor_stays", "B37", "a leak", "a region that is given up keeps its descriptor", "transport/region.c", "simulate",
    r"""    close_fd(region);
    set_state(region, KVT_REGION_UNREGISTERED);""",
    r"""    region->fd = -1;
    set_state(region, KVT_REGION_UNREGISTERED);""")
planted("a_transfer_ends_twice", "B41", "an end that comes twice", "a transfer that was given up ends again with its connection", "transport/tcp/peer.c", "simulate",
    r"""    struct peer *peer = ask->peer;
    if (ask->over) {
        return;
    }
    ask->over = true;""",
    r"""    struct peer *peer = ask->peer;
    ask->over = true;""")
planted("the_ticket_is_looked_at_once", "B25", "a torn read", "a read succeeds whether its ticket was still held or not", "store/core/core.c", "ticket_explorer --lens torn",
    "return held || kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : KVB_ERR_TICKET;",
    "return KVB_OK;")
planted("a_writer_s_space_is_used_under_it", "B23", "space is used too early", "space of a writer that is late is used although it may write still", "store/core/lease.c", "ticket_explorer --lens deaths",
    "if (kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {",
    "if (handle != 0) {")
planted("a_length_is_believed", "B32", "a bound is missing", "a peer says how long its text is, and is believed", "transport/tcp/wire.c", "fuzz_tcp",
    "head.text_len > text_max ||\n",
    "text_max == 0 ||\n")
planted("a_slice_begins_anywhere", "B32", "a bound that is nearly right", "a slice as long as its region may begin anywhere in it", "server/link/regions.c", "fuzz_session",
    "if (slice->offset > len || slice->len > len - slice->offset) {",
    "if (slice->offset > len || slice->len > len) {")
planted("a_key_of_any_length", "B30", "more than its place holds", "hex digits are read without a look at the room", "server/http/params.c", "fuzz_params",
    "if (len == 0 || len % 2 != 0 || len / 2 > cap ||\n",
    "if (len == 0 || len % 2 != 0 || cap == 0 ||\n")
