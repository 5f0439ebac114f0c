/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs_rig.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PORT 1

_Noreturn void rig_failed(const char *file, int line, const char *function, const char *what)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s:%d: %s: not so: %s\n", file, line, function, what);
    exit(1);
}

/* The index of the address in the port's table: RoCE v2 (an IPv4 address has no other here). */
static int own_gid(struct ibv_context *context, union ibv_gid *gid_p)
{
    const char *address = getenv("KVPLANE_RDMA_ADDRESS");
    uint8_t want[16] = {[10] = 0xff, [11] = 0xff};
    check(address != NULL && inet_pton(AF_INET, address, want + 12) == 1);
    for (int i = 0; ibv_query_gid(context, PORT, i, gid_p) == 0; i++) {
        if (memcmp(gid_p->raw, want, sizeof want) == 0) {
            return i;
        }
    }
    rig_failed(__FILE__, __LINE__, __func__, "a GID of KVPLANE_RDMA_ADDRESS");
}

static struct ibv_qp *create_qp(struct rig_link *link)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = link->cq,
        .recv_cq = link->cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(link->pd, &attr);
    check(qp != NULL);
    return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t to, const union ibv_gid *gid, int index)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = PORT,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
    };
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = PORT,
                    .grh = {.dgid = *gid, .sgid_index = (uint8_t)index, .hop_limit = 1}},
    };
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    check(ibv_modify_qp(qp, &init,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    check(ibv_modify_qp(qp, &rtr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    check(ibv_modify_qp(qp, &rts,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void rig_link_open(struct rig_link *link)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    check(devices != NULL && devices[0] != NULL);
    link->context = ibv_open_device(devices[0]);
    check(link->context != NULL);
    ibv_free_device_list(devices);
    check((link->pd = ibv_alloc_pd(link->context)) != NULL);
    check((link->channel = ibv_create_comp_channel(link->context)) != NULL);
    check((link->cq = ibv_create_cq(link->context, 64, NULL, link->channel, 0)) != NULL);
    link->qp = create_qp(link);
    link->peer = create_qp(link);
    union ibv_gid gid;
    int index = own_gid(link->context, &gid);
    connect_qp(link->qp, link->peer->qp_num, &gid, index);
    connect_qp(link->peer, link->qp->qp_num, &gid, index);
}

void rig_link_close(struct rig_link *link)
{
    check(ibv_destroy_qp(link->qp) == 0);
    check(ibv_destroy_qp(link->peer) == 0);
    check(ibv_destroy_cq(link->cq) == 0);
    check(ibv_destroy_comp_channel(link->channel) == 0);
    check(ibv_dealloc_pd(link->pd) == 0);
    check(ibv_close_device(link->context) == 0);
}

void rig_register(struct rig_link *link, void *at, size_t len, struct ibv_mr **mr_p)
{
    *mr_p = ibv_reg_mr(link->pd, at, len, IBV_ACCESS_LOCAL_WRITE);
    check(*mr_p != NULL);
}

void rig_register_remote(struct rig_link *link, void *at, size_t len, struct ibv_mr **mr_p)
{
    *mr_p = ibv_reg_mr(link->pd, at, len,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    check(*mr_p != NULL);
}

void rig_unregister(struct ibv_mr *mr)
{
    check(ibv_dereg_mr(mr) == 0);
}

void rig_move(struct rig_link *link, enum ibv_wr_opcode opcode, const struct ibv_mr *local,
              void *at, const struct ibv_mr *remote, void *remote_at, size_t len)
{
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = (uint32_t)len, .lkey = local->lkey};
    struct ibv_send_wr wr = {
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
        .sg_list = &sge,
        .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)remote_at, .rkey = remote->rkey},
    };
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    int n;
    check(ibv_req_notify_cq(link->cq, 0) == 0);
    check(ibv_post_send(link->qp, &wr, &bad) == 0);
    while ((n = ibv_poll_cq(link->cq, 1, &wc)) == 0) {
        struct ibv_cq *cq;
        void *context;
        check(ibv_get_cq_event(link->channel, &cq, &context) == 0);
        ibv_ack_cq_events(cq, 1);
        check(ibv_req_notify_cq(link->cq, 0) == 0);
    }
    check(n == 1 && wc.status == IBV_WC_SUCCESS);
}

uint8_t *rig_node_memory(size_t len)
{
    uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED);
    memset(at, 0xee, len);
    return at;
}

/* The number behind `name` (in kB) in a file of /proc. */
static size_t number_of(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    check(file != NULL);
    char line[256];
    size_t kib = SIZE_MAX;
    while (kib == SIZE_MAX && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            kib = strtoull(line + strlen(name), NULL, 10);
        }
    }
    (void)fclose(file);
    check(kib != SIZE_MAX);
    return kib << 10;
}

size_t rig_pinned(void)
{
    return number_of("/proc/self/status", "VmPin:");
}
size_t rig_memory_free(void)
{
    return number_of("/proc/meminfo", "MemFree:");
}
