/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_VERBS_H
#define RDMA_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* Two of them are also macros, which would be expanded where a member of that name is called. What
 * they add (optional access flags, a port's attributes of older providers) verbs_real.c does. */
#undef ibv_query_port
#undef ibv_reg_mr

/*
 * All of libibverbs and librdmacm that this transport calls, with their names and signatures, so
 * that a test may put others in their place. The conventions of failure differ and stay theirs:
 *
 *   pointers                     NULL, errno set
 *   ibv_post_*, ibv_modify_qp, ibv_destroy_*, ibv_dealloc_pd, ibv_dereg_mr, ibv_req_notify_cq,
 *   ibv_query_*, ibv_fork_init   an errno, returned
 *   ibv_get_*_event, rdma_*      -1, errno set
 *   ibv_poll_cq                  negative
 *
 * Structs are the libraries' own. Queue pairs are made and moved here, not by librdmacm
 * (rdma_create_qp), since the path MTU is agreed between both ends: INIT, RTR and RTS with what
 * rdma_init_qp_attr gives, and a connection's answer comes as CONNECT_RESPONSE, followed by
 * rdma_establish. Descriptors (event channel, completion channel, async_fd of a context) are set
 * to O_NONBLOCK here and watched; each event is acknowledged as soon as it was taken.
 *
 * Any thread, as the libraries: an event channel, a completion channel, a queue pair, a completion
 * queue and a shared receive queue are each used by one thread; a protection domain and its memory
 * regions by several.
 */
struct kvt_verbs {
    /* devices: librdmacm's contexts, one a device of the process */
    struct ibv_context **(*rdma_get_devices)(int *num_devices);
    void (*rdma_free_devices)(struct ibv_context **list);
    int (*ibv_query_device)(struct ibv_context *context, struct ibv_device_attr *device_attr);
    int (*ibv_query_port)(struct ibv_context *context, uint8_t port_num,
                          struct ibv_port_attr *port_attr);
    int (*ibv_query_gid_ex)(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
                            struct ibv_gid_entry *entry, uint32_t flags);
    int (*ibv_get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ibv_ack_async_event)(struct ibv_async_event *event);
    int (*ibv_fork_init)(void);
    enum ibv_fork_status (*ibv_is_fork_initialized)(void);

    /* memory */
    struct ibv_pd *(*ibv_alloc_pd)(struct ibv_context *context);
    int (*ibv_dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*ibv_reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
    struct ibv_mr *(*ibv_reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access);
    int (*ibv_dereg_mr)(struct ibv_mr *mr);

    /* completions */
    struct ibv_comp_channel *(*ibv_create_comp_channel)(struct ibv_context *context);
    int (*ibv_destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*ibv_create_cq)(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector);
    int (*ibv_destroy_cq)(struct ibv_cq *cq);
    int (*ibv_req_notify_cq)(struct ibv_cq *cq, int solicited_only);
    int (*ibv_get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                            void **cq_context);
    void (*ibv_ack_cq_events)(struct ibv_cq *cq, unsigned int nevents);
    int (*ibv_poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);

    /* queues */
    struct ibv_srq *(*ibv_create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *srq_init_attr);
    int (*ibv_destroy_srq)(struct ibv_srq *srq);
    int (*ibv_post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *recv_wr,
                             struct ibv_recv_wr **bad_recv_wr);
    struct ibv_qp *(*ibv_create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr);
    int (*ibv_modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
    int (*ibv_destroy_qp)(struct ibv_qp *qp);
    int (*ibv_post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);

    /* connections */
    struct rdma_event_channel *(*rdma_create_event_channel)(void);
    void (*rdma_destroy_event_channel)(struct rdma_event_channel *channel);
    int (*rdma_get_cm_event)(struct rdma_event_channel *channel, struct rdma_cm_event **event);
    int (*rdma_ack_cm_event)(struct rdma_cm_event *event);
    int (*rdma_create_id)(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                          enum rdma_port_space ps);
    int (*rdma_destroy_id)(struct rdma_cm_id *id);
    int (*rdma_migrate_id)(struct rdma_cm_id *id, struct rdma_event_channel *channel);
    int (*rdma_bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr);
    int (*rdma_listen)(struct rdma_cm_id *id, int backlog);
    __be16 (*rdma_get_src_port)(struct rdma_cm_id *id);
    int (*rdma_resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src_addr,
                             struct sockaddr *dst_addr, int timeout_ms);
    int (*rdma_resolve_route)(struct rdma_cm_id *id, int timeout_ms);
    int (*rdma_init_qp_attr)(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask);
    int (*rdma_connect)(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
    int (*rdma_establish)(struct rdma_cm_id *id);
    int (*rdma_accept)(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
    int (*rdma_reject)(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
    int (*rdma_disconnect)(struct rdma_cm_id *id);
};

/* The libraries'. */
extern const struct kvt_verbs kvt_verbs_real;

#endif
