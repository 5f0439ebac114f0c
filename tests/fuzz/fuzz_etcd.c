/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What etcd may answer, and what a process asks of it meanwhile: lines, each a letter and what
 * belongs to it. Nothing is sent: this is all there is of HTTP.
 *
 *   jJSON  answers the step of joining that runs    sJSON  comes on the watch     e  ends it
 *   tJSON  is the answer to a transaction of no op  aJSON  answers the oldest call, d  fails it
 *   yJSON, nJSON  answers the oldest transaction as etcd would, done or not: {"rev": R, "kvs":
 *          [{key, value, create_revision, mod_revision}, …]}, of which each range has all
 *   SJSON  comes on the watch as etcd would say it: {"rev": R, "events": [{type, kv}, …]}
 *          (keys and values of y, n and S are plain; $M is the member's own id, $E its epoch)
 *   rNAME  resolve        cNAME  check         lNAME  leave        xNAME  retire
 *   pTEXT  publish        uNAME  a quota       T      tenant reset b      abandon
 *   qE S   a step         f      has left what it was told         m      another member
 *   N      announce       W      withdraw      z      closes       w      time passes
 *
 * Every request completes once.
 */
#include "etcd_impl.h"
#include "fuzz.h"
#include "sim_sched.h"

#include "base/log.h"

enum { REQUESTS_MAX = 32, MEMBERS_MAX = 3, TOLD_MAX = 16 };

static struct {
    struct sim_sched sim;
    struct kvs_coordinator *coordinator;
    struct kvs_member *members[MEMBERS_MAX];
    uint32_t nmembers;
    struct kvs_coord_request requests[REQUESTS_MAX];
    uint32_t begun, done;
    struct {
        struct kvs_member *member;
        uint64_t retirement;
    } told[TOLD_MAX];
    uint32_t ntold;
    struct kvb_lineage lineage; /* the last that was resolved */
} on;

/* ---- HTTP, instead of the library's ---- */

struct kvs_http {
    struct kvb_sched *sched;
    struct kvb_list calls; /* oldest first */
};

kvb_status_t kvs_http_create(const struct kvs_http_config *config, struct kvs_http **http_p)
{
    struct kvs_http *http = calloc(1, sizeof *http);
    kvb_assert(http != NULL);
    http->sched = config->sched;
    kvb_list_init(&http->calls);
    *http_p = http;
    return KVB_OK;
}

void kvs_http_cancel(struct kvs_http_call *call)
{
    if (call->impl.http != NULL) {
        kvb_list_remove(&call->impl.link);
        free(call->impl.body);
        call->impl.http = NULL;
    }
}

void kvs_http_destroy(struct kvs_http *http)
{
    kvb_list_each(&http->calls, link)
    {
        kvs_http_cancel(kvb_container_of(link, struct kvs_http_call, impl.link));
    }
    free(http);
}

void kvs_http_call(struct kvs_http *http, const char *path, char *body, uint32_t bound_ms,
                   struct kvs_http_call *call)
{
    (void)bound_ms;
    kvb_assert(call->impl.http == NULL && body != NULL);
    call->impl.http = http;
    call->impl.path = path;
    call->impl.body = body;
    call->uncertain = false;
    call->asked_ns = kvb_now_ns(http->sched->clock);
    kvb_list_push_back(&http->calls, &call->impl.link);
}

void kvs_http_stream_open(struct kvs_http *http, const char *path, char *body,
                          struct kvs_http_stream *stream)
{
    (void)path;
    stream->impl.http = http;
    free(body);
}
void kvs_http_stream_close(struct kvs_http_stream *stream)
{
    stream->impl.http = NULL;
}
void kvs_http_stream_blame(struct kvs_http_stream *stream)
{
    (void)stream;
}
bool kvs_http_refuses(const char *text)
{
    return strstr(text, "auth") != NULL;
}
const char *kvs_http_endpoint(const struct kvs_http *http)
{
    (void)http;
    return "http://e";
}

static struct kvs_http_call *oldest_call(const char *path)
{
    kvb_list_each(&kvs_etcd_of(on.coordinator)->http->calls, link)
    {
        struct kvs_http_call *call = kvb_container_of(link, struct kvs_http_call, impl.link);
        if (path == NULL || strcmp(call->impl.path, path) == 0) {
            return call;
        }
    }
    return NULL;
}

static void finish(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    kvs_http_cancel(call);
    call->uncertain = status == KVB_ERR_UNAVAILABLE;
    call->done(call, status, answer);
}

/* ---- answers as etcd would give them ---- */

static json_t *base64(const json_t *plain)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *text = json_is_string(plain) ? json_string_value(plain) : "";
    size_t len = strlen(text), out = 0;
    char *encoded = malloc(len / 3 * 4 + 5);
    kvb_assert(encoded != NULL);
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) {
            bits = bits << 8 | (i + k < len ? (unsigned char)text[i + k] : 0);
        }
        for (size_t k = 0; k < 4; k++) {
            encoded[out++] = i + k > len ? '=' : letters[bits >> (18 - 6 * k) & 63];
        }
    }
    encoded[out] = '\0';
    json_t *json = json_string(encoded);
    free(encoded);
    return json;
}

/* With the member's own id in place of $M, and its epoch in place of $E. */
static json_t *plain_text(const json_t *value)
{
    const char *text = json_string_value(value);
    const char *mark = text == NULL ? NULL : strchr(text, '$');
    if (mark == NULL || on.nmembers == 0 || (mark[1] != 'M' && mark[1] != 'E')) {
        return json_incref((json_t *)(uintptr_t)value);
    }
    const struct member *member = kvb_container_of(on.members[0], struct member, base);
    char own[KVS_ETCD_ID_MAX];
    (void)snprintf(own, sizeof own, "%llu", (unsigned long long)member->epoch);
    return json_sprintf("%.*s%s%s", (int)(mark - text), text, mark[1] == 'M' ? member->id : own,
                        mark + 2);
}

/* A key and its value, encoded in place. */
static void encode_kv(json_t *kv)
{
    static const char *const names[] = {"key", "value"};
    for (size_t i = 0; i < 2 && json_is_object(kv); i++) {
        json_t *plain = plain_text(json_object_get(kv, names[i]));
        (void)json_object_set_new(kv, names[i], base64(plain));
        json_decref(plain);
    }
}

static json_t *header_of(const json_t *said)
{
    json_t *rev = json_object_get(said, "rev");
    return json_pack("{s:{s:O}}", "header", "revision", json_is_string(rev) ? rev : json_null());
}

static void say_events(struct etcd *etcd, json_t *said)
{
    json_t *events = json_object_get(said, "events"), *object = header_of(said), *event;
    size_t i;
    json_array_foreach(events, i, event)
    {
        encode_kv(json_object_get(event, "kv"));
    }
    (void)json_object_set_new(object, "watch_id", json_string("1"));
    if (events != NULL) {
        (void)json_object_set(object, "events", events);
    }
    object = json_pack("{s:o}", "result", object);
    etcd->stream.object(&etcd->stream, object);
    json_decref(object);
}

static json_t *response_to(const json_t *request, const json_t *said)
{
    json_t *kvs = json_object_get(said, "kvs");
    if (json_object_get(request, "request_range") != NULL) {
        return json_is_array(kvs) ? json_pack("{s:{s:O}}", "response_range", "kvs", kvs)
                                  : json_pack("{s:{}}", "response_range");
    }
    return json_pack("{s:{}}", json_object_get(request, "request_put") != NULL
                                   ? "response_put"
                                   : "response_delete_range");
}

static void answer_soundly(json_t *said, bool succeeded)
{
    struct kvs_http_call *call = oldest_call("/v3/kv/txn");
    json_t *kv, *request, *responses = json_array(), *answer = header_of(said);
    size_t i;
    json_array_foreach(json_object_get(said, "kvs"), i, kv)
    {
        encode_kv(kv);
    }
    json_t *body = call == NULL ? NULL : json_loads(call->impl.body, 0, NULL);
    json_array_foreach(json_object_get(body, succeeded ? "success" : "failure"), i, request)
    {
        (void)json_array_append_new(responses, response_to(request, said));
    }
    (void)json_object_set_new(answer, "succeeded", json_boolean(succeeded));
    (void)json_object_set_new(answer, "responses", responses);
    if (call != NULL) {
        finish(call, KVB_OK, answer);
    }
    json_decref(body);
    json_decref(answer);
}

/* ---- who is told ---- */

static void remember(struct kvs_member *member, uint64_t retirement)
{
    if (on.ntold < TOLD_MAX) {
        on.told[on.ntold].member = member;
        on.told[on.ntold++].retirement = retirement;
    }
}
static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    (void)lineage;
    remember(*(struct kvs_member **)ctx, retirement);
}
static void on_tenant(void *ctx, uint64_t retirement)
{
    remember(*(struct kvs_member **)ctx, retirement);
}
static void on_reachable(void *ctx, bool reachable)
{
    (void)ctx, (void)reachable;
}
static void on_lost(void *ctx)
{
    (void)ctx;
}
static const struct kvs_member_ops member_ops = {
    .told = on_told, .told_tenant = on_tenant, .reachable = on_reachable, .lost = on_lost};

static void on_node(void *ctx, const struct kvs_node_record *record)
{
    (void)ctx;
    kvb_assert(strlen(record->address) < sizeof record->address);
    kvb_assert(strlen(record->name) < sizeof record->name);
}
static void on_gone(void *ctx, const char *name)
{
    (void)ctx, (void)name;
}
static void on_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    (void)ctx;
    kvb_assert(lineages != NULL && n > 0);
}
static void on_quota(void *ctx, const char *tenant, uint64_t bytes)
{
    (void)ctx, (void)tenant, (void)bytes;
}
static const struct kvs_watch_ops watch_ops = {on_node, on_gone, on_retired, on_quota,
                                               on_reachable};

static void see_name(void *arg, const struct kvs_space *space, const char *name,
                     struct kvb_lineage lineage, uint32_t members)
{
    (void)arg, (void)space, (void)name, (void)lineage, (void)members;
}
static void see_instance(void *arg, const struct kvs_instance_record *record)
{
    (void)arg, (void)record;
}
static kvb_status_t see_kv(void *ctx, const struct kvs_kv *kv)
{
    (void)ctx;
    kvb_assert(kv->key[kv->key_len] == '\0' && kv->value[kv->value_len] == '\0');
    return KVB_OK;
}

static void answer_txn(const json_t *object)
{
    struct kvs_txn_answer answer;
    json_t *then = json_pack("[{s:{}}, {s:{}}]", "request_range", "request_put");
    json_t *otherwise = json_pack("[{s:{}}]", "request_range");
    bool sound;
    if (kvs_txn_parse(object, then, otherwise, &answer)) {
        struct kvs_found found;
        kvb_status_t status = kvs_op_one_kv(&answer, 0, &found);
        kvb_assert(status != KVB_OK || found.n <= 1);
        free(found.value);
        status = kvs_wire_each_kv(kvs_txn_kvs(&answer, 0, &sound), see_kv, NULL);
        (void)status;
    }
    json_decref(then);
    json_decref(otherwise);
}

/* ---- what the process asks ---- */

static void on_done(struct kvs_coord_request *request, kvb_status_t status)
{
    kvb_assert(on.done < on.begun);
    if (status == KVB_OK && !kvb_id_none(request->lineage.id)) {
        on.lineage = request->lineage;
    }
    request->done = NULL; /* a second time is a crash */
    on.done++;
}

/* NULL: enough of them. */
static struct kvs_coord_request *begin_request(void)
{
    if (on.begun == REQUESTS_MAX) {
        return NULL;
    }
    struct kvs_coord_request *request = &on.requests[on.begun++];
    request->done = on_done;
    return request;
}

static void open_member(void)
{
    const struct kvs_space space = {"t", "l"};
    if (on.nmembers < MEMBERS_MAX) {
        struct kvs_member **member_p = &on.members[on.nmembers];
        kvb_status_t status =
            kvs_member_open(on.coordinator, "a", &space, &member_ops, member_p, member_p);
        kvb_assert(status == KVB_OK);
        on.nmembers++;
    }
}

static void close_member(void)
{
    struct kvs_member *member = on.members[on.nmembers - 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < on.ntold; i++) {
        if (on.told[i].member != member) {
            on.told[n++] = on.told[i];
        }
    }
    on.ntold = n;
    kvs_member_close(member);
    on.nmembers--;
}

static void announce(const char *text)
{
    struct kvs_node_record record = {
        .name = "n", .address = "h:1", .capacity_bytes = 5, .incarnation = 7};
    record.draining = text[0] == 'd';
    kvb_status_t status = kvs_coordinator_announce(on.coordinator, &record);
    kvb_assert(status == KVB_OK);
}

/* Of a member, with a request that is answered. */
static void ask_member(struct kvs_member *member, char what, const char *text)
{
    struct kvs_coord_request *request = begin_request();
    uint64_t deadline_ns = sim_in_ms(&on.sim, 1000);
    char *rest = NULL;
    if (request == NULL) {
        return;
    }
    switch (what) {
    case 'r':
        kvs_member_resolve(member, text, request);
        return;
    case 'c':
        kvs_member_check(member, text, on.lineage, request);
        return;
    case 'x':
        kvs_member_retire(member, &on.lineage, kvb_id_none(on.lineage.id) ? 0 : 1,
                          text[0] != '\0' ? text : NULL, deadline_ns, request);
        return;
    case 'q': {
        uint64_t epoch = strtoull(text, &rest, 10);
        if (text[0] == '$') { /* the one that it has taken part in */
            epoch = kvb_container_of(member, struct member, base)->epoch;
            rest++;
        }
        kvs_member_step(member, epoch, strtoull(rest, NULL, 10), request);
        return;
    }
    default:
        kvs_tenant_reset(on.coordinator, "t", text[0] == '1' ? member : NULL, deadline_ns, request);
    }
}

static void ask(char what, const char *text)
{
    struct kvs_member *member = on.nmembers > 0 ? on.members[on.nmembers - 1] : NULL;
    struct kvs_coord_request *request;
    kvb_status_t status;
    switch (what) {
    case 'm':
        open_member();
        return;
    case 'N':
        announce(text);
        return;
    case 'W':
    case 'u':
        request = begin_request();
        if (request != NULL && what == 'W') {
            kvs_coordinator_withdraw(on.coordinator, request);
        } else if (request != NULL) {
            kvs_coordinator_set_quota(on.coordinator, "t", strlen(text), request);
        }
        return;
    case 'w':
        sim_advance(&on.sim, text[0] == '1' ? 3000 : 30);
        return;
    default:
        break;
    }
    if (member == NULL) {
        return;
    }
    switch (what) {
    case 'z':
        close_member();
        return;
    case 'l':
        kvs_member_leave(member, text);
        return;
    case 'p':
        status = kvs_member_publish(member, text);
        kvb_assert(status == KVB_OK || status == KVB_ERR_TOO_LARGE ||
                   (status == KVB_ERR_INVALID && !kvb_utf8_printable(text, strlen(text))));
        return;
    case 'b':
        kvs_member_abandon(member, on.lineage);
        return;
    case 'f':
        if (on.ntold > 0) {
            on.ntold--;
            kvs_member_left(on.told[on.ntold].member, on.told[on.ntold].retirement);
        }
        return;
    case 'r':
    case 'c':
    case 'x':
    case 'q':
    case 'T':
        ask_member(member, what, text);
        return;
    default:
        return;
    }
}

/* ---- lines ---- */

static void answer(struct etcd *etcd, char what, json_t *object)
{
    struct kvs_http_call *call = oldest_call(NULL);
    bool streams = kvs_http_streaming(&etcd->stream);
    switch (what) {
    case 'j':
        if (kvs_http_running(&etcd->join)) {
            finish(&etcd->join, KVB_OK, object);
        }
        return;
    case 's':
        if (streams) {
            etcd->stream.object(&etcd->stream, object);
        }
        return;
    case 'S':
        if (streams) {
            say_events(etcd, object);
        }
        return;
    case 't':
        answer_txn(object);
        return;
    case 'a':
        if (call != NULL) {
            finish(call, KVB_OK, object);
        }
        return;
    default:
        answer_soundly(object, what == 'y');
    }
}

static void feed(struct etcd *etcd, const char *line)
{
    struct kvs_http_call *call = oldest_call(NULL);
    if (line[0] == 'd' && call != NULL) {
        finish(call, line[1] == 'l' ? KVB_ERR_NOT_FOUND : KVB_ERR_UNAVAILABLE, NULL);
    } else if (line[0] == 'e' && kvs_http_streaming(&etcd->stream)) {
        kvs_http_stream_close(&etcd->stream);
        etcd->stream.ended(&etcd->stream);
    } else if (line[0] != '\0' && strchr("jsStayn", line[0]) != NULL) {
        json_t *object = json_loads(line + 1, 0, NULL);
        if (json_is_object(object)) {
            answer(etcd, line[0], object);
        }
        json_decref(object);
    } else {
        ask(line[0], line + 1);
    }
    sim_settle(&on.sim);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_io io = {0};
    const char *const endpoints[] = {"http://127.0.0.1:1"};
    struct fuzz_lines lines = {(const char *)data, size};
    char *line;
    memset(&on, 0, sizeof on);
    kvb_log_threshold = KVB_LOG_ERROR;
    sim_init(&on.sim, 1);
    const struct kvs_etcd_config config = {
        .sched = &on.sim.sched, .io = &io, .endpoints = endpoints, .nendpoints = 1};
    kvb_status_t status = kvs_etcd_create(&config, &on.coordinator);
    kvb_assert(status == KVB_OK);
    status = kvs_coordinator_watch(on.coordinator, &watch_ops, NULL);
    kvb_assert(status == KVB_OK);
    open_member();
    (void)kvb_sched_turn(&on.sim.sched);
    kvb_container_of(on.members[0], struct member, base)->told_rev = 1;
    struct etcd *etcd = kvs_etcd_of(on.coordinator);
    while ((line = fuzz_line(&lines)) != NULL) {
        feed(etcd, line);
        free(line);
    }
    kvs_coordinator_each_name(on.coordinator, see_name, NULL);
    kvs_coordinator_each_instance(on.coordinator, see_instance, NULL);
    while (on.nmembers > 0) {
        close_member();
    }
    kvs_coordinator_destroy(on.coordinator);
    sim_settle(&on.sim);
    kvb_assert(on.done == on.begun);
    sim_cleanup(&on.sim);
    return 0;
}
