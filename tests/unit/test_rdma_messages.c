/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that says what it likes: each field of each message, changed on its way. The transfer
 * fails, nothing is moved where it does not belong, and the next connection works. */
#define RDMA_SIM_LEN (2ull << 20)
#include "rdma_sim.h"
#include "wire.h"

#include <xxhash.h>

#include <arpa/inet.h>

#define HEAD    RWIRE_PACKET_LEN              /* where the frame begins */
#define PAYLOAD (HEAD + KVB_FRAME_HEADER_LEN) /* and its payload */
#define PUT     RIG_PUT
#define GET     RIG_GET
#define REPLY   0x10000u /* the answer to it */

enum how { SET, ADD, CUT, GROW };

static const struct row {
    const char *what;
    uint32_t type; /* of the message; 0: the first after the handshake */
    enum fake_side from;
    uint32_t at; /* in the packet */
    uint32_t bytes;
    enum how how;
    uint64_t value;
    bool raw;      /* the header's checksum is not put right */
    bool harmless; /* the transfer may succeed */
} rows[] = {
    /* packets and frames */
    {"packet's number", PUT, FAKE_ASKER, 0, 4, ADD, 1, false, false},
    {"packet's number, of the node", PUT | REPLY, FAKE_NODE, 0, 4, ADD, 1, false, false},
    {"room that goes back", PUT, FAKE_ASKER, 4, 4, SET, 0, false, false},
    {"room without end", PUT, FAKE_ASKER, 4, 4, ADD, 1u << 30, false, false},
    {"room of the node, without end", RWIRE_GRANT, FAKE_NODE, 4, 4, ADD, 1u << 30, false, false},
    {"magic", PUT, FAKE_ASKER, HEAD, 4, ADD, 1, false, false},
    {"header's checksum", PUT, FAKE_ASKER, HEAD + 20, 4, ADD, 1, true, false},
    {"type of nothing", PUT, FAKE_ASKER, HEAD + 4, 2, SET, 0, false, false},
    {"type of the transport's, unknown", PUT, FAKE_ASKER, HEAD + 4, 2, SET, 0xfffe, false, false},
    {"the handshake again", PUT, FAKE_ASKER, HEAD + 4, 2, SET, RWIRE_HELLO, false, false},
    {"flags", PUT, FAKE_ASKER, HEAD + 6, 2, SET, 0x8000, false, false},
    {"an answer from the client", PUT, FAKE_ASKER, HEAD + 6, 2, SET, KVB_FRAME_REPLY, false, false},
    {"length, longer", PUT, FAKE_ASKER, HEAD + 16, 4, ADD, 1, false, false},
    {"length, shorter", PUT, FAKE_ASKER, HEAD + 16, 4, ADD, UINT64_MAX, false, false},
    {"length, of all", PUT, FAKE_ASKER, HEAD + 16, 4, SET, UINT32_MAX, false, false},
    {"length, none", PUT, FAKE_ASKER, HEAD + 16, 4, SET, 0, false, false},
    {"a packet without a frame", PUT, FAKE_ASKER, 0, HEAD, CUT, 0, false, false},
    {"an empty packet", PUT, FAKE_ASKER, 0, 0, CUT, 0, false, false},
    {"half a header", PUT, FAKE_ASKER, 0, HEAD + 12, CUT, 0, false, false},
    {"a packet that is too long", PUT, FAKE_ASKER, 0, 3000, GROW, 0, false, false},
    /* questions */
    {"question: what is 0", PUT, FAKE_ASKER, PAYLOAD, 4, SET, 1, false, false},
    {"question: no body", PUT, FAKE_ASKER, PAYLOAD + 4, 4, SET, 0, false, false},
    {"question: a body beyond the limit", PUT, FAKE_ASKER, PAYLOAD + 4, 4, SET, UINT32_MAX, false,
     false},
    {"question: another body", PUT, FAKE_ASKER, PAYLOAD + 4, 4, ADD, 1, false, false},
    /* answers to a put */
    {"answer: a status that is none", PUT | REPLY, FAKE_NODE, PAYLOAD, 4, SET, 77, false, false},
    {"answer: a status that is not final", PUT | REPLY, FAKE_NODE, PAYLOAD, 4, SET, 1, false,
     false},
    {"answer: extents to a put", PUT | REPLY, FAKE_NODE, PAYLOAD + 4, 4, SET, 1, false, false},
    {"answer: extents without end", PUT | REPLY, FAKE_NODE, PAYLOAD + 4, 4, SET, UINT32_MAX, false,
     false},
    {"answer: a checksum of nothing", PUT | REPLY, FAKE_NODE, PAYLOAD + 8, 8, SET, 1, false, false},
    {"answer: to another question", PUT | REPLY, FAKE_NODE, HEAD + 8, 8, ADD, 1000, false, false},
    {"answer: of another type", PUT | REPLY, FAKE_NODE, HEAD + 4, 2, SET, RIG_ECHO, false, false},
    {"answer: without reply", PUT | REPLY, FAKE_NODE, HEAD + 6, 2, SET, 0, false, false},
    /* grants */
    {"grant: none", RWIRE_GRANT, FAKE_NODE, PAYLOAD, 4, SET, 0, false, false},
    {"grant: more than there are", RWIRE_GRANT, FAKE_NODE, PAYLOAD, 4, ADD, 1, false, false},
    {"grant: without end", RWIRE_GRANT, FAKE_NODE, PAYLOAD, 4, SET, UINT32_MAX, false, false},
    {"grant: what is 0", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 4, 4, SET, 1, false, false},
    {"grant: a byte less", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 16, 4, ADD, UINT64_MAX, false, false},
    {"grant: a byte more", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 16, 4, ADD, 1, false, false},
    {"grant: an empty one", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 16, 4, SET, 0, false, false},
    {"grant: the end of addresses", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 8, 8, SET, UINT64_MAX, false,
     false},
    {"grant: elsewhere", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 8, 8, ADD, 1ull << 40, false, false},
    {"grant: another key", RWIRE_GRANT, FAKE_NODE, PAYLOAD + 20, 4, ADD, 64, false, false},
    {"grant: to another question", RWIRE_GRANT, FAKE_NODE, HEAD + 8, 8, ADD, 1000, false, false},
    {"grant: from the client", PUT, FAKE_ASKER, HEAD + 4, 2, SET, RWIRE_GRANT, false, false},
    /* done */
    {"done: a status that is none", RWIRE_DONE, FAKE_ASKER, PAYLOAD, 4, SET, 99, false, false},
    {"done: what is 0", RWIRE_DONE, FAKE_ASKER, PAYLOAD + 4, 4, SET, 1, false, false},
    {"done: a checksum of a failure", RWIRE_DONE, FAKE_ASKER, PAYLOAD, 4, SET, UINT64_MAX, false,
     false},
    {"done: of another question", RWIRE_DONE, FAKE_ASKER, HEAD + 8, 8, ADD, 1000, false, false},
    /* answers to a get */
    {"answer to a get: one extent less", GET | REPLY, FAKE_NODE, PAYLOAD + 4, 4, SET, 0, false,
     false},
    {"answer to a get: one more", GET | REPLY, FAKE_NODE, PAYLOAD + 4, 4, SET, 2, false, false},
    {"answer to a get: without end", GET | REPLY, FAKE_NODE, PAYLOAD + 4, 4, SET, 0x10000000, false,
     false},
    {"answer to a get: another checksum", GET | REPLY, FAKE_NODE, PAYLOAD + 8, 8, ADD, 1, false,
     false},
    {"answer to a get: a byte less", GET | REPLY, FAKE_NODE, PAYLOAD + 24, 4, ADD, UINT64_MAX,
     false, false},
    {"answer to a get: a byte more", GET | REPLY, FAKE_NODE, PAYLOAD + 24, 4, ADD, 1, false, false},
    {"answer to a get: elsewhere", GET | REPLY, FAKE_NODE, PAYLOAD + 16, 8, ADD, 1ull << 40, false,
     false},
    {"answer to a get: another key", GET | REPLY, FAKE_NODE, PAYLOAD + 28, 4, ADD, 64, false,
     false},
    {"answer to a get: a failure with a body", GET | REPLY, FAKE_NODE, PAYLOAD, 4, SET,
     (uint32_t)KVB_ERR_INVALID, false, false},
    /* verdicts */
    {"verdict: a status that is none", RWIRE_VERDICT, FAKE_NODE, PAYLOAD, 4, SET, 99, false, false},
    {"verdict: what is 0", RWIRE_VERDICT, FAKE_NODE, PAYLOAD + 4, 4, SET, 1, false, false},
    {"verdict: on another question", RWIRE_VERDICT, FAKE_NODE, HEAD + 8, 8, ADD, 1000, false,
     false},
};

struct tap {
    const struct row *row;
    bool hit;
};

static uint64_t get_le(const uint8_t *in, uint32_t n)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < n; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

static void put_le(uint8_t *out, uint32_t n, uint64_t value)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static void on_message(void *ctx, enum fake_side from, uint8_t *bytes, uint32_t *len_p)
{
    struct tap *tap = ctx;
    const struct row *row = tap->row;
    if (tap->hit || from != row->from || *len_p < PAYLOAD) {
        return;
    }
    uint32_t type = (uint32_t)get_le(bytes + HEAD + 4, 2);
    uint32_t reply = (get_le(bytes + HEAD + 6, 2) & KVB_FRAME_REPLY) != 0 ? REPLY : 0;
    if ((type | reply) != row->type) {
        return;
    }
    tap->hit = true;
    if (row->how == CUT || row->how == GROW) {
        memset(bytes + *len_p, 0, row->how == GROW ? row->bytes : 0);
        *len_p = row->how == CUT ? row->bytes : *len_p + row->bytes;
        return;
    }
    cr_assert_leq(row->at + row->bytes, *len_p, "%s", row->what);
    uint64_t old = row->how == ADD ? get_le(bytes + row->at, row->bytes) : 0;
    put_le(bytes + row->at, row->bytes, old + row->value);
    if (!row->raw && row->at >= HEAD) {
        put_le(bytes + HEAD + 20, 4, XXH32(bytes + HEAD, 20, 0));
    }
}

static void one_row(const struct row *row)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    kvb_log_threshold = KVB_LOG_ERROR;
    struct tap tap = {.row = row};
    fake_verbs_tap(on_message, &tap);
    struct rdma_job job;
    bool get = (row->type & 0xffff) == GET || row->type == RWIRE_VERDICT;
    memset(rig.engine.base, 'e', RDMA_SIM_LEN);
    memset(rig.node_memory.base, 'n', RDMA_SIM_LEN);
    rdma_job_init(&job, &rig, get ? GET : PUT, MIB(1), KIB(64));
    job.transfer.deadline_ns = rdma_in_ms(&rig, 20000);
    cr_assert_eq(rdma_job_start(&job), KVB_OK);
    (void)rdma_job_wait(&job);
    cr_assert(tap.hit, "%s: no such message", row->what);
    cr_assert(row->harmless || job.status != KVB_OK, "%s", row->what);
    rdma_advance(&rig, 5000);
    for (size_t i = 0; i < RDMA_SIM_LEN; i++) {
        bool inside = i >= MIB(1) && i < MIB(1) + KIB(64);
        bool engine = rig.engine.base[i] == 'e' || (inside && get);
        bool node = rig.node_memory.base[i] == 'n' || (inside && !get);
        if (!engine || !node) {
            cr_assert_fail("%s: byte %zu", row->what, i);
        }
    }
    fake_verbs_tap(NULL, NULL);
    cr_assert(rdma_sim_recovers(&rig, 1), "%s", row->what);
    rdma_sim_close(&rig);
}

Test(rdma_messages, each_field_of_each_message_may_be_anything)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        one_row(&rows[i]);
    }
}

/* ---- what is said when connecting ---- */

static struct rdma_cm_event *next_event(struct rdma_sim *rig, struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;
    rdma_advance(rig, 100);
    cr_assert_eq(fake_verbs_table.rdma_get_cm_event(channel, &event), 0);
    return event;
}

/* True: the node wants it. */
static bool connects(struct rdma_sim *rig, const uint8_t *data, uint8_t len)
{
    const struct kvt_verbs *v = &fake_verbs_table;
    struct rdma_event_channel *channel = v->rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(kvt_rdma_listener_port(rig->listener))};
    at.sin_addr.s_addr = inet_addr(FAKE_NODE_ADDRESS);
    cr_assert_eq(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(v->rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    cr_assert_eq(v->rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 1000), 0);
    (void)v->rdma_ack_cm_event(next_event(rig, channel));
    cr_assert_eq(v->rdma_resolve_route(id, 1000), 0);
    (void)v->rdma_ack_cm_event(next_event(rig, channel));
    struct rdma_conn_param param = {.private_data = data,
                                    .private_data_len = len,
                                    .initiator_depth = 1,
                                    .retry_count = 1,
                                    .rnr_retry_count = 1,
                                    .qp_num = 0x7777};
    cr_assert_eq(v->rdma_connect(id, &param), 0);
    struct rdma_cm_event *event = next_event(rig, channel);
    bool wanted = event->event == RDMA_CM_EVENT_CONNECT_RESPONSE;
    cr_assert(wanted || event->event == RDMA_CM_EVENT_REJECTED);
    (void)v->rdma_ack_cm_event(event);
    cr_assert_eq(v->rdma_destroy_id(id), 0);
    rdma_advance(rig, 10000);
    struct rdma_cm_event *rest;
    while (v->rdma_get_cm_event(channel, &rest) == 0) {
        (void)v->rdma_ack_cm_event(rest);
    }
    v->rdma_destroy_event_channel(channel);
    return wanted;
}

Test(rdma_messages, each_field_of_connecting_may_be_anything)
{
    static const struct {
        const char *what;
        uint32_t at;
        uint32_t value;
        bool wanted;
    } fields[] = {
        {"as it is", 8, KVT_RDMA_VERSION, true},
        {"magic", 0, 0, false},
        {"versions before ours", 8, 0, false},
        {"versions after ours", 4, 100, false},
        {"no mtu said", 12, 0, true},
        {"an mtu that is none", 12, 17, false},
        {"an mtu without end", 12, UINT32_MAX, false},
        {"no window", 16, 0, false},
        {"a window without end", 16, UINT32_MAX, false},
        {"no message", 20, 0, false},
        {"messages of one byte", 20, 1, false},
    };
    static struct rdma_sim rig;
    kvb_log_threshold = KVB_LOG_ERROR;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
        struct rwire_connect connect = {.version_min = KVT_RDMA_VERSION_MIN,
                                        .version = KVT_RDMA_VERSION,
                                        .mtu = 1024,
                                        .window = 16,
                                        .message_bytes = 4096,
                                        .rd_atomic = 1};
        uint8_t data[56] = {0};
        rwire_connect_pack(&connect, data);
        put_le(data + fields[i].at, 4, fields[i].value);
        (void)connects(&rig, data, sizeof data); /* a window's buffers are kept for the next */
        struct fake_counts before = rig.fake->open;
        cr_assert_eq(connects(&rig, data, sizeof data), fields[i].wanted, "%s", fields[i].what);
        const char *leak = fake_verbs_leak(&before);
        cr_assert_null(leak, "%s: %s", fields[i].what, leak);
        cr_assert(rdma_sim_works(&rig, i), "and others go on");
        rdma_sim_close(&rig);
    }
}

/* ---- peers that do not keep to what was agreed ---- */

/* The node says that it answers any number of questions. */
static int accept_any_number(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    uint8_t data[RWIRE_CONNECT_LEN];
    memcpy(data, param->private_data, sizeof data);
    put_le(data + 28, 4, 1u << 20);
    struct rdma_conn_param changed = *param;
    changed.private_data = data;
    return fake_verbs_table.rdma_accept(id, &changed);
}

/* Room for one packet to the asker for each 16 of its own. */
static void spare_room(void *ctx, enum fake_side from, uint8_t *bytes, uint32_t *len_p)
{
    uint32_t *packets = ctx;
    if (from == FAKE_ASKER && *len_p >= HEAD) {
        put_le(bytes + 4, 4, 64 + ++*packets / 16);
    }
}

Test(rdma_messages, answers_that_nobody_makes_room_for_are_not_kept_without_end)
{
    enum { MANY = 4096 };
    static struct rdma_sim rig;
    static struct rdma_job jobs[MANY];
    struct kvt_verbs verbs = fake_verbs_table;
    verbs.rdma_accept = accept_any_number;
    rdma_sim_init(&rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    rig.config[FAKE_NODE].verbs = &verbs;
    uint32_t packets = 0;
    fake_verbs_tap(spare_room, &packets);
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){.in_flight_max = MANY}), KVB_OK);
    cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
    for (int i = 0; i < MANY; i++) {
        rdma_job_init(&jobs[i], &rig, RIG_ECHO, 0, 0);
        cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
    }
    struct kvt_peer_stats stats;
    for (int i = 0; i < 100; i++) {
        rdma_advance(&rig, 10);
    }
    kvt_rdma_server_stats(rig.server, &stats);
    cr_assert_gt(stats.protocol_errors, 0);
    cr_assert_lt(stats.transfers, 600);
    for (int i = 0; i < MANY; i++) {
        (void)rdma_job_wait(&jobs[i]);
    }
    fake_verbs_tap(NULL, NULL);
    rdma_sim_close(&rig);
}

/* The node refuses with a status that only this side gives a lane. */
static void refuse_as_canceled(void *ctx, enum fake_side from, uint8_t *bytes, uint32_t *len_p)
{
    (void)ctx;
    if (from == FAKE_NODE && *len_p > PAYLOAD && get_le(bytes + HEAD + 4, 2) == RWIRE_REFUSED) {
        put_le(bytes + PAYLOAD, 4, (uint32_t)KVB_ERR_CANCELED);
    }
}

Test(rdma_messages, a_node_that_refuses_is_not_asked_at_once_again_whatever_it_says)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    rig.fake->delay_ns = KVB_NS_PER_MS;
    fake_verbs_tap(refuse_as_canceled, NULL);
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    struct kvt_rdma_peer_config config = {.common = {.secret = "another", .secret_len = 7}};
    cr_assert_eq(rdma_sim_peer(&rig, config), KVB_OK);
    rdma_advance(&rig, 20000);
    struct kvt_peer_stats stats = rdma_sim_stats(&rig);
    cr_assert_gt(stats.connect_failures, 2);
    cr_assert_lt(stats.connect_failures, 50);
    fake_verbs_tap(NULL, NULL);
    rdma_sim_close(&rig);
}
