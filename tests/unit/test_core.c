/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include "base/faults.h"

#include <criterion/criterion.h>

#define PAGE ((uint64_t)KVS_CORE_PAGE)
#define valid(s)                                                                                   \
    do {                                                                                           \
        const char *wrong_ = kvs_core_validate((s)->core);                                         \
        cr_assert(wrong_ == NULL, "%s", wrong_);                                                   \
    } while (0)
#define is(status, wanted)                                                                         \
    do {                                                                                           \
        kvb_status_t status_ = (status);                                                           \
        cr_assert(status_ == (wanted), "%s is %s", #status, kvb_status_label(status_));            \
    } while (0)

/* ---- put ---- */

Test(core, only_committed_objects_are_visible)
{
    struct shard s;
    shard_init(&s, 16);
    is(shard_reserve(&s, "a", 0, 1000), KVB_OK);
    cr_assert(!shard_has(&s, "a", 0));
    is(shard_find(&s, "a", 0), KVB_ERR_NOT_FOUND);
    is(shard_remove(&s, "a", 0, true), KVB_ERR_NOT_FOUND);
    is(shard_commit(&s), KVB_OK);
    cr_assert(shard_has(&s, "a", 0));
    is(shard_find(&s, "a", 0), KVB_OK);
    cr_assert(s.found.len == 1000 && s.found.checksum == 77);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, the_first_commit_of_a_key_wins)
{
    struct shard s;
    shard_init(&s, 16);
    is(shard_reserve(&s, "a", 0, 1000), KVB_OK);
    struct kvs_attempt first = s.attempt;
    is(shard_reserve(&s, "a", 0, 2000), KVB_OK);
    struct kvs_attempt second = s.attempt;
    is(kvs_core_commit(s.core, s.sim.now_ns, second, 1, 2), KVB_OK);
    is(kvs_core_commit(s.core, s.sim.now_ns, first, 1, 1), KVB_ERR_EXISTS);
    is(shard_find(&s, "a", 0), KVB_OK);
    cr_assert(s.found.len == 2000 && s.found.checksum == 2);
    is(shard_reserve(&s, "a", 0, 1000), KVB_ERR_EXISTS);
    cr_assert(shard_stats(&s).reserved_bytes == 0);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, an_attempt_is_its_sessions_alone_and_ends_once)
{
    struct shard s;
    shard_init(&s, 16);
    is(kvs_core_session_open(s.core, 2), KVB_OK);
    is(shard_reserve(&s, "a", 0, 1000), KVB_OK);
    is(kvs_core_commit(s.core, s.sim.now_ns, s.attempt, 2, 0), KVB_ERR_NOT_FOUND);
    is(kvs_core_revoke(s.core, s.sim.now_ns, s.attempt, 2, true), KVB_ERR_NOT_FOUND);
    is(shard_commit(&s), KVB_OK);
    is(shard_commit(&s), KVB_ERR_NOT_FOUND);
    is(kvs_core_revoke(s.core, s.sim.now_ns, s.attempt, 1, true), KVB_ERR_NOT_FOUND);
    cr_assert(shard_has(&s, "a", 0));
    valid(&s);
    shard_cleanup(&s);
}

Test(core, ids_of_an_earlier_life_are_refused)
{
    struct shard old;
    struct shard s;
    shard_init(&old, 16);
    is(shard_put(&old, "a", 0, 1000), KVB_OK);
    is(shard_find(&old, "a", 0), KVB_OK);
    is(shard_reserve(&old, "b", 0, 1000), KVB_OK);
    struct kvs_core_config config = {.share_bytes = 16 * PAGE};
    memset(&s, 0, sizeof s);
    is(shard_create(&s, &config), KVB_OK);
    /* Another life draws other numbers. */
    kvs_core_destroy(s.core);
    is(kvs_core_create(&config, &old.sim.random, &s.core), KVB_OK);
    is(kvs_core_session_open(s.core, 1), KVB_OK);
    is(shard_put(&s, "a", 0, 1000), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    is(shard_reserve(&s, "b", 0, 1000), KVB_OK);
    cr_assert_eq(s.attempt.serial, old.attempt.serial);
    is(kvs_core_commit(s.core, s.sim.now_ns, old.attempt, 1, 0), KVB_ERR_NOT_FOUND);
    is(kvs_core_release(s.core, s.sim.now_ns, old.found.ticket, 1), KVB_ERR_TICKET);
    is(shard_commit(&s), KVB_OK);
    is(shard_release(&s), KVB_OK);
    shard_cleanup(&s);
    shard_cleanup(&old);
}

Test(core, bad_arguments_are_refused_and_change_nothing)
{
    struct shard s;
    shard_init(&s, 16);
    struct kvs_core_key key = shard_key(&s, "a", 0, 0);
    key.block.len = 0;
    is(shard_reserve_key(&s, key, 10), KVB_ERR_INVALID);
    cr_assert_eq(shard_ask_key(&s, key, (struct kvs_core_holder){0}).status, KVB_ERR_INVALID);
    is(kvs_core_pin(s.core, 0, &s.where, &key, KVS_PIN_HARD), KVB_ERR_INVALID);
    key.block.len = KVS_CORE_KEY_MAX + 1;
    is(shard_reserve_key(&s, key, 10), KVB_ERR_INVALID);
    is(shard_reserve(&s, "a", 0, 0), KVB_ERR_INVALID);
    s.where.lineage = (struct kvb_lineage){0};
    is(shard_reserve(&s, "a", 0, 10), KVB_ERR_INVALID);
    s.where.lineage = shard_lineage(1);
    s.session = 9;
    is(shard_reserve(&s, "a", 0, 10), KVB_ERR_BAD_STATE);
    is(shard_find(&s, "a", 0), KVB_ERR_BAD_STATE);
    cr_assert_eq(shard_stats(&s).used_bytes, 0);
    struct kvs_core_config config = {.share_bytes = PAGE - 1};
    is(kvs_core_create(&config, &s.sim.random, &s.core), KVB_ERR_INVALID);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, keys_of_every_length_and_byte_are_told_apart)
{
    struct shard s;
    shard_init(&s, 64);
    uint8_t bytes[KVS_CORE_KEY_MAX] = {0};
    struct kvs_core_key key = {.block = {.data = bytes, .len = 1}};
    for (uint32_t len = 1; len <= KVS_CORE_KEY_MAX; len++) {
        key.block.len = len; /* all zeros: each is the start of the next */
        is(shard_put_key(&s, key, len), KVB_OK);
    }
    for (uint32_t len = 1; len <= KVS_CORE_KEY_MAX; len++) {
        key.block.len = len;
        cr_assert_eq(shard_ask_key(&s, key, (struct kvs_core_holder){0}).len, len);
    }
    bytes[0] = 1;
    cr_assert_eq(shard_ask_key(&s, key, (struct kvs_core_holder){0}).status, KVB_ERR_NOT_FOUND);
    valid(&s);
    shard_cleanup(&s);
}

/* ---- B23: a writer dies in the middle of a put ---- */

Test(core, b23_a_dead_writers_key_is_free_at_once_and_its_space_when_it_is_stopped)
{
    struct shard s;
    shard_init(&s, 16);
    is(kvs_core_session_open(s.core, 2), KVB_OK);
    is(shard_reserve(&s, "a", 0, 8 * PAGE), KVB_OK);
    struct kvs_extents dead;
    kvs_extents_init(&dead);
    cr_assert_eq(s.extents.n, 1);
    dead.at[dead.n++] = s.extents.at[0];
    kvs_core_session_end(s.core, 1);
    cr_assert(!shard_has(&s, "a", 0));
    cr_assert_eq(shard_stats(&s).quarantined_bytes, 8 * PAGE);
    is(shard_commit(&s), KVB_ERR_TIMEOUT);
    s.session = 2;
    is(shard_put(&s, "a", 0, 8 * PAGE), KVB_OK);
    cr_assert(!shard_overlap(&dead, &s.extents), "a writer's space was given away under it");
    /* Everything else may go, but not that. */
    for (uint64_t i = 0; i < 20; i++) {
        is(shard_put(&s, "b", i, 4 * PAGE), KVB_OK);
        cr_assert(!shard_overlap(&dead, &s.extents), "a writer's space was given away under it");
    }
    is(shard_put(&s, "c", 0, 9 * PAGE), KVB_ERR_NO_SPACE);
    kvs_core_clear(s.core);
    kvs_core_session_stopped(s.core, 1);
    shard_reclaim_all(&s);
    cr_assert_eq(shard_stats(&s).used_bytes, 0);
    is(shard_put(&s, "c", 0, 16 * PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, an_attempt_over_its_deadline_is_lost_but_keeps_its_space)
{
    struct shard s;
    shard_init(&s, 4);
    is(shard_reserve(&s, "a", 0, 4 * PAGE), KVB_OK);
    struct kvs_attempt late = s.attempt;
    s.sim.now_ns += s.ttl_ns - 1;
    cr_assert(kvs_core_next_deadline_ns(s.core) == s.sim.now_ns + 1);
    is(shard_put(&s, "b", 0, 1), KVB_ERR_NO_SPACE);
    s.sim.now_ns += 1;
    is(shard_put(&s, "b", 0, 1), KVB_ERR_NO_SPACE);
    is(kvs_core_commit(s.core, s.sim.now_ns, late, 1, 0), KVB_ERR_TIMEOUT);
    is(shard_put(&s, "b", 0, 1), KVB_ERR_NO_SPACE);
    /* The writer says itself that it has stopped. */
    is(kvs_core_revoke(s.core, s.sim.now_ns, late, 1, true), KVB_OK);
    is(shard_put(&s, "b", 0, 4 * PAGE), KVB_OK);
    is(kvs_core_revoke(s.core, s.sim.now_ns, late, 1, true), KVB_ERR_NOT_FOUND);
    valid(&s);
    shard_cleanup(&s);
}

/* Nothing else has asked for anything since: it is looked at when it is committed. */
Test(core, a_commit_at_its_deadline_is_late_whoever_noticed)
{
    struct shard s;
    shard_init(&s, 4);
    is(shard_reserve(&s, "a", 0, PAGE), KVB_OK);
    is(kvs_core_commit(s.core, s.sim.now_ns + s.ttl_ns, s.attempt, 1, 0), KVB_ERR_TIMEOUT);
    cr_assert(!shard_has(&s, "a", 0));
    cr_assert_eq(shard_stats(&s).quarantined_bytes, PAGE);
    is(shard_reserve(&s, "a", 0, PAGE), KVB_OK);
    is(kvs_core_commit(s.core, s.sim.now_ns + s.ttl_ns - 1, s.attempt, 1, 0), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, revoke_gives_space_back_only_when_the_writer_is_stopped)
{
    struct shard s;
    shard_init(&s, 4);
    is(shard_reserve(&s, "a", 0, 4 * PAGE), KVB_OK);
    is(kvs_core_revoke(s.core, s.sim.now_ns, s.attempt, 1, false), KVB_OK);
    is(shard_put(&s, "b", 0, 1), KVB_ERR_NO_SPACE);
    kvs_core_session_stopped(s.core, 1);
    is(kvs_core_session_open(s.core, 2), KVB_OK);
    s.session = 2;
    is(shard_put(&s, "b", 0, 4 * PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

/* ---- B25: a read slower than its lease ---- */

Test(core, b25_a_ticket_keeps_the_space_until_its_deadline_and_then_loses)
{
    for (int how = 0; how < 4; how++) {
        struct shard s;
        shard_init(&s, 8);
        is(shard_put(&s, "a", 0, 8 * PAGE), KVB_OK);
        is(shard_find(&s, "a", 0), KVB_OK);
        struct kvs_ticket ticket = s.found.ticket;
        if (how == 1) {
            kvs_core_clear(s.core);
        } else if (how == 2) {
            is(shard_remove(&s, "a", 0, false), KVB_ERR_BUSY);
            is(shard_remove(&s, "a", 0, true), KVB_OK);
        } else if (how == 3) {
            kvs_core_retire(s.core, s.where.lineage);
            s.where.lineage = shard_lineage(2);
        }
        cr_assert(how == 0 || !shard_has(&s, "a", 0));
        is(shard_put(&s, "b", 0, 1), KVB_ERR_NO_SPACE);
        s.sim.now_ns += s.ttl_ns - 1;
        is(shard_put(&s, "b", 0, 1), KVB_ERR_NO_SPACE);
        s.sim.now_ns += 1;
        is(shard_put(&s, "b", 0, 8 * PAGE), KVB_OK);
        is(kvs_core_release(s.core, s.sim.now_ns, ticket, 1), KVB_ERR_TICKET);
        cr_assert_eq(shard_stats(&s).tickets_lost, 1);
        valid(&s);
        shard_cleanup(&s);
    }
}

Test(core, a_ticket_is_lost_at_its_deadline_also_if_nobody_wanted_the_space)
{
    struct shard s;
    shard_init(&s, 8);
    is(shard_put(&s, "a", 0, PAGE), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    s.sim.now_ns += s.ttl_ns;
    is(shard_release(&s), KVB_ERR_TICKET);
    is(shard_find(&s, "a", 0), KVB_OK);
    s.sim.now_ns += s.ttl_ns - 1;
    is(shard_release(&s), KVB_OK);
    is(shard_release(&s), KVB_ERR_TICKET);
    shard_cleanup(&s);
}

Test(core, a_ticket_is_its_sessions_alone_and_dies_with_it)
{
    struct shard s;
    shard_init(&s, 8);
    is(kvs_core_session_open(s.core, 2), KVB_OK);
    is(shard_put(&s, "a", 0, PAGE), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    is(kvs_core_release(s.core, s.sim.now_ns, s.found.ticket, 2), KVB_ERR_TICKET);
    is(shard_release(&s), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    kvs_core_session_end(s.core, 1);
    is(shard_release(&s), KVB_ERR_TICKET);
    is(shard_find(&s, "a", 0), KVB_ERR_BAD_STATE);
    is(kvs_core_session_open(s.core, 1), KVB_ERR_EXISTS);
    cr_assert_eq(shard_stats(&s).tickets, 0);
    s.session = 2;
    is(shard_put(&s, "b", 0, 8 * PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_ticket_or_promise_that_is_over_stops_no_remove)
{
    struct shard s;
    shard_init(&s, 4);
    is(shard_put(&s, "a", 0, 1000), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    cr_assert(shard_hold(&s, "a", 0, 1, 1));
    is(shard_remove(&s, "a", 0, false), KVB_ERR_BUSY);
    s.sim.now_ns += s.ttl_ns;
    is(shard_remove(&s, "a", 0, false), KVB_OK);
    cr_assert_eq(shard_stats(&s).used_bytes, 0);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, the_last_of_several_tickets_frees_a_removed_object)
{
    struct shard s;
    shard_init(&s, 4);
    is(shard_put(&s, "a", 0, 4 * PAGE), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    struct kvs_ticket first = s.found.ticket;
    is(shard_find(&s, "a", 0), KVB_OK);
    is(shard_remove(&s, "a", 0, true), KVB_OK);
    cr_assert_eq(shard_stats(&s).retired_bytes, 4 * PAGE);
    is(kvs_core_release(s.core, s.sim.now_ns, first, 1), KVB_OK);
    is(shard_put(&s, "a", 0, 1), KVB_ERR_NO_SPACE);
    is(shard_release(&s), KVB_OK);
    cr_assert_eq(shard_stats(&s).used_bytes, 0);
    is(shard_put(&s, "a", 0, 4 * PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

#ifdef KVB_FAULTS
Test(core, the_fault_takes_ticket_and_quarantine_out)
{
    is(kvb_fault_choose("ticket-ignored"), KVB_OK);
    struct shard s;
    shard_init(&s, 4);
    is(shard_put(&s, "a", 0, 4 * PAGE), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    s.sim.now_ns += s.ttl_ns;
    is(shard_reserve(&s, "b", 0, 4 * PAGE), KVB_OK);
    is(shard_release(&s), KVB_OK);
    s.sim.now_ns += s.ttl_ns;
    is(shard_put(&s, "c", 0, 4 * PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, the_fault_alone_leaves_the_quarantine)
{
    is(kvb_fault_choose("ticket-ignored:first"), KVB_OK);
    struct shard s;
    shard_init(&s, 4);
    is(shard_put(&s, "a", 0, 4 * PAGE), KVB_OK);
    is(shard_find(&s, "a", 0), KVB_OK);
    s.sim.now_ns += s.ttl_ns;
    is(shard_reserve(&s, "b", 0, 4 * PAGE), KVB_OK);
    is(shard_release(&s), KVB_OK);
    s.sim.now_ns += s.ttl_ns;
    is(shard_put(&s, "c", 0, 4 * PAGE), KVB_ERR_NO_SPACE);
    shard_cleanup(&s);
}
#endif

/* ---- B22: tenants ---- */

static void as_tenant(struct shard *s, uint32_t tenant, uint32_t space)
{
    s->where.tenant = tenant;
    s->where.space = space;
}

Test(core, b22_tenants_share_no_key_and_clear_only_their_own)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint32_t t = 0; t < 2; t++) {
        as_tenant(&s, t, t);
        is(shard_put(&s, "k", 0, 1000 + t), KVB_OK);
        is(shard_put(&s, "k", 1, 1000 + t), KVB_OK);
    }
    /* The same tenant with another layout, and with another lineage, is another key too. */
    as_tenant(&s, 0, 2);
    cr_assert(!shard_has(&s, "k", 0));
    as_tenant(&s, 0, 0);
    s.where.lineage = shard_lineage(2);
    cr_assert(!shard_has(&s, "k", 0));
    s.where.lineage = shard_lineage(1);
    is(shard_remove(&s, "k", 0, true), KVB_OK);
    kvs_core_remove_tenant(s.core, 0);
    cr_assert(!shard_has(&s, "k", 1));
    as_tenant(&s, 1, 1);
    is(shard_find(&s, "k", 0), KVB_OK);
    cr_assert_eq(s.found.len, 1001);
    is(shard_find(&s, "k", 1), KVB_OK);
    struct kvs_core_tenant_stats stats;
    kvs_core_tenant_stats(s.core, 1, &stats);
    cr_assert_eq(stats.objects, 2);
    shard_reclaim_all(&s);
    cr_assert(shard_has(&s, "k", 0) && shard_has(&s, "k", 1));
    kvs_core_tenant_stats(s.core, 0, &stats);
    cr_assert_eq(stats.used_bytes, 0);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, b22_a_full_quota_refuses_and_evicts_that_tenant_alone)
{
    struct shard s;
    shard_init(&s, 64);
    is(kvs_core_set_quota(s.core, 0, 4 * PAGE), KVB_OK);
    is(kvs_core_set_quota(s.core, KVS_CORE_TENANT_MAX + 1, 0), KVB_ERR_INVALID);
    as_tenant(&s, 1, 1);
    for (uint64_t i = 0; i < 30; i++) {
        is(shard_put(&s, "b", i, PAGE), KVB_OK);
    }
    as_tenant(&s, 0, 0);
    for (uint64_t i = 0; i < 20; i++) {
        is(shard_put(&s, "a", i, PAGE), KVB_OK);
        struct kvs_core_tenant_stats stats;
        kvs_core_tenant_stats(s.core, 0, &stats);
        cr_assert(stats.used_bytes <= 4 * PAGE);
    }
    for (uint64_t i = 16; i < 20; i++) {
        cr_assert(shard_has(&s, "a", i), "the youngest stay");
    }
    /* What it has cannot go: it is told so, and nothing goes. */
    for (uint64_t i = 16; i < 20; i++) {
        is(shard_find(&s, "a", i), KVB_OK);
    }
    is(shard_put(&s, "a", 20, 1), KVB_ERR_QUOTA);
    is(shard_put(&s, "a", 20, 5 * PAGE), KVB_ERR_QUOTA);
    cr_assert_eq(shard_stats(&s).evicted, 16);
    struct kvs_core_tenant_stats stats;
    kvs_core_tenant_stats(s.core, 0, &stats);
    cr_assert_eq(stats.evicted, 16);
    kvs_core_tenant_stats(s.core, 1, &stats);
    cr_assert_eq(stats.evicted, 0);
    as_tenant(&s, 1, 1);
    for (uint64_t i = 0; i < 30; i++) {
        cr_assert(shard_has(&s, "b", i), "another tenant's object was evicted");
    }
    is(shard_put(&s, "b", 30, PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_tenants_cleared_objects_go_before_its_live_ones_when_its_quota_is_full)
{
    struct shard s;
    shard_init(&s, 64);
    is(kvs_core_set_quota(s.core, 0, 8 * PAGE), KVB_OK);
    for (uint64_t i = 0; i < 4; i++) {
        is(shard_put(&s, "live", i, PAGE), KVB_OK);
    }
    s.where.lineage = shard_lineage(2);
    for (uint64_t i = 0; i < 4; i++) {
        is(shard_put(&s, "old", i, PAGE), KVB_OK);
    }
    kvs_core_retire(s.core, shard_lineage(2));
    s.where.lineage = shard_lineage(1);
    for (uint64_t i = 0; i < 4; i++) {
        is(shard_put(&s, "new", i, PAGE), KVB_OK);
    }
    cr_assert_eq(shard_stats(&s).evicted, 0);
    for (uint64_t i = 0; i < 4; i++) {
        cr_assert(shard_has(&s, "live", i));
    }
    shard_cleanup(&s);
}

/* ---- B27: counters ---- */

Test(core, b27_used_bytes_are_the_sum_of_their_parts_and_end_at_zero)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t round = 0; round < 50; round++) {
        s.session = 100 + round;
        is(kvs_core_session_open(s.core, s.session), KVB_OK);
        for (uint64_t i = 0; i < 10; i++) {
            is(shard_put(&s, "a", i, 1 + i * 7919), KVB_OK);
        }
        is(shard_find(&s, "a", 3), KVB_OK);
        cr_assert(shard_hold(&s, "a", 4, 1, round));
        is(shard_reserve(&s, "b", 0, 70000), KVB_OK);
        if (round % 2 == 0) {
            kvs_core_clear(s.core);
        } else {
            kvs_core_remove_tenant(s.core, 0);
        }
        valid(&s);
        cr_assert_eq(shard_stats(&s).objects, 0);
        cr_assert_eq(shard_stats(&s).live_bytes, 0);
        cr_assert_eq(shard_stats(&s).value_bytes, 0);
        is(shard_commit(&s), KVB_ERR_FENCED);
        is(shard_put(&s, "c", round, 5000), KVB_OK);
        kvs_core_clear(s.core);
        kvs_core_session_end(s.core, s.session);
        shard_reclaim_all(&s);
        valid(&s);
        struct kvs_core_stats stats = shard_stats(&s);
        cr_assert_eq(stats.used_bytes, 0);
        cr_assert_eq(stats.free_bytes, stats.share_bytes);
        cr_assert_eq(stats.locked_bytes + stats.holds + stats.tickets + stats.attempts, 0);
    }
    shard_cleanup(&s);
}

/* ---- B29: eviction only where it helps ---- */

Test(core, b29_a_put_that_no_eviction_can_help_evicts_nothing)
{
    struct shard s;
    shard_init(&s, 64);
    /* (a) full of objects being read, being promised, or pinned; some small ones are free to go */
    for (uint64_t i = 0; i < 60; i++) {
        s.pin = i % 3 == 0 ? KVS_PIN_HARD : KVS_PIN_NONE;
        is(shard_put(&s, "a", i, PAGE), KVB_OK);
        if (i % 3 == 1) {
            is(shard_find(&s, "a", i), KVB_OK);
        } else if (i % 3 == 2) {
            cr_assert(shard_hold(&s, "a", i, i, 1));
        }
    }
    s.pin = KVS_PIN_NONE;
    for (uint64_t i = 0; i < 16; i++) {
        is(shard_put(&s, "small", i, PAGE / 4), KVB_OK);
    }
    is(shard_put(&s, "b", 0, 5 * PAGE), KVB_ERR_NO_SPACE);
    /* (b) larger than the share */
    is(shard_put(&s, "b", 0, 65 * PAGE), KVB_ERR_TOO_LARGE);
    is(shard_put(&s, "b", 0, KVS_CORE_VALUE_MAX + 1), KVB_ERR_TOO_LARGE);
    cr_assert_eq(shard_stats(&s).evicted, 0);
    /* and one that can be helped takes what it needs */
    is(shard_put(&s, "b", 0, 4 * PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 16);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, b29_eviction_takes_about_what_is_needed_and_the_oldest_first)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 16; i++) {
        is(shard_put(&s, "a", i, 4 * PAGE), KVB_OK);
    }
    is(shard_put(&s, "b", 0, 4 * PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 1);
    cr_assert(!shard_has(&s, "a", 0));
    is(shard_put(&s, "b", 1, 6 * PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 3);
    cr_assert(!shard_has(&s, "a", 2) && shard_has(&s, "a", 3));
    valid(&s);
    shard_cleanup(&s);
}

Test(core, what_was_read_stays_and_what_was_not_goes)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 64; i++) {
        is(shard_put(&s, "a", i, PAGE), KVB_OK);
        if (i % 2 == 0) {
            is(shard_find(&s, "a", i), KVB_OK);
            is(shard_release(&s), KVB_OK);
        }
    }
    for (uint64_t i = 0; i < 16; i++) {
        is(shard_put(&s, "b", i, PAGE), KVB_OK);
    }
    for (uint64_t i = 0; i < 64; i++) { /* the second half is not judged yet */
        cr_assert(shard_has(&s, "a", i) == (i % 2 == 0 || i >= 32), "a %d", (int)i);
    }
    valid(&s);
    shard_cleanup(&s);
}

Test(core, soft_pins_go_last_and_hard_pins_never)
{
    struct shard s;
    shard_init(&s, 16);
    s.pin = KVS_PIN_HARD;
    is(shard_put(&s, "hard", 0, 2 * PAGE), KVB_OK);
    is(shard_put(&s, "hard", 1, 1000), KVB_OK);
    s.pin = KVS_PIN_SOFT;
    is(shard_put(&s, "soft", 0, 4 * PAGE), KVB_OK);
    is(shard_put(&s, "soft", 1, 16384), KVB_OK);
    s.pin = KVS_PIN_NONE;
    as_tenant(&s, 1, 1);
    for (uint64_t i = 0; i < 100; i++) {
        is(shard_put(&s, "a", i, i % 3 == 0 ? 3 * PAGE : 16384), KVB_OK);
        as_tenant(&s, 0, 0);
        cr_assert(shard_has(&s, "soft", 0) && shard_has(&s, "soft", 1), "put %d", (int)i);
        as_tenant(&s, 1, 1);
        valid(&s);
    }
    is(shard_put(&s, "big", 0, 12 * PAGE), KVB_OK);
    as_tenant(&s, 0, 0);
    cr_assert(!shard_has(&s, "soft", 0));
    cr_assert(shard_has(&s, "hard", 0) && shard_has(&s, "hard", 1));
    is(shard_put(&s, "big", 1, 14 * PAGE), KVB_ERR_NO_SPACE);
    is(shard_remove(&s, "hard", 0, false), KVB_ERR_BUSY);
    struct kvs_core_key key = shard_key(&s, "hard", 0, 0);
    is(kvs_core_pin(s.core, s.sim.now_ns, &s.where, &key, KVS_PIN_NONE), KVB_OK);
    is(shard_put(&s, "big", 1, 14 * PAGE), KVB_OK);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, all_pieces_of_a_block_go_together)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 16; i++) {
        for (uint32_t part = 0; part < 4; part++) {
            struct kvs_core_key key = shard_key(&s, "a", i, part % 2);
            key.group = part / 2;
            is(shard_put_key(&s, key, PAGE), KVB_OK);
        }
    }
    is(shard_put(&s, "b", 0, PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 4);
    struct kvs_core_tenant_stats stats;
    kvs_core_tenant_stats(s.core, 0, &stats);
    cr_assert_eq(stats.evicted, 4);
    for (uint32_t part = 0; part < 4; part++) {
        struct kvs_core_key key = shard_key(&s, "a", 0, part % 2);
        key.group = part / 2;
        cr_assert(shard_ask_key(&s, key, (struct kvs_core_holder){0}).status == KVB_ERR_NOT_FOUND);
    }
    /* A block of which one piece is being read is passed over. */
    is(shard_find(&s, "a", 1), KVB_OK);
    is(shard_put(&s, "b", 1, 4 * PAGE), KVB_OK);
    for (uint32_t part = 0; part < 4; part++) {
        struct kvs_core_key key = shard_key(&s, "a", 1, part % 2);
        key.group = part / 2;
        cr_assert(shard_ask_key(&s, key, (struct kvs_core_holder){0}).status == KVB_OK);
    }
    valid(&s);
    shard_cleanup(&s);
}

Test(core, pieces_of_a_block_are_bounded_at_commit_too)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint32_t part = 1; part < KVS_CORE_PIECES_MAX; part++) {
        is(shard_put_key(&s, shard_key(&s, "a", 0, part), 64), KVB_OK);
    }
    is(shard_reserve_key(&s, shard_key(&s, "a", 0, 0), 64), KVB_OK);
    struct kvs_attempt first = s.attempt;
    is(shard_reserve_key(&s, shard_key(&s, "a", 0, KVS_CORE_PIECES_MAX), 64), KVB_OK);
    is(kvs_core_commit(s.core, s.sim.now_ns, first, 1, 0), KVB_OK);
    is(shard_commit(&s), KVB_ERR_LIMIT);
    cr_assert_eq(shard_stats(&s).reserved_bytes, 0);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_block_has_a_bounded_number_of_pieces)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint32_t part = 0; part < KVS_CORE_PIECES_MAX; part++) {
        is(shard_put_key(&s, shard_key(&s, "a", 0, part), 64), KVB_OK);
    }
    is(shard_reserve_key(&s, shard_key(&s, "a", 0, KVS_CORE_PIECES_MAX), 64), KVB_ERR_LIMIT);
    is(shard_put_key(&s, shard_key(&s, "a", 1, KVS_CORE_PIECES_MAX), 64), KVB_OK);
    shard_cleanup(&s);
}

/* ---- room ---- */

Test(core, values_from_one_byte_to_a_gibibyte_are_kept)
{
    struct shard s;
    shard_init(&s, (KVS_CORE_VALUE_MAX / PAGE) + 1);
    is(shard_put(&s, "a", 0, 1), KVB_OK);
    is(shard_put(&s, "a", 1, KVS_CORE_VALUE_MAX), KVB_OK);
    cr_assert_eq(s.extents.n, 1, "an empty share gives one run");
    cr_assert(shard_has(&s, "a", 0) && shard_has(&s, "a", 1));
    is(shard_find(&s, "a", 0), KVB_OK);
    cr_assert(s.extents.n == 1 && s.extents.at[0].len == 1 && s.found.len == 1);
    is(shard_find(&s, "a", 1), KVB_OK);
    cr_assert(s.extents.at[0].len == KVS_CORE_VALUE_MAX);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_value_as_large_as_the_share_fits_whatever_lay_there_before)
{
    struct shard s;
    shard_init(&s, 32);
    for (uint64_t len = 32 * PAGE - 70000; len <= 32 * PAGE; len += 1234) {
        for (uint64_t i = 0; i < 400; i++) {
            is(shard_put(&s, "small", len * 1000 + i, 1 + i * i), KVB_OK);
        }
        is(shard_put(&s, "all", len, len), KVB_OK);
        valid(&s);
    }
    shard_cleanup(&s);
}

Test(core, fragmentation_does_not_fill_a_share)
{
    struct shard s;
    shard_init(&s, 4096);
    uint64_t n = 0;
    uint64_t removed = 0;
    while (shard_stats(&s).free_bytes > 2 * 1024 * 1024) {
        is(shard_put(&s, "a", n, 1 + (n * 2654435761u) % 300000), KVB_OK);
        n++;
    }
    cr_assert_eq(shard_stats(&s).evicted, 0);
    for (uint64_t i = 0; i < n; i += 2) {
        removed += 1 + (i * 2654435761u) % 300000;
        is(shard_remove(&s, "a", i, false), KVB_OK);
    }
    /* Half of the share, in as many holes: nine tenths of that go into one value without eviction.
     */
    is(shard_put(&s, "large", 0, removed / 10 * 9), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 0);
    cr_assert(s.extents.n > 100);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s.extents.n; i++) {
        sum += s.extents.at[i].len;
    }
    cr_assert_eq(sum, removed / 10 * 9);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_share_full_of_small_leftovers_takes_a_large_value)
{
    struct shard s;
    shard_init(&s, 64);
    /* One of 64 values stays in each slab page. */
    for (uint64_t i = 0; i < 64 * 64; i++) {
        is(shard_put(&s, "a", i, 1024), KVB_OK);
    }
    for (uint64_t i = 0; i < 64 * 64; i++) {
        if (i % 64 != 0) {
            is(shard_remove(&s, "a", i, false), KVB_OK);
        }
    }
    cr_assert_eq(shard_stats(&s).free_bytes, 0);
    is(shard_put(&s, "b", 0, 8 * PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 8);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, room_for_pages_costs_no_more_small_values_than_lie_in_them)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 64 * 16; i++) {
        is(shard_put(&s, "a", i, 4096), KVB_OK);
    }
    is(shard_put(&s, "b", 0, 3 * PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 3 * 16);
    cr_assert(!shard_has(&s, "a", 0), "the oldest page went");
    valid(&s);
    shard_cleanup(&s);
}

/* Every slab page is half old and half young: the old ones alone free no page. */
Test(core, room_for_a_page_empties_one_page_also_when_ages_are_mixed)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 64 * 16; i++) {
        is(shard_put(&s, "a", i, 4096), KVB_OK);
    }
    for (uint64_t i = 0; i < 64 * 16; i += 2) {
        is(shard_remove(&s, "a", i, false), KVB_OK);
    }
    for (uint64_t i = 0; i < 64 * 16; i += 2) {
        is(shard_put(&s, "b", i, 4096), KVB_OK);
    }
    cr_assert_eq(shard_stats(&s).free_bytes, 0);
    is(shard_put(&s, "c", 0, PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 16);
    valid(&s);
    shard_cleanup(&s);
}

/* What is read pins single slots in every page but one. */
Test(core, a_page_is_found_among_pages_that_cannot_be_emptied)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 64 * 16; i++) {
        is(shard_put(&s, "a", i, 4096), KVB_OK);
        if (i % 16 == 5 && i / 16 != 40) {
            is(shard_find(&s, "a", i), KVB_OK);
        }
    }
    is(shard_put(&s, "b", 0, 2 * PAGE), KVB_ERR_NO_SPACE);
    is(shard_put(&s, "b", 0, PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 16);
    for (uint64_t i = 0; i < 64 * 16; i++) {
        cr_assert(shard_has(&s, "a", i) == (i / 16 != 40));
    }
    is(shard_find(&s, "b", 0), KVB_OK);
    /* No page can be had now, but slots of the size can, and of another size cannot. */
    is(shard_put(&s, "c", 0, PAGE / 2), KVB_ERR_NO_SPACE);
    is(shard_put(&s, "d", 0, 4096), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 17);
    valid(&s);
    shard_cleanup(&s);
}

/* The only slots of the size lie behind thousands of older values that help nothing. */
Test(core, a_slot_is_found_behind_many_that_do_not_help)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 60 * 32; i++) {
        is(shard_put(&s, "a", i, 2048), KVB_OK);
        if (i % 32 == 0) {
            is(shard_find(&s, "a", i), KVB_OK);
        }
    }
    for (uint64_t i = 0; i < 4 * 16; i++) {
        is(shard_put(&s, "b", i, 4096), KVB_OK);
        if (i % 16 == 0) {
            is(shard_find(&s, "b", i), KVB_OK);
        }
    }
    for (uint64_t i = 0; i < 60; i++) {
        is(shard_put(&s, "c", i, 4096), KVB_OK);
        valid(&s);
    }
    cr_assert_eq(shard_stats(&s).evicted, 60);
    for (uint64_t i = 0; i < 60 * 32; i++) {
        cr_assert(shard_has(&s, "a", i), "a value that helped nothing went");
    }
    shard_cleanup(&s);
}

/* The only page lies with another tenant, behind one whose pages are all read. */
Test(core, a_page_is_found_with_any_tenant)
{
    struct shard s;
    shard_init(&s, 64);
    s.where.tenant = 1;
    s.where.space = 1;
    is(shard_put(&s, "first", 0, 2048), KVB_OK); /* so that this tenant is asked first */
    s.where.tenant = 0;
    s.where.space = 0;
    for (uint64_t i = 0; i < 61 * 32 - 1; i++) {
        is(shard_put(&s, "a", i, 2048), KVB_OK);
        if (i % 32 == 0) {
            is(shard_find(&s, "a", i), KVB_OK);
        }
    }
    s.where.tenant = 1;
    s.where.space = 1;
    is(shard_put(&s, "read", 0, PAGE), KVB_OK);
    is(shard_find(&s, "read", 0), KVB_OK);
    is(shard_remove(&s, "first", 0, false), KVB_OK);
    s.where.tenant = 2;
    s.where.space = 2;
    is(shard_put(&s, "b", 0, 2 * PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 0);
    s.where.tenant = 0;
    s.where.space = 0;
    is(shard_put(&s, "c", 0, PAGE), KVB_OK);
    cr_assert_eq(shard_stats(&s).evicted, 1);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_put_that_must_evict_very_many_comes_again_and_gets_there)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 64 * 1024; i++) {
        is(shard_put(&s, "a", i, 64), KVB_OK);
    }
    uint32_t again = 0;
    uint64_t evicted = 0;
    kvb_status_t status;
    while ((status = shard_reserve(&s, "b", 0, 64 * PAGE)) == KVB_ERR_AGAIN) {
        cr_assert(shard_stats(&s).evicted > evicted);
        evicted = shard_stats(&s).evicted;
        valid(&s);
        again++;
    }
    is(status, KVB_OK);
    cr_assert(again >= 4 && again < 64, "again %u times", again);
    shard_cleanup(&s);
}

/* As often as it is asked to come again, it got a step further. */
static uint32_t come_again(struct shard *s, uint64_t len)
{
    uint32_t again = 0;
    kvb_status_t status;
    while ((status = shard_reserve(s, "b", 0, len)) == KVB_ERR_AGAIN) {
        valid(s);
        cr_assert_lt(++again, 64);
    }
    is(status, KVB_OK);
    return again;
}

Test(core, so_does_one_that_must_reclaim_very_many_or_whose_quota_is_full_of_them)
{
    for (int cleared = 0; cleared < 2; cleared++) {
        struct shard s;
        shard_init(&s, 64);
        is(kvs_core_set_quota(s.core, 0, cleared ? UINT64_MAX : 10 * PAGE), KVB_OK);
        for (uint64_t i = 0; i < 10 * 1024; i++) {
            is(shard_put(&s, "a", i, 64), KVB_OK);
        }
        if (cleared) {
            kvs_core_clear(s.core);
        }
        cr_assert_geq(come_again(&s, (cleared ? 64 : 10) * PAGE), 1);
        cr_assert_eq(shard_stats(&s).evicted, cleared ? 0 : 10 * 1024);
        shard_cleanup(&s);
    }
}

Test(core, what_only_tickets_that_are_over_keep_is_room_as_soon_as_they_are_looked_through)
{
    for (int quota = 0; quota < 2; quota++) {
        struct shard s;
        shard_init(&s, 64);
        is(kvs_core_set_quota(s.core, 0, quota ? 32 * PAGE : UINT64_MAX), KVB_OK);
        is(shard_put(&s, "a", 0, (quota ? 32 : 64) * PAGE), KVB_OK);
        for (int i = 0; i < 3000; i++) {
            is(shard_find(&s, "a", 0), KVB_OK);
        }
        is(shard_reserve(&s, "b", 0, PAGE), quota ? KVB_ERR_QUOTA : KVB_ERR_NO_SPACE);
        s.sim.now_ns += s.ttl_ns;
        if (quota) { /* whoever holds what: it never will be */
            is(shard_reserve(&s, "b", 0, 33 * PAGE), KVB_ERR_QUOTA);
        }
        cr_assert_geq(come_again(&s, PAGE), 1);
        cr_assert(!shard_has(&s, "a", 0));
        shard_cleanup(&s);
    }
}

Test(core, records_are_bounded_and_full_is_like_no_space)
{
    struct shard s;
    struct kvs_core_config config = {.share_bytes = 64 * PAGE, .objects_max = 10, .leases_max = 12};
    is(shard_create(&s, &config), KVB_OK);
    for (uint64_t i = 0; i < 20; i++) {
        is(shard_put(&s, "a", i, 100), KVB_OK);
    }
    cr_assert_eq(shard_stats(&s).objects, 10);
    for (uint64_t i = 10; i < 20; i++) {
        is(shard_find(&s, "a", i), KVB_OK);
    }
    is(shard_put(&s, "a", 20, 100), KVB_ERR_NO_SPACE);
    is(shard_find(&s, "a", 10), KVB_OK);
    is(shard_find(&s, "a", 10), KVB_OK);
    is(shard_find(&s, "a", 10), KVB_ERR_LIMIT);
    is(shard_put(&s, "a", 20, 100), KVB_ERR_LIMIT);
    cr_assert(!shard_hold(&s, "a", 10, 1, 1), "no lease is left for a hold");
    cr_assert(shard_has(&s, "a", 10));
    valid(&s);
    shard_cleanup(&s);
}

/* ---- lookups and holds ---- */

Test(core, duplicates_in_a_batch_get_the_same_answer)
{
    struct shard s;
    shard_init(&s, 64);
    is(shard_put(&s, "a", 1, 100), KVB_OK);
    enum { N = 300 };
    static char names[N][16];
    struct kvs_core_entry entries[N];
    for (uint32_t i = 0; i < N; i++) {
        int len = snprintf(names[i], sizeof names[i], "a-%u", i % 3);
        entries[i] = (struct kvs_core_entry){
            .key = {.block = {.data = (uint8_t *)names[i], .len = (size_t)len}}};
    }
    struct kvs_core_holder holder = {.instance = 1, .request = 1};
    kvs_core_exists(s.core, s.sim.now_ns, &s.where, entries, N, holder, s.sim.now_ns + 10);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(entries[i].status, i % 3 == 1 ? KVB_OK : KVB_ERR_NOT_FOUND);
        cr_assert_eq(entries[i].held, i % 3 == 1);
    }
    cr_assert_eq(shard_stats(&s).holds, 1);
    valid(&s);
    shard_cleanup(&s);
}

/* Fills the share with other things; is the held one still there? */
static bool survives(struct shard *s, const char *name)
{
    static uint64_t n;
    for (uint64_t i = 0; i < 32; i++) {
        is(shard_put(s, "fill", n++, PAGE / 2), KVB_OK);
    }
    return shard_has(s, name, 0);
}

Test(core, a_promised_object_stays_until_the_promise_ends)
{
    struct shard s;
    shard_init(&s, 8);
    struct kvs_core_holder holder = {.instance = 1, .request = 5};
    for (int how = 0; how < 5; how++) {
        is(shard_put(&s, "a", 0, PAGE), KVB_OK);
        cr_assert(shard_hold(&s, "a", 0, 1, 5));
        cr_assert(shard_hold(&s, "a", 0, 1, 5));
        cr_assert(survives(&s, "a"));
        /* Not ended by somebody else's. */
        kvs_core_discard(s.core, (struct kvs_core_holder){.instance = 1, .request = 6});
        kvs_core_discard(s.core, (struct kvs_core_holder){.instance = 2, .request = 5});
        kvs_core_discard_instance(s.core, 2);
        s.sim.now_ns += s.ttl_ns - 1;
        cr_assert(survives(&s, "a"));
        cr_assert_eq(shard_stats(&s).holds, 1);
        struct kvs_core_key key = shard_key(&s, "a", 0, 0);
        if (how == 0) {
            s.sim.now_ns += 1;
        } else if (how == 1) {
            kvs_core_discard(s.core, holder);
        } else if (how == 2) {
            kvs_core_discard_instance(s.core, 1);
        } else if (how == 3) {
            is(kvs_core_find(s.core, s.sim.now_ns, &s.where, &key, s.session, KVB_NEVER, holder,
                             &s.found, &s.extents),
               KVB_OK);
            cr_assert(survives(&s, "a"), "the ticket keeps it");
            is(shard_release(&s), KVB_OK);
        } else {
            is(shard_remove(&s, "a", 0, false), KVB_ERR_BUSY);
            is(shard_remove(&s, "a", 0, true), KVB_OK);
        }
        cr_assert(!survives(&s, "a"), "way %d", how);
        cr_assert_eq(shard_stats(&s).holds, 0);
        valid(&s);
    }
    shard_cleanup(&s);
}

Test(core, two_requests_promises_are_two)
{
    struct shard s;
    shard_init(&s, 8);
    is(shard_put(&s, "a", 0, PAGE), KVB_OK);
    cr_assert(shard_hold(&s, "a", 0, 1, 5));
    cr_assert(shard_hold(&s, "a", 0, 1, 6));
    cr_assert(shard_hold(&s, "a", 0, 2, 5));
    kvs_core_discard(s.core, (struct kvs_core_holder){.instance = 1, .request = 5});
    cr_assert(survives(&s, "a"));
    kvs_core_discard_instance(s.core, 1);
    cr_assert(survives(&s, "a"));
    kvs_core_discard_instance(s.core, 2);
    cr_assert(!survives(&s, "a"));
    shard_cleanup(&s);
}

Test(core, an_instance_holds_at_most_its_bytes)
{
    struct shard s;
    struct kvs_core_config config = {.share_bytes = 64 * PAGE, .hold_bytes_max = 3 * PAGE};
    is(shard_create(&s, &config), KVB_OK);
    for (uint64_t i = 0; i < 5; i++) {
        is(shard_put(&s, "a", i, PAGE), KVB_OK);
    }
    for (uint64_t i = 0; i < 5; i++) {
        cr_assert(shard_hold(&s, "a", i, 1, i) == (i < 3));
    }
    cr_assert(shard_hold(&s, "a", 4, 2, 1), "another instance has its own bound");
    kvs_core_discard(s.core, (struct kvs_core_holder){.instance = 1, .request = 0});
    cr_assert(shard_hold(&s, "a", 3, 1, 3));
    valid(&s);
    shard_cleanup(&s);
}

/* ---- clearing ---- */

Test(core, a_retired_lineage_misses_at_once_and_its_puts_are_fenced)
{
    struct shard s;
    shard_init(&s, 64);
    is(shard_put(&s, "a", 0, 1000), KVB_OK);
    as_tenant(&s, 0, 1);
    is(shard_put(&s, "a", 1, 1000), KVB_OK);
    is(shard_reserve(&s, "b", 0, 1000), KVB_OK);
    kvs_core_retire(s.core, shard_lineage(1));
    cr_assert(!shard_has(&s, "a", 1));
    is(shard_find(&s, "a", 1), KVB_ERR_NOT_FOUND);
    is(shard_put(&s, "c", 0, 1000), KVB_ERR_FENCED);
    is(shard_commit(&s), KVB_ERR_FENCED);
    as_tenant(&s, 0, 0);
    cr_assert(!shard_has(&s, "a", 0), "in every space");
    is(shard_put(&s, "c", 0, 1000), KVB_ERR_FENCED);
    cr_assert_eq(shard_stats(&s).objects, 0);
    cr_assert_eq(shard_stats(&s).fenced, 3);
    kvs_core_retire(s.core, shard_lineage(1));
    shard_reclaim_all(&s);
    cr_assert_eq(shard_stats(&s).used_bytes, 0);
    is(shard_put(&s, "c", 0, 1000), KVB_ERR_FENCED);
    valid(&s);
    shard_cleanup(&s);
}

Test(core, a_lineage_never_seen_is_remembered_as_retired_among_the_last_ones)
{
    struct shard s;
    struct kvs_core_config config = {.share_bytes = 64 * PAGE, .retired_max = 8};
    is(shard_create(&s, &config), KVB_OK);
    for (uint64_t i = 100; i < 109; i++) {
        kvs_core_retire(s.core, shard_lineage(i));
        kvs_core_retire(s.core, shard_lineage(i));
    }
    for (uint64_t i = 100; i < 109; i++) {
        s.where.lineage = shard_lineage(i);
        is(shard_put(&s, "a", i, 10), i == 100 ? KVB_OK : KVB_ERR_FENCED);
    }
    valid(&s);
    shard_cleanup(&s);
}

Test(core, retired_space_is_used_before_anything_is_evicted)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 32; i++) {
        is(shard_put(&s, "live", i, PAGE), KVB_OK);
        s.where.lineage = shard_lineage(2);
        is(shard_put(&s, "old", i, PAGE), KVB_OK);
        s.where.lineage = shard_lineage(1);
    }
    kvs_core_retire(s.core, shard_lineage(2));
    cr_assert_eq(shard_stats(&s).retired_bytes, 32 * PAGE);
    for (uint64_t i = 0; i < 32; i++) {
        is(shard_put(&s, "new", i, PAGE), KVB_OK);
        valid(&s);
    }
    cr_assert_eq(shard_stats(&s).evicted, 0);
    for (uint64_t i = 0; i < 32; i++) {
        cr_assert(shard_has(&s, "live", i));
    }
    shard_cleanup(&s);
}

Test(core, puts_alone_reclaim_as_fast_as_they_fill)
{
    struct shard s;
    shard_init(&s, 256);
    for (uint64_t i = 0; i < 200; i++) {
        is(shard_put(&s, "a", i, 1000), KVB_OK);
    }
    kvs_core_clear(s.core);
    for (uint64_t i = 0; i < 101; i++) {
        is(shard_put(&s, "b", i, 1000), KVB_OK);
    }
    cr_assert_eq(shard_stats(&s).retired_bytes, 0);
    shard_cleanup(&s);
}

Test(core, what_is_put_after_clearing_stays)
{
    struct shard s;
    shard_init(&s, 64);
    for (uint64_t i = 0; i < 100; i++) {
        is(shard_put(&s, "a", i, 1000), KVB_OK);
    }
    kvs_core_remove_tenant(s.core, 0);
    for (uint64_t i = 0; i < 50; i++) {
        is(shard_put(&s, "a", i, 2000), KVB_OK);
    }
    kvs_core_remove_tenant(s.core, 7);
    shard_reclaim_all(&s);
    for (uint64_t i = 0; i < 100; i++) {
        cr_assert(shard_has(&s, "a", i) == (i < 50));
    }
    valid(&s);
    shard_cleanup(&s);
}

static void count_lineage(void *arg, uint32_t space, struct kvb_lineage lineage)
{
    uint64_t *sum = arg;
    *sum += lineage.id.lo * 10 + space;
}

Test(core, a_tenants_lineages_are_told)
{
    struct shard s;
    shard_init(&s, 64);
    uint64_t sum = 0;
    kvs_core_each_lineage(s.core, 0, count_lineage, &sum);
    cr_assert_eq(sum, 0);
    is(shard_put(&s, "a", 0, 10), KVB_OK);
    s.where.lineage = shard_lineage(2);
    s.where.space = 1;
    is(shard_put(&s, "a", 0, 10), KVB_OK);
    is(shard_put(&s, "a", 1, 10), KVB_OK);
    kvs_core_each_lineage(s.core, 0, count_lineage, &sum);
    cr_assert_eq(sum, 10 + 21);
    kvs_core_retire(s.core, shard_lineage(2));
    sum = 0;
    kvs_core_each_lineage(s.core, 0, count_lineage, &sum);
    cr_assert_eq(sum, 10);
    shard_cleanup(&s);
}
