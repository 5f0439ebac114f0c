/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy's thread: libcurl's sockets, the clients that might go away meanwhile, and what is
 * posted to it, in one epoll set. A turn: what is ready; what was posted; then whoever waits for
 * what came of it is woken, once.
 */
#include "metrics.h"
#include "proxy/internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    EVENTS = 128,  /* in one turn */
    TICK_MS = 100, /* at most: clients looked at, bounds */
    /* In kvp_proxy.watched: */
    OURS = 64, /* we have opened it, and will see it closed */
    IDLE = 128 /* no transfer has it */
};

/* In an epoll event: 0 for `woken`, a socket of libcurl's as an odd number, or a call. */
static uint64_t socket_tag(int fd)
{
    return (uint64_t)(unsigned)fd << 1 | 1;
}

/* ---- libcurl's ---- */

static int set_timer(CURLM *multi, long timeout_ms, void *ctx)
{
    struct kvp_proxy *proxy = ctx;

    (void)multi;
    proxy->timer_ns =
        timeout_ms < 0 ? KVB_NEVER : proxy->now_ns + (uint64_t)timeout_ms * KVB_NS_PER_MS;
    return 0;
}

static bool keep_watched(struct kvp_proxy *proxy, uint32_t fd)
{
    if (fd < proxy->nwatched) {
        return true;
    }
    uint32_t n = fd * 2 > 256 ? fd * 2 : 256;
    uint8_t *watched = realloc(proxy->watched, n);
    if (watched == NULL) {
        return false;
    }
    memset(watched + proxy->nwatched, 0, n - proxy->nwatched);
    proxy->watched = watched;
    proxy->nwatched = n;
    return true;
}

/* libcurl lets go of a connection's socket at the end of each transfer, to be told of it again by
 * the next one: it stays in the set meanwhile, unless it has something to say. Others (a
 * resolver's) are closed unseen, so they do not. It never says no to libcurl, which (7.88) may
 * follow a null pointer then; a transfer whose socket is not watched ends by its bound. */
static int set_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *assigned)
{
    struct kvp_proxy *proxy = ctx;
    struct epoll_event event = {.data.u64 = socket_tag(fd)};

    (void)easy;
    (void)assigned;
    event.events =
        ((what & CURL_POLL_IN) != 0 ? EPOLLIN : 0u) | ((what & CURL_POLL_OUT) != 0 ? EPOLLOUT : 0u);
    if (!keep_watched(proxy, (uint32_t)fd)) {
        KVB_LOG_LIMITED(ERROR, "a socket cannot be watched: no memory");
        return 0;
    }
    uint8_t *watched = &proxy->watched[fd];
    uint32_t before = *watched & (EPOLLIN | EPOLLOUT);
    if (what == CURL_POLL_REMOVE && *watched == (OURS | EPOLLIN)) {
        *watched |= IDLE;
        return 0;
    }
    *watched &= OURS;
    if (before != event.events) {
        int op = event.events == 0 ? EPOLL_CTL_DEL : before != 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
        if (epoll_ctl(proxy->epoll, op, fd, &event) != 0) {
            KVB_LOG_LIMITED(ERROR, "a socket cannot be watched", KVB_ERRNO(errno));
            return 0;
        }
    }
    *watched |= (uint8_t)event.events;
    return 0;
}

curl_socket_t kvp_proxy_open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct kvp_proxy *proxy = ctx;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);

    (void)purpose;
    if (fd >= 0 && keep_watched(proxy, (uint32_t)fd)) {
        proxy->watched[fd] = OURS;
    }
    return fd;
}

int kvp_proxy_close_socket(void *ctx, curl_socket_t fd)
{
    struct kvp_proxy *proxy = ctx;

    if ((uint32_t)fd < proxy->nwatched) {
        proxy->watched[fd] = 0; /* the set forgets it by itself */
    }
    return close(fd);
}

static void socket_ready(struct kvp_proxy *proxy, int fd, uint32_t events)
{
    int running;

    if ((uint32_t)fd < proxy->nwatched && (proxy->watched[fd] & IDLE) != 0) {
        proxy->watched[fd] = OURS; /* its server has closed it: who wants it next will see */
        (void)epoll_ctl(proxy->epoll, EPOLL_CTL_DEL, fd, NULL);
        return;
    }
    int mask = ((events & (EPOLLIN | EPOLLHUP)) != 0 ? CURL_CSELECT_IN : 0) |
               ((events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) |
               ((events & EPOLLERR) != 0 ? CURL_CSELECT_ERR : 0);
    (void)curl_multi_socket_action(proxy->multi, fd, mask, &running);
}

static void run_timer(struct kvp_proxy *proxy)
{
    int running;

    if (proxy->now_ns >= proxy->timer_ns) {
        proxy->timer_ns = KVB_NEVER; /* it is set anew inside, if it is to be */
        (void)curl_multi_socket_action(proxy->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

/* ---- what becomes of calls ---- */

void kvp_call_touch(struct kvp_proxy_call *call, bool over)
{
    call->over = call->over || over;
    if (kvb_list_empty(&call->dirty)) {
        kvb_list_push_back(&call->proxy->dirty, &call->dirty);
    }
}

static void count(struct kvp_proxy *proxy, enum kvp_metric family, const char *label)
{
    const char *values[] = {label};
    kvb_series_add(kvb_series(proxy->config.metrics, family, values), 1);
}

void kvp_call_fail(struct kvp_proxy_call *call, const struct kvp_proxy_refusal *refusal,
                   const char *error)
{
    kvp_transfer_stop(call);
    kvb_mutex_lock(&call->lock);
    if (call->headed || refusal == NULL) {
        call->broken = true;
    } else if (!call->refused) {
        call->refused = true;
        call->refusal = *refusal;
    }
    kvb_mutex_unlock(&call->lock);
    if (error != NULL) {
        count(call->proxy, KVP_M_UPSTREAM_ERRORS, error);
    }
    kvp_call_touch(call, true);
}

void kvp_proxy_count_refused(struct kvp_proxy *proxy, const struct kvp_proxy_refusal *refusal)
{
    count(proxy, KVP_M_UPSTREAM_REFUSED, refusal->reason);
}

static void count_answer(const struct kvp_proxy_call *call)
{
    static const char *const codes[] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
    unsigned class = call->headed ? call->http_status / 100 : 0;
    const char *values[] = {call->target != NULL ? kvp_target_label(call->target) : "-",
                            codes[class < sizeof codes / sizeof codes[0] ? class : 0]};

    kvb_series_add(kvb_series(call->proxy->config.metrics, KVP_M_UPSTREAM_REQUESTS, values), 1);
}

/* Not ours any more; whose it is then frees it. */
static void finish(struct kvp_proxy_call *call)
{
    struct kvp_proxy *proxy = call->proxy;

    kvb_assert(call->easy == NULL);
    count_answer(call);
    kvb_list_remove(&call->link);
    kvb_mutex_lock(&call->lock);
    bool watched = call->watched;
    call->watched = false;
    if (watched) {
        (void)epoll_ctl(proxy->epoll, EPOLL_CTL_DEL, call->client_fd, NULL);
    }
    kvb_mutex_lock(&proxy->lock);
    proxy->calls--;
    proxy->nheld -= call->held;
    call->held = false;
    kvp_proxy_put_target_locked(proxy, call->target);
    call->target = NULL;
    call->finished = true;
    bool gone = call->ended && kvb_list_empty(&call->posted);
    kvb_mutex_unlock(&proxy->lock);
    if (call->sleeps && !gone) { /* the last act: it may be freed as soon as it is unlocked */
        call->sleeps = false;
        call->waiter.wake(call->waiter.arg);
    }
    kvb_mutex_unlock(&call->lock);
    if (gone) {
        kvp_call_free(call);
    }
}

static void tell(struct kvp_proxy_call *call)
{
    kvb_mutex_lock(&call->lock);
    if (call->sleeps) {
        call->sleeps = false;
        call->waiter.wake(call->waiter.arg);
    }
    kvb_mutex_unlock(&call->lock);
}

static void tell_all(struct kvp_proxy *proxy)
{
    struct kvb_list *link;

    while ((link = kvb_list_pop(&proxy->dirty)) != NULL) {
        struct kvp_proxy_call *call = kvb_container_of(link, struct kvp_proxy_call, dirty);
        if (call->over) {
            finish(call);
        } else {
            tell(call);
        }
    }
    kvb_mutex_lock(&proxy->lock);
    uint32_t held = proxy->nheld;
    uint32_t calls = proxy->calls;
    kvb_mutex_unlock(&proxy->lock);
    kvb_series_set(kvb_series0(proxy->config.metrics, KVP_M_UPSTREAM_RUNNING), calls - held);
    kvb_series_set(kvb_series0(proxy->config.metrics, KVP_M_UPSTREAM_HELD), held);
    const struct {
        const char *direction;
        uint64_t *bytes;
    } moved[] = {{"sent", &proxy->sent_bytes}, {"received", &proxy->received_bytes}};
    for (size_t i = 0; i < 2; i++) {
        if (*moved[i].bytes > 0) {
            const char *values[] = {moved[i].direction};
            kvb_series_add(kvb_series(proxy->config.metrics, KVP_M_UPSTREAM_BYTES, values),
                           *moved[i].bytes);
            *moved[i].bytes = 0;
        }
    }
}

/* ---- beginning, held or not ---- */

/* States have changed since it was admitted, or it is held: may it go on now? */
static void admit_again(struct kvp_proxy_call *call)
{
    struct kvp_proxy *proxy = call->proxy;
    struct kvp_proxy_refusal refusal;

    kvb_mutex_lock(&proxy->lock);
    enum kvp_admission admission = KVP_ADMITTED;
    if (call->held || call->generation != proxy->generation || atomic_load(&proxy->closed)) {
        struct kvp_target *target = NULL;
        call->generation = proxy->generation;
        admission =
            kvp_proxy_admit_locked(proxy, call->instance, call->generates, &target, &refusal);
        kvp_proxy_put_target_locked(proxy, call->target);
        call->target = target;
        proxy->nheld += (admission == KVP_HOLD) - call->held;
        call->held = admission == KVP_HOLD;
    }
    kvb_mutex_unlock(&proxy->lock);
    kvb_list_remove(&call->link);
    switch (admission) {
    case KVP_ADMITTED:
        kvb_list_push_back(&proxy->running, &call->link);
        call->tried_ns = proxy->now_ns;
        kvp_transfer_start(call);
        return;
    case KVP_HOLD:
        kvb_list_push_back(&proxy->held, &call->link);
        return;
    case KVP_REFUSED:
        kvp_proxy_count_refused(proxy, &refusal);
        kvp_call_fail(call, &refusal, NULL);
        return;
    }
    KVB_UNREACHABLE("admission");
}

bool kvp_call_elsewhere(struct kvp_proxy_call *call)
{
    struct kvp_proxy *proxy = call->proxy;
    struct kvp_proxy_refusal refusal;
    struct kvp_target *target = NULL;

    kvb_mutex_lock(&proxy->lock);
    call->target->unreached_ns = proxy->now_ns;
    /* One that was not reached since then is not tried again, so this comes to an end. */
    bool other =
        call->instance[0] == '\0' &&
        kvp_proxy_admit_locked(proxy, "", call->generates, &target, &refusal) == KVP_ADMITTED &&
        target->unreached_ns < call->tried_ns;
    kvp_proxy_put_target_locked(proxy, other ? call->target : target);
    call->target = other ? target : call->target;
    kvb_mutex_unlock(&proxy->lock);
    if (other) {
        kvp_transfer_start(call);
    }
    return other;
}

static void end_call(struct kvp_proxy_call *call)
{
    if (!call->over) {
        kvp_transfer_stop(call);
        count(call->proxy, KVP_M_UPSTREAM_ERRORS, "client");
        kvp_call_touch(call, true);
    }
}

static void take_posts(struct kvp_proxy *proxy)
{
    for (;;) {
        kvb_mutex_lock(&proxy->lock);
        struct kvb_list *link = kvb_list_pop(&proxy->posted);
        struct kvp_proxy_call *call =
            link != NULL ? kvb_container_of(link, struct kvp_proxy_call, posted) : NULL;
        unsigned posts = 0;
        bool finished = false;
        if (call != NULL) {
            posts = call->posts;
            call->posts = 0;
            finished = call->finished;
        }
        kvb_mutex_unlock(&proxy->lock);
        if (call == NULL) {
            return;
        }
        if (finished) {
            if ((posts & KVP_POST_END) != 0) {
                kvp_call_free(call);
            }
            continue;
        }
        if ((posts & KVP_POST_END) != 0) {
            end_call(call);
        } else if ((posts & KVP_POST_BEGIN) != 0) {
            admit_again(call);
        } else {
            kvp_transfer_go_on(call);
        }
    }
}

/* ---- bounds, clients, states ---- */

/* Is its client still there? Most answers have gone out before anybody would ask. */
static void watch_client(struct kvp_proxy_call *call)
{
    struct epoll_event event = {.events = EPOLLRDHUP, .data.ptr = call};

    kvb_mutex_lock(&call->lock);
    if (!call->watched && !call->ended && call->sent && call->client_fd >= 0) {
        call->watched = epoll_ctl(call->proxy->epoll, EPOLL_CTL_ADD, call->client_fd, &event) == 0;
    }
    kvb_mutex_unlock(&call->lock);
}

static void client_left(struct kvp_proxy_call *call)
{
    kvb_mutex_lock(&call->lock);
    bool left = call->watched;
    if (left) {
        call->watched = false;
        call->left = true;
        (void)epoll_ctl(call->proxy->epoll, EPOLL_CTL_DEL, call->client_fd, NULL);
    }
    kvb_mutex_unlock(&call->lock);
    if (left && !call->over) {
        kvp_call_fail(call, NULL, "client");
    }
}

/* It waits for nobody but its server. */
static bool servers_turn(struct kvp_proxy_call *call)
{
    kvb_mutex_lock(&call->lock);
    bool turn = !call->stuffed && !call->starved;
    kvb_mutex_unlock(&call->lock);
    return turn;
}

/* As the HTTP server does with who sends a request too slowly. */
static void shut_client(struct kvp_proxy_call *call)
{
    kvb_mutex_lock(&call->lock);
    call->left = true;
    if (!call->ended && call->client_fd >= 0) { /* it is not another's yet */
        (void)shutdown(call->client_fd, SHUT_RDWR);
    }
    kvb_mutex_unlock(&call->lock);
    KVB_LOG_LIMITED(WARN, "a request was not passed on: its body did not come in time");
    kvp_call_fail(call, NULL, "client");
}

static void check_running(struct kvp_proxy_call *call, uint64_t now_ns)
{
    struct kvp_proxy_refusal refusal;
    uint64_t bound_ns = call->proxy->config.idle_ms * KVB_NS_PER_MS;
    uint64_t receive_ns = call->proxy->config.receive_ms * KVB_NS_PER_MS;

    if (receive_ns > 0 && call->starved_ns != 0 &&
        call->waited_ns + (now_ns - call->starved_ns) > receive_ns) {
        shut_client(call);
    } else if (bound_ns > 0 && now_ns - call->byte_ns > bound_ns && servers_turn(call)) {
        kvp_refusal_set(&refusal, 504, 0, "timeout",
                        "the engine's server has sent nothing for too long "
                        "(upstream-idle-timeout): %s",
                        call->target->url);
        kvp_call_fail(call, &refusal, "timeout");
    } else if (now_ns - call->begun_ns > TICK_MS * KVB_NS_PER_MS) {
        watch_client(call);
    }
}

static void check_held(struct kvp_proxy_call *call, uint64_t now_ns)
{
    struct kvp_proxy_refusal refusal;
    struct kvp_proxy *proxy = call->proxy;

    watch_client(call);
    if (now_ns - call->begun_ns > proxy->config.hold_ms * KVB_NS_PER_MS) {
        struct kvp_target *none = NULL;
        kvb_mutex_lock(&proxy->lock);
        enum kvp_admission admission =
            kvp_proxy_admit_locked(proxy, call->instance, call->generates, &none, &refusal);
        kvp_proxy_put_target_locked(proxy, none);
        kvb_mutex_unlock(&proxy->lock);
        if (admission != KVP_ADMITTED) { /* else the next turn lets it go on */
            refusal.reason = "held";
            kvp_proxy_count_refused(proxy, &refusal);
            kvp_call_fail(call, &refusal, NULL);
        }
    }
}

static void tick(struct kvp_proxy *proxy, uint64_t now_ns)
{
    kvb_list_each(&proxy->running, running)
    {
        struct kvp_proxy_call *call = kvb_container_of(running, struct kvp_proxy_call, link);
        if (!call->over) {
            check_running(call, now_ns);
        }
    }
    kvb_list_each(&proxy->held, held)
    {
        struct kvp_proxy_call *call = kvb_container_of(held, struct kvp_proxy_call, link);
        if (!call->over) {
            check_held(call, now_ns);
        }
    }
    uint64_t every_ms = TICK_MS;
    if (proxy->config.idle_ms > 0 && proxy->config.idle_ms / 4 < every_ms) {
        every_ms = proxy->config.idle_ms / 4 + 1;
    }
    proxy->tick_ns = now_ns + every_ms * KVB_NS_PER_MS;
}

static void close_all(struct kvb_list *list)
{
    kvb_list_each(list, link)
    {
        struct kvp_proxy_call *call = kvb_container_of(link, struct kvp_proxy_call, link);
        if (!call->over) {
            kvp_call_fail(call, &kvp_refusal_closed, "closed");
        }
    }
}

static void look_at_states(struct kvp_proxy *proxy)
{
    kvb_mutex_lock(&proxy->lock);
    uint64_t generation = proxy->generation;
    kvb_mutex_unlock(&proxy->lock);
    if (generation != proxy->seen) {
        proxy->seen = generation;
        struct kvb_list held = proxy->held;
        if (kvb_list_empty(&proxy->held)) {
            return;
        }
        held.next->prev = held.prev->next = &held;
        kvb_list_init(&proxy->held);
        struct kvb_list *link;
        while ((link = kvb_list_pop(&held)) != NULL) {
            struct kvp_proxy_call *call = kvb_container_of(link, struct kvp_proxy_call, link);
            if (call->over) {
                kvb_list_push_back(&proxy->held, &call->link); /* until it has been told */
            } else {
                admit_again(call);
            }
        }
    }
}

/* ---- the thread ---- */

/* Milliseconds until something is due. */
static int until_due(struct kvp_proxy *proxy)
{
    uint64_t now_ns = kvb_now_ns(proxy->config.clock);
    bool ticks = !kvb_list_empty(&proxy->running) || !kvb_list_empty(&proxy->held);
    uint64_t due_ns = ticks && proxy->tick_ns < proxy->timer_ns ? proxy->tick_ns : proxy->timer_ns;

    if (due_ns == KVB_NEVER) {
        return -1;
    }
    return due_ns <= now_ns
               ? 0
               : (int)((due_ns - now_ns + KVB_NS_PER_MS - 1) / KVB_NS_PER_MS % INT32_MAX);
}

static void dispatch(struct kvp_proxy *proxy, const struct epoll_event *event)
{
    if (event->data.u64 == 0) {
        return; /* woken */
    }
    if ((event->data.u64 & 1) != 0) {
        socket_ready(proxy, (int)(event->data.u64 >> 1), event->events);
    } else {
        client_left(event->data.ptr);
    }
}

/* Until the next turn whoever posts wakes us. False: there is nothing left to be done, ever. */
static bool fall_asleep(struct kvp_proxy *proxy, int *timeout_ms)
{
    kvb_mutex_lock(&proxy->lock);
    bool work = !kvb_list_empty(&proxy->posted) ||
                (proxy->generation != proxy->seen && !kvb_list_empty(&proxy->held)) ||
                (atomic_load(&proxy->closed) && !proxy->closing);
    bool ends = proxy->ends && proxy->calls == 0 && !work;
    proxy->asleep = !work;
    kvb_mutex_unlock(&proxy->lock);
    if (work) {
        *timeout_ms = 0;
    }
    return !ends;
}

static void *run(void *arg)
{
    struct kvp_proxy *proxy = arg;
    struct epoll_event events[EVENTS];
    int timeout_ms = -1;

    (void)pthread_setname_np(pthread_self(), "upstream");
    while (fall_asleep(proxy, &timeout_ms)) {
        int n = epoll_wait(proxy->epoll, events, EVENTS, timeout_ms);
        kvb_mutex_lock(&proxy->lock);
        proxy->asleep = false;
        kvb_mutex_unlock(&proxy->lock);
        proxy->now_ns = kvb_now_ns(proxy->config.clock);
        for (int i = 0; i < n; i++) {
            dispatch(proxy, &events[i]);
        }
        /* Whoever sleeps has posted what he waits for before `closed` was set. */
        bool closes = atomic_load(&proxy->closed) && !proxy->closing;
        take_posts(proxy);
        if (closes) {
            close_all(&proxy->running);
            close_all(&proxy->held);
        }
        look_at_states(proxy);
        run_timer(proxy); /* what was begun, begins */
        kvp_transfers_ended(proxy);
        if (proxy->now_ns >= proxy->tick_ns) {
            tick(proxy, proxy->now_ns);
        }
        tell_all(proxy);
        if (closes) {
            proxy->closing = true;
            (void)sem_post(&proxy->all_awake);
        }
        timeout_ms = until_due(proxy);
    }
    return NULL;
}

static void wake(struct kvp_proxy *proxy)
{
    static const uint64_t one = 1;
    (void)!write(proxy->woken, &one, sizeof one);
}

static bool set_multi(struct kvp_proxy *proxy)
{
    return curl_multi_setopt(proxy->multi, CURLMOPT_SOCKETFUNCTION, set_socket) == CURLM_OK &&
           curl_multi_setopt(proxy->multi, CURLMOPT_SOCKETDATA, proxy) == CURLM_OK &&
           curl_multi_setopt(proxy->multi, CURLMOPT_TIMERFUNCTION, set_timer) == CURLM_OK &&
           curl_multi_setopt(proxy->multi, CURLMOPT_TIMERDATA, proxy) == CURLM_OK &&
           curl_multi_setopt(proxy->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING) ==
               CURLM_OK &&
           curl_multi_setopt(proxy->multi, CURLMOPT_MAXCONNECTS, (long)proxy->config.idle_max) ==
               CURLM_OK;
}

static void free_all(struct kvp_proxy *proxy)
{
    kvp_transfers_cleanup(proxy);
    if (proxy->multi != NULL) {
        (void)curl_multi_cleanup(proxy->multi);
    }
    if (proxy->woken >= 0) {
        (void)close(proxy->woken);
    }
    if (proxy->epoll >= 0) {
        (void)close(proxy->epoll);
    }
    (void)sem_destroy(&proxy->all_awake);
    kvb_mutex_cleanup(&proxy->lock);
    free(proxy->spare);
    free(proxy->watched);
    free(proxy);
}

kvb_status_t kvp_proxy_create(const struct kvp_proxy_config *config, struct kvp_proxy **proxy_p)
{
    struct epoll_event woken = {.events = EPOLLIN | EPOLLET, .data.u64 = 0};
    struct kvp_proxy *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    proxy->config = *config;
    kvb_mutex_init(&proxy->lock, "proxy");
    (void)sem_init(&proxy->all_awake, 0, 0);
    kvb_list_init(&proxy->posted);
    kvb_list_init(&proxy->targets);
    kvb_list_init(&proxy->running);
    kvb_list_init(&proxy->held);
    kvb_list_init(&proxy->dirty);
    proxy->timer_ns = KVB_NEVER;
    proxy->epoll = epoll_create1(EPOLL_CLOEXEC);
    proxy->woken = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    proxy->spare = calloc(config->idle_max + 1, sizeof *proxy->spare);
    proxy->multi = curl_multi_init();
    if (proxy->epoll < 0 || proxy->woken < 0 || proxy->spare == NULL || proxy->multi == NULL ||
        !set_multi(proxy) || epoll_ctl(proxy->epoll, EPOLL_CTL_ADD, proxy->woken, &woken) != 0 ||
        pthread_create(&proxy->thread, NULL, run, proxy) != 0) {
        KVB_LOG(ERROR, "requests cannot be passed on: too few descriptors, threads or memory",
                KVB_ERRNO(errno));
        free_all(proxy);
        return KVB_ERR_LIMIT;
    }
    *proxy_p = proxy;
    return KVB_OK;
}

void kvp_proxy_close(struct kvp_proxy *proxy)
{
    kvb_mutex_lock(&proxy->lock);
    atomic_store(&proxy->closed, true);
    kvb_mutex_unlock(&proxy->lock);
    wake(proxy);
    while (sem_wait(&proxy->all_awake) != 0) { /* interrupted by a signal */
    }
    (void)sem_post(&proxy->all_awake); /* for the next one who closes */
}

void kvp_proxy_destroy(struct kvp_proxy *proxy)
{
    if (proxy == NULL) {
        return;
    }
    kvp_proxy_close(proxy);
    kvb_mutex_lock(&proxy->lock);
    proxy->ends = true;
    kvb_mutex_unlock(&proxy->lock);
    wake(proxy);
    (void)pthread_join(proxy->thread, NULL);
    while (!kvb_list_empty(&proxy->targets)) {
        struct kvb_list *link = kvb_list_first(&proxy->targets);
        kvp_proxy_remove_target(proxy, kvb_container_of(link, struct kvp_target, link)->name);
    }
    free_all(proxy);
}
