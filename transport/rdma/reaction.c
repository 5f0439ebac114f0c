/* SPDX-License-Identifier: Apache-2.0 */
#include "cause.h"

#define ROW(is, transfer_ends, lane_ends, what)                                                    \
    {                                                                                              \
        .cause = KVT_RDMA_##is, .transfer = KVB_ERR_##transfer_ends, .lane = KVB_ERR_##lane_ends,  \
        .reaction = RCAUSE_##what                                                                  \
    }

/* WC_OTHER: of kinds of queue pairs that are not used here. */
static const struct rcause of_wc[] = {
    [IBV_WC_LOC_LEN_ERR] = ROW(WC_LOC_LEN, PROTOCOL, PROTOCOL, DROP),
    [IBV_WC_LOC_QP_OP_ERR] = ROW(WC_LOC_QP_OP, IO, IO, REBUILD),
    [IBV_WC_LOC_EEC_OP_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_LOC_PROT_ERR] = ROW(WC_LOC_PROT, IO, DISCONNECTED, REBUILD),
    [IBV_WC_WR_FLUSH_ERR] = ROW(WC_FLUSH, DISCONNECTED, DISCONNECTED, REBUILD),
    [IBV_WC_MW_BIND_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_BAD_RESP_ERR] = ROW(WC_BAD_RESP, PROTOCOL, PROTOCOL, DROP),
    [IBV_WC_LOC_ACCESS_ERR] = ROW(WC_LOC_ACCESS, IO, DISCONNECTED, REBUILD),
    [IBV_WC_REM_INV_REQ_ERR] = ROW(WC_REM_INV_REQ, PROTOCOL, DISCONNECTED, REBUILD),
    [IBV_WC_REM_ACCESS_ERR] = ROW(WC_REM_ACCESS, PROTOCOL, DISCONNECTED, REBUILD),
    [IBV_WC_REM_OP_ERR] = ROW(WC_REM_OP, DISCONNECTED, DISCONNECTED, REBUILD),
    [IBV_WC_RETRY_EXC_ERR] = ROW(WC_RETRY_EXC, DISCONNECTED, TIMEOUT, REBUILD),
    [IBV_WC_RNR_RETRY_EXC_ERR] = ROW(WC_RNR_RETRY_EXC, DISCONNECTED, TIMEOUT, REBUILD),
    [IBV_WC_LOC_RDD_VIOL_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_REM_INV_RD_REQ_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_REM_ABORT_ERR] = ROW(WC_REM_ABORT, DISCONNECTED, DISCONNECTED, REBUILD),
    [IBV_WC_INV_EECN_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_INV_EEC_STATE_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_FATAL_ERR] = ROW(WC_FATAL, IO, IO, DROP),
    [IBV_WC_RESP_TIMEOUT_ERR] = ROW(WC_RESP_TIMEOUT, DISCONNECTED, TIMEOUT, REBUILD),
    [IBV_WC_GENERAL_ERR] = ROW(WC_GENERAL, IO, IO, REBUILD),
    [IBV_WC_TM_ERR] = ROW(WC_OTHER, IO, IO, REBUILD),
    [IBV_WC_TM_RNDV_INCOMPLETE] = ROW(WC_OTHER, IO, IO, REBUILD),
};

static const struct rcause unknown_wc = ROW(WC_OTHER, IO, IO, REBUILD);

const struct rcause *rcause_of_wc(enum ibv_wc_status status)
{
    size_t i = (size_t)status;
    return i > 0 && i < sizeof of_wc / sizeof of_wc[0] ? &of_wc[i] : &unknown_wc;
}

/* transfer: as lane; connections have no work of their own. */
static const struct {
    enum rdma_cm_event_type event;
    struct rcause is;
} of_cm[] = {
    {RDMA_CM_EVENT_ADDR_ERROR, ROW(CM_ADDR_ERROR, DISCONNECTED, UNAVAILABLE, REBUILD)},
    {RDMA_CM_EVENT_ROUTE_ERROR, ROW(CM_ROUTE_ERROR, DISCONNECTED, UNAVAILABLE, REBUILD)},
    {RDMA_CM_EVENT_CONNECT_ERROR, ROW(CM_CONNECT_ERROR, DISCONNECTED, UNAVAILABLE, REBUILD)},
    {RDMA_CM_EVENT_UNREACHABLE, ROW(CM_UNREACHABLE, DISCONNECTED, UNAVAILABLE, REBUILD)},
    {RDMA_CM_EVENT_REJECTED, ROW(CM_REJECTED, DISCONNECTED, UNAVAILABLE, REBUILD)},
    {RDMA_CM_EVENT_DISCONNECTED, ROW(CM_DISCONNECTED, DISCONNECTED, DISCONNECTED, REBUILD)},
    {RDMA_CM_EVENT_DEVICE_REMOVAL, ROW(CM_DEVICE_REMOVAL, IO, IO, DEAD)},
    {RDMA_CM_EVENT_ADDR_CHANGE, ROW(CM_ADDR_CHANGE, DISCONNECTED, DISCONNECTED, REBUILD)},
    {RDMA_CM_EVENT_MULTICAST_JOIN, ROW(CM_OTHER, DISCONNECTED, DISCONNECTED, NOTHING)},
    {RDMA_CM_EVENT_MULTICAST_ERROR, ROW(CM_OTHER, DISCONNECTED, DISCONNECTED, NOTHING)},
};

const struct rcause *rcause_of_cm(enum rdma_cm_event_type event)
{
    for (size_t i = 0; i < sizeof of_cm / sizeof of_cm[0]; i++) {
        if (of_cm[i].event == event) {
            return &of_cm[i].is;
        }
    }
    return NULL;
}

/* A queue pair's own lane hears of it by its completions, or by silence, a moment later. */
static const struct {
    enum ibv_event_type event;
    struct rcause is;
} of_device[] = {
    {IBV_EVENT_CQ_ERR, ROW(DEV_CQ_ERROR, IO, IO, DEAD)},
    {IBV_EVENT_QP_FATAL, ROW(DEV_QP_FATAL, DISCONNECTED, DISCONNECTED, REBUILD)},
    {IBV_EVENT_QP_REQ_ERR, ROW(DEV_QP_FATAL, DISCONNECTED, DISCONNECTED, REBUILD)},
    {IBV_EVENT_QP_ACCESS_ERR, ROW(DEV_QP_FATAL, DISCONNECTED, DISCONNECTED, REBUILD)},
    {IBV_EVENT_DEVICE_FATAL, ROW(DEV_FATAL, IO, IO, DEAD)},
    {IBV_EVENT_PORT_ERR, ROW(DEV_PORT_DOWN, DISCONNECTED, DISCONNECTED, NOTHING)},
    {IBV_EVENT_SRQ_ERR, ROW(DEV_SRQ_ERROR, IO, IO, DEAD)},
};

const struct rcause *rcause_of_device(enum ibv_event_type event)
{
    for (size_t i = 0; i < sizeof of_device / sizeof of_device[0]; i++) {
        if (of_device[i].event == event) {
            return &of_device[i].is;
        }
    }
    return NULL;
}
