/* SPDX-License-Identifier: Apache-2.0 */
/* A call from the side of who asked: the HTTP server's thread. */
#include "proxy/internal.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#define RING_FIRST 2048 /* bytes */

/* ---- rings ---- */

/* Most answers are small, and most memory is of streams that have little under way: it begins
 * small, too. False: no memory for any. */
static bool grow_ring(struct kvp_ring *ring, size_t max, size_t need)
{
    size_t cap = ring->cap > 0 ? ring->cap : RING_FIRST;

    while (cap < need && cap < max) {
        cap *= 2;
    }
    cap = cap < max ? cap : max;
    if (cap <= ring->cap) {
        return true;
    }
    char *data = malloc(cap);
    if (data == NULL) {
        return ring->data != NULL;
    }
    ring->len = kvp_ring_take(&(struct kvp_ring){ring->data, ring->cap, ring->start, ring->len},
                              data, ring->len);
    free(ring->data);
    ring->data = data;
    ring->cap = cap;
    ring->start = 0;
    return true;
}

size_t kvp_ring_put(struct kvp_ring *ring, size_t max, const char *data, size_t len)
{
    if (!grow_ring(ring, max, ring->len + len)) {
        return 0;
    }
    if (ring->len == 0) {
        ring->start = 0;
    }
    size_t put = 0;
    while (put < len && ring->len < ring->cap) {
        size_t at = (ring->start + ring->len) % ring->cap;
        size_t room = at < ring->start ? ring->start - at : ring->cap - at;
        size_t n = len - put < room ? len - put : room;
        memcpy(ring->data + at, data + put, n);
        ring->len += n;
        put += n;
    }
    return put;
}

size_t kvp_ring_take(struct kvp_ring *ring, char *data, size_t cap)
{
    size_t taken = 0;
    while (taken < cap && ring->len > 0) {
        size_t there = ring->cap - ring->start;
        there = there < ring->len ? there : ring->len;
        size_t n = cap - taken < there ? cap - taken : there;
        memcpy(data + taken, ring->data + ring->start, n);
        ring->start = (ring->start + n) % ring->cap;
        ring->len -= n;
        taken += n;
    }
    return taken;
}

/* ---- its making ---- */

const struct kvp_proxy_refusal kvp_refusal_memory = {.http_status = 503,
                                                     .retry_after_s = 1,
                                                     .reason = "memory",
                                                     .message = "out of memory; try again"};
const struct kvp_proxy_refusal kvp_refusal_closed = {
    .http_status = 503, .reason = "closed", .message = "the daemon is shutting down"};

void kvp_refusal_set(struct kvp_proxy_refusal *refusal, unsigned http_status,
                     unsigned retry_after_s, const char *reason, const char *format, ...)
{
    va_list arguments;

    *refusal = (struct kvp_proxy_refusal){
        .http_status = http_status, .retry_after_s = retry_after_s, .reason = reason};
    va_start(arguments, format);
    (void)vsnprintf(refusal->message, sizeof refusal->message, format, arguments);
    va_end(arguments);
}

/* Lines that keep libcurl from adding headers of its own, where the client sent none. */
static const struct {
    const char *line;
    const char *name; /* unless this is there; NULL: always */
} suppressed[] = {{"Expect:", NULL}, {"Accept:", "Accept"}, {"Content-Type:", "Content-Type"}};
#define NSUPPRESSED (sizeof suppressed / sizeof suppressed[0])

static bool has_header(const struct kvp_proxy_head *head, const char *name)
{
    for (uint32_t i = 0; i < head->nheaders; i++) {
        if (strcasecmp(head->headers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static size_t line_len(const struct kvp_proxy_header *header)
{
    return strlen(header->name) + 2 + strlen(header->value) + 1;
}

static char *copy(char **at, const char *text)
{
    size_t len = strlen(text) + 1;
    char *to = memcpy(*at, text, len);

    *at += len;
    return to;
}

/* The call, its lines and its texts are one piece of memory. */
static struct kvp_proxy_call *make(const struct kvp_proxy_head *head)
{
    uint32_t nlines = head->nheaders + (uint32_t)NSUPPRESSED;
    size_t text = strlen(head->method) + 1 + strlen(head->target) + 1;
    for (uint32_t i = 0; i < head->nheaders; i++) {
        text += line_len(&head->headers[i]);
    }
    for (size_t i = 0; i < NSUPPRESSED; i++) {
        text += strlen(suppressed[i].line) + 1;
    }
    struct kvp_proxy_call *call = malloc(sizeof *call + nlines * sizeof(struct curl_slist) + text);
    if (call == NULL) {
        return NULL;
    }
    memset(call, 0, sizeof *call);
    struct curl_slist *line = (struct curl_slist *)(void *)(call + 1);
    struct curl_slist **next = &call->lines;
    char *at = (char *)(line + nlines);
    call->method = copy(&at, head->method);
    call->path = copy(&at, head->target);
    for (uint32_t i = 0; i < nlines; i++) {
        bool own = i >= head->nheaders;
        if (own && suppressed[i - head->nheaders].name != NULL &&
            has_header(head, suppressed[i - head->nheaders].name)) {
            continue;
        }
        *line = (struct curl_slist){.data = at};
        if (own) {
            (void)copy(&at, suppressed[i - head->nheaders].line);
        } else {
            const struct kvp_proxy_header *header = &head->headers[i];
            at += sprintf(at, header->value[0] != '\0' ? "%s: %s" : "%s;", header->name,
                          header->value) +
                  1;
        }
        *next = line;
        next = &line->next;
        line++;
    }
    call->body_len = head->body_len;
    call->has_length = head->has_length;
    call->client_fd = head->client_fd;
    call->small = head->body_len <= KVP_PROXY_SMALL;
    call->sent = head->body_len == 0;
    call->generates = kvp_proxy_generates(head->method, head->target);
    call->repeatable = !call->generates && !kvp_proxy_changes(head->method, head->target);
    (void)snprintf(call->instance, sizeof call->instance, "%s", head->instance);
    kvb_mutex_init(&call->lock, "proxy-call");
    kvb_list_init(&call->posted);
    kvb_list_init(&call->link);
    kvb_list_init(&call->dirty);
    return call;
}

void kvp_call_free(struct kvp_proxy_call *call)
{
    kvb_assert(call->easy == NULL && kvb_list_empty(&call->posted) && kvb_list_empty(&call->link) &&
               kvb_list_empty(&call->dirty));
    kvp_fields_cleanup(&call->fields);
    kvb_mutex_cleanup(&call->lock);
    free(call->headers);
    free(call->up.data);
    free(call->down.data);
    free(call);
}

static void post_locked(struct kvp_proxy *proxy, struct kvp_proxy_call *call, enum kvp_post post)
    KVB_REQUIRES(proxy->lock)
{
    static const uint64_t one = 1;

    call->posts |= (unsigned)post;
    if (kvb_list_empty(&call->posted)) {
        kvb_list_push_back(&proxy->posted, &call->posted);
    }
    if (proxy->asleep) {
        proxy->asleep = false;
        (void)!write(proxy->woken, &one, sizeof one);
    }
}

void kvp_call_post(struct kvp_proxy_call *call, enum kvp_post post)
{
    struct kvp_proxy *proxy = call->proxy;

    kvb_mutex_lock(&proxy->lock);
    post_locked(proxy, call, post);
    kvb_mutex_unlock(&proxy->lock);
}

bool kvp_proxy_begin(struct kvp_proxy *proxy, const struct kvp_proxy_head *head,
                     const struct kvp_proxy_waiter *waiter, struct kvp_proxy_call **call_p,
                     struct kvp_proxy_refusal *refusal_p)
{
    struct kvp_proxy_call *call = make(head);
    if (call == NULL) {
        *refusal_p = kvp_refusal_memory;
        return false;
    }
    call->proxy = proxy;
    call->waiter = *waiter;
    call->begun_ns = kvb_now_ns(proxy->config.clock);
    kvb_mutex_lock(&proxy->lock);
    call->generation = proxy->generation;
    enum kvp_admission admission =
        kvp_proxy_admit_locked(proxy, call->instance, call->generates, &call->target, refusal_p);
    if (admission == KVP_HOLD && proxy->nheld == proxy->config.hold_max) {
        refusal_p->reason = "held";
        admission = KVP_REFUSED;
    }
    if (admission != KVP_REFUSED && proxy->calls == proxy->config.requests_max) {
        kvp_refusal_set(refusal_p, 503, 1, "full",
                        "too many requests for the engine's server at one time "
                        "(upstream-requests-max); try again");
        kvp_proxy_put_target_locked(proxy, call->target);
        call->target = NULL;
        admission = KVP_REFUSED;
    }
    if (admission != KVP_REFUSED) {
        call->held = admission == KVP_HOLD;
        proxy->nheld += call->held;
        proxy->calls++;
        if (!call->small || call->body_len == 0) {
            post_locked(proxy, call, KVP_POST_BEGIN);
        }
    }
    kvb_mutex_unlock(&proxy->lock);
    if (admission == KVP_REFUSED) {
        kvp_proxy_count_refused(proxy, refusal_p);
        kvp_call_free(call);
        return false;
    }
    *call_p = call;
    return true;
}

/* ---- its body ---- */

/* False: nobody may any more. */
static bool sleep_locked(struct kvp_proxy_call *call) KVB_REQUIRES(call->lock)
{
    if (atomic_load(&call->proxy->closed)) {
        return false;
    }
    call->sleeps = true;
    call->waiter.sleep(call->waiter.arg);
    return true;
}

static void refuse_locked(struct kvp_proxy_call *call, const struct kvp_proxy_refusal *refusal)
    KVB_REQUIRES(call->lock)
{
    if (!call->refused) {
        call->refused = true;
        call->refusal = *refusal;
    }
}

static size_t send_locked(struct kvp_proxy_call *call, const char *data, size_t len)
    KVB_REQUIRES(call->lock)
{
    size_t cap = call->small ? (size_t)call->body_len : KVP_PROXY_BUFFER;

    if (call->whole || call->refused || call->broken || call->left) {
        call->dropped += len;
        return len;
    }
    size_t taken = kvp_ring_put(&call->up, cap, data, len);
    if (call->up.data == NULL) {
        refuse_locked(call, &kvp_refusal_memory);
        return len;
    }
    if (call->starved && taken > 0) {
        call->starved = false;
        kvp_call_post(call, KVP_POST_BODY);
    }
    if (taken < len && !sleep_locked(call)) {
        refuse_locked(call, &kvp_refusal_closed);
        return len;
    }
    return taken;
}

size_t kvp_proxy_send(struct kvp_proxy_call *call, const char *data, size_t len)
{
    kvb_mutex_lock(&call->lock);
    size_t taken = send_locked(call, data, len);
    kvb_mutex_unlock(&call->lock);
    return taken;
}

uint64_t kvp_proxy_dropped(struct kvp_proxy_call *call)
{
    kvb_mutex_lock(&call->lock);
    uint64_t dropped = call->dropped;
    kvb_mutex_unlock(&call->lock);
    return dropped;
}

void kvp_proxy_sent(struct kvp_proxy_call *call)
{
    kvb_mutex_lock(&call->lock);
    call->sent = true;
    if (call->small && call->body_len > 0) {
        kvp_call_post(call, KVP_POST_BEGIN);
    } else if (call->starved) {
        call->starved = false;
        kvp_call_post(call, KVP_POST_BODY);
    }
    kvb_mutex_unlock(&call->lock);
}

/* ---- its answer ---- */

static bool list_headers_locked(struct kvp_proxy_call *call) KVB_REQUIRES(call->lock)
{
    const struct kvp_fields *fields = &call->fields;

    call->headers = malloc((fields->n + 1) * sizeof *call->headers);
    for (uint32_t i = 0; call->headers != NULL && i < fields->n; i++) {
        call->headers[i] = (struct kvp_proxy_header){.name = fields->text + fields->at[i].name,
                                                     .value = fields->text + fields->at[i].value};
    }
    return call->headers != NULL;
}

static enum kvp_proxy_answered answer_locked(struct kvp_proxy_call *call,
                                             struct kvp_proxy_answer *answer_p,
                                             struct kvp_proxy_refusal *refusal_p)
    KVB_REQUIRES(call->lock)
{
    if (call->left) {
        return KVP_PROXY_LEFT;
    }
    if (call->headed && call->headers == NULL && !list_headers_locked(call)) {
        refuse_locked(call, &kvp_refusal_memory);
    }
    if (!call->headed && !call->refused) {
        if (sleep_locked(call)) {
            return KVP_PROXY_WAITS;
        }
        refuse_locked(call, &kvp_refusal_closed);
    }
    if (call->refused) {
        *refusal_p = call->refusal;
        return KVP_PROXY_REFUSES;
    }
    /* What is whole and in one piece needs nobody to ask for more of it. */
    bool all = call->whole && call->fields.has_length && call->down.len == call->fields.length &&
               call->down.start + call->down.len <= call->down.cap && call->down.len > 0;
    *answer_p = (struct kvp_proxy_answer){
        .http_status = call->http_status,
        .headers = call->headers,
        .nheaders = call->fields.n,
        .body_len = call->fields.has_length ? call->fields.length : KVP_PROXY_LENGTH_UNKNOWN,
        .body = all ? call->down.data + call->down.start : NULL};
    return KVP_PROXY_ANSWERS;
}

enum kvp_proxy_answered kvp_proxy_answer(struct kvp_proxy_call *call,
                                         struct kvp_proxy_answer *answer_p,
                                         struct kvp_proxy_refusal *refusal_p)
{
    kvb_mutex_lock(&call->lock);
    enum kvp_proxy_answered answered = answer_locked(call, answer_p, refusal_p);
    kvb_mutex_unlock(&call->lock);
    return answered;
}

static ssize_t read_locked(struct kvp_proxy_call *call, char *data, size_t cap)
    KVB_REQUIRES(call->lock)
{
    size_t taken = kvp_ring_take(&call->down, data, cap);

    if (call->stuffed && call->down.len <= KVP_PROXY_BUFFER / 2) {
        call->stuffed = false;
        kvp_call_post(call, KVP_POST_ROOM);
    }
    if (taken > 0) {
        return (ssize_t)taken;
    }
    if (call->broken || call->left) {
        return KVP_PROXY_READ_BROKEN;
    }
    if (call->whole) {
        return KVP_PROXY_READ_END;
    }
    return sleep_locked(call) ? KVP_PROXY_READ_WAIT : KVP_PROXY_READ_BROKEN;
}

ssize_t kvp_proxy_read(struct kvp_proxy_call *call, char *data, size_t cap)
{
    kvb_mutex_lock(&call->lock);
    ssize_t result = read_locked(call, data, cap);
    kvb_mutex_unlock(&call->lock);
    return result;
}

/* The descriptor may be closed, and be another one's, as soon as this returns. */
void kvp_proxy_end(struct kvp_proxy_call *call)
{
    struct kvp_proxy *proxy = call->proxy;

    kvb_mutex_lock(&call->lock);
    call->ended = true;
    call->sleeps = false;
    if (call->watched) {
        call->watched = false;
        (void)epoll_ctl(proxy->epoll, EPOLL_CTL_DEL, call->client_fd, NULL);
    }
    kvb_mutex_lock(&proxy->lock);
    bool gone = call->finished && kvb_list_empty(&call->posted);
    if (!gone) {
        post_locked(proxy, call, KVP_POST_END);
    }
    kvb_mutex_unlock(&proxy->lock);
    kvb_mutex_unlock(&call->lock);
    if (gone) {
        kvp_call_free(call);
    }
}
