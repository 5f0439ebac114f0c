/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_INTERNAL_H
#define SERVER_CONTROL_INTERNAL_H

#include "control.h"

/*
 * What the files of control share. control.c: who replies when, and the table of routes; asks.c:
 * from a request to what the fleet is asked; answers.c: from its outcome to JSON; status.c:
 * instances and operations as they are; ranks.c: what their ranks
 * hold; own.c: operations of no single instance; pages.c: lists, a page at a time; nodes.c,
 * tenants.c, objects.c, listing.c: the cluster's.
 */

struct kvp_control {
    struct kvp_control_config config;
    struct kvp_inbox inbox;
    struct kvb_list pendings;  /* loop thread */
    struct kvb_list questions; /* loop thread: of objects */
    struct kvb_list listings;  /* loop thread: lists of objects */
    struct kvb_list owns;      /* loop thread: operations of no single instance, the newest last */
    uint32_t nowns;
    bool closing;
};

/* A request whose answer comes later. */
struct kvp_pending {
    struct kvb_list link;
    struct kvb_list wait_link; /* of one of owns that it waits for */
    struct kvb_timer timer;    /* a flush that is tried again; who has waited long enough */
    uint64_t until_ns;         /* the last time that it is */
    struct kvp_control *control;
    struct kvp_request *request; /* NULL: replied already, or closed */
    const struct kvp_action *action;
    struct kvp_params params;
    struct kvp_ask ask;
    char *body;                                  /* taken: relayed until the operation ends */
    struct kvs_coord_request coord;              /* of a tenant */
    struct kvp_cluster_tenants figures;          /* of tenants */
    char tenant[KVB_NAME_MAX];                   /* "": all of them */
    void (*on_end)(struct kvp_pending *pending); /* of what it waits for */
    struct kvp_tenant_operation *operation;      /* that it is the request of; NULL: none */
};

struct kvp_action {
    /* starts an operation: */
    enum kvp_operation operation;
    /* NULL or a message, then *param_p says what it is about */
    const char *(*fill)(const struct kvp_request *request, struct kvp_ask *ask,
                        const char **param_p);
    json_t *(*success)(const struct kvp_pending *pending, const struct kvp_outcome *outcome);
    const char *relay; /* NULL, or what the link calls what the engine is asked */
    const char *text;  /* `message` of its success */
    bool plain;        /* its clients read `success` and `message`, also of a failure */
    /* NULL: 200 with success, or the error; else replies, and ends the pending or keeps it */
    bool (*finish)(struct kvp_pending *pending, const struct kvp_outcome *outcome);
    /* or answers at once: */
    void (*read)(struct kvp_control *control, struct kvp_request *request);
};

#define KVP_SLEEP_LEVEL_DEFAULT 1

/* ---- control.c ---- */

/* Exactly once for each request, which is gone then. body is taken. */
void kvp_control_reply(struct kvp_control *control, struct kvp_request *request,
                       unsigned http_status, json_t *body, unsigned retry_after_s);
void kvp_control_reply_error(struct kvp_control *control, struct kvp_request *request,
                             kvb_status_t status, const char *param, const char *message);
/* Something that it asked of the client or the cluster is over: is that all there was? */
void kvp_control_settle(struct kvp_control *control);
/* What a failed operation is answered with. NULL: out of memory. */
json_t *kvp_failure_body(const struct kvp_pending *pending, const struct kvp_outcome *outcome);
/* Asks the fleet what the route's action says; the answer comes by itself. */
void kvp_control_start(struct kvp_control *control, struct kvp_request *request);
/* NULL: out of memory. */
struct kvp_pending *kvp_pending_create(struct kvp_control *control, struct kvp_request *request);
void kvp_pending_free(struct kvp_pending *pending);

/* It names no instance, there are several, and then all of them are meant. */
bool kvp_means_all(const struct kvp_control *control, const struct kvp_request *request);
/* It was started under that id; its end is looked up. pending goes on without its request. */
void kvp_control_started(struct kvp_pending *pending, uint64_t operation_id);

/* ---- own.c: operations that belong to no single instance ---- */

struct kvp_own;
struct kvp_own_ops {
    json_t *(*json)(const struct kvp_own *own);  /* as it is now; NULL: out of memory */
    kvb_status_t (*cancel)(struct kvp_own *own); /* of one that runs; as kvp_fleet_cancel() */
    void (*free)(struct kvp_own *own);
};
struct kvp_own {
    struct kvb_list link; /* control.owns */
    struct kvp_control *control;
    const struct kvp_own_ops *ops;
    struct kvb_list watchers; /* pendings that want its end */
    struct kvp_operation_record record;
};
#define KVP_OWNS_KEPT 32 /* how many that have ended are told of */

/* Listed from now on, under an id of its own, until its ops free it. */
void kvp_own_begin(struct kvp_own *own, struct kvp_control *control, const struct kvp_own_ops *ops,
                   enum kvp_operation operation, const struct kvp_request *request);
/* It is over, which its record says; and, after its own askers were answered, who waits is told. */
void kvp_own_finished(struct kvp_own *own);
void kvp_own_tell_end(struct kvp_own *own);
/* NULL: there is none of that id. */
struct kvp_own *kvp_own_find(struct kvp_control *control, uint64_t id);
/* Those that run, and the last that have ended. */
void kvp_own_each(const struct kvp_control *control,
                  void (*each)(void *arg, const struct kvp_own *own), void *arg);
/* on_end(pending) when it has ended; pending waits no longer when it is freed. False: it has. */
bool kvp_own_await(struct kvp_own *own, struct kvp_pending *pending,
                   void (*on_end)(struct kvp_pending *pending));
kvb_status_t kvp_own_cancel(struct kvp_own *own);
/* Those that have ended. */
void kvp_owns_destroy_ended(struct kvp_control *control);

/* ---- fan.c ---- */

/* Takes pending, filled: what it asks is asked of every instance, as one operation, whose id is
 * returned. 0: it has ended already. It ends with its instances. */
uint64_t kvp_fan_start(struct kvp_pending *pending);

/* ---- asks.c: NULL, or what is wrong, then *param_p says what it is about ---- */

#define KVP_ASK(name)                                                                              \
    const char *kvp_ask_##name(const struct kvp_request *request, struct kvp_ask *ask,             \
                               const char **param_p);
KVP_ASK(nothing)
KVP_ASK(pause)
KVP_ASK(sleep)
KVP_ASK(wake)
KVP_ASK(reset)
KVP_ASK(relay)
KVP_ASK(init)
KVP_ASK(update)
KVP_ASK(set_version)
KVP_ASK(rpc)
KVP_ASK(release)
KVP_ASK(resume_memory)
KVP_ASK(flush)
KVP_ASK(pause_generation)
KVP_ASK(check_weights)
KVP_ASK(lora)
KVP_ASK(engine_call)
KVP_ASK(generate)
#undef KVP_ASK

/* ---- answers.c: what success looks like; a new object, or NULL: out of memory ---- */

#define KVP_ANSWER(name)                                                                           \
    json_t *kvp_answer_##name(const struct kvp_pending *pending, const struct kvp_outcome *outcome);
KVP_ANSWER(paused)
KVP_ANSWER(resumed)
KVP_ANSWER(sleeping)
KVP_ANSWER(woken)
KVP_ANSWER(released)
KVP_ANSWER(reset)   /* of a failed one as well */
KVP_ANSWER(relayed) /* action.text, and what the engine said */
KVP_ANSWER(plain)   /* as SGLang's clients read it */
KVP_ANSWER(aborted)
KVP_ANSWER(version_set)
KVP_ANSWER(rpc_results)
#undef KVP_ANSWER

/* Asked for the store to forget, and it has not: that is no success, whatever else went well. */
bool kvp_reset_succeeded(const struct kvp_pending *pending, const struct kvp_outcome *outcome);
/* The outcome's message, or the text of its status. */
const char *kvp_outcome_message(const struct kvp_outcome *outcome);

/* ---- status.c ---- */

/* Leaves an empty or missing text out. */
void kvp_json_set_text(json_t *object, const char *name, const char *text);
/* Of a failure: `side`, and `at` if it is known. */
void kvp_json_set_side(json_t *object, enum kvp_side side, const char *at);
void kvp_json_set_u64(json_t *object, const char *name, uint64_t value);

void kvp_read_instances(struct kvp_control *control, struct kvp_request *request);
void kvp_read_instance(struct kvp_control *control, struct kvp_request *request);
void kvp_read_regions(struct kvp_control *control, struct kvp_request *request);
void kvp_read_queues(struct kvp_control *control, struct kvp_request *request);
/* Of a record; a new object. */
json_t *kvp_operation_json(const struct kvp_control *control,
                           const struct kvp_operation_record *record);
void kvp_read_operations(struct kvp_control *control, struct kvp_request *request);
void kvp_read_operation(struct kvp_control *control, struct kvp_request *request);
void kvp_cancel_operation(struct kvp_control *control, struct kvp_request *request);
void kvp_read_events(struct kvp_control *control, struct kvp_request *request);

/* The instance a request is about; false: replied. */
bool kvp_find_instance(struct kvp_control *control, struct kvp_request *request,
                       struct kvp_view *view_p);

/* ---- ranks.c ---- */

/* Of every rank of an instance; a new array, NULL: out of memory. */
json_t *kvp_ranks_json(struct kvp_control *control, const char *instance);
json_t *kvp_tags_json(const struct kvb_tag_state *states, uint32_t n);

/* ---- info.c: what clients of an inference server ask about it ---- */

void kvp_read_weight_info(struct kvp_control *control, struct kvp_request *request);
void kvp_read_world_size(struct kvp_control *control, struct kvp_request *request);
/* Of a server that is driven: asked of it. */
void kvp_read_info(struct kvp_control *control, struct kvp_request *request);
bool kvp_finish_info(struct kvp_pending *pending, const struct kvp_outcome *outcome);
void kvp_read_load(struct kvp_control *control, struct kvp_request *request);
void kvp_read_get_load(struct kvp_control *control, struct kvp_request *request);
void kvp_read_loads(struct kvp_control *control, struct kvp_request *request);
/* A running engine is asked for a token; one that is stopped is alive all the same. */
void kvp_read_health_generate(struct kvp_control *control, struct kvp_request *request);
bool kvp_finish_health_generate(struct kvp_pending *pending, const struct kvp_outcome *outcome);

/* ---- objects.c ---- */

void kvp_read_object(struct kvp_control *control, struct kvp_request *request);
void kvp_read_existing(struct kvp_control *control, struct kvp_request *request);
void kvp_remove_object(struct kvp_control *control, struct kvp_request *request);
void kvp_pin_object(struct kvp_control *control, struct kvp_request *request);
/* What is open is answered, and ends soon. */
void kvp_objects_close(struct kvp_control *control);
json_t *kvp_key_json(const uint8_t *bytes, uint32_t len);
const char *kvp_pin_text(enum kvs_pin pin);
/* ---- listing.c ---- */

void kvp_list_objects(struct kvp_control *control, struct kvp_request *request);
/* What is open is answered, and ends soon. */
void kvp_listings_close(struct kvp_control *control);

/* ---- nodes.c ---- */

void kvp_read_cluster(struct kvp_control *control, struct kvp_request *request);
void kvp_read_nodes(struct kvp_control *control, struct kvp_request *request);
void kvp_read_node(struct kvp_control *control, struct kvp_request *request);

/* ---- tenants.c ---- */

void kvp_read_tenants(struct kvp_control *control, struct kvp_request *request);
void kvp_read_tenant(struct kvp_control *control, struct kvp_request *request);
void kvp_reset_tenant(struct kvp_control *control, struct kvp_request *request);
void kvp_remove_tenant(struct kvp_control *control, struct kvp_request *request);
void kvp_set_quota(struct kvp_control *control, struct kvp_request *request);

#endif
