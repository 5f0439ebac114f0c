/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd.h"

#include "world.h"

#include "base/assert.h"
#include "base/list.h"
#include "store/coordinator/etcd_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what it holds ---- */

#define EVENTS_MAX (1u << 16)
#define LEASES_MAX 4096

struct kv {
    char *key, *value;
    uint64_t create, mod, version, lease;
};

struct event {
    bool deleted;
    struct kv kv;
};

struct lease {
    uint64_t id, ttl_ms, until_ns;
};

static struct {
    bool away;
    uint64_t rev, compacted;
    struct kv *kvs; /* by key */
    uint32_t n, cap;
    struct event *events; /* since the compaction, in order */
    uint32_t nevents;
    struct lease leases[LEASES_MAX];
    uint32_t nleases;
    uint64_t last_lease;
    struct kvb_list streams;
} etcd;

static void tick(void *ctx);

void sim_etcd_init(void)
{
    memset(&etcd, 0, sizeof etcd);
    etcd.rev = 1;
    etcd.events = calloc(EVENTS_MAX, sizeof *etcd.events);
    kvb_assert(etcd.events != NULL);
    kvb_list_init(&etcd.streams);
    sim_after(100 * KVB_NS_PER_MS, tick, NULL);
}

static char *copy(const char *text)
{
    char *new = strdup(text);
    kvb_assert(new != NULL);
    return new;
}

/* The place of the first key that is not below this one. */
static uint32_t place_of(const char *key)
{
    uint32_t i = 0;
    while (i < etcd.n && strcmp(etcd.kvs[i].key, key) < 0) {
        i++;
    }
    return i;
}

static struct kv *find(const char *key)
{
    uint32_t i = place_of(key);
    return i < etcd.n && strcmp(etcd.kvs[i].key, key) == 0 ? &etcd.kvs[i] : NULL;
}

static void note(bool deleted, const struct kv *kv)
{
    if (etcd.nevents == EVENTS_MAX) {
        sim_fail("etcd: too many events");
    }
    struct event *event = &etcd.events[etcd.nevents++];
    *event = (struct event){.deleted = deleted, .kv = *kv};
    event->kv.key = copy(kv->key);
    event->kv.value = copy(deleted ? "" : kv->value);
    event->kv.mod = etcd.rev;
}

static void put(const char *key, const char *value, uint64_t lease)
{
    struct kv *kv = find(key);
    if (kv == NULL) {
        if (etcd.n == etcd.cap) {
            etcd.cap = etcd.cap == 0 ? 64 : etcd.cap * 2;
            etcd.kvs = realloc(etcd.kvs, etcd.cap * sizeof *etcd.kvs);
            kvb_assert(etcd.kvs != NULL);
        }
        uint32_t i = place_of(key);
        memmove(&etcd.kvs[i + 1], &etcd.kvs[i], (etcd.n - i) * sizeof *etcd.kvs);
        etcd.n++;
        kv = &etcd.kvs[i];
        *kv = (struct kv){.key = copy(key), .create = etcd.rev};
    }
    free(kv->value);
    kv->value = copy(value);
    kv->mod = etcd.rev;
    kv->version++;
    kv->lease = lease;
    note(false, kv);
}

static void delete_at(uint32_t i)
{
    note(true, &etcd.kvs[i]);
    free(etcd.kvs[i].key);
    free(etcd.kvs[i].value);
    etcd.n--;
    memmove(&etcd.kvs[i], &etcd.kvs[i + 1], (etcd.n - i) * sizeof *etcd.kvs);
}

/* ---- text ---- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static json_t *encoded(const char *text)
{
    size_t len = strlen(text);
    char *out = calloc(1, len / 3 * 4 + 8);
    kvb_assert(out != NULL);
    size_t at = 0;
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = 0;
        for (size_t j = 0; j < 3; j++) {
            bits = bits << 8 | (i + j < len ? (uint8_t)text[i + j] : 0u);
        }
        for (size_t j = 0; j < 4; j++) {
            out[at++] = i + j > len ? '=' : digits[bits >> (18 - 6 * j) & 63];
        }
    }
    json_t *string = json_string(out);
    free(out);
    return string;
}

/* Ours hold no NUL. malloc'd; NULL: there is no such field. */
static char *decoded(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    if (text == NULL) {
        return NULL;
    }
    char *out = calloc(1, strlen(text) + 1);
    kvb_assert(out != NULL);
    size_t at = 0;
    for (size_t i = 0; text[i] != '\0'; i += 4) {
        uint32_t bits = 0;
        size_t pad = 0;
        for (size_t j = 0; j < 4; j++) {
            const char *digit = text[i + j] == '=' ? NULL : strchr(digits, text[i + j]);
            pad += digit == NULL;
            bits = bits << 6 | (digit == NULL ? 0u : (uint32_t)(digit - digits));
        }
        for (size_t j = 0; j < 3 - pad; j++) {
            out[at++] = (char)(bits >> (16 - 8 * j));
        }
    }
    return out;
}

static uint64_t number(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return json_is_integer(value)  ? (uint64_t)json_integer_value(value)
           : json_is_string(value) ? strtoull(json_string_value(value), NULL, 10)
                                   : 0;
}

static void set_number(json_t *object, const char *field, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    if (value != 0) { /* as the gateway leaves out what is zero */
        (void)json_object_set_new(object, field, json_string(text));
    }
}

static json_t *header(void)
{
    json_t *object = json_object();
    set_number(object, "revision", etcd.rev);
    return object;
}

static json_t *kv_json(const struct kv *kv, bool keys_only)
{
    json_t *object = json_object();
    (void)json_object_set_new(object, "key", encoded(kv->key));
    set_number(object, "create_revision", kv->create);
    set_number(object, "mod_revision", kv->mod);
    set_number(object, "version", kv->version);
    if (!keys_only && kv->value[0] != '\0') {
        (void)json_object_set_new(object, "value", encoded(kv->value));
    }
    return object;
}

/* ---- requests ---- */

/* [first, last) of what a request with key and range_end means. */
static void range_of(const json_t *ask, uint32_t *first_p, uint32_t *last_p)
{
    char *key = decoded(ask, "key");
    char *end = decoded(ask, "range_end");
    kvb_assert(key != NULL);
    *first_p = place_of(key);
    *last_p = end != NULL ? place_of(end) : *first_p + (find(key) != NULL ? 1u : 0u);
    free(key);
    free(end);
}

static bool holds(const json_t *compare)
{
    uint32_t first, last;
    range_of(compare, &first, &last);
    const char *target = json_string_value(json_object_get(compare, "target"));
    const char *result = json_string_value(json_object_get(compare, "result"));
    if (json_object_get(compare, "range_end") != NULL) { /* MOD LESS of all */
        uint64_t rev = number(compare, "mod_revision");
        kvb_assert(strcmp(target, "MOD") == 0 && strcmp(result, "LESS") == 0);
        for (uint32_t i = first; i < last; i++) {
            if (etcd.kvs[i].mod >= rev) {
                return false;
            }
        }
        return true;
    }
    static char empty[] = "";
    struct kv none = {.value = empty};
    const struct kv *kv = first < last ? &etcd.kvs[first] : &none;
    if (strcmp(target, "VALUE") == 0) {
        char *value = decoded(compare, "value");
        bool same = first < last && strcmp(value == NULL ? "" : value, kv->value) == 0;
        free(value);
        return same;
    }
    bool create = strcmp(target, "CREATE") == 0;
    bool mod = strcmp(target, "MOD") == 0;
    uint64_t has = create ? kv->create : mod ? kv->mod : kv->version;
    uint64_t wants = number(compare, create ? "create_revision" : mod ? "mod_revision" : "version");
    return strcmp(result, "EQUAL") == 0 ? has == wants : has > wants;
}

static json_t *do_range(const json_t *ask)
{
    uint32_t first, last;
    range_of(ask, &first, &last);
    uint64_t limit = number(ask, "limit");
    kvb_assert(number(ask, "revision") == 0); /* worlds are small: one page */
    bool keys_only = json_is_true(json_object_get(ask, "keys_only"));
    json_t *answer = json_object();
    json_t *kvs = json_array();
    uint32_t n = last - first;
    for (uint32_t i = first; i < last && (limit == 0 || i - first < limit); i++) {
        (void)json_array_append_new(kvs, kv_json(&etcd.kvs[i], keys_only));
    }
    if (limit != 0 && n > limit) {
        (void)json_object_set_new(answer, "more", json_true());
    }
    set_number(answer, "count", n);
    (void)json_object_set_new(answer, "header", header());
    (void)json_object_set_new(answer, "kvs", kvs);
    return answer;
}

static struct lease *find_lease(uint64_t id)
{
    for (uint32_t i = 0; i < etcd.nleases; i++) {
        if (etcd.leases[i].id == id) {
            return &etcd.leases[i];
        }
    }
    return NULL;
}

static bool writes(const json_t *requests)
{
    size_t i;
    json_t *each;
    json_array_foreach(requests, i, each)
    {
        const json_t *removed = json_object_get(each, "request_delete_range");
        uint32_t first = 0, last = 0;
        if (removed != NULL) {
            range_of(removed, &first, &last);
        }
        if (json_object_get(each, "request_put") != NULL || first < last) {
            return true;
        }
    }
    return false;
}

/* NULL: a lease that is not there. */
static json_t *do_txn(const json_t *body)
{
    size_t i;
    json_t *each;
    bool succeeded = true;
    json_array_foreach(json_object_get(body, "compare"), i, each)
    {
        succeeded = succeeded && holds(each);
    }
    const json_t *requests = json_object_get(body, succeeded ? "success" : "failure");
    json_array_foreach(requests, i, each)
    {
        uint64_t lease = number(json_object_get(each, "request_put"), "lease");
        if (lease != 0 && find_lease(lease) == NULL) {
            return NULL;
        }
    }
    etcd.rev += writes(requests);
    json_t *responses = json_array();
    json_array_foreach(requests, i, each)
    {
        const json_t *written = json_object_get(each, "request_put");
        const json_t *removed = json_object_get(each, "request_delete_range");
        const json_t *range = json_object_get(each, "request_range");
        json_t *response = json_object();
        if (written != NULL) {
            char *key = decoded(written, "key"), *value = decoded(written, "value");
            put(key, value == NULL ? "" : value, number(written, "lease"));
            free(key);
            free(value);
            (void)json_object_set_new(response, "response_put", json_object());
        } else if (removed != NULL) {
            uint32_t first, last;
            range_of(removed, &first, &last);
            while (last > first) {
                delete_at(--last);
            }
            (void)json_object_set_new(response, "response_delete_range", json_object());
        } else {
            (void)json_object_set_new(response, "response_range", do_range(range));
        }
        (void)json_array_append_new(responses, response);
    }
    json_t *answer = json_object();
    (void)json_object_set_new(answer, "header", header());
    if (succeeded) {
        (void)json_object_set_new(answer, "succeeded", json_true());
    }
    (void)json_object_set_new(answer, "responses", responses);
    return answer;
}

static json_t *do_grant(const json_t *body)
{
    uint64_t ttl = number(body, "TTL");
    if (etcd.nleases == LEASES_MAX) {
        sim_fail("etcd: too many leases");
    }
    struct lease *lease = &etcd.leases[etcd.nleases++];
    *lease = (struct lease){.id = ++etcd.last_lease + 7000,
                            .ttl_ms = ttl * 1000,
                            .until_ns = sim.now_ns + ttl * KVB_NS_PER_S};
    json_t *answer = json_object();
    (void)json_object_set_new(answer, "header", header());
    set_number(answer, "ID", lease->id);
    set_number(answer, "TTL", ttl);
    return answer;
}

static json_t *do_keepalive(const json_t *body)
{
    uint64_t id = number(body, "ID");
    struct lease *lease = find_lease(id);
    json_t *result = json_object();
    set_number(result, "ID", id);
    if (lease != NULL) {
        lease->until_ns = sim.now_ns + lease->ttl_ms * KVB_NS_PER_MS;
        set_number(result, "TTL", lease->ttl_ms / 1000);
    }
    json_t *answer = json_object();
    (void)json_object_set_new(answer, "result", result);
    return answer;
}

/* What etcd says; *status_p other than OK: it says no. */
static json_t *serve(const char *path, const char *text, kvb_status_t *status_p)
{
    json_t *body = json_loads(text, 0, NULL);
    kvb_assert(body != NULL);
    json_t *answer = strcmp(path, "/v3/kv/txn") == 0            ? do_txn(body)
                     : strcmp(path, "/v3/kv/range") == 0        ? do_range(body)
                     : strcmp(path, "/v3/lease/grant") == 0     ? do_grant(body)
                     : strcmp(path, "/v3/lease/keepalive") == 0 ? do_keepalive(body)
                                                                : NULL;
    json_decref(body);
    *status_p = answer == NULL ? KVB_ERR_NOT_FOUND : KVB_OK;
    return answer;
}

/* ---- leases, and what watches are told ---- */

struct watcher {
    struct kvb_list link;
    struct kvs_http_stream *stream; /* NULL: closed */
    struct kvs_http *http;
    char *prefix, *end, *key;
    uint64_t next_rev;     /* of all, not told yet */
    uint64_t key_rev;      /* the same of the one key */
    struct kvb_list queue; /* struct told: on the way */
    bool moving, over;
};

static void flush(struct watcher *watcher);

static void flush_all(void)
{
    kvb_list_each(&etcd.streams, link)
    {
        flush(kvb_container_of(link, struct watcher, link));
    }
}

static void tick(void *ctx)
{
    (void)ctx;
    for (uint32_t i = 0; !etcd.away && i < etcd.nleases; i++) {
        if (etcd.leases[i].until_ns > sim.now_ns) {
            continue;
        }
        uint64_t id = etcd.leases[i].id;
        etcd.leases[i--] = etcd.leases[--etcd.nleases];
        bool first = true;
        for (uint32_t k = 0; k < etcd.n;) {
            if (etcd.kvs[k].lease == id) {
                etcd.rev += first;
                first = false;
                delete_at(k);
            } else {
                k++;
            }
        }
    }
    flush_all();
    sim_after(100 * KVB_NS_PER_MS, tick, NULL);
}

void sim_etcd_away(bool away)
{
    if (etcd.away && !away) { /* a new leader gives every lease its whole time */
        for (uint32_t i = 0; i < etcd.nleases; i++) {
            etcd.leases[i].until_ns = sim.now_ns + etcd.leases[i].ttl_ms * KVB_NS_PER_MS;
        }
    }
    etcd.away = away;
}

void sim_etcd_compact(void)
{
    etcd.compacted = etcd.rev;
    for (uint32_t i = 0; i < etcd.nevents; i++) {
        free(etcd.events[i].kv.key);
        free(etcd.events[i].kv.value);
    }
    etcd.nevents = 0;
}

/* ---- the gateway: kvs_http ---- */

struct kvs_http {
    struct sim_process *process;
    struct kvb_sched *sched;
    uint32_t request_ms;
    struct kvb_list calls, streams;
};

static struct sim_process *process_of(struct kvb_sched *sched)
{
    return kvb_container_of(sched, struct sim_process, sched);
}

kvb_status_t kvs_http_create(const struct kvs_http_config *config, struct kvs_http **http_p)
{
    struct kvs_http *http = calloc(1, sizeof *http);
    kvb_assert(http != NULL);
    http->sched = config->sched;
    http->process = process_of(config->sched);
    http->request_ms = config->request_ms == 0 ? 3000 : config->request_ms;
    kvb_list_init(&http->calls);
    kvb_list_init(&http->streams);
    *http_p = http;
    return KVB_OK;
}

void kvs_http_destroy(struct kvs_http *http)
{
    kvb_assert(kvb_list_empty(&http->calls) && kvb_list_empty(&http->streams));
    free(http);
}

const char *kvs_http_endpoint(const struct kvs_http *http)
{
    (void)http;
    return "http://sim-etcd";
}

bool kvs_http_refuses(const char *text)
{
    (void)text;
    return false;
}

/* One request on its way there and back. It outlives its call, which may be canceled. */
struct trip {
    struct kvs_http_call *call; /* NULL: nobody waits for it */
    struct kvs_http *http;
    struct sim_process *process;
    const char *path;
    char *body;
    uint32_t users; /* attempts on the way */
    json_t *answer;
    kvb_status_t status;
    bool answered;
};

static struct trip *trip_of(const struct kvs_http_call *call)
{
    return call->impl.transfer.easy;
}

static bool reaches(const struct sim_process *process)
{
    return !sim.cut[process->machine][0] && !sim.cut[0][process->machine] &&
           !sim.off[process->machine];
}

static void drop(struct trip *trip)
{
    if (--trip->users == 0 && trip->call == NULL) {
        json_decref(trip->answer);
        free(trip->body);
        free(trip);
    }
}

static void end_call(struct kvs_http_call *call, kvb_status_t status)
{
    struct trip *trip = trip_of(call);
    json_t *answer = trip->answer;
    trip->answer = NULL;
    trip->call = NULL;
    call->impl.http = NULL;
    kvb_list_remove(&call->impl.link);
    kvb_sched_timer_clear(trip->http->sched, &call->impl.timer);
    kvb_sched_unpost(&call->impl.fail);
    trip->users++;
    drop(trip);
    call->done(call, status, answer);
    json_decref(answer);
}

static void on_answered(struct kvb_event *event)
{
    struct kvs_http_call *call = kvb_container_of(event, struct kvs_http_call, impl.fail);
    end_call(call, trip_of(call)->status);
}

static void on_bound(struct kvb_timer *timer)
{
    struct kvs_http_call *call = kvb_container_of(timer, struct kvs_http_call, impl.timer);
    end_call(call, KVB_ERR_UNAVAILABLE);
}

static void on_back(void *ctx)
{
    struct trip *trip = ctx;
    if (trip->call != NULL && trip->answered && reaches(trip->process)) {
        kvb_sched_post(&trip->process->sched, &trip->call->impl.fail);
    }
    drop(trip);
}

static void on_there(void *ctx);

static void attempt(struct trip *trip, uint64_t after_ns)
{
    trip->users++;
    trip->call->asked_ns = kvb_now_ns(trip->http->sched->clock);
    sim_after(after_ns, on_there, trip);
}

static void on_there(void *ctx)
{
    struct trip *trip = ctx;
    bool wanted = trip->call != NULL && !trip->process->dead;
    if (etcd.away || !reaches(trip->process)) {
        if (wanted) {
            trip->call->uncertain = trip->call->uncertain || etcd.away;
            attempt(trip, sim_between(100, 600) * KVB_NS_PER_MS);
        }
        drop(trip);
        return;
    }
    /* It arrives, also when whoever sent it has given it up or is dead. */
    kvb_status_t status;
    json_t *answer = serve(trip->path, trip->body, &status);
    flush_all();
    bool lost = sim_chance(10);
    if (wanted) {
        trip->call->uncertain = true;
        if (!lost && !trip->answered) {
            trip->answered = true;
            trip->answer = json_incref(answer);
            trip->status = status;
        } else if (lost) { /* sent again: done twice */
            attempt(trip, sim_between(100, 1200) * KVB_NS_PER_MS);
        }
    }
    json_decref(answer);
    sim_after(sim_way_ns(), on_back, trip);
}

void kvs_http_call(struct kvs_http *http, const char *path, char *body, uint32_t bound_ms,
                   struct kvs_http_call *call)
{
    kvb_assert(body != NULL);
    struct trip *trip = calloc(1, sizeof *trip);
    kvb_assert(trip != NULL);
    *trip = (struct trip){
        .call = call, .http = http, .process = http->process, .path = path, .body = body};
    call->uncertain = false;
    call->impl.http = http;
    call->impl.transfer.easy = trip;
    kvb_list_push_back(&http->calls, &call->impl.link);
    kvb_event_init(&call->impl.fail, on_answered);
    kvb_timer_init(&call->impl.timer, on_bound);
    kvb_sched_timer_set(
        http->sched, &call->impl.timer,
        kvb_deadline_in_ms(http->sched->clock, bound_ms == 0 ? http->request_ms : bound_ms));
    attempt(trip, sim_way_ns());
}

void kvs_http_cancel(struct kvs_http_call *call)
{
    if (!kvs_http_running(call)) {
        return;
    }
    struct trip *trip = trip_of(call);
    kvb_list_remove(&call->impl.link);
    kvb_sched_timer_clear(call->impl.http->sched, &call->impl.timer);
    kvb_sched_unpost(&call->impl.fail);
    call->impl.http = NULL;
    trip->call = NULL;
    trip->users++;
    drop(trip);
}

/* ---- watches ---- */

struct told {
    struct kvb_list link;
    json_t *object; /* NULL: it ended */
    uint64_t at_ns;
};

static bool silent(const struct watcher *watcher)
{
    return etcd.away || !reaches(watcher->http->process);
}

static void on_stream_event(struct kvb_event *event)
{
    struct kvs_http_stream *stream = kvb_container_of(event, struct kvs_http_stream, impl.event);
    struct watcher *watcher = stream->impl.transfer.easy;
    while (watcher->stream == stream && !kvb_list_empty(&watcher->queue)) {
        struct told *told = kvb_container_of(kvb_list_first(&watcher->queue), struct told, link);
        if (told->at_ns > sim.now_ns) {
            return;
        }
        kvb_list_remove(&told->link);
        json_t *object = told->object;
        free(told);
        if (object == NULL) {
            kvs_http_stream_close(stream);
            stream->ended(stream);
            return;
        }
        stream->object(stream, object);
        json_decref(object);
    }
}

static void on_told(void *ctx)
{
    struct watcher *watcher = ctx;
    watcher->moving = false;
    if (watcher->stream == NULL || kvb_list_empty(&watcher->queue)) {
        return;
    }
    struct told *first = kvb_container_of(kvb_list_first(&watcher->queue), struct told, link);
    if (!reaches(watcher->http->process)) {
        first->at_ns = sim.now_ns + 50 * KVB_NS_PER_MS;
    } else if (first->at_ns <= sim.now_ns) {
        kvb_sched_post(&watcher->http->process->sched, &watcher->stream->impl.event);
        struct kvb_list *last = watcher->queue.prev;
        if (kvb_container_of(last, struct told, link)->at_ns <= sim.now_ns) {
            return;
        }
    }
    watcher->moving = true;
    sim_after(1 * KVB_NS_PER_MS, on_told, watcher);
}

static void tell(struct watcher *watcher, json_t *object)
{
    struct told *told = calloc(1, sizeof *told);
    kvb_assert(told != NULL);
    told->object = object;
    told->at_ns = sim.now_ns + sim_way_ns() + (sim_chance(20) ? sim_below(300) * KVB_NS_PER_MS : 0);
    if (!kvb_list_empty(&watcher->queue)) {
        uint64_t last_ns = kvb_container_of(watcher->queue.prev, struct told, link)->at_ns;
        told->at_ns = told->at_ns < last_ns ? last_ns : told->at_ns;
    }
    kvb_list_push_back(&watcher->queue, &told->link);
    if (!watcher->moving) {
        watcher->moving = true;
        sim_after(told->at_ns - sim.now_ns, on_told, watcher);
    }
}

static json_t *watch_result(uint64_t id, json_t *result)
{
    (void)json_object_set_new(result, "header", header());
    set_number(result, "watch_id", id);
    json_t *object = json_object();
    (void)json_object_set_new(object, "result", result);
    return object;
}

static void tell_events(struct watcher *watcher, uint64_t id, uint64_t *next_p, const char *from,
                        const char *end)
{
    json_t *events = json_array();
    for (uint32_t i = 0; i < etcd.nevents; i++) {
        const struct event *event = &etcd.events[i];
        bool inside = end == NULL
                          ? strcmp(event->kv.key, from) == 0
                          : strcmp(event->kv.key, from) >= 0 && strcmp(event->kv.key, end) < 0;
        if (event->kv.mod < *next_p || !inside) {
            continue;
        }
        json_t *each = json_object();
        if (event->deleted) {
            (void)json_object_set_new(each, "type", json_string("DELETE"));
        }
        struct kv kv = event->kv;
        kv.create = event->deleted ? 0 : kv.create;
        (void)json_object_set_new(each, "kv", kv_json(&kv, event->deleted));
        (void)json_array_append_new(events, each);
    }
    *next_p = etcd.rev + 1;
    if (json_array_size(events) == 0) {
        json_decref(events);
        return;
    }
    json_t *result = json_object();
    (void)json_object_set_new(result, "events", events);
    tell(watcher, watch_result(id, result));
}

static void flush(struct watcher *watcher)
{
    if (watcher->stream == NULL || watcher->over || silent(watcher) || watcher->prefix == NULL) {
        return;
    }
    if (watcher->next_rev <= etcd.compacted) {
        json_t *result = json_object();
        (void)json_object_set_new(result, "canceled", json_true());
        set_number(result, "compact_revision", etcd.compacted);
        tell(watcher, watch_result(1, result));
        watcher->over = true;
        return;
    }
    tell_events(watcher, 1, &watcher->next_rev, watcher->prefix, watcher->end);
    tell_events(watcher, 2, &watcher->key_rev, watcher->key, NULL);
}

static void on_watch_there(void *ctx)
{
    struct watcher *watcher = ctx;
    struct kvs_http_stream *stream = watcher->stream;
    if (stream == NULL || watcher->http->process->dead) {
        return;
    }
    if (silent(watcher)) { /* nothing is said until somebody gives up */
        sim_after(100 * KVB_NS_PER_MS, on_watch_there, watcher);
        return;
    }
    char *second = strchr(stream->impl.body, '\n');
    *second = '\0';
    json_t *all = json_loads(stream->impl.body, 0, NULL);
    json_t *one = json_loads(second + 1, 0, NULL);
    const json_t *create = json_object_get(all, "create_request");
    watcher->prefix = decoded(create, "key");
    watcher->end = decoded(create, "range_end");
    watcher->next_rev = number(create, "start_revision");
    watcher->key = decoded(json_object_get(one, "create_request"), "key");
    watcher->key_rev = etcd.rev + 1;
    json_decref(all);
    json_decref(one);
    for (uint64_t id = 1; id <= 2; id++) {
        json_t *result = json_object();
        (void)json_object_set_new(result, "created", json_true());
        tell(watcher, watch_result(id, result));
    }
    flush(watcher);
}

void kvs_http_stream_open(struct kvs_http *http, const char *path, char *body,
                          struct kvs_http_stream *stream)
{
    (void)path;
    kvb_assert(body != NULL);
    struct watcher *watcher = calloc(1, sizeof *watcher);
    kvb_assert(watcher != NULL);
    watcher->stream = stream;
    watcher->http = http;
    kvb_list_init(&watcher->queue);
    kvb_list_push_back(&etcd.streams, &watcher->link);
    stream->impl.http = http;
    stream->impl.body = body;
    stream->impl.transfer.easy = watcher;
    kvb_event_init(&stream->impl.event, on_stream_event);
    kvb_list_push_back(&http->streams, &stream->impl.link);
    sim_after(sim_way_ns(), on_watch_there, watcher);
}

void kvs_http_stream_close(struct kvs_http_stream *stream)
{
    if (!kvs_http_streaming(stream)) {
        return;
    }
    struct watcher *watcher = stream->impl.transfer.easy;
    watcher->stream = NULL; /* stays allocated: things are on the way to it */
    kvb_list_remove(&watcher->link);
    kvb_list_remove(&stream->impl.link);
    kvb_sched_unpost(&stream->impl.event);
    free(stream->impl.body);
    stream->impl.http = NULL;
}

void kvs_http_stream_blame(struct kvs_http_stream *stream)
{
    (void)stream;
}

void sim_etcd_drop_connections(void)
{
    kvb_list_each(&etcd.streams, link)
    {
        struct watcher *watcher = kvb_container_of(link, struct watcher, link);
        if (watcher->stream != NULL && !watcher->over) {
            watcher->over = true;
            tell(watcher, NULL);
        }
    }
}
