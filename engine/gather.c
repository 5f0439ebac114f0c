/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_MS 30000 /* for what takes a rank some ms */

struct head {
    uint64_t bytes;
    int64_t status;
};

kvb_status_t kve_gather_mesh_open(uint32_t n, struct kve_gather_mesh *mesh)
{
    kvb_assert(n <= KVE_MODEL_LANES);
    mesh->n = n;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++) {
            mesh->fds[i][k] = -1;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = i + 1; k < n; k++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
                fprintf(stderr, "kvplane engine: socketpair: %m\n");
                kve_gather_mesh_close(mesh);
                return KVB_ERR_IO;
            }
            mesh->fds[i][k] = pair[0];
            mesh->fds[k][i] = pair[1];
        }
    }
    return KVB_OK;
}

void kve_gather_take(struct kve_gather_mesh *mesh, uint32_t rank, struct kve_gather *gather)
{
    *gather = (struct kve_gather){.rank = rank, .n = mesh->n, .wait_ms = WAIT_MS};
    for (uint32_t i = 0; i < mesh->n; i++) {
        gather->fds[i] = mesh->fds[rank][i];
        mesh->fds[rank][i] = -1;
    }
    kve_gather_mesh_close(mesh);
}

static void close_one(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void kve_gather_mesh_close(struct kve_gather_mesh *mesh)
{
    for (uint32_t i = 0; i < mesh->n; i++) {
        for (uint32_t k = 0; k < mesh->n; k++) {
            close_one(&mesh->fds[i][k]);
        }
    }
}

void kve_gather_close(struct kve_gather *gather)
{
    for (uint32_t i = 0; i < gather->n; i++) {
        close_one(&gather->fds[i]);
    }
}

/* ---- moving bytes ---- */

/* A head and what follows it, one way over one socket. */
struct flow {
    int fd;
    short event; /* POLLIN or POLLOUT */
    struct head *head;
    void *body;
    size_t body_len, done;
};

static bool complete(const struct flow *flow)
{
    return flow->done == sizeof *flow->head + flow->body_len;
}

/* Moves what can be moved now. */
static kvb_status_t move(struct flow *flow)
{
    while (!complete(flow)) {
        bool in_head = flow->done < sizeof *flow->head;
        size_t at = in_head ? flow->done : flow->done - sizeof *flow->head;
        char *from = in_head ? (char *)flow->head : flow->body;
        size_t left = (in_head ? sizeof *flow->head : flow->body_len) - at;
        ssize_t n = flow->event == POLLIN ? recv(flow->fd, from + at, left, 0)
                                          : send(flow->fd, from + at, left, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return KVB_OK;
        }
        if (n <= 0) {
            return KVB_ERR_DISCONNECTED;
        }
        flow->done += (size_t)n;
    }
    return KVB_OK;
}

static kvb_status_t move_all(const struct kve_gather *gather, struct flow *flows, size_t nflows)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, gather->wait_ms);

    for (;;) {
        struct pollfd fds[2 * KVE_MODEL_LANES];
        nfds_t n = 0;

        for (size_t i = 0; i < nflows; i++) {
            kvb_status_t status = move(&flows[i]);
            if (status != KVB_OK) {
                return status;
            }
            if (!complete(&flows[i])) {
                fds[n++] = (struct pollfd){.fd = flows[i].fd, .events = flows[i].event};
            }
        }
        if (n == 0) {
            return KVB_OK;
        }
        if (kvb_now_ns(&kvb_clock_real) >= deadline_ns) {
            return KVB_ERR_TIMEOUT;
        }
        if (poll(fds, n, (int)gather->wait_ms) < 0 && errno != EINTR) {
            return KVB_ERR_IO;
        }
    }
}

kvb_status_t kve_gather_all(struct kve_gather *gather, kvb_status_t mine, void *all, size_t bytes)
{
    struct head said = {.bytes = bytes, .status = mine}, heard[KVE_MODEL_LANES];
    struct flow flows[2 * KVE_MODEL_LANES];
    size_t n = 0;
    kvb_status_t status;

    heard[gather->rank] = said;
    for (uint32_t i = 0; i < gather->n; i++) {
        char *theirs = (char *)all + i * bytes, *ours = (char *)all + gather->rank * bytes;
        if (i == gather->rank) {
            continue;
        }
        flows[n++] = (struct flow){gather->fds[i], POLLOUT, &said, ours, bytes, 0};
        flows[n++] = (struct flow){gather->fds[i], POLLIN, &heard[i], theirs, bytes, 0};
    }
    status = move_all(gather, flows, n);
    for (uint32_t i = 0; i < gather->n && status == KVB_OK; i++) {
        kvb_assert(heard[i].bytes == bytes); /* they are this program, told the same */
        status = (kvb_status_t)heard[i].status;
    }
    return status;
}

kvb_status_t kve_gather_tell(struct kve_gather *gather, const void *bytes, size_t len)
{
    struct head said = {.bytes = len};
    struct flow flows[KVE_MODEL_LANES];
    size_t n = 0;

    for (uint32_t i = 1; i < gather->n; i++) {
        union {
            const void *told;
            void *body;
        } what = {.told = bytes}; /* only ever sent */
        flows[n++] = (struct flow){gather->fds[i], POLLOUT, &said, what.body, len, 0};
    }
    return move_all(gather, flows, n);
}

kvb_status_t kve_gather_hear(struct kve_gather *gather, void *bytes, size_t cap, size_t *len_p)
{
    struct head heard;
    struct flow flow = {gather->fds[0], POLLIN, &heard, bytes, 0, 0};
    kvb_status_t status = move_all(gather, &flow, 1);

    if (status == KVB_OK && heard.bytes > cap) {
        return KVB_ERR_TOO_LARGE;
    }
    if (status == KVB_OK) {
        flow.body_len = heard.bytes;
        status = move_all(gather, &flow, 1);
    }
    if (status == KVB_OK) {
        *len_p = heard.bytes;
    }
    return status;
}
