/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs.h"

/* What the macro of that name calls: a port's attributes also of providers that know fewer. */
static int query_port(struct ibv_context *context, uint8_t port_num,
                      struct ibv_port_attr *port_attr)
{
    return ___ibv_query_port(context, port_num, port_attr);
}

const struct kvt_verbs kvt_verbs_real = {
    .rdma_get_devices = rdma_get_devices,
    .rdma_free_devices = rdma_free_devices,
    .ibv_query_device = ibv_query_device,
    .ibv_query_port = query_port,
    .ibv_query_gid_ex = ibv_query_gid_ex,
    .ibv_get_async_event = ibv_get_async_event,
    .ibv_ack_async_event = ibv_ack_async_event,
    .ibv_fork_init = ibv_fork_init,
    .ibv_is_fork_initialized = ibv_is_fork_initialized,
    .ibv_alloc_pd = ibv_alloc_pd,
    .ibv_dealloc_pd = ibv_dealloc_pd,
    .ibv_reg_mr = ibv_reg_mr,
    .ibv_reg_dmabuf_mr = ibv_reg_dmabuf_mr,
    .ibv_dereg_mr = ibv_dereg_mr,
    .ibv_create_comp_channel = ibv_create_comp_channel,
    .ibv_destroy_comp_channel = ibv_destroy_comp_channel,
    .ibv_create_cq = ibv_create_cq,
    .ibv_destroy_cq = ibv_destroy_cq,
    .ibv_req_notify_cq = ibv_req_notify_cq,
    .ibv_get_cq_event = ibv_get_cq_event,
    .ibv_ack_cq_events = ibv_ack_cq_events,
    .ibv_poll_cq = ibv_poll_cq,
    .ibv_create_srq = ibv_create_srq,
    .ibv_destroy_srq = ibv_destroy_srq,
    .ibv_post_srq_recv = ibv_post_srq_recv,
    .ibv_create_qp = ibv_create_qp,
    .ibv_modify_qp = ibv_modify_qp,
    .ibv_destroy_qp = ibv_destroy_qp,
    .ibv_post_send = ibv_post_send,
    .rdma_create_event_channel = rdma_create_event_channel,
    .rdma_destroy_event_channel = rdma_destroy_event_channel,
    .rdma_get_cm_event = rdma_get_cm_event,
    .rdma_ack_cm_event = rdma_ack_cm_event,
    .rdma_create_id = rdma_create_id,
    .rdma_destroy_id = rdma_destroy_id,
    .rdma_migrate_id = rdma_migrate_id,
    .rdma_bind_addr = rdma_bind_addr,
    .rdma_listen = rdma_listen,
    .rdma_get_src_port = rdma_get_src_port,
    .rdma_resolve_addr = rdma_resolve_addr,
    .rdma_resolve_route = rdma_resolve_route,
    .rdma_init_qp_attr = rdma_init_qp_attr,
    .rdma_connect = rdma_connect,
    .rdma_establish = rdma_establish,
    .rdma_accept = rdma_accept,
    .rdma_reject = rdma_reject,
    .rdma_disconnect = rdma_disconnect,
};
