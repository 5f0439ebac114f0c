/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_RANK_H
#define LINK_RANK_H

#include "counters.h"
#include "link.h"
#include "stream.h"

#include "store/client.h"
#include "transport/device.h"
#include "transport/transport.h"

/*
 * One rank of an engine as this side of the link holds it. session.c speaks with it, regions.c
 * holds its memory, tasks.c moves its blocks, rank.c is what the instance sees of all that.
 *
 * Its life: admitted with a hello; `gone` when its connection has ended and its instance was told;
 * freed when its last task and its last region are gone too, which may be later: until then it
 * belongs to nobody but its transfers.
 */
struct kvp_session;

enum kvp_task_kind {
#define X(name, text) KVP_TASK_##name = KVP_QUEUE_##name,
    KVP_QUEUES(X)
#undef X
        KVP_TASK_KINDS
};

struct kvp_task_queue {
    struct kvb_list queued;
    struct kvb_list running;
    uint32_t nqueued;
    uint32_t nrunning;
    size_t queued_bytes; /* of messages, not of blocks */
};

struct kvp_unregister {
    bool active;
    uint32_t left;       /* regions not answered yet */
    kvb_status_t status; /* of those that are */
    kvb_status_t undoes; /* not OK: undoes a registration that failed with this */
    uint32_t ntags;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    kvp_rank_done_fn done;
    void *arg;
    struct kvb_event event; /* when there was nothing to wait for */
};

struct kvp_link_rank {
    struct kvp_rank base; /* what the instance holds */
    struct kvp_link *owner;
    struct kvb_sched *sched;
    struct kvp_session *session; /* until released */
    bool connected;
    struct kvp_instance *instance;
    struct kvs_space space; /* a copy: tasks may outlive the instance */
    uint64_t hold_id;
    struct kvp_shape shape;
    char instance_name[KVB_NAME_MAX];
    char name[KVB_NAME_MAX + 16]; /* "instance/rank", for log lines */
    char label[16]; /* of its metrics: its number; a scheduler that is no worker has none of its own
                     */
    bool released;  /* nobody's but its transfers' */
    int socket;     /* of the ended connection, until the rank is freed; -1: none */

    /* tasks.c */
    struct kvp_task_queue queues[KVP_TASK_KINDS];
    struct kvb_event dispatch;
    struct kvb_list starved; /* in the link's list while the store has no room */
    struct {
        bool active;
        bool stopped; /* asked to end */
        kvp_rank_done_fn done;
        void *arg;
        struct kvb_timer bound;
        struct kvb_event event;
    } drain;

    /* regions.c */
    struct kvb_list slots;   /* struct kvp_slot: the engine's numbers */
    struct kvb_list regions; /* struct kvp_region: everything not yet destroyed */
    uint32_t nslots;
    uint32_t ntags;
    struct {
        char tag[KVB_NAME_MAX];
        bool admitted; /* a region handed over is registered at once */
    } tags[KVB_TAGS_MAX];
    struct kvp_unregister unregister;
    struct {
        bool active;
        uint32_t left; /* regions that a device has not got hold of yet */
        kvb_status_t status;
        uint32_t ntags;
        char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
        kvp_rank_done_fn done;
        void *arg;
        struct kvb_event event;
    } registering;

    /* device.c */
    struct kvt_device *device; /* opened with the first region of such memory; NULL: none is open */
    bool device_closing;
    bool device_ran; /* its process, when it was last looked at */
    uint32_t shown_starts, shown_kills, shown_failures; /* of it, in the metrics */
    uint32_t failures_before;                           /* the last unregister or register */
    char cause[KVT_DEVICE_CAUSE_MAX];                   /* of its failure; "": none is known */
};

extern const struct kvp_rank_ops kvp_link_rank_ops;

/* rank.c. hello gives the residency of its tags. */
KVB_MUST_USE kvb_status_t kvp_link_rank_create(struct kvp_link *owner, struct kvp_session *session,
                                               const struct kvb_link_hello *hello,
                                               struct kvp_link_rank **rank_p);
/* The fleet took it: what its instance fixes is copied. */
void kvp_link_rank_admitted(struct kvp_link_rank *rank, struct kvp_instance *instance);
/* The connection is gone: every open drain, unregister and register completes DISCONNECTED, every
 * task and region is stopped. */
void kvp_link_rank_disconnected(struct kvp_link_rank *rank);
/* Takes the socket of the connection that has ended and closes it when the rank's last task and
 * region are gone: the end of the stream tells the engine that its memory is its own again. */
void kvp_link_rank_keep_socket(struct kvp_link_rank *rank, int fd);
/* An operation of the instance has not been answered yet. */
bool kvp_link_rank_busy(const struct kvp_link_rank *rank);
/* The instance was told; frees itself, now or with the last task or region. */
void kvp_link_rank_release(struct kvp_link_rank *rank);
/* Something of it ended: frees it if that was the last. */
void kvp_link_rank_settle(struct kvp_link_rank *rank);

/* regions.c */
struct kvp_region;
void kvp_regions_init(struct kvp_link_rank *rank, const struct kvb_link_hello *hello);
/* Takes fd. Answers through kvp_session_reply_status(), now or later. */
void kvp_regions_hand_over(struct kvp_link_rank *rank, uint64_t seq,
                           const struct kvb_link_region *msg, int fd);
/* A use keeps the struct, not the registration: a transfer of a region that was unregistered
 * meanwhile is refused by the transport. GENERATION: not registered. INVALID: no such region, or
 * outside it. */
KVB_MUST_USE kvb_status_t kvp_regions_use(struct kvp_link_rank *rank, const struct kvb_slice *slice,
                                          struct kvp_region **region_p);
struct kvt_region *kvp_region_memory(struct kvp_region *region);
/* May free the rank, if it was released. */
void kvp_region_unuse(struct kvp_region *region);
void kvp_regions_unregister(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX],
                            uint32_t ntags, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg);
void kvp_regions_register(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX],
                          uint32_t ntags, kvp_rank_done_fn done, void *arg);
uint32_t kvp_regions_registered(const struct kvp_link_rank *rank, const char *tag,
                                uint64_t *bytes_p);
/* What the rank's op of that name promises. */
void kvp_regions_each(const struct kvp_link_rank *rank, kvp_region_fn each, void *arg);
/* The device's process is gone, and with it what it had: that is not registered any more, and the
 * instance hears of it. */
void kvp_regions_lost(struct kvp_link_rank *rank);
void kvp_regions_stop(struct kvp_link_rank *rank);
void kvp_regions_forget_shown(const struct kvp_link_rank *rank); /* its metrics */
void kvp_regions_cleanup(struct kvp_link_rank *rank); /* stopped, and every region gone */

/* device.c */
/* The device that reaches the rank's memory; NULL, if there are none here. */
KVB_MUST_USE kvb_status_t kvp_rank_device_open(struct kvp_link_rank *rank, uint64_t owner,
                                               struct kvt_device **device_p);
/* True: there is none. False: kvp_link_rank_settle() is called again when it is closed. */
bool kvp_rank_device_close(struct kvp_link_rank *rank);
bool kvp_rank_device_info(const struct kvp_link_rank *rank, struct kvt_device_info *info_p);
/* rank->cause: what the device said of the first failure noted since it was forgotten. */
void kvp_rank_device_forget_cause(struct kvp_link_rank *rank);
void kvp_rank_device_note_cause(struct kvp_link_rank *rank);

/* tasks.c */
void kvp_tasks_init(struct kvp_link_rank *rank);
/* Takes payload. OK: the task answers, exactly once. PROTOCOL (not what it says it is), NO_MEMORY:
 * the connection ends. */
KVB_MUST_USE kvb_status_t kvp_tasks_submit(struct kvp_link_rank *rank, enum kvp_task_kind kind,
                                           uint64_t seq, uint8_t *payload, size_t len);
void kvp_tasks_drain(struct kvp_link_rank *rank, bool abort, uint64_t deadline_ns,
                     kvp_rank_done_fn done, void *arg);
void kvp_tasks_drain_stop(struct kvp_link_rank *rank);
struct kvp_drain_progress kvp_tasks_progress(const struct kvp_link_rank *rank);
void kvp_tasks_queues(const struct kvp_link_rank *rank, struct kvp_queue_view *views);
void kvp_tasks_stay_changed(struct kvp_link_rank *rank);
void kvp_tasks_stop(struct kvp_link_rank *rank); /* all of them, with DISCONNECTED */
/* How old what is in its queues is, in the metrics; their depth is shown as it changes. */
void kvp_tasks_show(const struct kvp_link_rank *rank);
void kvp_tasks_forget_shown(const struct kvp_link_rank *rank); /* released: its metrics */
bool kvp_tasks_none(const struct kvp_link_rank *rank);
void kvp_tasks_cleanup(struct kvp_link_rank *rank);

#endif
