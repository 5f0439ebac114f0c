/* SPDX-License-Identifier: Apache-2.0 */
#include "handle.h"

#include "base/assert.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define HELD_DEFAULT 1024u
#define HELD_LIMIT   65536u

/* Why the last open of this thread failed: there is no handle to ask. */
static _Thread_local char open_error[256];

/* ---- errors ---- */

/* The runtime's numbers are the driver's. */
static int result_of(cudaError_t error)
{
    switch ((int)error) {
    case cudaSuccess:
        return KVPLANE_OK;
    case cudaErrorMemoryAllocation:
        return KVPLANE_ERR_NO_MEMORY;
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
        return KVPLANE_ERR_UNSUPPORTED;
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
        return KVPLANE_ERR_UNAVAILABLE;
    default:
        return KVPLANE_ERR_IO;
    }
}

static int failed(struct kvplane_cuda *kc, int result, const char *what, const char *name,
                  const char *text)
{
    (void)snprintf(kc->error, sizeof kc->error, "%s: %s (%s)", what,
                   name != NULL ? name : "unknown error", text != NULL ? text : "no text");
    return result;
}

int kve_cuda_driver_result(struct kvplane_cuda *kc, CUresult result, const char *what)
{
    const char *name = NULL;
    const char *text = NULL;
    if (result == CUDA_SUCCESS) {
        return KVPLANE_OK;
    }
    (void)kc->driver.cuGetErrorName(result, &name);
    (void)kc->driver.cuGetErrorString(result, &text);
    return failed(kc, result_of((cudaError_t)result), what, name, text);
}

int kve_cuda_runtime_result(struct kvplane_cuda *kc, cudaError_t result, const char *what)
{
    if (result == cudaSuccess) {
        return KVPLANE_OK;
    }
    /* The engine looks there for its own failures. */
    (void)cudaGetLastError();
    return failed(kc, result_of(result), what, cudaGetErrorName(result),
                  cudaGetErrorString(result));
}

int kve_cuda_refuse(struct kvplane_cuda *kc, int result, const char *why)
{
    (void)snprintf(kc->error, sizeof kc->error, "%s", why);
    return result;
}

const char *kvplane_cuda_last_error(const struct kvplane_cuda *kc)
{
    return kc == NULL ? open_error : kc->error;
}

/* ---- the GPU ---- */

int kve_cuda_enter(struct kvplane_cuda *kc, int *before_p)
{
    int before = 0;
    int result = KVE_RUNTIME(kc, cudaGetDevice, &before);
    if (result == KVPLANE_OK && before != kc->device) {
        result = KVE_RUNTIME(kc, cudaSetDevice, kc->device);
    }
    if (result == KVPLANE_OK) {
        *before_p = before;
    }
    return result;
}

void kve_cuda_leave(const struct kvplane_cuda *kc, int before)
{
    if (before != kc->device && cudaSetDevice(before) != cudaSuccess) {
        (void)cudaGetLastError(); /* it was current before: only a lost context gets here */
    }
}

int kve_cuda_settle(struct kvplane_cuda *kc)
{
    return kve_cuda_runtime_result(kc, cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static int find_call(struct kvplane_cuda *kc, const char *name, unsigned version, void *member)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
    int result = kve_cuda_runtime_result(kc, error, name);
    if (result == KVPLANE_OK && (found != cudaDriverEntryPointSuccess || address == NULL)) {
        (void)snprintf(kc->error, sizeof kc->error, "the CUDA driver lacks a call: %s", name);
        result = KVPLANE_ERR_UNSUPPORTED;
    }
    /* POSIX lets a data pointer be one to a function; C does not. */
    memcpy(member, &address, sizeof address);
    return result;
}

static int find_calls(struct kvplane_cuda *kc)
{
    int result = KVPLANE_OK;
#define X(name, version, arguments)                                                                \
    if (result == KVPLANE_OK) {                                                                    \
        result = find_call(kc, #name, version, &kc->driver.name);                                  \
    }
    KVE_CUDA_CALLS(X)
#undef X
    return result;
}

/* ---- the handle ---- */

static int watch(struct kvplane_cuda *kc, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(kc->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int open_descriptors(struct kvplane_cuda *kc)
{
    kc->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (kc->epoll_fd < 0) {
        goto err;
    }
    kc->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (kc->timer_fd < 0) {
        goto err_epoll;
    }
    if (watch(kc, kc->timer_fd) != 0 || watch(kc, kvplane_fd(kc->kv)) != 0) {
        goto err_timer;
    }
    return KVPLANE_OK;
err_timer:
    close(kc->timer_fd);
err_epoll:
    close(kc->epoll_fd);
err:
    (void)snprintf(kc->error, sizeof kc->error, "%m");
    return KVPLANE_ERR_IO;
}

static int check_options(const struct kvplane_cuda_options *options)
{
    const char *why = options->kv == NULL              ? "kv: not given"
                      : options->device < 0            ? "device: negative"
                      : options->held_max > HELD_LIMIT ? "held_max: more than 65536"
                                                       : NULL;
    if (why != NULL) {
        (void)snprintf(open_error, sizeof open_error, "%s", why);
    }
    return why == NULL ? KVPLANE_OK : KVPLANE_ERR_INVALID;
}

int kvplane_cuda_open(const struct kvplane_cuda_options *options, struct kvplane_cuda **kc_p)
{
    open_error[0] = '\0';
    int result = check_options(options);
    if (result != KVPLANE_OK) {
        return result;
    }
    struct kvplane_cuda *kc = calloc(1, sizeof *kc);
    if (kc == NULL) {
        return KVPLANE_ERR_NO_MEMORY;
    }
    kc->kv = options->kv;
    kc->device = options->device;
    kc->held_max = options->held_max == 0 ? HELD_DEFAULT : options->held_max;
    kc->registered = options->registered;
    kc->ctx = options->ctx;
    int before = 0;
    result = kve_cuda_enter(kc, &before);
    if (result != KVPLANE_OK) {
        goto err_kc;
    }
    result = find_calls(kc);
    kve_cuda_leave(kc, before);
    if (result != KVPLANE_OK) {
        goto err_kc;
    }
    result = open_descriptors(kc);
    if (result != KVPLANE_OK) {
        goto err_kc;
    }
    result = kve_cuda_hold_init(kc);
    if (result != KVPLANE_OK) {
        goto err_descriptors;
    }
    *kc_p = kc;
    return KVPLANE_OK;
err_descriptors:
    close(kc->timer_fd);
    close(kc->epoll_fd);
err_kc:
    memcpy(open_error, kc->error, sizeof open_error);
    free(kc);
    return result;
}

int kvplane_cuda_close(struct kvplane_cuda *kc)
{
    if (kc == NULL) {
        return KVPLANE_OK;
    }
    kvb_assert(!kc->processing); /* not from a callback */
    kc->closing = true;          /* a callback of what is dropped adds nothing */
    kve_cuda_hold_drop(kc, NULL, NULL, KVPLANE_ERR_CANCELED);
    int before = 0;
    int result = kve_cuda_enter(kc, &before);
    if (result != KVPLANE_OK) {
        return result;
    }
    /* The GPU may still write to what is unmapped next. */
    result = kve_cuda_settle(kc);
    if (result == KVPLANE_OK) {
        result = kve_cuda_memory_close(kc);
    }
    if (result == KVPLANE_OK) {
        result = kve_cuda_pack_close(kc);
    }
    if (result == KVPLANE_OK) {
        result = kve_cuda_hold_close(kc);
    }
    kve_cuda_leave(kc, before);
    if (result == KVPLANE_OK) {
        close(kc->timer_fd);
        close(kc->epoll_fd);
        free(kc->spare);
        free(kc);
    }
    return result;
}

/* ---- the loop ---- */

int kvplane_cuda_fd(const struct kvplane_cuda *kc)
{
    return kc->epoll_fd;
}

/* The puts first: the session then sends them at once. */
static int turn(struct kvplane_cuda *kc, int (*session)(struct kvplane *kv))
{
    if (kc->processing) {
        return KVPLANE_ERR_BAD_STATE;
    }
    kc->processing = true;
    kve_cuda_hold_turn(kc);
    kc->processing = false;
    return session(kc->kv);
}

int kvplane_cuda_process(struct kvplane_cuda *kc)
{
    return turn(kc, kvplane_process);
}

static int look(struct kvplane *kv)
{
    return kvplane_wait(kv, 0);
}

int kvplane_cuda_wait(struct kvplane_cuda *kc, int timeout_ms)
{
    /* What there is to do already; or a session that is down, and no put for the GPU to end: then
     * nothing will ever happen. */
    size_t held = kc->nheld;
    int result = turn(kc, look);
    bool down = result == KVPLANE_ERR_DISCONNECTED;
    if (kc->nheld < held || (result != KVPLANE_ERR_TIMEOUT && (!down || kc->nheld == 0))) {
        return result == KVPLANE_ERR_TIMEOUT ? KVPLANE_OK : result;
    }
    struct pollfd poll_fd = {.fd = kc->epoll_fd, .events = POLLIN};
    int n = poll(&poll_fd, 1, timeout_ms);
    result = turn(kc, kvplane_process);
    return result == KVPLANE_OK && n == 0 ? KVPLANE_ERR_TIMEOUT : result;
}
