/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_INSTANCE_H
#define SERVER_CONNECTOR_INSTANCE_H

#include "connector/rank.h"
#include "connector/shape.h"

#include "store/coordinator.h"

/*
 * An instance: one engine, all its ranks, its lifecycle (DESIGN.md section 8) and its lineage
 * (section 4). The way of a request is straight: http route -> control -> kvp_fleet_request() ->
 * the pure state machine (fsm.h, lineage.h) -> plan steps -> ranks and coordinator -> the same way
 * back. Knows no HTTP and no JSON. Loop thread only.
 */
struct kvp_fleet;
struct kvp_instance;

/* name, label, takes the operation slot (one at a time; identical ones join, others wait, then
 * BUSY) */
#define KVP_OPERATIONS(X)                                                                          \
    X(PAUSE, "pause", true)                                                                        \
    X(RESUME, "resume", false) /* cancels a drain; else runs when the slot is free */              \
    X(SLEEP, "sleep", true)                                                                        \
    X(WAKE, "wake", true)                                                                          \
    X(RELEASE_KV, "release_kv_cache_memory", true)                                                 \
    X(RELEASE, "release_memory_occupation", true) /* of the tags named; SGLang's */                \
    X(RESET, "reset_prefix_cache", true)                                                           \
    X(START_UPDATE, "start_weight_update", true)                                                   \
    X(UPDATE, "update_weights", true) /* any relayed call that changes weights */                  \
    X(FINISH_UPDATE, "finish_weight_update", true)                                                 \
    X(SET_VERSION, "update_weight_version", true)                                                  \
    X(RELAY, "relay", false) /* info, init_weight_transfer_engine, calls that change no weights */ \
    X(TENANT_RESET, "tenant_reset", true)                                                          \
    X(TAKE_BACK, "take_back", true) /* of what another operation did, by nobody else touched */
enum kvp_operation {
#define X(name, label, slot) KVP_OP_##name,
    KVP_OPERATIONS(X)
#undef X
        KVP_OP_COUNT
};
const char *kvp_operation_label(enum kvp_operation operation);

enum kvp_tristate { KVP_UNSET, KVP_NO, KVP_YES };
enum kvp_pause_kind {
    KVP_MODE_ABORT,
    KVP_MODE_WAIT,
    KVP_MODE_KEEP,
    KVP_MODE_RETRACT /* keep, with preemption */
};

/* What is asked. Compared field by field to tell whether two requests are identical. */
struct kvp_ask {
    enum kvp_operation operation;
    uint32_t level;                   /* SLEEP: 0, 1, 2 */
    enum kvp_pause_kind mode;         /* PAUSE, SLEEP */
    bool clear_cache;                 /* PAUSE */
    enum kvp_tristate reset_external; /* PAUSE, SLEEP 1, RELEASE…: NO opts out of leaving; RESET:
                                         YES asks for it */
    bool reset_running_requests;      /* RESET */
    bool keep_pause; /* WAKE: a pause is not lifted (SGLang's resume_memory_occupation) */
    bool wakes;      /* RESUME: what is not resident is woken first (Dynamo's) */
    bool at_once;    /* RESET: BUSY rather than wait for its turn (SGLang's flush_cache) */
    bool tags_given; /* WAKE, RELEASE: false = all. given but empty or unknown only: none */
    uint32_t ntags;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];     /* "scheduling" included */
    char weight_version[KVB_WEIGHTS_NAME_MAX]; /* "" = none given */
    char method[KVB_RELAY_METHOD_MAX]; /* UPDATE, RELAY, and what START/FINISH/SET_VERSION relay */
    const char *body;                  /* JSON text for the relay; borrowed until done */
    size_t body_len;
    uint32_t bound_ms; /* RELAY: until the engine must have answered; 0: the link's own bound */
    /*
     * TAKE_BACK: the id of a pause, a sleep or a release that has succeeded. Memory that it
     * released comes back, what it stopped goes on, as it was found; nothing else is lifted, and no
     * weight update is ended. BAD_STATE, and nothing changes, if another request was told since, or
     * with it, that the instance is so, or has changed what it is: then that is what it stays.
     */
    uint64_t take_back;
};
/* Field by field. */
bool kvp_ask_equal(const struct kvp_ask *a, const struct kvp_ask *b);

enum kvp_external {
    KVP_EXTERNAL_NONE,
    KVP_EXTERNAL_DONE,
    KVP_EXTERNAL_PENDING,
    KVP_EXTERNAL_FAILED
};

/* Whose fault a failure is: who has to look. */
#define KVP_SIDES(X)                                                                               \
    X(DAEMON, "daemon") /* this process: its memory, its registrations */                          \
    X(CLIENT, "client") /* who asked, or another who did: not allowed now, or canceled */          \
    X(ENGINE, "engine") X(STORE, "store") X(COORDINATOR, "coordinator")
enum kvp_side {
#define X(name, text) KVP_SIDE_##name,
    KVP_SIDES(X)
#undef X
};
const char *kvp_side_text(enum kvp_side side);
/* Where nothing more is known than how it ended. */
enum kvp_side kvp_side_of(kvb_status_t status);
#define KVP_AT_MAX (KVB_NAME_MAX + 12)

struct kvp_view;             /* below */
struct kvp_operation_record; /* below */

/* How it ended. Borrowed for the callback. */
struct kvp_outcome {
    /*
     * OK; BUSY (409), BAD_STATE (409), TIMEOUT (503), CANCELED (409), DISCONNECTED (503), …
     * RESET: OK only if everything asked was done; BUSY: local part refused, blocks are held;
     * UNAVAILABLE, TIMEOUT or NO_MEMORY: the external part could not be done, or a member did not
     * leave.
     */
    kvb_status_t status;
    const char
        *message;       /* failures: what happened, what state the instance is in now, what to do */
    enum kvp_side side; /* failures: whose it is, */
    const char *at;     /* and where there: of an engine NAME/RANK, or NAME; NULL: not known */
    uint64_t operation_id;
    bool nothing_to_do;   /* it was so already */
    bool local_done;      /* RESET: the engine's own cache is empty */
    uint32_t blocks_held; /* RESET refused: by how many */
    enum kvp_external external;
    uint32_t ntags_woken, ntags_ignored;
    char tags_woken[KVB_TAGS_MAX][KVB_NAME_MAX];
    char tags_ignored[KVB_TAGS_MAX][KVB_NAME_MAX];
    const char *relay_body; /* the engine's JSON answer, rank 0's */
    size_t relay_len;
    const struct kvp_view *view; /* the state it left; never NULL unless the instance is gone */
};
typedef void (*kvp_outcome_fn)(void *arg, const struct kvp_outcome *outcome);

#define KVP_SCHEDULER_STATES(X) X(RUNNING, "running") X(PAUSING, "pausing") X(PAUSED, "paused")
enum kvp_scheduler {
#define X(name, text) KVP_SCHEDULER_##name,
    KVP_SCHEDULER_STATES(X)
#undef X
};
/* Who stopped the scheduler; bits, shown by label. */
#define KVP_STOPPERS(X)                                                                            \
    X(PAUSE, 1, "pause")                                                                           \
    X(SLEEP, 2, "sleep")                                                                           \
    X(RELEASE, 4, "release") X(SLEEP0, 8, "sleep_level_0") X(DEGRADED, 16, "degraded")
enum kvp_stopper {
#define X(name, bit, text) KVP_STOPPED_BY_##name = (bit),
    KVP_STOPPERS(X)
#undef X
};

/* The truth about an instance at one moment, complete and without pointers into it: for answers,
 * status and probes. */
struct kvp_view {
    char instance[KVB_NAME_MAX];
    char tenant[KVB_NAME_MAX];
    char layout[KVB_LAYOUT_MAX];
    char model[KVB_MODEL_MAX]; /* the instance's name if the engine says none */
    uint32_t max_model_len;    /* 0: the engine does not say */
    char kind[16];             /* of a server that is driven (kvp_foreign); "": on the link */
    char url[256];             /* its */
    uint32_t own_world_size;   /* its; 0: not known */
    bool sleeps_once;
    bool no_release;
    bool attached; /* all ranks of the stated world size */
    bool ever_attached;
    bool degraded;     /* forward-only work failed: not serving, see message */
    char message[256]; /* why degraded or disconnected */
    uint32_t world_size, ranks;
    uint32_t tp_size; /* ranks of one pipeline stage */
    enum kvp_scheduler scheduler;
    unsigned stopped_by; /* kvp_stopper bits */
    enum kvb_pause_mode pause_mode;
    uint32_t ntags;
    struct kvb_tag_state tags[KVB_TAGS_MAX];
    uint32_t registered_regions;
    uint64_t registered_bytes;
    /* derived, in one place: */
    bool is_paused;
    bool is_sleeping; /* a tag is not resident, or a level-0 sleep holds */
    bool ready;       /* may take traffic */
    char not_ready[128];
    /* lineage */
    struct kvb_lineage lineage;
    bool open;
    char weights_name[KVB_WEIGHTS_NAME_MAX];   /* under which it is joined; "" = private */
    char private_reason[160];                  /* why private and how to do better; "" if named */
    char weight_version[KVB_WEIGHTS_NAME_MAX]; /* last one given, for /weight_info; "default" */
    bool weight_change_running;
    uint32_t retirements_pending;
    bool coordinator_reachable;
    struct kvb_load load;
    /* the operation in progress; operation_id 0: none */
    uint64_t operation_id;
    enum kvp_operation operation;
    char step[32];
    struct kvp_drain_progress drain;
    uint64_t deadline_ns;
    uint32_t waiting_operations;
};

/* One rank of an instance: for status. */
struct kvp_rank_view {
    uint32_t rank;
    bool attached; /* false: only `rank` is valid */
    bool unknown;  /* it did not answer: the tags are what it last said */
    bool worker, scheduler;
    uint32_t ntags;
    struct kvb_tag_state tags[KVB_TAGS_MAX];
    uint32_t regions; /* registered now */
    uint64_t region_bytes;
    const struct kvt_device_info *device; /* what reaches its GPU memory; NULL: it has none */
    struct kvp_queue_view queues[KVP_QUEUE_KINDS];
    const struct kvp_rank *source; /* for kvp_rank_each_region(); valid in the callback */
};

struct kvp_bounds {            /* milliseconds; each a config key */
    uint64_t drain_ms;         /* engine idle, 480 s */
    uint64_t transfer_ms;      /* one transfer, 60 s */
    uint64_t abort_ms;         /* one transfer once abort was asked, 200 ms */
    uint64_t slot_wait_ms;     /* a different operation waits its turn, 30 s */
    uint64_t retire_ms;        /* members leave a retired lineage, 10 s */
    uint64_t forward_retry_ms; /* pause between tries of forward-only work, and how often */
    uint32_t forward_tries;
};

#define KVP_DESCRIPTION_MAX 1024

/* What the fleet needs of the process. */
struct kvp_fleet_config {
    struct kvb_sched *sched;
    struct kvs_coordinator *coordinator; /* NULL: no store configured; external parts are success */
    struct kvp_bounds bounds;
    const char *unversioned_event;                           /* NULL, "reset", "finish", "sleep" */
    void (*changed)(void *ctx, const struct kvp_view *view); /* after every change of state */
    /* What the coordinator shows of it to others (kvs_member_publish): text, at most cap bytes with
     * its NUL. NULL: nothing. */
    void (*describe)(void *ctx, const struct kvp_view *view, char *text, size_t cap);
    /* One line for the event stream and the log: what happened to whom. */
    void (*event)(void *ctx, const char *instance, const char *kind, const char *detail);
    /* To be counted: a step of an operation ended, and how; an operation did, or was refused; a
     * lineage was left, and why. */
    void (*stepped)(void *ctx, const char *operation, const char *step, kvb_status_t status,
                    uint64_t took_ns);
    void (*ended)(void *ctx, const struct kvp_operation_record *record);
    void (*left)(void *ctx, const char *instance, const char *why);
    void *ctx;
};

/* Names that it remembers: an instance that was once attached is missed until it is back. */
#define KVP_INSTANCES_MAX 256

KVB_MUST_USE kvb_status_t kvp_fleet_create(const struct kvp_fleet_config *config,
                                           struct kvp_fleet **fleet_p);
/* Every open request is answered CANCELED inside. Every rank is gone before (the link closes first,
 * and with it every call of a rank has completed). */
void kvp_fleet_destroy(struct kvp_fleet *fleet);

/*
 * Starts an operation. instance NULL: the only one; INVALID with a message naming them if there are
 * several. done comes exactly once, later, never inside this call; NO_MEMORY: it does not come, and
 * nothing was started. A client that goes away cancels nothing: it just stops listening
 * (kvp_fleet_forget). *operation_id_p (may be NULL) is for operations/{id}.
 */
KVB_MUST_USE kvb_status_t kvp_fleet_request(struct kvp_fleet *fleet, const char *instance,
                                            const struct kvp_ask *ask, const char *request_id,
                                            kvp_outcome_fn done, void *arg,
                                            uint64_t *operation_id_p);
/* Told as the one that asked for it is, when an operation ends that has not. NOT_FOUND: there is no
 * such, or it has ended; NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_fleet_await(struct kvp_fleet *fleet, uint64_t id, kvp_outcome_fn done,
                                          void *arg);
/* One that waits never runs; one that runs is undone, and ends CANCELED. NOT_FOUND as above;
 * BAD_STATE: it cannot be undone any more, or is not of those that can (a pause, a sleep, a
 * release). */
KVB_MUST_USE kvb_status_t kvp_fleet_cancel(struct kvp_fleet *fleet, uint64_t id);
/* done will not be called for this arg any more. */
void kvp_fleet_forget(struct kvp_fleet *fleet, void *arg);

/* false if there is none of that name. NULL: the only one. */
bool kvp_fleet_view(struct kvp_fleet *fleet, const char *instance, struct kvp_view *view_p);
void kvp_fleet_each(struct kvp_fleet *fleet, void (*each)(void *arg, const struct kvp_view *view),
                    void *arg);
uint32_t kvp_fleet_count(const struct kvp_fleet *fleet);
/* Every rank of the stated world size, also those that are gone, in order; a scheduler without
 * memory comes last. Nothing if there is no such instance. */
void kvp_fleet_each_rank(struct kvp_fleet *fleet, const char *instance,
                         void (*each)(void *arg, const struct kvp_rank_view *view), void *arg);

/* A lineage that an instance has left, and why. */
struct kvp_left {
    char instance[KVB_NAME_MAX];
    char tenant[KVB_NAME_MAX];
    struct kvb_lineage lineage;
    char
        weights_name[KVB_WEIGHTS_NAME_MAX]; /* under which it had been joined; "": it was private */
    const char *reason;                     /* a word of KVP_LEAVE_REASONS */
    uint64_t at_ns;
};
#define KVP_LEAVINGS 256 /* how many are kept */
/* Newest first. */
void kvp_fleet_each_left(const struct kvp_fleet *fleet,
                         void (*each)(void *arg, const struct kvp_left *leaving), void *arg);

/* The regions of a rank that is being told of; none, if it is not attached. */
void kvp_rank_each_region(const struct kvp_rank_view *view, kvp_region_fn each, void *arg);

/* Finished and running operations, newest first, for /v1/kvplane/operations. */
struct kvp_operation_record {
    uint64_t id;
    enum kvp_operation operation;
    char instance[KVB_NAME_MAX];
    char request_id[64];
    bool finished;
    kvb_status_t status;
    char message[256];
    enum kvp_side side; /* failures, as in the outcome */
    char at[KVP_AT_MAX];
    char step[32];
    uint64_t started_ns, finished_ns, deadline_ns;
    struct kvp_drain_progress drain;
};
#define KVP_OPERATION_RECORDS 256 /* how many finished ones are kept */
/* An id for one that is made of others: of no other operation. */
uint64_t kvp_fleet_take_id(struct kvp_fleet *fleet);
void kvp_fleet_each_operation(struct kvp_fleet *fleet,
                              void (*each)(void *arg, const struct kvp_operation_record *record),
                              void *arg);
bool kvp_fleet_operation(struct kvp_fleet *fleet, uint64_t id,
                         struct kvp_operation_record *record_p);

/* ---- for the link ---- */

/*
 * A rank said hello. OK: it belongs to *instance_p now, rank->stay is set, and calls may follow at
 * once. REFUSED: reason (at least 256 bytes) says what to change: rank attached already, world
 * sizes differ, host-spanning world, another tenant or layout than its fellow ranks, limits.
 */
/* Nothing is called on the rank inside; its first calls come in a later turn, so that the reply to
 * hello goes first. */
KVB_MUST_USE kvb_status_t kvp_fleet_hello(struct kvp_fleet *fleet,
                                          const struct kvb_link_hello *hello, struct kvp_rank *rank,
                                          char *reason, size_t reason_cap,
                                          struct kvp_instance **instance_p);
/* Its connection ended; rank is forgotten when this returns. Its calls have all completed before.
 */
void kvp_instance_rank_gone(struct kvp_instance *instance, struct kvp_rank *rank,
                            const char *reason);
/* The process that reached the rank's memory of these tags is gone, and nothing is registered any
 * more; the engine still has it. It is asked, later, to hand it over anew, as after an undo. */
void kvp_instance_memory_lost(struct kvp_instance *instance, const struct kvp_rank *rank,
                              const char (*tags)[KVB_NAME_MAX], uint32_t ntags);
void kvp_instance_report(struct kvp_instance *instance, struct kvp_rank *rank,
                         const struct kvb_load *load);
/* The engine leaves its lineage by itself, because its weights may be others from here on: as if it
 * reported that they were written. done comes when every rank has acknowledged that, or will hear
 * of it when it attaches; not any more, once the scheduler's rank is gone. One at a time: false, if
 * one is open. */
KVB_MUST_USE bool kvp_instance_leave(struct kvp_instance *instance, void (*done)(void *arg),
                                     void *arg);
/* The space and hold id that the rank's store batches carry. Valid while the instance lives. */
const struct kvs_space *kvp_instance_space(const struct kvp_instance *instance);
uint64_t kvp_instance_hold_id(const struct kvp_instance *instance);
const struct kvp_shape *kvp_instance_shape(const struct kvp_instance *instance);

#endif
