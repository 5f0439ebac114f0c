/* SPDX-License-Identifier: Apache-2.0 */
/* The fake models the danger: what it must do for the tests of the rdma transport to mean anything.
 */
#include "fake_verbs.h"
#include "test_memory.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>

#define V   fake_verbs_table
#define LEN 65536u

struct end {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *comp;
    struct ibv_qp *qp;
    struct ibv_srq *srq;
    struct test_memory memory;
    struct ibv_mr *mr;
};

struct two {
    struct sim_sched sim;
    struct fake_verbs *fake;
    struct rdma_cm_id *listener;
    struct end ends[FAKE_SIDES];
};

static struct rdma_cm_event *event_of(struct two *two, struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;
    sim_advance(&two->sim, 5);
    cr_assert_eq(V.rdma_get_cm_event(channel, &event), 0);
    return event;
}

static void expect(struct two *two, struct end *end, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event = event_of(two, end->channel);
    cr_assert_eq(event->event, type, "%d instead of %d", (int)event->event, (int)type);
    cr_assert_eq(V.rdma_ack_cm_event(event), 0);
}

static void end_make(struct end *end, uint32_t depth, int access)
{
    struct ibv_context *context = end->id->verbs;
    end->pd = V.ibv_alloc_pd(context);
    end->comp = V.ibv_create_comp_channel(context);
    end->cq = V.ibv_create_cq(context, 32, NULL, end->comp, 0);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = depth, .max_sge = 1}};
    end->srq = V.ibv_create_srq(end->pd, &srq);
    struct ibv_qp_init_attr attr = {
        .srq = end->srq,
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = depth, .max_send_sge = 2},
    };
    end->qp = V.ibv_create_qp(end->pd, &attr);
    cr_assert_not_null(end->qp);
    test_memory_init(&end->memory, "end", LEN);
    end->mr = V.ibv_reg_mr(end->pd, end->memory.base, LEN, access);
    cr_assert_not_null(end->mr);
}

static void move(struct end *end, enum ibv_qp_state state, unsigned access)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask;
    cr_assert_eq(V.rdma_init_qp_attr(end->id, &attr, &mask), 0);
    if (state == IBV_QPS_INIT) {
        attr.qp_access_flags = access;
    }
    cr_assert_eq(V.ibv_modify_qp(end->qp, &attr, mask), 0);
}

static void two_open(struct two *two, uint64_t seed)
{
    *two = (struct two){0};
    sim_init(&two->sim, sim_seed(seed));
    two->fake = fake_verbs_open(&two->sim);
    struct end *asker = &two->ends[FAKE_ASKER], *node = &two->ends[FAKE_NODE];
    node->channel = V.rdma_create_event_channel();
    asker->channel = V.rdma_create_event_channel();
    for (int side = 0; side < FAKE_SIDES; side++) {
        int fd = two->ends[side].channel->fd;
        cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    }
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_addr.s_addr = inet_addr(FAKE_NODE_ADDRESS);
    cr_assert_eq(V.rdma_create_id(node->channel, &two->listener, NULL, RDMA_PS_TCP), 0);
    cr_assert_eq(V.rdma_bind_addr(two->listener, (struct sockaddr *)&at), 0);
    cr_assert_eq(V.rdma_listen(two->listener, 4), 0);
    at.sin_port = V.rdma_get_src_port(two->listener);
    cr_assert_eq(V.rdma_create_id(asker->channel, &asker->id, NULL, RDMA_PS_TCP), 0);
    cr_assert_eq(V.rdma_resolve_addr(asker->id, NULL, (struct sockaddr *)&at, 1000), 0);
    expect(two, asker, RDMA_CM_EVENT_ADDR_RESOLVED);
    cr_assert_eq(V.rdma_resolve_route(asker->id, 1000), 0);
    expect(two, asker, RDMA_CM_EVENT_ROUTE_RESOLVED);
    end_make(asker, 16, IBV_ACCESS_LOCAL_WRITE);
    move(asker, IBV_QPS_INIT, 0);
    struct rdma_conn_param param = {.private_data = "hi",
                                    .private_data_len = 3,
                                    .initiator_depth = 4,
                                    .rnr_retry_count = 1,
                                    .qp_num = asker->qp->qp_num};
    cr_assert_eq(V.rdma_connect(asker->id, &param), 0);
    struct rdma_cm_event *event = event_of(two, node->channel);
    cr_assert_eq(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    cr_assert_str_eq(event->param.conn.private_data, "hi");
    cr_assert_eq(event->param.conn.private_data_len, 56, "padded");
    node->id = event->id;
    param.responder_resources = event->param.conn.responder_resources;
    param.initiator_depth = event->param.conn.initiator_depth;
    cr_assert_eq(V.rdma_ack_cm_event(event), 0);
    end_make(node, 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    move(node, IBV_QPS_INIT, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    move(node, IBV_QPS_RTR, 0);
    move(node, IBV_QPS_RTS, 0);
    param.qp_num = node->qp->qp_num;
    cr_assert_eq(V.rdma_accept(node->id, &param), 0);
    expect(two, asker, RDMA_CM_EVENT_CONNECT_RESPONSE);
    move(asker, IBV_QPS_RTR, 0);
    move(asker, IBV_QPS_RTS, 0);
    cr_assert_eq(V.rdma_establish(asker->id), 0);
    expect(two, node, RDMA_CM_EVENT_ESTABLISHED);
}

static void end_close(struct end *end)
{
    if (end->qp != NULL) {
        cr_assert_eq(V.ibv_destroy_qp(end->qp), 0);
    }
    cr_assert_eq(V.ibv_destroy_srq(end->srq), 0);
    if (end->mr != NULL) {
        cr_assert_eq(V.ibv_dereg_mr(end->mr), 0);
    }
    cr_assert_eq(V.rdma_destroy_id(end->id), 0);
    cr_assert_eq(V.ibv_destroy_cq(end->cq), 0);
    cr_assert_eq(V.ibv_destroy_comp_channel(end->comp), 0);
    cr_assert_eq(V.ibv_dealloc_pd(end->pd), 0);
    test_memory_cleanup(&end->memory);
}

static void two_close(struct two *two)
{
    end_close(&two->ends[FAKE_ASKER]);
    cr_assert_eq(V.rdma_destroy_id(two->listener), 0);
    end_close(&two->ends[FAKE_NODE]);
    V.rdma_destroy_event_channel(two->ends[FAKE_ASKER].channel);
    V.rdma_destroy_event_channel(two->ends[FAKE_NODE].channel);
    fake_verbs_close();
    sim_cleanup(&two->sim);
}

static int post(struct two *two, enum ibv_wr_opcode opcode, uint32_t at, uint32_t len, uint64_t id)
{
    const struct end *asker = &two->ends[FAKE_ASKER], *node = &two->ends[FAKE_NODE];
    struct ibv_sge sge = {(uintptr_t)asker->memory.base + at, len, asker->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)node->memory.base + at;
    wr.wr.rdma.rkey = node->mr != NULL ? node->mr->rkey : 0;
    return V.ibv_post_send(asker->qp, &wr, &bad);
}

/* The next completion of a side. */
static struct ibv_wc wait_for(struct two *two, enum fake_side side)
{
    struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
    for (int i = 0; i < 2000; i++) {
        int n = V.ibv_poll_cq(two->ends[side].cq, 1, &wc);
        cr_assert_geq(n, 0);
        if (n == 1) {
            return wc;
        }
        sim_advance(&two->sim, 1);
    }
    cr_assert_fail("no completion");
    return wc;
}

static void remap(struct test_memory *memory, int value)
{
    (void)close(memory->fd);
    memory->fd = memfd_create("new", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(memory->fd, LEN), 0);
    cr_assert_eq(munmap(memory->base, LEN), 0);
    cr_assert_eq(mmap(memory->base, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
                      memory->fd, 0),
                 memory->base);
    memset(memory->base, value, LEN);
}

Test(fake_verbs, stale_registrations_move_old_pages_and_say_success)
{
    struct two two;
    two_open(&two, 1);
    struct end *asker = &two.ends[FAKE_ASKER], *node = &two.ends[FAKE_NODE];
    memset(asker->memory.base, 'a', LEN);
    memset(node->memory.base, 'n', LEN);
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 4096, 1), 0);
    cr_assert_eq(wait_for(&two, FAKE_ASKER).status, IBV_WC_SUCCESS);
    cr_assert_eq(node->memory.base[4095], 'a');
    two.fake->stale_allowed = true;
    remap(&asker->memory, 'A');
    remap(&node->memory, 'N');
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 8192, 4096, 2), 0);
    cr_assert_eq(wait_for(&two, FAKE_ASKER).status, IBV_WC_SUCCESS);
    cr_assert_eq(node->memory.base[8192], 'N', "the new pages of the node are untouched");
    cr_assert_eq(post(&two, IBV_WR_RDMA_READ, 0, LEN, 3), 0);
    cr_assert_eq(wait_for(&two, FAKE_ASKER).status, IBV_WC_SUCCESS);
    cr_assert_eq(asker->memory.base[0], 'A', "and ours");
    two_close(&two);
}

Test(fake_verbs, what_was_unmapped_first_is_misuse)
{
    struct two two;
    two_open(&two, 1);
    two.fake->tolerant = true;
    remap(&two.ends[FAKE_ASKER].memory, 'A');
    cr_assert_eq(V.ibv_dereg_mr(two.ends[FAKE_ASKER].mr), 0);
    two.ends[FAKE_ASKER].mr = NULL;
    cr_assert_eq(two.fake->misuses, 1);
    two_close(&two);
}

static void receive(struct two *two, uint32_t at, uint32_t len)
{
    const struct end *node = &two->ends[FAKE_NODE];
    struct ibv_sge sge = {(uintptr_t)node->memory.base + at, len, node->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1}, *bad;
    cr_assert_eq(V.ibv_post_srq_recv(node->srq, &wr, &bad), 0);
}

Test(fake_verbs, data_comes_in_pieces_from_either_end_and_before_the_message_behind_it)
{
    uint32_t front = 0, back = 0;
    for (uint64_t seed = 1; seed < 20; seed++) {
        struct two two;
        two_open(&two, seed);
        two.fake->delay_ns = 3 * KVB_NS_PER_MS;
        struct end *asker = &two.ends[FAKE_ASKER], *node = &two.ends[FAKE_NODE];
        receive(&two, 0, 16);
        memset(asker->memory.base, 'a', LEN);
        cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 16, LEN - 16, 1), 0);
        cr_assert_eq(post(&two, IBV_WR_SEND, 32, 16, 2), 0);
        struct ibv_wc wc = {0};
        while (V.ibv_poll_cq(node->cq, 1, &wc) == 0) {
            bool first = node->memory.base[16] == 'a', last = node->memory.base[LEN - 1] == 'a';
            front += first && !last;
            back += last && !first;
            if (sim_turn(&two.sim) > two.sim.now_ns) {
                sim_advance(&two.sim, 1);
            }
        }
        cr_assert_eq(wc.status, IBV_WC_SUCCESS);
        cr_assert_eq(wc.byte_len, 16);
        for (uint32_t i = 0; i < LEN; i++) {
            cr_assert_eq(node->memory.base[i], 'a');
        }
        cr_assert_eq(wait_for(&two, FAKE_ASKER).wr_id, 1);
        cr_assert_eq(wait_for(&two, FAKE_ASKER).wr_id, 2);
        two_close(&two);
    }
    cr_assert(front > 0 && back > 0, "%u %u", front, back);
}

Test(fake_verbs, an_error_flushes_everything_and_a_reset_nothing)
{
    struct two two;
    two_open(&two, 1);
    struct end *asker = &two.ends[FAKE_ASKER];
    fake_verbs_silence(FAKE_NODE, true);
    for (uint64_t i = 0; i < 8; i++) {
        cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, i), 0);
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    cr_assert_eq(V.ibv_modify_qp(asker->qp, &attr, IBV_QP_STATE), 0);
    for (uint64_t i = 0; i < 8; i++) {
        struct ibv_wc wc = wait_for(&two, FAKE_ASKER);
        cr_assert_eq(wc.status, IBV_WC_WR_FLUSH_ERR);
        cr_assert_eq(wc.wr_id, i);
        cr_assert_neq(wc.opcode, IBV_WC_RDMA_WRITE, "garbage");
    }
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 8), 0);
    attr.qp_state = IBV_QPS_RESET;
    cr_assert_eq(V.ibv_modify_qp(asker->qp, &attr, IBV_QP_STATE), 0);
    sim_advance(&two.sim, 10000);
    struct ibv_wc wc;
    cr_assert_eq(V.ibv_poll_cq(asker->cq, 1, &wc), 0);
    two_close(&two);
}

Test(fake_verbs, nobody_there_ends_a_request_after_its_retries)
{
    struct two two;
    two_open(&two, 1);
    fake_verbs_silence(FAKE_NODE, true);
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 1), 0);
    uint64_t from = two.sim.now_ns;
    cr_assert_eq(wait_for(&two, FAKE_ASKER).status, IBV_WC_RETRY_EXC_ERR);
    cr_assert_geq(two.sim.now_ns - from, FAKE_ACK_MS * KVB_NS_PER_MS);
    two_close(&two);
}

Test(fake_verbs, a_message_without_a_receive_ends_after_its_retries)
{
    struct two two;
    two_open(&two, 1);
    cr_assert_eq(post(&two, IBV_WR_SEND, 0, 16, 1), 0);
    cr_assert_eq(wait_for(&two, FAKE_ASKER).status, IBV_WC_RNR_RETRY_EXC_ERR);
    cr_assert_eq(two.fake->rnrs, 1);
    two_close(&two);
}

Test(fake_verbs, keys_bounds_and_access_are_checked)
{
    static const struct {
        uint32_t at, len;
        int32_t key;
        enum ibv_wr_opcode opcode;
        enum ibv_wc_status status;
    } rows[] = {
        {0, 16, 0, IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS},
        {0, 16, 1, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR},
        {LEN - 8, 16, 0, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct two two;
        two_open(&two, i);
        two.ends[FAKE_NODE].mr->rkey += (uint32_t)rows[i].key * 1000;
        cr_assert_eq(post(&two, rows[i].opcode, rows[i].at, rows[i].len, 1), 0);
        cr_assert_eq(wait_for(&two, FAKE_ASKER).status, rows[i].status, "row %zu", i);
        cr_assert_eq(two.fake->misuses, 0);
        two_close(&two);
    }
    struct two two;
    two_open(&two, 1);
    struct end *asker = &two.ends[FAKE_ASKER];
    cr_assert_eq(V.ibv_dereg_mr(asker->mr), 0);
    asker->mr = V.ibv_reg_mr(asker->pd, asker->memory.base, LEN, 0);
    cr_assert_eq(post(&two, IBV_WR_RDMA_READ, 0, 16, 1), 0);
    cr_assert_eq(wait_for(&two, FAKE_ASKER).status, IBV_WC_LOC_PROT_ERR, "no LOCAL_WRITE");
    two_close(&two);
}

Test(fake_verbs, what_is_done_wrong_is_told)
{
    struct two two;
    two_open(&two, 1);
    two.fake->tolerant = true;
    struct end *asker = &two.ends[FAKE_ASKER];
    struct ibv_cq *cq;
    struct rdma_cm_event *event;
    void *context;
    uint64_t wrong = 0;
#define TOLD(what)                                                                                 \
    do {                                                                                           \
        what;                                                                                      \
        cr_assert_eq(two.fake->misuses, ++wrong, #what ": %s", two.fake->misuse);                  \
    } while (0)
    fake_verbs_silence(FAKE_NODE, true);
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 0), 0);
    TOLD(cr_assert_eq(V.ibv_dereg_mr(asker->mr), 0));
    TOLD(cr_assert_neq(V.ibv_dereg_mr(asker->mr), 0));
    asker->mr = V.ibv_reg_mr(asker->pd, asker->memory.base, LEN, IBV_ACCESS_LOCAL_WRITE);
    for (int i = 1; i < 16; i++) {
        cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 0), 0);
    }
    TOLD(cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 0), ENOMEM));
    TOLD(cr_assert_eq(V.ibv_get_cq_event(asker->comp, &cq, &context), -1));
    TOLD(cr_assert_eq(V.ibv_destroy_cq(asker->cq), EBUSY));
    TOLD(cr_assert_eq(V.ibv_dealloc_pd(asker->pd), EBUSY));
    sim_advance(&two.sim, 100);
    cr_assert_eq(V.rdma_disconnect(asker->id), 0);
    sim_advance(&two.sim, 100);
    cr_assert_eq(V.rdma_get_cm_event(asker->channel, &event), 0);
    TOLD(cr_assert_eq(V.rdma_destroy_id(asker->id), -1));
    cr_assert_eq(V.rdma_ack_cm_event(event), 0);
    cr_assert_eq(V.ibv_destroy_qp(asker->qp), 0);
    TOLD(cr_assert_neq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 0), 0));
    asker->qp = NULL;
    two_close(&two);
}

Test(fake_verbs, any_call_fails_when_told_to)
{
    struct two two;
    two_open(&two, 1);
    const char *what;
    fake_verbs_fail(NULL, 0, ENOSPC);
    cr_assert_null(V.ibv_alloc_pd(two.ends[0].id->verbs));
    cr_assert_eq(errno, ENOSPC);
    cr_assert(fake_verbs_failed(&what));
    cr_assert_str_eq(what, "ibv_alloc_pd");
    fake_verbs_fail("ibv_post_send", 1, EAGAIN);
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 0), 0);
    cr_assert_eq(post(&two, IBV_WR_RDMA_WRITE, 0, 16, 0), EAGAIN);
    cr_assert(fake_verbs_failed(NULL));
    two_close(&two);
}
