/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_INSTANCE_IMPL_H
#define SERVER_CONNECTOR_INSTANCE_IMPL_H

#include "connector/instance.h"
#include "connector/lineage.h"
#include "connector/plan.h"

#include "base/log.h"

/*
 * Inside of the connector. fleet.c: instances, ranks that come and go, views, records.
 * operation.c: an operation from its request to its answer (queue, steps, undo). steps.c: what each
 * step does. bind.c: carries out what the lineage rules ask for. All of it on the loop thread.
 */

#define KVP_MESSAGE_MAX 640

/* One attached session of the engine. */
struct kvp_session_of {
    struct kvp_rank *rank;
    bool unknown;          /* it did not answer: its state must be asked */
    bool fresh;            /* its hello has not been taken into account yet */
    uint32_t unregistered; /* bit per fsm tag: the daemon holds no registration of it */
    uint32_t lost;         /* of these, what went without being asked: no undo has it again */
    uint8_t flags;         /* kvb_engine_flag */
    struct kvb_engine_state state;
    struct kvb_lineage lineage; /* echo of its hello */
    struct kvb_token token;
    char lineage_name[KVB_WEIGHTS_NAME_MAX];
    char weights_name[KVB_WEIGHTS_NAME_MAX];
    uint32_t nretired;
    struct kvb_lineage retired[KVB_RETIRED_MAX];
};

struct kvp_caller {
    struct kvb_list link;
    kvp_outcome_fn done;
    void *arg;
};

enum kvp_op_wait { KVP_WAIT_NOTHING, KVP_WAIT_ACK, KVP_WAIT_SETTLED, KVP_WAIT_RETIRED };

struct kvp_op {
    struct kvb_list link; /* instance.waiting, instance.beside, or fleet.rejected */
    struct kvp_fleet *fleet;
    struct kvp_instance *instance; /* NULL: rejected before it reached one */
    struct kvp_ask ask;            /* body is the op's own copy */
    char *body;
    struct kvb_list callers;
    struct kvp_operation_record record;
    struct kvb_timer timer; /* waiting: its turn; running: its wait, or the next try */
    struct kvb_event event; /* rejected: its answer; running: the lineage moved */
    bool internal;          /* reconcile: nobody asked */
    bool shared;            /* more than one asked for it */

    /* running */
    struct kvp_plan plan;
    uint32_t pos;
    struct kvp_plan undo;
    bool undoing;
    bool gone_awaited;    /* a rank is about to be gone; then what is left is undone */
    enum kvp_step failed; /* the step that is why */
    bool no_return;
    const char *cancel; /* who canceled it; NULL: nobody */
    bool leaving_begun;
    uint32_t tries;
    struct kvp_fsm before;
    uint64_t drain_deadline_ns;
    enum kvp_op_wait wait;
    uint64_t left_by_ns; /* each acknowledgement has its bound, but others' resets make it leave
                            once more, and again: not for longer than this */

    /* the step in progress */
    bool in_step;
    uint64_t step_ns; /* when it began */
    uint32_t left;    /* ranks that have not answered */
    kvb_status_t step_status;

    /* the answer */
    kvb_status_t status;
    char message[KVP_MESSAGE_MAX];
    bool blamed; /* whose fault it is, is in the record */
    bool nothing_to_do;
    bool local_done;
    uint32_t blocks_held;
    enum kvp_external external;
    char *relay_body;
    size_t relay_len;
    bool weights_written;
    bool taken; /* a rank did what was relayed, or did not answer: may have, or may yet */
};

struct kvp_instance {
    struct kvb_list link; /* fleet.instances */
    struct kvp_fleet *fleet;
    char name[KVB_NAME_MAX];
    struct kvs_space space;
    uint64_t hold_id;
    char model[KVB_MODEL_MAX]; /* as the last rank that attached said it */
    uint32_t max_model_len;
    struct kvp_shape shape;
    const struct kvp_foreign *foreign;   /* NULL: an engine on the link */
    struct kvs_member *member;           /* NULL: no store */
    char described[KVP_DESCRIPTION_MAX]; /* what was last published of it */

    struct kvp_session_of
        *sessions; /* shape.world_size + 1 places: workers, and a scheduler of its own */
    uint32_t nsessions;
    bool attached;
    bool ever_attached;
    bool known; /* this daemon knows its lineage: it was attached before */

    struct kvp_stay stay;
    char stay_name[KVB_WEIGHTS_NAME_MAX]; /* under which it was joined in it; "": under none */
    struct kvp_lineage lineage;
    struct kvp_fsm fsm;
    enum kvb_residency
        want[KVB_TAGS_MAX]; /* where each tag should be: what reconcile brings about */
    struct kvp_found found;
    struct kvb_load load;
    char weight_version[KVB_WEIGHTS_NAME_MAX];
    char message[256]; /* why degraded or disconnected */

    struct kvp_op *running;
    struct kvb_list waiting;
    uint32_t nwaiting;
    struct kvb_list beside; /* take no slot */
    uint32_t nbeside;
    bool reconcile; /* something is not as it should be, or not known */
    /* A PAUSE was not answered in time: until a RESUME is, the engine may stop at any moment,
     * whatever it says of itself now. */
    bool pause_open;
    struct kvb_timer reconcile_timer;
    struct kvb_event pump;

    struct kvb_list lineage_calls;
    struct kvb_list coord_calls;
    void (*left)(void *arg); /* who left by itself, and waits for all ranks; NULL: nobody does */
    void *left_arg;
    kvb_status_t retire_status; /* how the last retirement went */
    kvb_status_t ack_status;    /* how the last LINEAGE went */
};

struct kvp_fleet {
    struct kvp_fleet_config config;
    enum kvp_unversioned unversioned;
    struct kvb_list instances;
    struct kvb_list rejected;
    uint64_t last_op_id;
    struct kvp_operation_record records[KVP_OPERATION_RECORDS];
    uint64_t nrecords; /* ever written */
    struct kvp_left leavings[KVP_LEAVINGS];
    uint64_t nleavings; /* ever written */
    bool closing;
};

/* ---- fleet.c ---- */
/* NULL: none of that name. */
struct kvp_instance *kvp_fleet_find(const struct kvp_fleet *fleet, const char *name);
void kvp_instance_changed(struct kvp_instance *instance);
/* Every rank has acknowledged the stay, or nobody is asked to now. */
void kvp_instance_left(struct kvp_instance *instance);
void kvp_instance_event(struct kvp_instance *instance, const char *kind, const char *detail);
void kvp_instance_fill_view(struct kvp_instance *instance, struct kvp_view *view_p);
/* "running", "asleep (kv_cache discarded, weights offloaded)", … */
void kvp_instance_state_text(const struct kvp_instance *instance, char *out, size_t cap);
bool kvp_instance_any_unknown(const struct kvp_instance *instance);
/* Reconcile after a while: at once was tried, or makes no sense yet. */
void kvp_instance_schedule_reconcile(struct kvp_instance *instance);
void kvp_fleet_record(struct kvp_fleet *fleet, const struct kvp_operation_record *record);

/* ---- operation.c ---- */
void kvp_instance_pump(struct kvb_event *event);
void kvp_op_pump(struct kvp_instance *instance);
void kvp_op_step_done(struct kvp_op *op, kvb_status_t status);
/* Waiting operations and those beside are answered; the one running ends by its calls. */
/* A rank was taken off the instance. */
void kvp_op_rank_gone(struct kvp_instance *instance);
void kvp_op_fail_waiting(struct kvp_instance *instance, kvb_status_t status, const char *message);
void kvp_op_destroy_all(struct kvp_instance *instance);
void kvp_op_destroy_rejected(struct kvp_fleet *fleet);
const struct kvp_plan *kvp_op_plan(const struct kvp_op *op);
/* A lineage event happened: does the running operation wait for that? */
void kvp_op_lineage_moved(struct kvp_instance *instance);
/* The step ends when that is so; SETTLED also at the deadline, if the leaving is acknowledged. */
bool kvp_op_wait_for(struct kvp_op *op, enum kvp_op_wait wait, uint64_t deadline_ns);
/* The first failure's words win, and whose it is. rank: NULL: of none. */
void kvp_op_blame(struct kvp_op *op, enum kvp_side side, const struct kvp_rank *rank);
void kvp_op_say(struct kvp_op *op, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- steps.c ---- */
/* Begins a step. True: it ends by kvp_op_step_done(). False: ended, with op->step_status. */
bool kvp_step_begin(struct kvp_op *op, enum kvp_step step);
/* The fsm's tags from what the ranks are. done: the plan that brought it about, or NULL. */
void kvp_instance_refresh_tags(struct kvp_instance *instance, const struct kvp_plan *done);
void kvp_instance_tell_resident(struct kvp_instance *instance, bool resident);
/* What a weight update that failed leaves of its bracket. */
void kvp_step_undo_bracket(struct kvp_op *op);
void kvp_instance_bracket(struct kvp_instance *instance, enum kvp_bracket_event event);

/* ---- bind.c ---- */
/* Carries out what a lineage event left in out, then looks who waited for it. */
void kvp_bind_run(struct kvp_instance *instance, const struct kvp_lineage_out *out);
extern const struct kvs_member_ops kvp_bind_member_ops;
/* Ends the step of op when done. False: out of memory. */
bool kvp_bind_tenant_reset(struct kvp_op *op, uint64_t deadline_ns);
void kvp_bind_destroy(struct kvp_instance *instance);

static inline const struct kvb_random *kvp_instance_random(const struct kvp_instance *instance)
{
    return instance->fleet->config.sched->random;
}
static inline uint64_t kvp_instance_in_ms(const struct kvp_instance *instance, uint64_t ms)
{
    return kvb_deadline_in_ms(instance->fleet->config.sched->clock, ms);
}
static inline uint64_t kvp_instance_bound(const struct kvp_instance *instance,
                                          enum kvb_link_type type)
{
    return kvp_instance_in_ms(instance, kvb_link_info((uint16_t)type)->bound_ms);
}

/* Runs a lineage event and what it asks for: KVP_LINEAGE(instance, leave, why, true, random). */
#define KVP_LINEAGE(instance, event, ...)                                                          \
    do {                                                                                           \
        struct kvp_lineage_out kvp_out_;                                                           \
        kvp_out_.n = 0;                                                                            \
        kvp_out_.left = 0;                                                                         \
        kvp_lineage_##event(&(instance)->lineage, ##__VA_ARGS__, &kvp_out_);                       \
        kvp_bind_run((instance), &kvp_out_);                                                       \
    } while (0)

#endif
