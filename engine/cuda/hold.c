/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts that wait for the GPU. Each has an event of our own, recorded behind what it waits for, and
 * goes out only after a query of that event said that it fired: what the engine does with its own
 * event afterwards changes nothing. Who completes a put, exactly once: kvplane_put() took it, and
 * the session completes it; or fail() below.
 */
#include "handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TICK_NS 500000L /* a step of an engine takes milliseconds */

struct held {
    struct kvb_list link;
    cudaEvent_t event;
    int failed; /* OK, or why it can only fail */
    kvplane_batch_fn done;
    void *arg;
    size_t n;
    struct kvplane_entry *entries; /* all of it in one piece of memory */
    int *results;
};

/* ---- the timer ---- */

static void tick(struct kvplane_cuda *kc)
{
    bool wanted = kc->nheld > 0;
    if (wanted != kc->ticking) {
        struct itimerspec period = {{0, wanted ? TICK_NS : 0}, {0, wanted ? TICK_NS : 0}};
        (void)timerfd_settime(kc->timer_fd, 0, &period, NULL); /* cannot fail with these */
        kc->ticking = wanted;
    }
}

/* ---- copies of what was asked ---- */

static int check(const struct kvplane_entry *entries, size_t n)
{
    if (n == 0 || entries == NULL) {
        return KVPLANE_ERR_INVALID;
    }
    int result = n > KVB_ENTRIES_MAX ? KVPLANE_ERR_TOO_LARGE : KVPLANE_OK;
    for (size_t i = 0; i < n && result == KVPLANE_OK; i++) {
        const struct kvplane_entry *entry = &entries[i];
        bool placed = entry->placement != NULL;
        if (entry->key == NULL || entry->key_len == 0 || entry->slices == NULL ||
            entry->nslices == 0 || (placed && entry->placement_len == 0)) {
            result = KVPLANE_ERR_INVALID;
        } else if (entry->key_len > KVB_KEY_MAX || entry->nslices > KVB_SLICES_MAX ||
                   (placed && entry->placement_len > KVB_KEY_MAX)) {
            result = KVPLANE_ERR_TOO_LARGE;
        }
    }
    return result;
}

/* The array types first, so that each is aligned; then bytes. Sizes are bounded by check(). */
static struct held *copy(const struct kvplane_entry *entries, size_t n)
{
    size_t nslices = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        nslices += entries[i].nslices;
        bytes += entries[i].key_len + (entries[i].placement != NULL ? entries[i].placement_len : 0);
    }
    struct held *held = malloc(sizeof *held + n * sizeof *entries +
                               nslices * sizeof *entries->slices + n * sizeof(int) + bytes);
    if (held == NULL) {
        return NULL;
    }
    *held = (struct held){.n = n, .entries = (struct kvplane_entry *)(void *)(held + 1)};
    struct kvplane_slice *slices = (struct kvplane_slice *)(void *)(held->entries + n);
    held->results = (int *)(void *)(slices + nslices);
    char *at = (char *)(held->results + n);
    for (size_t i = 0; i < n; i++) {
        struct kvplane_entry *entry = &held->entries[i];
        *entry = entries[i];
        entry->slices = memcpy(slices, entries[i].slices, entry->nslices * sizeof *slices);
        slices += entry->nslices;
        entry->key = memcpy(at, entries[i].key, entry->key_len);
        at += entry->key_len;
        if (entry->placement != NULL) {
            entry->placement = memcpy(at, entries[i].placement, entry->placement_len);
            at += entry->placement_len;
        }
    }
    return held;
}

/* ---- events ---- */

static int take_event(struct kvplane_cuda *kc, cudaEvent_t *event_p)
{
    if (kc->nspare > 0) {
        *event_p = kc->spare[--kc->nspare];
        return KVPLANE_OK;
    }
    int result = KVE_RUNTIME(kc, cudaEventCreateWithFlags, event_p, cudaEventDisableTiming);
    kc->nevents += result == KVPLANE_OK;
    return result;
}

static void give_event(struct kvplane_cuda *kc, cudaEvent_t event)
{
    kc->spare[kc->nspare++] = event; /* there are never more than held_max */
}

static int stream(struct kvplane_cuda *kc)
{
    return kc->stream != NULL
               ? KVPLANE_OK
               : KVE_RUNTIME(kc, cudaStreamCreateWithFlags, &kc->stream, cudaStreamNonBlocking);
}

/* `ours` fires when the GPU has done what is before `theirs`, as that is recorded now. */
static int follow_event(struct kvplane_cuda *kc, cudaEvent_t ours, void *theirs)
{
    int result = stream(kc);
    if (result == KVPLANE_OK) {
        result = KVE_RUNTIME(kc, cudaStreamWaitEvent, kc->stream, theirs, 0);
    }
    return result == KVPLANE_OK ? KVE_RUNTIME(kc, cudaEventRecord, ours, kc->stream) : result;
}

static int follow_stream(struct kvplane_cuda *kc, cudaEvent_t ours, void *theirs)
{
    return KVE_RUNTIME(kc, cudaEventRecord, ours, theirs);
}

/* ---- the way of a put ---- */

static int hold(struct kvplane_cuda *kc,
                int (*follow)(struct kvplane_cuda *kc, cudaEvent_t ours, void *theirs),
                void *theirs, const struct kvplane_entry *entries, size_t n, kvplane_batch_fn done,
                void *arg)
{
    int result = check(entries, n);
    if (result != KVPLANE_OK) {
        return result;
    }
    if (kc->nheld == kc->held_max || kc->closing) {
        return kc->closing ? KVPLANE_ERR_BAD_STATE : KVPLANE_ERR_AGAIN;
    }
    struct held *held = copy(entries, n);
    int before = 0;
    result = held != NULL ? kve_cuda_enter(kc, &before) : KVPLANE_ERR_NO_MEMORY;
    if (result != KVPLANE_OK) {
        goto err_held;
    }
    result = take_event(kc, &held->event);
    if (result != KVPLANE_OK) {
        goto err_device;
    }
    result = follow(kc, held->event, theirs);
    if (result != KVPLANE_OK) {
        goto err_event;
    }
    kve_cuda_leave(kc, before);
    held->done = done;
    held->arg = arg;
    kvb_list_push_back(&kc->waiting, &held->link);
    kc->nheld++;
    tick(kc);
    return KVPLANE_OK;
err_event:
    give_event(kc, held->event);
err_device:
    kve_cuda_leave(kc, before);
err_held:
    free(held);
    return result;
}

int kvplane_cuda_put_after(struct kvplane_cuda *kc, struct CUevent_st *event,
                           const struct kvplane_entry *entries, size_t n, kvplane_batch_fn done,
                           void *arg)
{
    return event == NULL ? KVPLANE_ERR_INVALID
                         : hold(kc, follow_event, event, entries, n, done, arg);
}

int kvplane_cuda_put_after_stream(struct kvplane_cuda *kc, struct CUstream_st *stream_,
                                  const struct kvplane_entry *entries, size_t n,
                                  kvplane_batch_fn done, void *arg)
{
    return hold(kc, follow_stream, stream_, entries, n, done, arg);
}

size_t kvplane_cuda_held(const struct kvplane_cuda *kc)
{
    return kc->nheld;
}

static void unlink_held(struct kvplane_cuda *kc, struct held *held)
{
    kvb_list_remove(&held->link);
    give_event(kc, held->event);
    kc->nheld--;
    tick(kc);
}

/* The last that is seen of it. */
static void fail(struct kvplane_cuda *kc, struct held *held, int result)
{
    unlink_held(kc, held);
    for (size_t i = 0; i < held->n; i++) {
        held->results[i] = result;
    }
    if (held->done != NULL) {
        held->done(held->arg, held->results, held->n);
    }
    free(held);
}

/* False: the session has no room. */
static bool send_one(struct kvplane_cuda *kc, struct held *held)
{
    int result = held->failed;
    if (result == KVPLANE_OK) {
        result = kvplane_put(kc->kv, held->entries, held->n, held->done, held->arg);
        if (result == KVPLANE_ERR_AGAIN) {
            return false;
        }
        if (result == KVPLANE_OK) {
            unlink_held(kc, held);
            free(held);
            return true;
        }
        result = result == KVPLANE_ERR_BAD_STATE ? KVPLANE_ERR_DISCONNECTED : result;
    }
    fail(kc, held, result);
    return true;
}

void kve_cuda_hold_turn(struct kvplane_cuda *kc)
{
    uint64_t ticks;
    while (read(kc->timer_fd, &ticks, sizeof ticks) > 0) {
    }
    kvb_list_each(&kc->waiting, link)
    {
        struct held *held = kvb_container_of(link, struct held, link);
        cudaError_t error = cudaEventQuery(held->event);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* not an error of anybody's */
            continue;
        }
        held->failed = kve_cuda_runtime_result(kc, error, "cudaEventQuery");
        kvb_list_remove(link);
        kvb_list_push_back(&kc->ready, link);
    }
    /* What a callback adds or drops, it does to these lists. */
    struct kvb_list *first;
    while ((first = kvb_list_first(&kc->ready)) != NULL &&
           send_one(kc, kvb_container_of(first, struct held, link))) {
    }
}

/* ---- the end ---- */

static bool is_named(const struct held *held, bool (*names)(const void *arg, uint32_t region),
                     const void *arg)
{
    for (size_t i = 0; i < held->n; i++) {
        for (size_t j = 0; j < held->entries[i].nslices; j++) {
            if (names(arg, held->entries[i].slices[j].region)) {
                return true;
            }
        }
    }
    return false;
}

void kve_cuda_hold_drop(struct kvplane_cuda *kc, bool (*names)(const void *arg, uint32_t region),
                        const void *arg, int result)
{
    /* Apart first: a callback may add another, which is not meant. */
    struct kvb_list *lists[] = {&kc->waiting, &kc->ready};
    struct kvb_list dropped;
    kvb_list_init(&dropped);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        kvb_list_each(lists[i], link)
        {
            if (names == NULL || is_named(kvb_container_of(link, struct held, link), names, arg)) {
                kvb_list_remove(link);
                kvb_list_push_back(&dropped, link);
            }
        }
    }
    struct kvb_list *link;
    while ((link = kvb_list_first(&dropped)) != NULL) {
        fail(kc, kvb_container_of(link, struct held, link), result);
    }
}

int kve_cuda_hold_init(struct kvplane_cuda *kc)
{
    kvb_list_init(&kc->waiting);
    kvb_list_init(&kc->ready);
    kc->spare = calloc(kc->held_max, sizeof(cudaEvent_t));
    return kc->spare != NULL ? KVPLANE_OK : KVPLANE_ERR_NO_MEMORY;
}

int kve_cuda_hold_close(struct kvplane_cuda *kc)
{
    int result = KVPLANE_OK;
    while (kc->nspare > 0 && result == KVPLANE_OK) {
        result = KVE_RUNTIME(kc, cudaEventDestroy, kc->spare[kc->nspare - 1]);
        kc->nspare -= result == KVPLANE_OK;
        kc->nevents -= result == KVPLANE_OK;
    }
    if (result == KVPLANE_OK && kc->stream != NULL) {
        result = KVE_RUNTIME(kc, cudaStreamDestroy, kc->stream);
        kc->stream = result == KVPLANE_OK ? NULL : kc->stream;
    }
    return result;
}
