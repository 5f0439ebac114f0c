/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "link/internal.h"
#include "link/session.h"
#include "link/stream.h"

#include "base/assert.h"
#include "base/list.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * The daemon keeps the socket of an ended session until its last transfer is over, and closes it
 * then (rank.c, with close(2)): so the descriptor is a real one, the reading end of a pipe, and
 * that it is closed is seen at the writing end.
 */
#define LOOK_NS (5 * KVB_NS_PER_MS)

struct message {
    struct kvb_list link;
    struct kvb_frame frame;
    uint8_t *payload;
    int fd;
    uint64_t at_ns;
};

struct sim_wire {
    struct kvb_list link; /* of wires */
    /* the engine's */
    struct sim_process *engine;
    const struct sim_wire_ops *ops;
    void *ctx;
    struct kvb_list in;
    struct kvb_event arrived;
    bool over; /* closed was told, or the engine is dead */
    int writing;
    /* the daemon's */
    struct sim_process *daemon;
    int reading;
    struct kvp_stream *stream; /* NULL: not taken yet, or ended */
    bool shut;                 /* by the engine: nothing more comes from it */
};

struct kvp_stream {
    struct kvb_sched *sched;
    const struct kvp_stream_ops *ops;
    void *ctx;
    struct sim_wire *wire;
    int fd;
    struct kvb_list in;
    struct kvb_event arrived, ended;
    bool ending, finishing, released;
    char reason[160];
    int fds[KVP_STREAM_FDS_MAX];
    uint32_t nfds;
};

static struct kvb_list wires = {&wires, &wires};

/* Who listens on a machine's engine socket. */
struct kvp_listener {
    struct kvp_link *link;
    struct sim_process *process;
};
static struct kvp_listener *listeners[SIM_MACHINES_MAX];

static void destroy_message(struct message *message)
{
    if (message->fd >= 0) {
        (void)close(message->fd);
    }
    free(message->payload);
    free(message);
}

static void clear(struct kvb_list *list)
{
    for (struct kvb_list *link; (link = kvb_list_pop(list)) != NULL;) {
        destroy_message(kvb_container_of(link, struct message, link));
    }
}

static uint64_t short_way_ns(void)
{
    return sim_between(3000, 200000) + (sim_chance(5) ? sim_below(20 * KVB_NS_PER_MS) : 0);
}

static struct message *new_message(struct kvb_list *in, uint16_t type, uint16_t flags, uint64_t seq,
                                   struct kvb_writer *writer, int fd)
{
    struct message *message = calloc(1, sizeof *message);
    kvb_assert(message != NULL && writer->status == KVB_OK);
    message->frame =
        (struct kvb_frame){.type = type, .flags = flags, .seq = seq, .len = (uint32_t)writer->len};
    message->payload = writer->len > 0 ? writer->data : NULL;
    if (writer->len > 0) {
        writer->data = NULL;
    }
    kvb_writer_cleanup(writer);
    message->fd = fd;
    message->at_ns = sim.now_ns + short_way_ns();
    if (!kvb_list_empty(in)) {
        uint64_t last_ns = kvb_container_of(in->prev, struct message, link)->at_ns;
        message->at_ns = message->at_ns < last_ns ? last_ns : message->at_ns;
    }
    kvb_list_push_back(in, &message->link);
    return message;
}

/* The oldest that has arrived. */
static struct message *take(struct kvb_list *in)
{
    struct kvb_list *first = kvb_list_first(in);
    if (first == NULL) {
        return NULL;
    }
    struct message *message = kvb_container_of(first, struct message, link);
    if (message->at_ns > sim.now_ns) {
        return NULL;
    }
    kvb_list_remove(&message->link);
    return message;
}

/* ---- the engine's end ---- */

static void on_engine_time(void *ctx)
{
    struct sim_wire *wire = ctx;
    if (!wire->over && !wire->engine->dead) {
        kvb_sched_post(&wire->engine->sched, &wire->arrived);
    }
}

static void on_engine_event(struct kvb_event *event)
{
    struct sim_wire *wire = kvb_container_of(event, struct sim_wire, arrived);
    for (struct message *message; !wire->over && (message = take(&wire->in)) != NULL;) {
        wire->ops->frame(wire->ctx, &message->frame,
                         (struct kvb_span){message->payload, message->frame.len});
        destroy_message(message);
    }
}

/* Is the daemon's descriptor closed, and everything heard that it sent before? */
static void on_look(void *ctx)
{
    struct sim_wire *wire = ctx;
    if (wire->over || wire->engine->dead) {
        return;
    }
    struct pollfd poll_fd = {.fd = wire->writing, .events = POLLOUT};
    bool closed = poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLERR) != 0;
    if (!closed || !kvb_list_empty(&wire->in) || !sim_process_runs(wire->engine)) {
        sim_after(LOOK_NS, on_look, wire);
        return;
    }
    wire->over = true;
    kvb_sched_unpost(&wire->arrived);
    (void)close(wire->writing);
    kvb_list_remove(&wire->link);
    wire->ops->closed(wire->ctx);
}

struct sim_wire *sim_wire_connect(struct sim_process *engine, const struct sim_wire_ops *ops,
                                  void *ctx)
{
    struct kvp_listener *listener = listeners[engine->machine];
    int fds[2];
    if (listener == NULL || listener->process->dead ||
        listener->link->nsessions >= listener->link->config.sessions_max) {
        return NULL;
    }
    struct sim_wire *wire = calloc(1, sizeof *wire);
    kvb_assert(wire != NULL);
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) {
        sim_fail("no descriptor left");
    }
    *wire = (struct sim_wire){.engine = engine,
                              .ops = ops,
                              .ctx = ctx,
                              .daemon = listener->process,
                              .reading = fds[0],
                              .writing = fds[1]};
    kvb_list_init(&wire->in);
    kvb_event_init(&wire->arrived, on_engine_event);
    kvb_list_push_back(&wires, &wire->link);
    kvp_session_open(listener->link, fds[0]);
    sim_after(LOOK_NS, on_look, wire);
    return wire;
}

static void on_daemon_time(void *ctx)
{
    struct sim_wire *wire = ctx;
    struct kvp_stream *stream = wire->stream;
    if (stream != NULL && !stream->ending && !wire->daemon->dead) {
        kvb_sched_post(stream->sched, &stream->arrived);
    }
}

void sim_wire_send(struct sim_wire *wire, uint16_t type, uint16_t flags, uint64_t seq,
                   struct kvb_writer *writer, int fd)
{
    if (wire->stream == NULL || wire->stream->ending || wire->shut) {
        kvb_writer_cleanup(writer);
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    struct message *message = new_message(&wire->stream->in, type, flags, seq, writer, fd);
    sim_after(message->at_ns - sim.now_ns, on_daemon_time, wire);
}

void sim_wire_shut(struct sim_wire *wire)
{
    wire->shut = true;
    sim_after(short_way_ns(), on_daemon_time, wire);
}

void sim_wire_died(struct sim_process *process)
{
    kvb_list_each(&wires, link)
    {
        struct sim_wire *wire = kvb_container_of(link, struct sim_wire, link);
        if (wire->engine == process) {
            wire->over = true;
            (void)close(wire->writing);
            kvb_list_remove(&wire->link);
            sim_wire_shut(wire);
        } else if (wire->daemon == process) {
            (void)close(wire->reading);
            wire->stream = NULL;
        }
    }
}

/* ---- the daemon's end ---- */

static void end(struct kvp_stream *stream, const char *reason)
{
    if (stream->ending) {
        return;
    }
    stream->ending = true;
    if (reason != stream->reason) {
        (void)snprintf(stream->reason, sizeof stream->reason, "%s", reason);
    }
    kvb_sched_unpost(&stream->arrived);
    kvb_sched_post(stream->sched, &stream->ended);
}

static void on_ended(struct kvb_event *event)
{
    struct kvp_stream *stream = kvb_container_of(event, struct kvp_stream, ended);
    clear(&stream->in);
    while (stream->nfds > 0) {
        (void)close(stream->fds[--stream->nfds]);
    }
    if (stream->wire->stream == stream) {
        stream->wire->stream = NULL;
    }
    stream->released = true;
    stream->ops->closed(stream->ctx, stream->reason);
}

static void on_arrived(struct kvb_event *event)
{
    struct kvp_stream *stream = kvb_container_of(event, struct kvp_stream, arrived);
    for (struct message *message;
         !stream->ending && !stream->finishing && (message = take(&stream->in)) != NULL;) {
        if (message->fd >= 0) {
            kvb_assert(stream->nfds < KVP_STREAM_FDS_MAX);
            stream->fds[stream->nfds++] = message->fd;
            message->fd = -1;
        }
        kvb_status_t status = stream->ops->header(stream->ctx, &message->frame);
        if (status == KVB_OK) {
            uint8_t *payload = message->payload;
            message->payload = NULL;
            status = stream->ops->frame(stream->ctx, &message->frame, payload);
        }
        if (status != KVB_OK) {
            end(stream, kvb_status_text(status));
        }
        destroy_message(message);
    }
    if (stream->wire->shut && kvb_list_empty(&stream->in)) {
        end(stream, "the peer closed the connection");
    }
}

kvb_status_t kvp_stream_create(struct kvb_sched *sched, struct uv_loop_s *loop, int fd,
                               const struct kvp_stream_ops *ops, void *ctx,
                               struct kvp_stream **stream_p)
{
    (void)loop;
    struct kvp_stream *stream = calloc(1, sizeof *stream);
    kvb_assert(stream != NULL);
    *stream = (struct kvp_stream){.sched = sched, .ops = ops, .ctx = ctx, .fd = fd};
    kvb_list_init(&stream->in);
    kvb_event_init(&stream->arrived, on_arrived);
    kvb_event_init(&stream->ended, on_ended);
    kvb_list_each(&wires, link)
    {
        struct sim_wire *wire = kvb_container_of(link, struct sim_wire, link);
        if (wire->reading == fd && wire->stream == NULL && !wire->daemon->dead &&
            &wire->daemon->sched == sched) {
            stream->wire = wire;
        }
    }
    kvb_assert(stream->wire != NULL);
    stream->wire->stream = stream;
    *stream_p = stream;
    return KVB_OK;
}

void kvp_stream_send(struct kvp_stream *stream, uint16_t type, uint16_t flags, uint64_t seq,
                     struct kvb_writer *writer)
{
    struct sim_wire *wire = stream->wire;
    if (stream->ending || stream->finishing) {
        kvb_writer_cleanup(writer);
        return;
    }
    if (writer->status != KVB_OK) {
        end(stream, kvb_status_text(writer->status));
        kvb_writer_cleanup(writer);
        return;
    }
    struct message *message = new_message(&wire->in, type, flags, seq, writer, -1);
    sim_after(message->at_ns - sim.now_ns, on_engine_time, wire);
}

int kvp_stream_take_fd(struct kvp_stream *stream)
{
    if (stream->nfds == 0) {
        return -1;
    }
    int fd = stream->fds[0];
    memmove(stream->fds, stream->fds + 1, --stream->nfds * sizeof stream->fds[0]);
    return fd;
}

void kvp_stream_close(struct kvp_stream *stream, const char *reason)
{
    end(stream, reason);
}

void kvp_stream_finish(struct kvp_stream *stream, const char *reason)
{
    end(stream, reason); /* what was sent is on its way already */
}

bool kvp_stream_over(const struct kvp_stream *stream)
{
    return stream->ending || stream->wire->shut;
}

int kvp_stream_take_socket(struct kvp_stream *stream)
{
    kvb_assert(stream->released);
    int fd = stream->fd;
    stream->fd = -1;
    return fd;
}

void kvp_stream_destroy(struct kvp_stream *stream)
{
    kvb_assert(stream->released);
    if (stream->fd >= 0) {
        (void)close(stream->fd);
    }
    free(stream);
}

/* ---- the engine socket ---- */

kvb_status_t kvp_listener_create(struct kvp_link *link, struct kvp_listener **listener_p)
{
    struct kvp_listener *listener = calloc(1, sizeof *listener);
    kvb_assert(listener != NULL);
    listener->link = link;
    listener->process = kvb_container_of(link->config.sched, struct sim_process, sched);
    listeners[listener->process->machine] = listener;
    *listener_p = listener;
    return KVB_OK;
}

void kvp_listener_destroy(struct kvp_listener *listener)
{
    if (listeners[listener->process->machine] == listener) {
        listeners[listener->process->machine] = NULL;
    }
    free(listener);
}
