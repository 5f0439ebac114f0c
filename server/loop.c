/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include "base/assert.h"

#include <uv.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

/*
 * One scheduler turn for each iteration of the libuv loop, in its check phase, right after the I/O
 * callbacks. Events that are already posted keep the idle handle running, so that the poll phase
 * looks at the sockets without waiting; otherwise the timer handle ends the wait at the next
 * deadline. Both only end the wait: the work is always done by the turn.
 */
struct kvp_loop {
    uv_loop_t uv;
    uv_check_t check;
    uv_idle_t idle;
    uv_timer_t timer;
    uv_async_t async;
    uv_poll_t signals;
    int signal_fd; /* -1: nobody wants them */
    struct kvb_sched sched;
    struct kvb_io io;
    struct kvb_timer beat;
    struct kvb_event woken;
    const struct kvp_loop_ops *ops;
    void *ctx;
    bool stopping;
    _Atomic(uint64_t) beat_ns; /* relaxed: a single value, read by the probes */
    _Atomic(uint64_t) lag_ns;
};

static void do_nothing_idle(uv_idle_t *idle)
{
    (void)idle;
}

static void on_sched_wake(void *ctx)
{
    struct kvp_loop *loop = ctx;
    (void)uv_idle_start(&loop->idle, do_nothing_idle); /* fails only for a NULL callback */
}

/* UV_RUN_ONCE also runs timers after the check phase: the turn is then still to come, and the next
 * poll must not wait for anything else. */
static void on_timer(uv_timer_t *timer)
{
    on_sched_wake(timer->data);
}

static void on_check(uv_check_t *check)
{
    struct kvp_loop *loop = check->data;
    uint64_t next_ns = kvb_sched_turn(&loop->sched);
    if (next_ns == 0) {
        on_sched_wake(loop);
        return;
    }
    (void)uv_idle_stop(&loop->idle);
    if (next_ns == KVB_NEVER) {
        (void)uv_timer_stop(&loop->timer);
        return;
    }
    uint64_t now_ns = kvb_now_ns(loop->sched.clock);
    uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    uv_update_time(&loop->uv);
    /* Rounded up: an early wake-up would only find that nothing is due. */
    (void)uv_timer_start(&loop->timer, on_timer, (wait_ns + KVB_NS_PER_MS - 1) / KVB_NS_PER_MS, 0);
}

static void on_async(uv_async_t *async)
{
    struct kvp_loop *loop = async->data;
    kvb_sched_post(&loop->sched, &loop->woken);
}

/* In the turn after all descriptors were read: what an engine said before a client asked counts. */
static void on_woken(struct kvb_event *event)
{
    struct kvp_loop *loop = kvb_container_of(event, struct kvp_loop, woken);
    if (loop->ops->woken != NULL) {
        loop->ops->woken(loop->ctx);
    }
}

/*
 * A signal is never caught, only taken from those that wait. A handler would have to be there
 * before the first signal and still after the last; but libuv's goes with the handle, and then
 * whoever asks a second time kills a process that is about to end with 0.
 */
static void held_signals(sigset_t *set_p)
{
    (void)sigemptyset(set_p);
    (void)sigaddset(set_p, SIGINT);
    (void)sigaddset(set_p, SIGTERM);
    (void)sigaddset(set_p, SIGHUP);
    (void)sigaddset(set_p, SIGUSR1);
}

void kvp_loop_hold_signals(void)
{
    sigset_t set;
    held_signals(&set);
    int rc = pthread_sigmask(SIG_BLOCK, &set, NULL);
    kvb_assert(rc == 0);
}

static void on_signals(uv_poll_t *handle, int status, int events)
{
    struct kvp_loop *loop = handle->data;
    struct signalfd_siginfo info;
    (void)status;
    (void)events;
    while (read(loop->signal_fd, &info, sizeof info) == sizeof info) {
        loop->ops->signalled(loop->ctx, (int)info.ssi_signo);
    }
}

static kvb_status_t watch_signals(struct kvp_loop *loop)
{
    sigset_t set;
    if (loop->ops->signalled == NULL) {
        return KVB_OK;
    }
    held_signals(&set);
    loop->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (loop->signal_fd < 0 || uv_poll_init(&loop->uv, &loop->signals, loop->signal_fd) != 0 ||
        uv_poll_start(&loop->signals, UV_READABLE, on_signals) != 0) {
        return KVB_ERR_IO;
    }
    return KVB_OK;
}

static void on_beat(struct kvb_timer *timer)
{
    struct kvp_loop *loop = kvb_container_of(timer, struct kvp_loop, beat);
    uint64_t now_ns = kvb_now_ns(loop->sched.clock);
    uint64_t lag_ns = now_ns - timer->deadline_ns;
    atomic_store_explicit(&loop->beat_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&loop->lag_ns, lag_ns, memory_order_relaxed);
    kvb_sched_timer_set(&loop->sched, timer, now_ns + KVP_LOOP_BEAT_MS * KVB_NS_PER_MS);
    if (loop->ops->beat != NULL) {
        loop->ops->beat(loop->ctx, now_ns, lag_ns);
    }
}

static void first_beat(struct kvp_loop *loop)
{
    kvb_timer_init(&loop->beat, on_beat);
    uint64_t now_ns = kvb_now_ns(loop->sched.clock);
    atomic_store_explicit(&loop->beat_ns, now_ns, memory_order_relaxed);
    kvb_sched_timer_set(&loop->sched, &loop->beat, now_ns);
}

/* ---- descriptors ---- */

struct poll {
    uv_poll_t uv;
    struct kvb_io_watch *watch; /* NULL: closing */
};

static void on_poll(uv_poll_t *uv, int status, int events)
{
    struct poll *poll = kvb_container_of(uv, struct poll, uv);
    unsigned ready = KVB_IO_READ | KVB_IO_WRITE; /* an error: reading or writing tells which */
    if (status == 0) {
        ready = ((events & UV_READABLE) != 0 ? KVB_IO_READ : 0u) |
                ((events & UV_WRITABLE) != 0 ? KVB_IO_WRITE : 0u);
    }
    poll->watch->fn(poll->watch, ready);
}

static void on_poll_closed(uv_handle_t *handle)
{
    free(kvb_container_of((uv_poll_t *)handle, struct poll, uv));
}

static void io_unwatch(struct kvb_io *io, struct kvb_io_watch *watch)
{
    (void)io;
    struct poll *poll = watch->impl;
    watch->impl = NULL;
    (void)uv_poll_stop(&poll->uv); /* forgets the descriptor at once */
    uv_close((uv_handle_t *)&poll->uv, on_poll_closed);
}

static kvb_status_t io_watch(struct kvb_io *io, struct kvb_io_watch *watch, unsigned events)
{
    struct kvp_loop *loop = kvb_container_of(io, struct kvp_loop, io);
    bool fresh = watch->impl == NULL;
    if (fresh) {
        struct poll *poll = malloc(sizeof *poll);
        if (poll == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        if (uv_poll_init(&loop->uv, &poll->uv, watch->fd) != 0) {
            free(poll);
            return KVB_ERR_IO;
        }
        poll->watch = watch;
        watch->impl = poll;
    }
    struct poll *poll = watch->impl;
    int wanted = ((events & KVB_IO_READ) != 0 ? UV_READABLE : 0) |
                 ((events & KVB_IO_WRITE) != 0 ? UV_WRITABLE : 0);
    int rc = wanted == 0 ? uv_poll_stop(&poll->uv) : uv_poll_start(&poll->uv, wanted, on_poll);
    if (rc != 0) {
        if (fresh) {
            io_unwatch(io, watch);
        }
        return KVB_ERR_IO;
    }
    return KVB_OK;
}

static const struct kvb_io_ops io_ops = {.watch = io_watch, .unwatch = io_unwatch};

/* ---- create and destroy ---- */

static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static int close_loop(struct kvp_loop *loop)
{
    /* The check handle is closed first, so no turn runs while the handles go. */
    uv_walk(&loop->uv, close_handle, NULL);
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
    if (loop->signal_fd >= 0) {
        (void)close(loop->signal_fd);
    }
    return uv_loop_close(&loop->uv);
}

kvb_status_t kvp_loop_create(const struct kvp_loop_ops *ops, void *ctx, struct kvp_loop **loop_p)
{
    struct kvp_loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    loop->ops = ops;
    loop->signal_fd = -1;
    loop->io.ops = &io_ops;
    loop->ctx = ctx;
    if (uv_loop_init(&loop->uv) != 0) {
        goto err_free;
    }
    loop->check.data = loop;
    loop->timer.data = loop;
    loop->async.data = loop;
    loop->signals.data = loop;
    if (uv_check_init(&loop->uv, &loop->check) != 0 || uv_idle_init(&loop->uv, &loop->idle) != 0 ||
        uv_timer_init(&loop->uv, &loop->timer) != 0 ||
        uv_async_init(&loop->uv, &loop->async, on_async) != 0 ||
        uv_check_start(&loop->check, on_check) != 0 || watch_signals(loop) != KVB_OK) {
        goto err_uv;
    }
    kvb_sched_init(&loop->sched, &kvb_clock_real, &kvb_random_real);
    loop->sched.wake = on_sched_wake;
    loop->sched.wake_ctx = loop;
    kvb_event_init(&loop->woken, on_woken);
    first_beat(loop);
    *loop_p = loop;
    return KVB_OK;

err_uv:
    (void)close_loop(loop);
err_free:
    free(loop);
    return KVB_ERR_IO;
}

void kvp_loop_destroy(struct kvp_loop *loop)
{
    kvb_sched_timer_clear(&loop->sched, &loop->beat);
    kvb_sched_unpost(&loop->woken);
    int rc = close_loop(loop);
    kvb_assert(rc == 0);
    kvb_sched_unpost(&loop->woken); /* a wake that came while the handles went */
    kvb_sched_cleanup(&loop->sched);
    free(loop);
}

struct kvb_sched *kvp_loop_sched(struct kvp_loop *loop)
{
    return &loop->sched;
}

struct kvb_io *kvp_loop_io(struct kvp_loop *loop)
{
    return &loop->io;
}

struct uv_loop_s *kvp_loop_uv(struct kvp_loop *loop)
{
    return &loop->uv;
}

void kvp_loop_run(struct kvp_loop *loop)
{
    on_sched_wake(loop); /* a first turn sees what was posted before the loop ran */
    while (!loop->stopping) {
        (void)uv_run(&loop->uv, UV_RUN_ONCE);
    }
    loop->stopping = false;
}

void kvp_loop_stop(struct kvp_loop *loop)
{
    loop->stopping = true; /* seen when this iteration of the loop ends */
}

void kvp_loop_wake(void *loop)
{
    /* Fails only for a closing handle: then there is nobody to wake. */
    (void)uv_async_send(&((struct kvp_loop *)loop)->async);
}

uint64_t kvp_loop_beat_ns(const struct kvp_loop *loop)
{
    return atomic_load_explicit(&loop->beat_ns, memory_order_relaxed);
}

uint64_t kvp_loop_lag_ns(const struct kvp_loop *loop)
{
    return atomic_load_explicit(&loop->lag_ns, memory_order_relaxed);
}
