#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Takes each rule of DESIGN.md section 4 out of lineage.c, one at a time, and demands that the
# explorer finds what breaks. A mutant is: name, lens that must find it, the exact text to be
# replaced, and what replaces it.
#
# usage: lineage_mutants.sh SOURCE_DIR CC XXHASH_LIBS   (exit 1: a mutant survived, or no longer applies)
# shellcheck disable=SC2086 # flags and libraries are lists of words
set -u
src=$1
cc=$2
libs=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
flags="-std=gnu11 -O2 -D_GNU_SOURCE -I$src/server -I$src/base/include -I$src/store/include -I$src/transport/include"
for part in tests/unit/lineage_explorer.c tests/unit/test_lineage.c base/assert.c base/id.c base/clock.c base/faults.c; do
    $cc $flags -c "$src/$part" -o "$tmp/$(basename "$part" .c).o" || exit 2
done
base="assert.o id.o clock.o faults.o"
survived=0
total=0

# The base files that assert.c needs beside these are not linked: it only prints and aborts.
try() {
    name=$1 lens=$2 old=$3 new=$4
    total=$((total + 1))
    OLD="$old" NEW="$new" perl -0777 -pe 's/\Q$ENV{OLD}\E/$ENV{NEW}/ or die "no match\n"' \
        "$src/server/connector/lineage.c" >"$tmp/lineage.c" 2>"$tmp/perl.log" || {
        echo "STALE    $name: its text is not in lineage.c any more"
        survived=$((survived + 1))
        return
    }
    $cc $flags -c "$tmp/lineage.c" -o "$tmp/lineage.o" || exit 2
    (cd "$tmp" && $cc lineage_explorer.o lineage.o $base $libs -o explorer &&
        $cc test_lineage.o lineage.o $base -lcriterion -o test_lineage) || exit 2
    if [ "$lens" = rule ]; then # by itself: others of the rules hide it
        if "$tmp/test_lineage" >"$tmp/out" 2>&1; then
            echo "SURVIVED $name (rule)"
            survived=$((survived + 1))
        else
            echo "killed   $name: $(grep -m1 -o 'lineage::[a-z_]*' "$tmp/out")"
        fi
        return
    fi
    if KVPLANE_STATES=${KVPLANE_STATES:-700000} "$tmp/explorer" $lens >"$tmp/out" 2>&1; then
        echo "SURVIVED $name ($lens)"
        survived=$((survived + 1))
    else
        echo "killed   $name ($lens): $(grep -m1 -E 'VIOLATION|assert' "$tmp/out" | cut -c1-100)"
    fi
}

try closed_while_updating update-track \
    'l->ack != KVP_ACK_LEFT && !l->update && l->resident && !l->echoed &&' \
    'l->ack != KVP_ACK_LEFT && l->resident && !l->echoed &&'
try closed_until_acknowledged rule \
    'return l->attached && l->ack != KVP_ACK_LEFT && !l->update' \
    'return l->attached && !l->update'
try closed_until_local_reset "update rollback" \
    '(l->local_reset_done || l->tracks);' 'true;'
try closed_while_echo_unchecked rule \
    'l->resident && !l->echoed &&
           (l->local' 'l->resident &&
           (l->local'
try token_of_the_stay_at_leave "rollback rollback-track update" \
    'l->token.id = kvb_id_draw(random);
    name_clear(l->joined_name);' \
    'name_clear(l->joined_name);'
try token_of_the_stay_at_join rule \
    'l->token.id = kvb_id_draw(random);
    l->last_lineage = lineage;' \
    'l->token.id = lineage.id;
    l->last_lineage = lineage;'
try living_daemon_wins "reset-link" '} else if (!hello->living) {' '} else if (true) {'
try resolve_void_after_leave rule \
    'l->resolve_ask = 0;
    l->fingerprint_ask = 0;
    l->check_ask = 0;' \
    'l->fingerprint_ask = 0;
    l->check_ask = 0;'
try fingerprint_void_after_leave "update-fp rollback" \
    'l->resolve_ask = 0;
    l->fingerprint_ask = 0;
    l->check_ask = 0;' \
    'l->resolve_ask = 0;
    l->check_ask = 0;'
try fingerprint_only_resident rule \
    'l->coordinator && l->ack == KVP_ACKED && l->resident && !l->update &&' \
    'l->coordinator && l->ack == KVP_ACKED && !l->update &&'
try fingerprint_only_without_update rule \
    'l->coordinator && l->ack == KVP_ACKED && l->resident && !l->update &&' \
    'l->coordinator && l->ack == KVP_ACKED && l->resident &&'
try fingerprint_void_asleep rule \
    'if (!resident) {
        l->fingerprint_ask = 0;
    }' ''
try no_name_taken_to_sleep "sleep optout" \
    '} else if (!l->opted_out && (kvp_lineage_named(l) || l->name[0] != '"'\\0'"')) {' \
    '} else if (false) {'
try version_proven rule 'if (!l->proven) {' 'if (false) {'
try version_first_not_believed "const const-cd" 'if (l->version[0] == '"'\\0'"') {' 'if (false) {'
try version_constant "const-sleep const-cd" 'if (l->changed) {
            l->unnamed = KVP_PRIVATE_SAME_VERSION;' 'if (false) {
            l->unnamed = KVP_PRIVATE_SAME_VERSION;'
try written_counts_as_change rule \
    'leave_for(l, KVP_LEAVE_WRITTEN, random, out);
    name_clear(l->last_name);' 'name_clear(l->last_name);'
try version_held rule \
    'if (l->held[0] == '"'\\0'"' || l->update ||' 'if (l->held[0] == '"'\\0'"' ||'
try cut_short_names_nothing "cut" 'if (!clean) {' 'if (false) {'
try hello_local_reset "update-cd" \
    'l->token = hello->token;
    l->local_reset_done = hello->local_reset_done;' \
    'l->token = hello->token;
    l->local_reset_done = true;'
try hello_update_running "update-cd update-cd-track" 'l->update = hello->update;' 'l->update = false;'
try hello_checked "live-tenant" 'l->echoed = true;
        check(l, out);' ''
try hello_private_left rule \
    '} else if (!kvp_lineage_named(l) || !l->coordinator ||' '} else if (!l->coordinator ||'
try attach_without_echo_left "update-ce update-ce-fp" \
    'leave_for(l, KVP_LEAVE_ATTACH, random, out);' 'send(l, out);'
try told_leaves "reset" \
    'leave_for(l, KVP_LEAVE_TOLD, random, out);
    }
    settle(l, out);' '}
    settle(l, out);'
try told_answers_after_acknowledgement rule \
    'if (l->ack != KVP_ACK_LEFT || !l->attached) {
        for' '{
        for'
try retirement_before_join rule \
    '!l->reset_owned && l->nretired == 0 && !l->starved;' '!l->reset_owned && !l->starved;'
try retirement_kept_by_engine "reset-part-cd" 'msg_p->nretired = l->nretired;' 'msg_p->nretired = 0;'
try retirement_taken_back "reset-part-cd" 'i < hello->nretired && l->coordinator' 'i < 0'
try retires_own_lineage rule 'retire_later(l, l->lineage);' ''
try retires_last_name "reset-pause reset-pause-part" \
    'retire_later(l, l->last_lineage);
        l->retire_name = l->last_name[0] != '"'\\0'"';' ''
try tenant_reset_leaves "tenant" 'leave_for(l, KVP_LEAVE_TENANT, random, out);' ''
try lost_leaves "lease-reset lease-tenant" 'leave_for(l, KVP_LEAVE_LOST, random, out);' '(void)random;'
try lost_keeps_the_name rule '[KVP_LEAVE_##name] = (keeps),' '[KVP_LEAVE_##name] = (keeps) && KVP_LEAVE_##name != KVP_LEAVE_LOST,'
try lost_is_out_of_step rule 'l->aligned = false; /* a reset of the tenant may pass unheard */' ''
try starved_waits_for_a_report rule '!l->starved &&
        l->ack' 'l->ack'
try join_only_awake rule \
    'l->ack != KVP_ACK_LEFT && l->resident &&
           !l->update && !l->echoed && !l->reset_owned' \
    'l->ack != KVP_ACK_LEFT &&
           !l->update && !l->echoed && !l->reset_owned'
try reset_asked_by_itself "live-update" 'if (may_reset(l) && l->reset_ask == 0) {' 'if (false) {'
try reset_keeps_the_name "live-reset" '[KVP_LEAVE_##name] = (keeps),' '[KVP_LEAVE_##name] = (keeps) && KVP_LEAVE_##name != KVP_LEAVE_RESET,'
try compares_when_back rule \
    'if (back && kvp_lineage_named(l) && l->check_ask == 0 && !l->echoed) {' 'if (false) {'
try left_at_update_begin rule \
    'leave_for(l, KVP_LEAVE_UPDATE_BEGINS, random, out);
        memset' 'memset'
try left_at_update_end "update-track rollback-track" \
    'leave_for(l, KVP_LEAVE_UPDATE_ENDS, random, out);' ''
echo "lineage_mutants: $total tried, $survived survived"
test "$survived" -eq 0
