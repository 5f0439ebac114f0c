/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How this process is in touch with etcd. Joining takes steps, each one call: a lease (or the old
 * one, if it has not ended), a lease for retirements, a snapshot of all keys, a watch from there
 * on. Then it is up, until a call finds no endpoint, the watch cannot be had back within the bound
 * of a request, or the lease ends; then it joins anew, after a fixed pause.
 *
 * The lease. etcd counts its time from when it got the last keep-alive; we count from before we
 * sent it, and only four fifths of it. So we know that it has ended before anybody at etcd can see
 * that we are gone. What is left at that moment is the time to leave. A call that has waited for
 * etcd may have been sent more than once: the attempt that was answered counts, or a lease would be
 * nearly over when it is granted.
 *
 * Going back. A transaction is answered at a revision no older than what was heard before it was
 * sent. One that is older comes from an etcd that was restored from a backup, or made anew: what we
 * compare with is of another history, and others may have been told that we have left. So we have
 * lost our lease, and everything is read anew.
 *
 * The watch. A broken one is resumed behind the last revision heard; one whose revision was
 * compacted away means a new snapshot. So does one that is refused: to a watch etcd says no more of
 * a token that it has forgotten than that permission is denied, and asking for the snapshot gets
 * another. One that is silent may be healthy or dead: with each
 * keep-alive a key of our own is written, which the same stream watches; if it does not come back
 * the stream is dead, whatever TCP says. It also shows that the endpoint still hears the others.
 */
#include "etcd_impl.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MS         500  /* between two attempts to join */
#define REOPEN_MS        100  /* between two attempts to have the watch back */
#define PAGE_KEYS        1000 /* of a snapshot */
#define BEATS_IN_LEASE   4
#define RETIRED_KEPT_MS  (9 * 3600 * 1000ull) /* at least 6 hours: see below */
#define RETIRED_LEASE_MS (3 * 3600 * 1000ull) /* then a new one is begun */
#define WATCH_ALL        1
#define WATCH_PING       2
#define BOTH_WATCHES     (1u << WATCH_ALL | 1u << WATCH_PING)

static void join_next(struct etcd *etcd);
static void keep_alive(struct etcd *etcd);

static uint64_t now(const struct etcd *etcd)
{
    return kvb_now_ns(etcd->sched->clock);
}

static void after_ms(struct etcd *etcd, struct kvb_timer *timer, uint64_t ms)
{
    kvb_sched_timer_set(etcd->sched, timer, kvb_deadline_in_ms(etcd->sched->clock, ms));
}

static const char *data_prefix(const struct etcd *etcd, char out[KVS_ETCD_KEY_MAX])
{
    snprintf(out, KVS_ETCD_KEY_MAX, "%sv1/", etcd->prefix);
    return out;
}

static const char *ping_key(const struct etcd *etcd, char out[KVS_ETCD_KEY_MAX])
{
    snprintf(out, KVS_ETCD_KEY_MAX, "%sping/%s", etcd->prefix, etcd->id);
    return out;
}

/* ---- away and back ---- */

static void stop_watch(struct etcd *etcd)
{
    kvs_http_stream_close(&etcd->stream);
    etcd->created = 0;
    kvb_sched_timer_clear(etcd->sched, &etcd->ping_timer);
}

void kvs_session_away(struct etcd *etcd)
{
    kvs_http_cancel(&etcd->join);
    kvs_http_cancel(&etcd->beat); /* on_beat begins another */
    kvs_http_cancel(&etcd->ping);
    stop_watch(etcd);
    kvb_sched_timer_clear(etcd->sched, &etcd->deaf_timer);
    after_ms(etcd, &etcd->retry, RETRY_MS);
    if (etcd->up) {
        etcd->up = false;
        KVB_LOG(WARN, "etcd is out of reach");
        kvs_etcd_down(etcd, false);
    }
}

void kvs_session_lost(struct etcd *etcd)
{
    if (etcd->lease == 0) {
        return;
    }
    KVB_LOG(WARN, "the lease at etcd has ended");
    etcd->lease = 0;
    kvb_sched_timer_clear(etcd->sched, &etcd->lease_timer);
    kvb_sched_timer_clear(etcd->sched, &etcd->beat_timer);
    bool was_up = etcd->up;
    kvs_session_away(etcd);
    if (was_up) {
        kvb_sched_timer_set(etcd->sched, &etcd->retry, now(etcd));
    }
    kvs_etcd_down(etcd, true);
}

static void drop_pages(struct etcd *etcd);

void kvs_session_rewound(struct etcd *etcd)
{
    KVB_LOG(ERROR, "etcd's history went back: was it restored? all instances leave");
    etcd->synced = false;
    etcd->retired_lease = 0;
    etcd->node_base = 0;
    drop_pages(etcd);
    etcd->mirror.rev = 0;
    for (int kind = 0; kind < KVS_KEY_KINDS_COUNT; kind++) { /* older than all that is read anew */
        for (uint32_t i = 0; i < etcd->mirror.kinds[kind].n; i++) {
            etcd->mirror.kinds[kind].entries[i]->mod_rev = 0;
        }
    }
    kvb_list_each(&etcd->members, link)
    {
        kvb_container_of(link, struct member, link)->told_rev = 0; /* as new ones, once they have
                                                                      left */
    }
    kvs_retire_give_up(etcd);
    kvs_session_lost(etcd);
}

static void joined(struct etcd *etcd)
{
    if (etcd->up) {
        return; /* the watch alone was away */
    }
    etcd->up = true;
    etcd->joins++;
    etcd->up_ns = now(etcd);
    KVB_LOG(INFO, "etcd reached", KVB_STR("endpoint", kvs_http_endpoint(etcd->http)),
            KVB_U64("revision", etcd->mirror.rev));
    keep_alive(etcd); /* what is left of a lease after an outage may not last until the next beat */
    kvs_etcd_up(etcd);
}

/* ---- the lease ---- */

static void lease_lives(struct etcd *etcd, uint64_t asked_ns, uint64_t ttl_s)
{
    /* Seconds beyond a day add nothing but overflow. */
    etcd->lease_ttl_ms = (ttl_s < 86400 ? ttl_s : 86400) * 1000;
    uint64_t ttl_ns = etcd->lease_ttl_ms * KVB_NS_PER_MS;
    kvb_sched_timer_set(etcd->sched, &etcd->lease_timer, asked_ns + ttl_ns / 5 * 4);
    kvb_sched_timer_set(etcd->sched, &etcd->beat_timer, asked_ns + ttl_ns / BEATS_IN_LEASE);
}

static bool tell_one_lost(struct etcd *etcd)
{
    kvb_list_each(&etcd->members, link)
    {
        if (kvs_member_tell_lost(kvb_container_of(link, struct member, link))) {
            return true;
        }
    }
    return false;
}

/* Members hear of it here and not in a later turn: this may be a process that was stopped for so
 * long, and what it had posted before then comes next, perhaps a get that is just over. Timers run
 * before events, so it finds that they have left. */
static void on_lease_end(struct kvb_timer *timer)
{
    struct etcd *etcd = kvb_container_of(timer, struct etcd, lease_timer);
    kvs_session_lost(etcd);
    while (tell_one_lost(etcd)) { /* one that is told may close others */
    }
}

static void on_granted(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct etcd *etcd = kvb_container_of(call, struct etcd, join);
    uint64_t id, ttl;
    if (status != KVB_OK || !kvs_wire_u64(answer, "ID", &id) || id == 0 ||
        !kvs_wire_u64(answer, "TTL", &ttl) || ttl == 0) {
        kvs_session_away(etcd);
        return;
    }
    etcd->lease = id;
    lease_lives(etcd, call->asked_ns, ttl);
    join_next(etcd);
}

static void ask_lease(struct etcd *etcd, uint64_t ms,
                      void (*done)(struct kvs_http_call *call, kvb_status_t status, json_t *answer))
{
    etcd->join.done = done;
    kvs_http_call(etcd->http, "/v3/lease/grant", kvs_wire_lease_body("TTL", (ms + 999) / 1000), 0,
                  &etcd->join);
}

static void ping(struct etcd *etcd);
static void on_retired_granted(struct kvs_http_call *call, kvb_status_t status, json_t *answer);

static void on_beat_answer(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct etcd *etcd = kvb_container_of(call, struct etcd, beat);
    const json_t *result = json_object_get(answer, "result");
    uint64_t id, ttl;
    if (status == KVB_OK && kvs_wire_u64(result, "ID", &id) && id == etcd->lease &&
        kvs_wire_u64(result, "TTL", &ttl)) {
        if (ttl == 0) { /* it has none under this number */
            kvs_session_lost(etcd);
        } else {
            lease_lives(etcd, call->asked_ns, ttl);
        }
        return;
    }
    if (status == KVB_ERR_NOT_FOUND) {
        kvs_session_lost(etcd);
    } else if (status != KVB_ERR_NO_MEMORY) {
        kvs_session_away(etcd);
    }
}

static void keep_alive(struct etcd *etcd)
{
    if (!kvs_http_running(&etcd->beat)) {
        etcd->beat.done = on_beat_answer;
        kvs_http_call(etcd->http, "/v3/lease/keepalive", kvs_wire_lease_body("ID", etcd->lease), 0,
                      &etcd->beat);
    }
}

static void on_beat(struct kvb_timer *timer)
{
    struct etcd *etcd = kvb_container_of(timer, struct etcd, beat_timer);
    after_ms(etcd, timer, etcd->lease_ttl_ms / BEATS_IN_LEASE);
    keep_alive(etcd);
    if (etcd->up && etcd->created == BOTH_WATCHES) {
        ping(etcd);
    }
    if (etcd->up && !kvs_http_running(&etcd->join) &&
        now(etcd) - etcd->retired_lease_ns > RETIRED_LEASE_MS * KVB_NS_PER_MS) {
        ask_lease(etcd, RETIRED_KEPT_MS, on_retired_granted);
    }
}

/* Retirements live as long as a lease that is never kept alive: etcd itself forgets them, so nobody
 * has to agree on who does, or on the time. Each process begins a new one every three hours. */
static void on_retired_granted(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct etcd *etcd = kvb_container_of(call, struct etcd, join);
    uint64_t id;
    if (status != KVB_OK || !kvs_wire_u64(answer, "ID", &id) || id == 0) {
        kvs_session_away(etcd);
        return;
    }
    etcd->retired_lease = id;
    etcd->retired_lease_ns = now(etcd);
    join_next(etcd);
}

/* ---- what etcd holds ---- */

/* Which kind, and the rest of its key; false: not ours. */
static bool kind_of(const struct etcd *etcd, const struct kvs_kv *kv, enum kvs_key_kind *kind_p,
                    const char **rest_p)
{
    char prefix[KVS_ETCD_KEY_MAX];
    size_t len = strlen(data_prefix(etcd, prefix));
    if (strlen(kv->key) != kv->key_len || strlen(kv->value) != kv->value_len ||
        kv->key_len >= KVS_ETCD_KEY_MAX || strncmp(kv->key, prefix, len) != 0) {
        return false;
    }
    for (int kind = 0; kind < KVS_KEY_KINDS_COUNT; kind++) {
        const char *text = kvs_key_kind_text(kind);
        if (strncmp(kv->key + len, text, strlen(text)) == 0) {
            *kind_p = kind;
            *rest_p = kv->key + len + strlen(text);
            return true;
        }
    }
    return false;
}

static kvb_status_t hear(void *ctx, const struct kvs_kv *kv)
{
    struct etcd *etcd = ctx;
    enum kvs_key_kind kind;
    const char *key;
    if (!kind_of(etcd, kv, &kind, &key)) {
        KVB_LOG_LIMITED(WARN, "a foreign key lies below the prefix", KVB_STR("key", kv->key));
        return KVB_OK;
    }
    struct kvs_entry *entry = kvs_mirror_find(&etcd->mirror, kind, key);
    if (kv->deleted) {
        if (entry != NULL && entry->mod_rev < kv->mod_rev) {
            kvs_etcd_removed(etcd, kind, entry);
            kvs_mirror_remove(&etcd->mirror, kind, key);
        }
        return KVB_OK;
    }
    if (entry != NULL && entry->mod_rev >= kv->mod_rev) {
        entry->mark = etcd->mark; /* known already */
        return KVB_OK;
    }
    char *old = entry == NULL ? NULL : strdup(entry->value);
    bool known = entry != NULL;
    entry = known && old == NULL
                ? NULL
                : kvs_mirror_put(&etcd->mirror, kind, key, kv->value, kv->create_rev, kv->mod_rev);
    if (entry != NULL) {
        entry->mark = etcd->mark;
        kvs_etcd_changed(etcd, kind, entry, old);
    }
    free(old);
    return entry == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

static kvb_status_t hear_event(void *ctx, const struct kvs_kv *kv)
{
    struct etcd *etcd = ctx;
    etcd->heard_rev = kv->mod_rev > etcd->heard_rev ? kv->mod_rev : etcd->heard_rev;
    return hear(etcd, kv);
}

/* ---- the snapshot ---- */

static void drop_pages(struct etcd *etcd)
{
    free(etcd->page_key);
    etcd->page_key = NULL;
    etcd->page_rev = 0;
}

static void end_snapshot(struct etcd *etcd)
{
    for (int kind = 0; kind < KVS_KEY_KINDS_COUNT; kind++) {
        for (uint32_t i = etcd->mirror.kinds[kind].n; i-- > 0;) {
            struct kvs_entry *entry = etcd->mirror.kinds[kind].entries[i];
            if (entry->mark != etcd->mark) {
                kvs_etcd_removed(etcd, kind, entry);
                kvs_mirror_remove(&etcd->mirror, kind, entry->key);
            }
        }
    }
    etcd->mirror.rev = etcd->page_rev;
    etcd->synced = true;
    drop_pages(etcd);
    kvs_etcd_synced(etcd);
    kvs_etcd_settled(etcd);
}

struct page {
    struct etcd *etcd;
    char *last_key;
};

static kvb_status_t hear_page(void *ctx, const struct kvs_kv *kv)
{
    struct page *page = ctx;
    free(page->last_key);
    page->last_key = strdup(kv->key);
    return page->last_key == NULL ? KVB_ERR_NO_MEMORY : hear(page->etcd, kv);
}

static void on_page(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct etcd *etcd = kvb_container_of(call, struct etcd, join);
    struct page page = {.etcd = etcd};
    uint64_t rev;
    bool more = false;
    bool ok = status == KVB_OK && kvs_wire_revision(answer, &rev) &&
              kvs_wire_bool(answer, "more", &more) &&
              kvs_wire_each_kv(json_object_get(answer, "kvs"), hear_page, &page) == KVB_OK &&
              (!more || page.last_key != NULL);
    if (!ok) {
        free(page.last_key);
        drop_pages(etcd); /* from the start: what was compacted meanwhile is not there any more */
        kvs_session_away(etcd);
        return;
    }
    etcd->page_rev = etcd->page_rev == 0 ? rev : etcd->page_rev;
    if (!more) {
        free(page.last_key);
        end_snapshot(etcd);
        join_next(etcd);
        return;
    }
    /* The next page begins right behind its last key: at that key and a byte 1, which no key of
     * ours holds. */
    size_t len = strlen(page.last_key);
    char *next = realloc(page.last_key, len + 2);
    if (next == NULL) {
        free(page.last_key);
        drop_pages(etcd);
        kvs_session_away(etcd);
        return;
    }
    memcpy(next + len, "\x01", 2);
    free(etcd->page_key);
    etcd->page_key = next;
    join_next(etcd);
}

static void ask_page(struct etcd *etcd)
{
    char prefix[KVS_ETCD_KEY_MAX];
    (void)data_prefix(etcd, prefix);
    if (etcd->page_key == NULL) {
        etcd->mark++;
    }
    etcd->join.done = on_page;
    kvs_http_call(etcd->http, "/v3/kv/range",
                  kvs_wire_page_body(etcd->page_key == NULL ? prefix : etcd->page_key, prefix,
                                     etcd->page_rev, PAGE_KEYS),
                  0, &etcd->join);
}

/* ---- the watch ---- */

static void open_watch(struct etcd *etcd)
{
    char prefix[KVS_ETCD_KEY_MAX];
    char key[KVS_ETCD_KEY_MAX];
    etcd->created = 0;
    etcd->ping_seen = 0;
    if (!kvb_timer_armed(&etcd->deaf_timer)) {
        after_ms(etcd, &etcd->deaf_timer, etcd->request_ms);
    }
    kvs_http_stream_open(
        etcd->http, "/v3/watch",
        kvs_wire_watch_body(data_prefix(etcd, prefix), etcd->mirror.rev + 1, ping_key(etcd, key)),
        &etcd->stream);
}

static void on_watch_ended(struct kvs_http_stream *stream)
{
    struct etcd *etcd = kvb_container_of(stream, struct etcd, stream);
    etcd->created = 0;
    kvb_sched_timer_clear(etcd->sched, &etcd->ping_timer);
    if (!kvb_timer_armed(&etcd->deaf_timer)) {
        after_ms(etcd, &etcd->deaf_timer, etcd->request_ms);
    }
    after_ms(etcd, &etcd->retry, REOPEN_MS);
}

/* It does not do: the next one, on another endpoint. */
static void replace_watch(struct etcd *etcd)
{
    kvs_http_stream_blame(&etcd->stream);
    stop_watch(etcd);
    on_watch_ended(&etcd->stream);
}

/* What was missed is not there any more. */
static void snapshot_anew(struct etcd *etcd)
{
    KVB_LOG(INFO, "etcd has compacted what was to be heard: all keys are read anew");
    etcd->synced = false;
    kvs_session_away(etcd);
    kvb_sched_timer_set(etcd->sched, &etcd->retry, now(etcd));
}

/* Why etcd does not give us the watch; NULL: it says nothing. */
static const char *reason_of(const json_t *object)
{
    const json_t *error = json_object_get(object, "error");
    if (error != NULL) {
        return json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    }
    return json_string_value(json_object_get(json_object_get(object, "result"), "cancel_reason"));
}

static void on_watch_refused(struct etcd *etcd, const char *reason)
{
    KVB_LOG_LIMITED(WARN, "etcd refuses the watch",
                    KVB_STR("endpoint", kvs_http_endpoint(etcd->http)), KVB_STR("error", reason));
    etcd->synced = false;
    kvs_session_away(etcd);
}

static kvb_status_t hear_ping(void *ctx, const struct kvs_kv *kv)
{
    struct etcd *etcd = ctx;
    uint64_t seen;
    if (!kv->deleted && kvs_etcd_parse_u64(kv->value, &seen)) {
        etcd->ping_seen = seen;
        if (seen >= etcd->pings) {
            kvb_sched_timer_clear(etcd->sched, &etcd->ping_timer);
        }
    }
    return KVB_OK;
}

static void on_watch_object(struct kvs_http_stream *stream, json_t *object)
{
    struct etcd *etcd = kvb_container_of(stream, struct etcd, stream);
    const json_t *result = json_object_get(object, "result");
    const char *reason = reason_of(object);
    bool created, canceled;
    uint64_t id, compacted;
    if (reason != NULL && kvs_http_refuses(reason)) {
        on_watch_refused(etcd, reason);
        return;
    }
    if (!json_is_object(result) || !kvs_wire_u64(result, "watch_id", &id) ||
        !kvs_wire_bool(result, "created", &created) ||
        !kvs_wire_bool(result, "canceled", &canceled) ||
        !kvs_wire_u64(result, "compact_revision", &compacted) ||
        (id != WATCH_ALL && id != WATCH_PING && !canceled)) {
        KVB_LOG_LIMITED(WARN, "the watch at etcd is broken",
                        KVB_STR("endpoint", kvs_http_endpoint(etcd->http)));
        replace_watch(etcd);
        return;
    }
    if (compacted != 0) {
        snapshot_anew(etcd);
        return;
    }
    if (canceled) {
        replace_watch(etcd);
        return;
    }
    /* All of a revision comes in one object: it is heard when all of them were. */
    const json_t *events = json_object_get(result, "events");
    etcd->heard_rev = etcd->mirror.rev;
    kvb_status_t status =
        kvs_wire_each_event(events, id == WATCH_ALL ? hear_event : hear_ping, etcd);
    if (status != KVB_OK) {
        /* What was not heard comes again with the next watch. All but the last revision was:
         * members were told of it, and an answer that is older must be known as such. */
        etcd->mirror.rev =
            etcd->heard_rev > etcd->mirror.rev ? etcd->heard_rev - 1 : etcd->mirror.rev;
        replace_watch(etcd);
        return;
    }
    etcd->mirror.rev = etcd->heard_rev;
    if (created) {
        etcd->created |= 1u << id;
        if (etcd->created == BOTH_WATCHES) {
            kvb_sched_timer_clear(etcd->sched, &etcd->deaf_timer);
            joined(etcd);
        }
    }
    if (json_array_size(events) > 0 && id == WATCH_ALL) {
        kvs_etcd_settled(etcd);
    }
}

static void on_deaf(struct kvb_timer *timer)
{
    struct etcd *etcd = kvb_container_of(timer, struct etcd, deaf_timer);
    kvs_http_stream_blame(&etcd->stream);
    kvs_session_away(etcd);
}

static void on_ping_answer(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct etcd *etcd = kvb_container_of(call, struct etcd, ping);
    struct kvs_txn_answer parsed;
    if (status == KVB_OK && kvs_txn_parse(answer, etcd->ping_then, NULL, &parsed)) {
        if (parsed.rev < etcd->ping_rev) {
            kvs_session_rewound(etcd);
            return;
        }
        if (etcd->ping_seen < etcd->pings && etcd->created == BOTH_WATCHES) {
            after_ms(etcd, &etcd->ping_timer, etcd->request_ms);
        }
    } else if (status == KVB_ERR_NOT_FOUND) {
        kvs_session_lost(etcd);
    } else if (status != KVB_ERR_NO_MEMORY) {
        kvs_session_away(etcd);
    }
}

static void ping(struct etcd *etcd)
{
    if (kvs_http_running(&etcd->ping) || kvb_timer_armed(&etcd->ping_timer)) {
        return;
    }
    char key[KVS_ETCD_KEY_MAX];
    char count[24];
    struct kvs_txn txn;
    snprintf(count, sizeof count, "%llu", (unsigned long long)++etcd->pings);
    kvs_txn_init(&txn);
    (void)kvs_txn_then(&txn, kvs_wire_put(ping_key(etcd, key), count, etcd->lease));
    json_decref(etcd->ping_then);
    etcd->ping_then = json_incref(txn.then);
    etcd->ping.done = on_ping_answer;
    etcd->ping_rev = etcd->mirror.rev;
    kvs_http_call(etcd->http, "/v3/kv/txn", kvs_txn_body(&txn), 0, &etcd->ping);
}

static void on_ping_late(struct kvb_timer *timer)
{
    struct etcd *etcd = kvb_container_of(timer, struct etcd, ping_timer);
    KVB_LOG(WARN, "the watch at etcd has gone silent",
            KVB_STR("endpoint", kvs_http_endpoint(etcd->http)));
    replace_watch(etcd);
}

/* ---- joining ---- */

/* The first thing that is missing. */
static void join_next(struct etcd *etcd)
{
    if (kvs_http_running(&etcd->join)) {
        return;
    }
    if (etcd->lease == 0) {
        ask_lease(etcd, etcd->lease_ms, on_granted);
    } else if (etcd->retired_lease == 0) {
        ask_lease(etcd, RETIRED_KEPT_MS, on_retired_granted);
    } else if (!etcd->synced) {
        ask_page(etcd);
    } else if (!kvs_http_streaming(&etcd->stream)) {
        open_watch(etcd);
    }
}

static void on_retry(struct kvb_timer *timer)
{
    join_next(kvb_container_of(timer, struct etcd, retry));
}

void kvs_session_start(struct etcd *etcd)
{
    kvb_timer_init(&etcd->retry, on_retry);
    kvb_timer_init(&etcd->beat_timer, on_beat);
    kvb_timer_init(&etcd->lease_timer, on_lease_end);
    kvb_timer_init(&etcd->deaf_timer, on_deaf);
    kvb_timer_init(&etcd->ping_timer, on_ping_late);
    etcd->stream.object = on_watch_object;
    etcd->stream.ended = on_watch_ended;
    kvb_sched_timer_set(etcd->sched, &etcd->retry, now(etcd));
}

void kvs_session_stop(struct etcd *etcd)
{
    struct kvb_timer *const timers[] = {&etcd->retry, &etcd->beat_timer, &etcd->lease_timer,
                                        &etcd->deaf_timer, &etcd->ping_timer};
    for (size_t i = 0; i < sizeof timers / sizeof timers[0]; i++) {
        kvb_sched_timer_clear(etcd->sched, timers[i]);
    }
    stop_watch(etcd);
    kvs_http_cancel(&etcd->join);
    kvs_http_cancel(&etcd->beat);
    kvs_http_cancel(&etcd->ping);
    json_decref(etcd->ping_then);
    drop_pages(etcd);
}
