/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DRIVER_ENGINE_H
#define SERVER_DRIVER_ENGINE_H

#include "driver/driver.h"

#include <jansson.h>

/*
 * Inside of the driver. driver.c: servers that come and go; calls.c: a call of the connector from
 * its beginning to its one answer; vllm.c, sglang.c: what it becomes there; relay.c: what is handed
 * through.
 *
 * Of one server, calls that change its state run one after the other (the lane). One that moves
 * memory, or resumes, is waited for, however late it is: as long as it is open at the server
 * nothing else is sent that could meet it there. Who asked is told in time all the same, and the
 * next one waits until its own bound.
 */
struct kvp_engine;
struct kvp_engine_call;

enum kvp_engine_tag { KVP_TAG_WEIGHTS, KVP_TAG_KV, KVP_ENGINE_TAGS };
extern const char *const kvp_engine_tag_names[KVP_ENGINE_TAGS];
#define KVP_TAG_BIT(tag) (1u << (tag))

/* What is known of a server: by what it acknowledged, or said when it was asked. */
struct kvp_known {
    bool paused;
    enum kvb_pause_mode mode; /* of that pause */
    enum kvb_residency tags[KVP_ENGINE_TAGS];
    /* Tags whose last move may have been done or not: UNKNOWN. */
    unsigned falling;   /* of being released */
    unsigned rising;    /* of being restored */
    bool tells;         /* vLLM: an answer of a transition was JSON: it is not of the oldest */
    bool no_pause;      /* there is no such route */
    bool no_release_kv; /* vLLM: nor /release_kv_cache_memory */
    bool no_sleep;      /* vLLM: nor sleep mode */
    bool no_connector;  /* vLLM: it shares KV with nobody */
    bool connector;     /* vLLM: it does, by a connector of its own; neither: it has not said */
    bool left; /* and what it has shared by now is of before: the next reset is of that, too */
    char model[KVB_MODEL_MAX];
    uint32_t max_model_len;
};

/* One route of a dialect's own that something is relayed to. */
struct kvp_relay {
    const char *method; /* the link's name of it, or up to a ':' */
    const char *path;   /* NULL: answered here, there is nothing to do */
    bool get;
    bool optional; /* a server without it has nothing to be told */
    bool never;    /* UNSUPPORTED */
    /* Another body than the one that came: malloc'd; NULL: out of memory. */
    char *(*body)(const char *body, size_t len);
};

/* How a kind of server is spoken to. Each begins a call, which ends by kvp_engine_call_end(). */
struct kvp_dialect {
    const char *kind;
    bool sleeps_once;
    bool busy_503;    /* its /health answers so while its scheduler is at work */
    bool tells_state; /* else what it acknowledged is all that is known of it */
    bool (*done)(const struct kvp_web_answer *answer); /* it is OK, and does not say otherwise */
    const char *resume_path, *resume_body;             /* body NULL: none */
    void (*pause)(struct kvp_engine_call *call);
    void (*reset)(struct kvp_engine_call *call);
    void (*release)(struct kvp_engine_call *call);
    void (*restore)(struct kvp_engine_call *call);
    void (*state)(struct kvp_engine_call *call); /* call->learning: all that is to be known of it */
    /* NULL: these can be released as things are; else why not. */
    const char *(*cannot_release)(const struct kvp_engine *engine, unsigned tags);
    const struct kvp_relay *relays; /* those that differ; ends with method NULL */
    const char *load_path;
    bool (*load)(const char *body, size_t len, struct kvb_load *load_p); /* false: not told */
};
extern const struct kvp_dialect kvp_dialect_vllm;
extern const struct kvp_dialect kvp_dialect_sglang;
const struct kvp_dialect *kvp_dialect_of(const char *kind); /* NULL: there is none */

typedef void (*kvp_next_fn)(struct kvp_engine_call *call, const struct kvp_web_answer *answer);

struct kvp_engine_call {
    struct kvb_list link; /* engine.lane or engine.beside */
    struct kvp_engine *engine;
    enum kvb_link_type type;
    kvp_rank_call_fn done;
    void *arg;
    bool told;              /* who asked has had his answer: it only goes on for what is known */
    bool begun;             /* in the lane: not waiting any more */
    bool moves;             /* what is open there changes it: it is waited for, however late */
    bool broken;            /* the connection broke; told when the server has been looked at */
    bool learning;          /* of a server that is not attached */
    struct kvb_timer timer; /* the bound */
    uint64_t deadline_ns;
    struct kvb_timer pause; /* before it asks again */
    struct kvb_event event; /* it ends without having asked anything */
    struct kvp_web_call web;
    kvp_next_fn next;
    kvp_next_fn drained; /* when nothing runs */
    char route[64];      /* of what is asked now: for the metrics */
    uint64_t asked_ns;
    /* what is asked for */
    enum kvb_pause_mode mode;
    bool preempt;
    bool commit;
    unsigned tags;    /* RELEASE, RESTORE */
    unsigned offload; /* of them */
    char method[KVB_RELAY_METHOD_MAX];
    char *body;
    size_t body_len;
    const struct kvp_relay *relay;
    /* on the way */
    unsigned step;
    uint32_t tries;
    enum kvb_residency were[KVP_ENGINE_TAGS]; /* before the move that is under way */
    bool asleep;                              /* STATE: what the server said by now */
    struct kvb_load load;
};

struct kvp_engine {
    struct kvp_driver *driver;
    const struct kvp_dialect *dialect;
    struct kvp_foreign foreign;
    char name[KVB_NAME_MAX];
    char url[KVP_ENGINE_URL_MAX];
    struct kvp_rank rank;
    struct kvp_instance *instance; /* NULL: not attached */
    struct kvp_known known;
    char cause[256]; /* of the last failure, for people */
    struct kvb_list lane;
    struct kvb_list beside;
    struct kvb_list laters;
    uint32_t writing; /* relays of weights that are open */
    bool anew;  /* nobody has listened there since it was last learned about: another process */
    bool leave; /* asked by disconnect() */
    struct kvb_event pump;
    /* health */
    struct kvb_timer tick;
    struct kvb_timer bound;
    struct kvp_web_call health;
    struct kvp_web_call asked_load;
    struct kvb_load load;
    struct kvp_known watched; /* what was known when the state was last asked */
    bool reset_refused;       /* since nothing was reported that it waits for */
    uint32_t misses;
};

struct kvp_driver {
    struct kvp_driver_config config;
    char tenant[KVB_NAME_MAX];
    bool stopped;
    uint32_t n;
    struct kvp_engine engines[];
};

/* ---- driver.c ---- */

/* Looks whether it is still there, now rather than at the next tick. */
void kvp_engine_look(struct kvp_engine *engine);
static inline struct kvb_sched *kvp_engine_sched(const struct kvp_engine *engine)
{
    return engine->driver->config.sched;
}

/* ---- calls.c ---- */

extern const struct kvp_rank_ops kvp_engine_rank_ops;
/* The next of the lane begins, if there is room. */
void kvp_engine_run_lane(struct kvp_engine *engine);
/* Asks for its state; learning: for all that is to be known before it attaches. */
void kvp_engine_ask_state(struct kvp_engine *engine, bool learning, kvp_rank_call_fn done,
                          void *arg);
/* The server was looked at, and is there: what broke off meanwhile has an outcome unknown. */
void kvp_engine_alive(struct kvp_engine *engine);
/* Everything open is answered DISCONNECTED; what moves memory is waited for. all: not even that. */
void kvp_engine_drop_calls(struct kvp_engine *engine, bool all);
/* Asks the server; next gets its answer, whatever status it has. A call that is told already ends
 * instead. */
void kvp_engine_call_get(struct kvp_engine_call *call, kvp_next_fn next, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* body: borrowed until the answer; NULL: none. */
void kvp_engine_call_post(struct kvp_engine_call *call, kvp_next_fn next, const char *body,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
/* next (answer NULL) after a while. */
void kvp_engine_call_after(struct kvp_engine_call *call, uint64_t ms, kvp_next_fn next);
/* A move of those tags is sent next: until it has said that it was done, they are UNKNOWN. */
void kvp_engine_call_moves(struct kvp_engine_call *call, unsigned tags, bool falls);
/* The same move was answered, but not that it was done: if that says that nothing was (4xx), they
 * are what they were. The call has failed. */
void kvp_engine_call_not_moved(struct kvp_engine_call *call, unsigned tags,
                               const struct kvp_web_answer *answer);
/* Its one answer; the call is gone. */
void kvp_engine_call_end(struct kvp_engine_call *call, kvb_status_t status);
void kvp_engine_call_end_with(struct kvp_engine_call *call, kvb_status_t status,
                              const union kvp_rank_reply *reply);
/* Ends it with what an answer that is not 200 stands for; the cause is kept. */
void kvp_engine_call_fail(struct kvp_engine_call *call, const struct kvp_web_answer *answer);
/* Keeps it as the engine's cause. */
void kvp_engine_say(struct kvp_engine *engine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* PAUSE ends: it is paused as was asked. A kvp_next_fn that wants no answer. */
void kvp_engine_call_paused(struct kvp_engine_call *call, const struct kvp_web_answer *none);
/* STATE ends with what is known. */
void kvp_engine_call_end_state(struct kvp_engine_call *call);
/* Until nothing runs, by what the server says of its load; then next, or TIMEOUT at the deadline.
 */
void kvp_engine_call_drained(struct kvp_engine_call *call, kvp_next_fn next);

static inline bool kvp_answer_ok(const struct kvp_web_answer *answer)
{
    return answer->http_status >= 200 && answer->http_status < 300;
}
/* Of one that is not OK: it says that nothing was done; an error of the server's own does not. */
static inline bool kvp_answer_nothing_done(const struct kvp_web_answer *answer)
{
    return answer->status == KVB_OK ? answer->http_status < 500
                                    : answer->status == KVB_ERR_NO_MEMORY;
}
/* A new object, NULL: it is none. */
json_t *kvp_answer_json(const struct kvp_web_answer *answer);
bool kvp_known_resident(const struct kvp_known *known);

/* ---- relay.c ---- */

void kvp_relay_begin(struct kvp_engine_call *call);
/* Does it write weights? */
bool kvp_relay_writes(const char *method);

#endif
