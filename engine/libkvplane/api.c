/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "base/assert.h"
#include "base/utf8.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define QUEUE_DEFAULT 1024u
#define QUEUE_LIMIT   65536u

/* Why the last kvplane_open() of this thread failed: there is no handle to ask. */
static _Thread_local char open_error[256];

const char *kvplane_strerror(int result)
{
    return kvb_status_text((kvb_status_t)result);
}

const char *kvplane_version(void)
{
    return KVPLANE_VERSION;
}

/* ---- options ---- */

static kvb_status_t refuse_option(const char *option, const char *why)
{
    snprintf(open_error, sizeof open_error, "%s: %s", option, why);
    return KVB_ERR_INVALID;
}

static kvb_status_t copy_name(const char *option, char out[KVB_NAME_MAX], const char *name)
{
    if (name == NULL || !kvb_name_valid(name)) {
        return refuse_option(option, "must be 1 to 63 characters of A-Z a-z 0-9 . _ -");
    }
    strcpy(out, name);
    return KVB_OK;
}

static kvb_status_t copy_text(const char *option, char *out, size_t cap, const char *text)
{
    size_t len = strlen(text);
    if (len >= cap || !kvb_utf8_printable(text, len)) {
        return refuse_option(option,
                             "must be at most 255 bytes of UTF-8 without control characters");
    }
    memcpy(out, text, len + 1);
    return KVB_OK;
}

static kvb_status_t copy_path(struct kvplane *kv, const char *path)
{
    path = path == NULL ? getenv("KVPLANE_SOCKET") : path;
    if (path == NULL || path[0] == '\0') {
        return refuse_option("socket", "not given, and KVPLANE_SOCKET is not set");
    }
    if (strlen(path) >= sizeof kv->path) {
        return refuse_option("socket", "longer than a Unix socket's path can be (107 bytes)");
    }
    strcpy(kv->path, path);
    return KVB_OK;
}

static kvb_status_t take_names(struct kvplane *kv, const struct kvplane_options *options)
{
    struct kvb_link_hello *hello = &kv->hello;
    const char *tenant = options->tenant == NULL ? "default" : options->tenant;
    const char *weights = options->weights_name == NULL ? "" : options->weights_name;
    kvb_status_t status = copy_path(kv, options->socket);
    if (status == KVB_OK) {
        status = copy_name("instance", hello->instance, options->instance);
    }
    if (status == KVB_OK) {
        status = copy_name("tenant", hello->tenant, tenant);
    }
    if (status == KVB_OK && (options->layout == NULL || options->layout[0] == '\0')) {
        status = refuse_option("layout", "not given");
    }
    if (status == KVB_OK) {
        status = copy_text("layout", hello->layout, sizeof hello->layout, options->layout);
    }
    if (status == KVB_OK) {
        status = copy_text("model", hello->model, sizeof hello->model,
                           options->model == NULL ? "" : options->model);
    }
    hello->max_model_len = options->max_model_len;
    if (status == KVB_OK) {
        status =
            copy_text("weights_name", hello->weights_name, sizeof hello->weights_name, weights);
    }
    return status;
}

/* How the engine is split. What does not fit together the daemon refuses, with the reason. */
static kvb_status_t take_shape(struct kvb_link_hello *hello, const struct kvplane_options *options)
{
    hello->rank = options->rank;
    hello->world_size = options->world_size == 0 ? 1 : options->world_size;
    hello->local_world_size =
        options->local_world_size == 0 ? hello->world_size : options->local_world_size;
    hello->tp_size = options->tp_size;
    hello->store_tp_size = options->store_tp_size;
    hello->block_tokens =
        options->block_tokens == 0 ? KVPLANE_BLOCK_TOKENS_DEFAULT : options->block_tokens;
    if (hello->world_size > KVB_RANKS_MAX || hello->rank >= hello->world_size) {
        return refuse_option("rank", "must be below world_size, which is at most 1024");
    }
    if (hello->local_world_size > hello->world_size) {
        return refuse_option("local_world_size", "more than world_size");
    }
    if (options->ngroups > KVB_GROUPS_MAX || (options->ngroups > 0 && options->groups == NULL)) {
        return refuse_option("groups", "more than 16, or not given");
    }
    hello->ngroups = (uint32_t)options->ngroups;
    for (size_t i = 0; i < options->ngroups; i++) {
        const struct kvplane_group *group = &options->groups[i];
        if (group->block_tokens == 0 || group->block_tokens > KVB_GROUP_TOKENS_MAX) {
            return refuse_option("groups", "a block has 1 to 1048576 tokens");
        }
        hello->groups[i] = (struct kvb_link_group_info){group->block_tokens, group->window_tokens};
    }
    return KVB_OK;
}

static kvb_status_t take_options(struct kvplane *kv, const struct kvplane_options *options)
{
    struct kvb_link_hello *hello = &kv->hello;
    const struct kvplane_callbacks *callbacks = options->callbacks;
    unsigned roles = options->roles == 0 ? KVPLANE_ROLE_BOTH : options->roles;
    if (callbacks == NULL || callbacks->state == NULL) {
        return refuse_option("callbacks", "not given, or without `state`");
    }
    if ((roles & ~(unsigned)KVPLANE_ROLE_BOTH) != 0) {
        return refuse_option("roles", "not a combination of enum kvplane_role");
    }
    hello->version = KVB_LINK_VERSION;
    hello->roles = (uint8_t)roles;
    hello->flags = (uint8_t)((options->tracks_lineage ? KVB_ENGINE_TRACKS_LINEAGE : 0) |
                             (callbacks->fingerprint != NULL ? KVB_ENGINE_FINGERPRINTS : 0));
    kvb_status_t status = take_shape(hello, options);
    if (status != KVB_OK) {
        return status;
    }
    if (options->queue_max > QUEUE_LIMIT) {
        return refuse_option("queue_max", "more than 65536");
    }
    kv->queue_max = options->queue_max == 0 ? QUEUE_DEFAULT : (uint32_t)options->queue_max;
    kv->callbacks = callbacks;
    kv->ctx = options->ctx;
    return take_names(kv, options);
}

/* ---- the handle ---- */

static kvb_status_t open_descriptors(struct kvplane *kv)
{
    struct epoll_event event = {.events = EPOLLIN};
    kv->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (kv->epoll_fd < 0) {
        goto err;
    }
    kv->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (kv->timer_fd < 0) {
        goto err_epoll;
    }
    if (epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, kv->timer_fd, &event) != 0) {
        goto err_timer;
    }
    return KVB_OK;
err_timer:
    close(kv->timer_fd);
err_epoll:
    close(kv->epoll_fd);
err:
    snprintf(open_error, sizeof open_error, "%m");
    return KVB_ERR_IO;
}

int kvplane_open(const struct kvplane_options *options, struct kvplane **kv_p)
{
    open_error[0] = '\0';
    struct kvplane *kv = calloc(1, sizeof *kv);
    if (kv == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kv->socket_fd = -1;
    kv->next_seq = 1;
    kvb_list_init(&kv->out);
    kvb_list_init(&kv->upcalls);
    kvb_status_t status = take_options(kv, options);
    if (status != KVB_OK) {
        goto err_kv;
    }
    status = kvplane_calls_init(kv);
    if (status != KVB_OK) {
        goto err_kv;
    }
    status = open_descriptors(kv);
    if (status != KVB_OK) {
        goto err_slots;
    }
    status = kvplane_session_start(kv);
    kvb_assert(status == KVB_OK);
    *kv_p = kv;
    return KVB_OK;
err_slots:
    free(kv->slots);
err_kv:
    free(kv);
    return status;
}

void kvplane_close(struct kvplane *kv)
{
    if (kv == NULL) {
        return;
    }
    kvb_assert(!kv->processing); /* not from a callback */
    kv->processing = true;
    kvplane_session_close(kv, KVB_ERR_CANCELED);
    kvb_list_each(&kv->upcalls, link)
    {
        free(kvb_container_of(link, struct kvplane_call, link));
    }
    close(kv->timer_fd);
    close(kv->epoll_fd);
    free(kv->in);
    free(kv->slots);
    free(kv);
}

int kvplane_reattach(struct kvplane *kv)
{
    return kvplane_session_start(kv);
}

int kvplane_detach(struct kvplane *kv)
{
    if (kv->state == SESSION_ENDING) {
        return KVB_OK; /* `disconnected` is still to come: the daemon may hold memory until then */
    }
    if (kv->state != SESSION_ATTACHED) {
        return KVB_ERR_BAD_STATE;
    }
    kvplane_session_detach(kv);
    return KVB_OK;
}

int kvplane_fd(const struct kvplane *kv)
{
    return kv->epoll_fd;
}

int kvplane_process(struct kvplane *kv)
{
    if (kv->processing) {
        return KVB_ERR_BAD_STATE;
    }
    kv->processing = true;
    kvplane_session_turn(kv);
    kv->processing = false;
    return kv->state == SESSION_DOWN ? KVB_ERR_DISCONNECTED : KVB_OK;
}

int kvplane_wait(struct kvplane *kv, int timeout_ms)
{
    if (kv->state == SESSION_DOWN) {
        return KVB_ERR_DISCONNECTED; /* nothing will ever happen */
    }
    struct pollfd poll_fd = {.fd = kv->epoll_fd, .events = POLLIN};
    int n = poll(&poll_fd, 1, timeout_ms);
    int result = kvplane_process(kv);
    return result == KVB_OK && n == 0 ? KVB_ERR_TIMEOUT : result;
}

bool kvplane_attached(const struct kvplane *kv)
{
    return kv->state == SESSION_ATTACHED;
}

size_t kvplane_pending(const struct kvplane *kv)
{
    return kv->calls_open + kv->regions_open;
}

const char *kvplane_last_error(const struct kvplane *kv)
{
    return kv == NULL ? open_error : kv->error;
}

kvplane_token kvplane_get_token(const struct kvplane *kv)
{
    return kv->leave_open ? (kvplane_token){0, 0}
                          : (kvplane_token){kv->hello.token.id.hi, kv->hello.token.id.lo};
}
