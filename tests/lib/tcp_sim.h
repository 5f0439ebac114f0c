/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TCP_SIM_H
#define TESTS_TCP_SIM_H

/*
 * A peer, and a node that serves plain memory, over a simulated net and clock; and raw ends of
 * connections, that say what they like to either.
 */
#include "sim_net.h"
#include "tcp_rig.h"
#include "test_memory.h"
#include "test_values.h"
#include "wire.h"

#ifdef TESTS_PLAIN /* a program without Criterion */
#include "base/assert.h"
#define cr_assert(expression, ...) kvb_assert(expression)
#define cr_assert_eq(a, b, ...)    kvb_assert((a) == (b))
#define cr_assert_leq(a, b, ...)   kvb_assert((a) <= (b))
#else
#include <criterion/criterion.h>
#endif

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#ifndef TCP_SIM_LEN
#define TCP_SIM_LEN MIB(8)
#endif
#define BOUND_MS 60000

struct tcp_sim {
    struct sim_sched sim;
    struct sim_net net;
    struct sim_side side;
    struct rig_node node;
    struct test_memory node_memory, engine;
    struct kvt_regions *regions;
    struct kvt_region *region;
    struct kvt_transport *peer;
    struct kvt_peer_common common;
    uint32_t ups, downs;
    bool up;
    kvb_status_t why; /* of the last down */
    struct kvt_hello hello;
};

static inline void tcp_sim_accept_(void *ctx, int fd)
{
    struct tcp_sim *rig = ctx;
    if (kvt_tcp_server_adopt(rig->node.server, fd) != KVB_OK) {
        sim_net_untaken(&rig->net, fd);
    }
}

static inline void tcp_sim_up_(void *ctx, const struct kvt_hello *hello)
{
    struct tcp_sim *rig = ctx;
    rig->ups++;
    rig->up = true;
    rig->hello = *hello;
}

static inline void tcp_sim_down_(void *ctx, kvb_status_t why)
{
    struct tcp_sim *rig = ctx;
    rig->downs++;
    rig->up = false;
    rig->why = why;
}

static const struct kvt_peer_ops tcp_sim_peer_ops = {.up = tcp_sim_up_, .down = tcp_sim_down_};

/* Net, node and memory; no peer yet. common may be changed before the node is made: NULL server
 * config: plain. */
static inline void tcp_sim_open(struct tcp_sim *rig, const struct kvt_tcp_server_config *given)
{
    *rig = (struct tcp_sim){0};
    sim_init(&rig->sim, sim_seed(1));
    rig->side = (struct sim_side){.accept = tcp_sim_accept_, .ctx = rig};
    sim_net_init(&rig->net, &rig->sim, &rig->side);
    rig->common =
        (struct kvt_peer_common){.net = &rig->net.base, .secret = "a secret", .secret_len = 8};
    test_memory_init(&rig->node_memory, "node", TCP_SIM_LEN);
    test_memory_init(&rig->engine, "engine", TCP_SIM_LEN);
    struct kvt_tcp_server_config config = {0};
    if (given != NULL) {
        config = *given;
    }
    if (config.common.net == NULL) {
        uint64_t features = config.common.features;
        uint32_t ask_max = config.common.ask_max;
        config.common = rig->common;
        config.common.features = features;
        config.common.ask_max = ask_max;
    }
    config.sched = &rig->sim.sched;
    config.name = config.name != NULL ? config.name : "node-1";
    config.incarnation = config.incarnation != 0 ? config.incarnation : 11;
    cr_assert_eq(rig_node_init(&rig->node, rig->node_memory.base, TCP_SIM_LEN, config), KVB_OK);
    cr_assert_eq(kvt_regions_create(&rig->sim.sched, &rig->regions), KVB_OK);
    struct kvt_region_desc desc = {.owner = 1, .number = 1, .tag = "kv_cache", .len = TCP_SIM_LEN};
    const char *reason;
    cr_assert_eq(kvt_region_create(rig->regions, &desc, test_memory_dup(&rig->engine), &rig->region,
                                   &reason),
                 KVB_OK);
    cr_assert_eq(kvt_region_register(rig->region), KVB_OK);
}

/* common.net not set: the rig's. */
static inline void tcp_sim_peer(struct tcp_sim *rig, struct kvt_tcp_peer_config config)
{
    if (config.common.net == NULL) {
        config.common = rig->common;
    }
    config.address = config.address != NULL ? config.address : "127.0.0.1:7";
    config.ops = &tcp_sim_peer_ops;
    config.ctx = rig;
    cr_assert_eq(kvt_tcp_peer_create(rig->regions, &config, &rig->peer), KVB_OK);
}

static inline struct kvt_peer_stats tcp_sim_stats(const struct tcp_sim *rig)
{
    struct kvt_peer_stats stats;
    kvt_tcp_peer_stats(rig->peer, &stats);
    return stats;
}

static inline struct kvt_peer_stats tcp_sim_node_stats(const struct tcp_sim *rig)
{
    struct kvt_peer_stats stats;
    kvt_tcp_server_stats(rig->node.server, &stats);
    return stats;
}

static inline void tcp_sim_wait_up(struct tcp_sim *rig)
{
    cr_assert(sim_run_until_true(&rig->sim, &rig->up, BOUND_MS));
}

static inline void tcp_sim_unregistered_(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    cr_assert_eq(status, KVB_OK);
    *(bool *)arg = true;
}

static inline void tcp_sim_unregister(struct tcp_sim *rig)
{
    bool done = false;
    kvt_region_unregister(rig->region, sim_in_ms(&rig->sim, 1000), sim_in_ms(&rig->sim, 1200),
                          tcp_sim_unregistered_, &done);
    cr_assert(sim_run_until_true(&rig->sim, &done, 1200));
}

static inline void tcp_sim_close(struct tcp_sim *rig)
{
    if (rig->peer != NULL) {
        cr_assert_eq(rig->peer->in_flight, 0);
        kvt_transport_destroy(rig->peer);
    }
    cr_assert_eq(kvt_region_refs(rig->region), 0);
    if (kvt_region_state(rig->region) == KVT_REGION_REGISTERED) {
        tcp_sim_unregister(rig);
    }
    kvt_region_destroy(rig->region);
    rig_node_cleanup(&rig->node);
    cr_assert_eq(rig->net.open, 0, "every connection is closed");
    kvt_regions_destroy(rig->regions);
    test_memory_cleanup(&rig->engine);
    test_memory_cleanup(&rig->node_memory);
    sim_cleanup(&rig->sim);
}

/* ---- transfers ---- */

struct tcp_job {
    struct kvt_transfer transfer;
    struct tcp_sim *rig;
    struct kvt_slice slice;
    struct kvt_extent extent;
    uint8_t answer[64];
    bool done, inside;
    kvb_status_t status;
};

static inline void tcp_job_done_(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct tcp_job *job = kvb_container_of(transfer, struct tcp_job, transfer);
    cr_assert(!job->done, "exactly once");
    cr_assert(!job->inside, "never inside a call");
    job->done = true;
    job->status = status;
}

/* type: RIG_PUT, RIG_GET of [at, at + len) of both memories; RIG_ECHO of len bytes of engine text
 */
static inline void tcp_job_init(struct tcp_job *job, struct tcp_sim *rig, uint16_t type,
                                uint64_t at, uint64_t len)
{
    *job = (struct tcp_job){
        .rig = rig, .slice = {rig->region, at, len}, .extent = {.offset = at, .len = len}};
    job->transfer = (struct kvt_transfer){
        .direction = type == RIG_PUT ? KVT_TO_SHARE : KVT_FROM_SHARE,
        .slices = &job->slice,
        .nslices = type == RIG_ECHO ? 0 : 1,
        .type = type,
        .ask = {(const uint8_t *)&job->extent, sizeof job->extent},
        .answer = job->answer,
        .answer_cap = sizeof job->answer,
        .deadline_ns = KVB_NEVER,
        .done = tcp_job_done_,
    };
}

static inline kvb_status_t tcp_job_start(struct tcp_job *job)
{
    job->inside = true;
    kvb_status_t status = kvt_transfer_start(job->rig->peer, &job->transfer);
    job->inside = false;
    return status;
}

static inline void tcp_job_cancel(struct tcp_job *job)
{
    job->inside = true;
    kvt_transfer_cancel(&job->transfer, sim_in_ms(&job->rig->sim, 200));
    job->inside = false;
}

static inline kvb_status_t tcp_job_wait(struct tcp_job *job)
{
    cr_assert(sim_run_until_true(&job->rig->sim, &job->done, BOUND_MS), "it ends");
    return job->status;
}

/* What it ended with, or why it did not start. */
static inline kvb_status_t tcp_job_run(struct tcp_job *job)
{
    kvb_status_t status = tcp_job_start(job);
    return status == KVB_OK ? tcp_job_wait(job) : status;
}

static inline kvb_status_t tcp_sim_run(struct tcp_sim *rig, uint16_t type, uint64_t at,
                                       uint64_t len)
{
    struct tcp_job job;
    tcp_job_init(&job, rig, type, at, len);
    return tcp_job_run(&job);
}

/* ---- an end of a connection that says what it likes ---- */

struct tcp_raw {
    struct kvt_net *net;
    struct kvt_socket *socket; /* NULL: closed here */
    uint8_t in[1 << 16];       /* what came, the first bytes of it */
    size_t in_len;
    uint64_t came;
    bool deaf; /* does not read */
    bool over; /* the other end has closed it */
    struct kvt_handshake shake;
};

static inline void tcp_raw_ready_(struct kvt_socket *socket, unsigned events)
{
    struct tcp_raw *raw = socket->ctx;
    (void)events;
    for (;;) {
        uint8_t data[4096];
        struct iovec to = {data, sizeof data};
        size_t len;
        kvb_status_t status = raw->net->ops->read(socket, &to, 1, &len);
        if (status == KVB_ERR_AGAIN) {
            return;
        }
        if (status != KVB_OK) {
            raw->over = true;
            raw->net->ops->want(socket, 0);
            return;
        }
        raw->came += len;
        size_t keep = sizeof raw->in - raw->in_len;
        keep = keep < len ? keep : len;
        memcpy(raw->in + raw->in_len, data, keep);
        raw->in_len += keep;
    }
}

static inline void tcp_raw_hear(struct tcp_raw *raw)
{
    raw->net->ops->want(raw->socket, KVB_IO_READ);
}

static inline void tcp_raw_own(struct tcp_raw *raw, struct kvt_net *net, struct kvt_socket *socket)
{
    memset(raw, 0, sizeof *raw);
    raw->net = net;
    raw->socket = socket;
    socket->ready = tcp_raw_ready_;
    socket->ctx = raw;
    tcp_raw_hear(raw);
}

static inline void tcp_raw_connect(struct tcp_raw *raw, struct tcp_sim *rig)
{
    struct kvt_socket *socket;
    cr_assert_eq(rig->net.base.ops->connect(&rig->net.base, "127.0.0.1:7", &socket), KVB_OK);
    tcp_raw_own(raw, &rig->net.base, socket);
}

static inline void tcp_raw_close(struct tcp_raw *raw)
{
    if (raw->socket != NULL) {
        raw->net->ops->close(raw->socket);
        raw->socket = NULL;
    }
}

/* Says as much as the other end takes; how much that was. */
static inline size_t tcp_raw_say(struct tcp_raw *raw, const void *data, size_t len)
{
    const uint8_t *from = data;
    size_t said = 0;
    while (said < len) {
        union {
            const uint8_t *in;
            void *out;
        } cast = {.in = from + said};
        struct iovec piece = {cast.out, len - said};
        size_t n;
        if (raw->net->ops->write(raw->socket, &piece, 1, &n) != KVB_OK) {
            break;
        }
        said += n;
    }
    return said;
}

static inline void tcp_raw_message(struct tcp_raw *raw, enum tcp_message type, const void *payload,
                                   size_t len)
{
    uint8_t frame[KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX];
    (void)tcp_raw_say(raw, frame, tcp_message_pack(type, payload, len, frame));
}

/* The type of the first frame that came; 0: none yet. */
static inline uint16_t tcp_raw_type(const struct tcp_raw *raw)
{
    struct kvb_frame frame;
    if (raw->in_len < KVB_FRAME_HEADER_LEN || kvb_frame_unpack(raw->in, &frame) != KVB_OK ||
        raw->in_len < KVB_FRAME_HEADER_LEN + frame.len) {
        return 0;
    }
    return frame.type;
}

/* Takes the first frame away; its payload's length. */
static inline size_t tcp_raw_take(struct tcp_raw *raw, uint8_t payload[KVT_PAYLOAD_MAX])
{
    struct kvb_frame frame;
    cr_assert(tcp_raw_type(raw) != 0);
    cr_assert_eq(kvb_frame_unpack(raw->in, &frame), KVB_OK);
    size_t len = KVB_FRAME_HEADER_LEN + frame.len;
    if (payload != NULL) {
        cr_assert_leq(frame.len, KVT_PAYLOAD_MAX);
        memcpy(payload, raw->in + KVB_FRAME_HEADER_LEN, frame.len);
    }
    memmove(raw->in, raw->in + len, raw->in_len - len);
    raw->in_len -= len;
    return frame.len;
}

static inline void tcp_raw_hello(struct tcp_raw *raw, struct tcp_sim *rig,
                                 const struct kvt_peer_common *common)
{
    struct kvt_peer_common own = *common;
    own.silence_ms = own.silence_ms != 0 ? own.silence_ms : 3000;
    kvt_greeting_make(&kvt_tcp_protocol, &own, &rig->sim.random, raw->shake.hello,
                      &raw->shake.hello_len);
    tcp_raw_message(raw, TCP_HELLO, raw->shake.hello, raw->shake.hello_len);
}

/* A client's handshake; true: it was admitted. */
static inline bool tcp_raw_admit(struct tcp_raw *raw, struct tcp_sim *rig,
                                 const struct kvt_peer_common *common)
{
    uint8_t payload[KVT_PAYLOAD_MAX], proof[KVT_PROOF_LEN];
    tcp_raw_hello(raw, rig, common);
    sim_settle(&rig->sim);
    if (tcp_raw_type(raw) != TCP_CHALLENGE) {
        return false;
    }
    size_t len = tcp_raw_take(raw, payload);
    cr_assert_eq(kvt_greeting_take(payload, len, raw->shake.challenge, &raw->shake.challenge_len),
                 KVB_OK);
    cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, common, &raw->shake, proof), KVB_OK);
    tcp_raw_message(raw, TCP_PROOF, proof, sizeof proof);
    sim_settle(&rig->sim);
    if (tcp_raw_type(raw) != TCP_ADMITTED) {
        return false;
    }
    (void)tcp_raw_take(raw, NULL);
    return true;
}

/* A node's part of it, towards a peer that has connected. */
static inline bool tcp_raw_serve(struct tcp_raw *raw, struct tcp_sim *rig,
                                 const struct kvt_peer_common *common, uint64_t incarnation)
{
    struct kvt_peer_common own = *common;
    own.silence_ms = own.silence_ms != 0 ? own.silence_ms : 3000;
    uint8_t payload[KVT_PAYLOAD_MAX];
    size_t len;
    sim_settle(&rig->sim);
    cr_assert_eq(tcp_raw_type(raw), TCP_HELLO);
    len = tcp_raw_take(raw, payload);
    cr_assert_eq(kvt_greeting_take(payload, len, raw->shake.hello, &raw->shake.hello_len), KVB_OK);
    kvt_greeting_make(&kvt_tcp_protocol, &own, &rig->sim.random, raw->shake.challenge,
                      &raw->shake.challenge_len);
    tcp_raw_message(raw, TCP_CHALLENGE, raw->shake.challenge, raw->shake.challenge_len);
    sim_settle(&rig->sim);
    if (tcp_raw_type(raw) != TCP_PROOF) {
        return false;
    }
    len = tcp_raw_take(raw, payload);
    cr_assert_eq(kvt_handshake_agree(&raw->shake, false), KVB_OK);
    if (kvt_proof_check(&kvt_tcp_protocol, common, &raw->shake, payload) != KVB_OK) {
        return false;
    }
    struct kvt_identity identity = {.name = "raw", .incarnation = incarnation};
    cr_assert_eq(
        kvt_identity_make(&kvt_tcp_protocol, common, &raw->shake, &identity, payload, &len),
        KVB_OK);
    tcp_raw_message(raw, TCP_ADMITTED, payload, len);
    sim_settle(&rig->sim);
    return true;
}

#endif
