/* SPDX-License-Identifier: Apache-2.0 */
#include "limit_tcp.h"

#include "rig.h"

#include "base/xxh3.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIPELINE 256  /* messages that wait to be sent on one connection */
#define IOVECS   64   /* of one call */
#define SPILL    4096 /* bytes read beyond a body: its hash, and the headers that follow */

struct header {
    uint64_t offset; /* in the server's memory */
    uint64_t slot;   /* the client's */
    uint32_t put;
    uint32_t body; /* bytes that follow, with their hash behind */
    uint32_t len;
    uint32_t unused;
    uint64_t due_ns; /* the client's */
};

/* A message on its way: header, body, hash. */
struct flow {
    struct header header;
    char *body;
    size_t at;     /* bytes moved of all three */
    size_t hashed; /* of the body */
    uint64_t hash;
    XXH3_state_t state;
};

struct lane {
    int fd;
    uint32_t armed; /* epoll events */
    int gathered;   /* bytes that wake it */
    bool blocked;   /* waits to be writable */
    struct flow in;
    char spill[SPILL];
    size_t spilled;
    struct flow queue[PIPELINE]; /* to be sent */
    uint32_t head, count;
    uint32_t outstanding;
};

struct end {
    bool server;
    char *memory;
    const struct limit_tcp_config *config;
    int epoll;
    struct lane lanes[LIMIT_TCP_LANES];
    uint32_t completed;
    double *latency_ns;
};

struct limit_tcp {
    struct limit_tcp_config config;
    pid_t server;
    uint64_t next, server_next; /* where the walks go on */
    struct end end;
};

static size_t body_end(const struct flow *flow)
{
    return sizeof(struct header) + flow->header.body;
}

static size_t flow_len(const struct flow *flow)
{
    return body_end(flow) + (flow->header.body > 0 ? sizeof flow->hash : 0);
}

/* Hashes the body up to `to` bytes of it. */
static void hash_to(struct flow *flow, size_t to)
{
    if (flow->hashed == 0) {
        XXH3_64bits_reset(&flow->state);
    }
    XXH3_64bits_update(&flow->state, flow->body + flow->hashed, to - flow->hashed);
    flow->hashed = to;
}

static struct flow *push(struct lane *lane)
{
    if (lane->count == PIPELINE) {
        rig_fail("limit: too much in the pipeline");
    }
    struct flow *flow = &lane->queue[(lane->head + lane->count++) % PIPELINE];
    flow->at = flow->hashed = 0;
    return flow;
}

static bool again(ssize_t n)
{
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (n <= 0) {
        rig_fail("limit: connection: %s", n == 0 ? "ended" : strerror(errno));
    }
    return false;
}

/* What is to be sent of a message next, at most `max` of the body's bytes; those are hashed. */
static int out_pieces(const struct end *end, struct flow *out, size_t max, struct iovec *iov)
{
    int n = 0;
    size_t body = out->header.body, at = out->at;
    if (at < sizeof(struct header)) {
        iov[n++] = (struct iovec){(char *)&out->header + at, sizeof(struct header) - at};
        at = sizeof(struct header);
    }
    if (body == 0) {
        return n;
    }
    size_t from = at - sizeof(struct header) < body ? at - sizeof(struct header) : body;
    size_t to = body - from < max ? body : from + max;
    if (end->server) {
        out->hash = 1; /* stored with its object */
    } else if (out->hashed < to) {
        hash_to(out, to);
        out->hash = XXH3_64bits_digest(&out->state);
    }
    if (from < to) {
        iov[n++] = (struct iovec){out->body + from, to - from};
    }
    if (to == body) {
        size_t done = at > body_end(out) ? at - body_end(out) : 0;
        iov[n++] = (struct iovec){(char *)&out->hash + done, sizeof out->hash - done};
    }
    return n;
}

/* One call for as many messages as fit into a chunk. */
static void lane_write(struct end *end, struct lane *lane)
{
    for (size_t sent = 0; lane->count > 0 && sent < end->config->lane_chunk;) {
        struct iovec iov[IOVECS];
        size_t bytes = 0;
        int n = 0;
        for (uint32_t i = 0; i < lane->count && bytes < end->config->chunk && n + 3 <= IOVECS;
             i++) {
            int more = out_pieces(end, &lane->queue[(lane->head + i) % PIPELINE],
                                  end->config->chunk - bytes, iov + n);
            for (; more > 0; more--) {
                bytes += iov[n++].iov_len;
            }
        }
        ssize_t len = writev(lane->fd, iov, n);
        if (again(len)) {
            lane->blocked = true;
            return;
        }
        sent += (size_t)len;
        for (size_t left = (size_t)len; left > 0;) {
            struct flow *out = &lane->queue[lane->head];
            size_t rest = flow_len(out) - out->at;
            if (left < rest) {
                out->at += left;
                break;
            }
            left -= rest;
            lane->head = (lane->head + 1) % PIPELINE;
            lane->count--;
        }
    }
}

static void message_done(struct end *end, struct lane *lane)
{
    struct flow *in = &lane->in;
    const struct header *header = &in->header;
    uint64_t hash = header->body > 0 ? XXH3_64bits_digest(&in->state) : 0;
    if (end->server) {
        if (header->put != 0 && in->hash != hash) {
            rig_fail("limit: a put's hash");
        }
        uint32_t body = header->put != 0 ? 0 : header->len;
        struct flow *out = push(lane);
        out->header = (struct header){.slot = header->slot, .body = body, .due_ns = header->due_ns};
        out->body = end->memory + header->offset;
        return;
    }
    if (end->latency_ns != NULL) {
        uint64_t now_ns = rig_now_ns();
        end->latency_ns[end->completed] = (double)(now_ns - header->due_ns);
    }
    end->completed++;
    lane->outstanding--;
}

/* Takes what was read ahead: a header, a hash, of short bodies all. */
static size_t take(struct lane *lane, size_t from, void *to, size_t len)
{
    size_t n = lane->spilled - from < len ? lane->spilled - from : len;
    memcpy(to, lane->spill + from, n);
    return n;
}

static void parse_spill(struct end *end, struct lane *lane)
{
    struct flow *in = &lane->in;
    size_t from = 0;
    for (;;) {
        if (in->at < sizeof(struct header)) {
            size_t n =
                take(lane, from, (char *)&in->header + in->at, sizeof(struct header) - in->at);
            from += n;
            in->at += n;
            if (in->at < sizeof(struct header)) {
                break;
            }
            in->body = end->memory + (end->server ? in->header.offset : in->header.slot);
            in->hashed = 0;
        }
        if (in->at < body_end(in)) {
            size_t n = take(lane, from, in->body + (in->at - sizeof(struct header)),
                            body_end(in) - in->at);
            from += n;
            in->at += n;
            if (n > 0) {
                hash_to(in, in->at - sizeof(struct header));
            }
            if (in->at < body_end(in)) {
                break;
            }
        }
        if (in->at < flow_len(in)) {
            size_t n = take(lane, from, (char *)&in->hash + (in->at - body_end(in)),
                            flow_len(in) - in->at);
            from += n;
            in->at += n;
            if (in->at < flow_len(in)) {
                break;
            }
        }
        message_done(end, lane);
        in->at = 0;
    }
    lane->spilled = 0;
}

static void lane_read(struct end *end, struct lane *lane)
{
    struct flow *in = &lane->in;
    for (size_t got = 0; got < end->config->lane_chunk;) {
        size_t body = 0;
        if (in->at >= sizeof(struct header) && in->at < body_end(in)) {
            body = body_end(in) - in->at;
            body = body < end->config->chunk ? body : end->config->chunk;
        }
        struct iovec iov[2] = {
            {body > 0 ? in->body + (in->at - sizeof(struct header)) : NULL, body},
            {lane->spill, SPILL}};
        bool last = in->at + body >= body_end(in);
        ssize_t len = readv(lane->fd, body > 0 ? iov : iov + 1, body > 0 && last ? 2 : 1);
        if (again(len)) {
            return;
        }
        got += (size_t)len;
        size_t direct = (size_t)len < body ? (size_t)len : body;
        if (direct > 0) {
            in->at += direct;
            hash_to(in, in->at - sizeof(struct header));
        }
        lane->spilled = (size_t)len - direct;
        parse_spill(end, lane);
    }
}

/* A part of a long body is worth no wake-up. */
static void gather(const struct end *end, struct lane *lane)
{
    const struct flow *in = &lane->in;
    size_t rest =
        in->at >= sizeof(struct header) && in->at < body_end(in) ? body_end(in) - in->at : 1;
    int bytes = (int)(rest < end->config->chunk ? rest : end->config->chunk);
    if (bytes != lane->gathered) {
        lane->gathered = bytes;
        setsockopt(lane->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
    }
}

/* Sends what waits, then reads what is there. */
static void end_turn(struct end *end, bool poll)
{
    int timeout = poll ? 0 : -1;
    for (uint32_t i = 0; i < end->config->lanes; i++) {
        struct lane *lane = &end->lanes[i];
        if (lane->count > 0 && !lane->blocked) {
            lane_write(end, lane);
        }
        if (lane->count > 0 && !lane->blocked) {
            timeout = 0;
        }
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (lane->blocked) {
            event.events |= EPOLLOUT;
        }
        if (lane->armed != event.events) {
            lane->armed = event.events;
            epoll_ctl(end->epoll, EPOLL_CTL_MOD, lane->fd, &event);
        }
    }
    struct epoll_event events[LIMIT_TCP_LANES];
    int n = epoll_wait(end->epoll, events, LIMIT_TCP_LANES, timeout);
    for (int i = 0; i < n; i++) {
        struct lane *lane = &end->lanes[events[i].data.u32];
        if ((events[i].events & EPOLLOUT) != 0) {
            lane->blocked = false;
        }
        if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) {
            lane_read(end, lane);
            gather(end, lane);
        }
    }
}

static void end_add(struct end *end, uint32_t i, int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    end->lanes[i].fd = fd;
    end->lanes[i].armed = EPOLLIN;
    end->lanes[i].gathered = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    if (epoll_ctl(end->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        rig_fail("limit: epoll: %s", strerror(errno));
    }
}

static int sized_socket(uint32_t buffer)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        rig_fail("limit: socket: %s", strerror(errno));
    }
    if (buffer > 0) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    }
    return fd;
}

static void end_init(struct end *end, const struct limit_tcp_config *config, bool server)
{
    *end = (struct end){.server = server, .config = config, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    end->memory = rig_memory(server ? config->server : config->memory);
}

static _Noreturn void serve(const struct limit_tcp_config *config, int listener)
{
    static struct end end;
    rig_pin(RIG_SERVER_CPU);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    end_init(&end, config, true);
    for (uint32_t i = 0; i < config->lanes; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            rig_fail("limit: accept: %s", strerror(errno));
        }
        end_add(&end, i, fd);
    }
    for (;;) {
        end_turn(&end, false);
    }
}

struct limit_tcp *limit_tcp_open(const struct limit_tcp_config *config)
{
    struct limit_tcp *limit = calloc(1, sizeof *limit);
    if (limit == NULL) {
        rig_fail("limit: out of memory");
    }
    limit->config = *config;
    int listener = sized_socket(config->buffer); /* accepted ones inherit its buffers */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, len) != 0 || listen(listener, 16) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &len) != 0) {
        rig_fail("limit: listen: %s", strerror(errno));
    }
    limit->server = fork();
    if (limit->server == 0) {
        serve(&limit->config, listener);
    }
    close(listener);
    end_init(&limit->end, &limit->config, false);
    for (uint32_t i = 0; i < config->lanes; i++) {
        int fd = sized_socket(config->buffer);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
            rig_fail("limit: connect: %s", strerror(errno));
        }
        end_add(&limit->end, i, fd);
    }
    return limit;
}

void limit_tcp_close(struct limit_tcp *limit)
{
    kill(limit->server, SIGKILL);
    for (uint32_t i = 0; i < limit->config.lanes; i++) {
        close(limit->end.lanes[i].fd);
    }
    close(limit->end.epoll);
    munmap(limit->end.memory, limit->config.memory);
    free(limit);
}

uint64_t limit_tcp_run(struct limit_tcp *limit, bool put, uint32_t len, uint32_t n,
                       uint32_t outstanding, double per_s, double *latency_ns)
{
    struct end *end = &limit->end;
    uint32_t started = 0;
    end->completed = 0;
    end->latency_ns = latency_ns;
    uint64_t start_ns = rig_now_ns();
    while (end->completed < n) {
        while (started < n && started - end->completed < outstanding) {
            uint64_t due_ns = 0;
            if (per_s > 0) {
                due_ns = start_ns + (uint64_t)((double)started * 1e9 / per_s);
                if (due_ns > rig_now_ns()) {
                    break;
                }
            } else if (latency_ns != NULL) {
                due_ns = rig_now_ns();
            }
            struct lane *lane = &end->lanes[0];
            for (uint32_t i = 1; i < limit->config.lanes; i++) {
                lane = end->lanes[i].outstanding < lane->outstanding ? &end->lanes[i] : lane;
            }
            if (limit->next + len > limit->config.memory) {
                limit->next = 0;
            }
            if (limit->server_next + len > limit->config.server) {
                limit->server_next = 0;
            }
            struct flow *out = push(lane);
            out->header = (struct header){.offset = limit->server_next,
                                          .slot = limit->next,
                                          .put = put,
                                          .len = len,
                                          .body = put ? len : 0,
                                          .due_ns = due_ns};
            out->body = end->memory + limit->next;
            limit->next += len;
            limit->server_next += len;
            lane->outstanding++;
            started++;
        }
        end_turn(end, per_s > 0);
    }
    return rig_now_ns() - start_ns;
}
