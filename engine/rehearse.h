/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REHEARSE_H
#define ENGINE_REHEARSE_H

#include "child.h"
#include "net.h"
#include "rest.h"

#include "engine.h"

/*
 * The rehearsal: two engines that share a tenant (A sleeps, B never does) and a trainer that drives
 * them through the REST API. Its own knowledge, which kvplane does not have, is which weights each
 * engine holds (the weights ids); from it follows what must hit and what must not.
 *
 * There are two plays. In one the engines replay a trace and know every byte that they may read. In
 * the other they compute: a small transformer generates, and a third engine, which never sleeps and
 * shares nothing, says what must come out.
 *
 * The first is played on one of two stages: one machine (one daemon with its store, both engines
 * beside it), or a cluster (etcd of three members, three store nodes, or fewer, a daemon beside
 * each engine), to which things happen while a step is played; the second on one machine.
 *
 *   rehearse.c         command line, the run as a whole
 *   rehearse_stage.c   the processes: what is started how
 *   rehearse_ask.c     what is asked of them: engines on their own channel, daemons as a trainer
 * does rehearse_memory.c  what the kernel and the store say of memory rehearse_step.c    one step
 * of the play with a trace: the forms, the promises rehearse_model.c   one cycle of the play with a
 * model rehearse_answer.c  its judge: what was generated, against what the control generated
 *   rehearse_fault.c   what happens to a cluster
 *   rehearse_table.c   what is shown
 */

/* How A goes through a step; B takes the same weights without sleeping. */
#define KVE_FORMS(X)                                                                               \
    X(SLEEP_1, "sleep-1", true, true)    /* pause, sleep, wake weights, update, wake kv_cache */   \
    X(SLEEP_2, "sleep-2", true, true)    /* the same, weights discarded and loaded anew */         \
    X(RELEASE, "release-kv", true, true) /* release_kv_cache_memory instead of sleep */            \
    X(RESET, "reset-external", false, false) /* while it runs, weights unchanged */                \
    X(NAP, "sleep-1-same", true, false)      /* asleep, in one call, and back; same weights */     \
    X(PLAIN, "pause-update", false, true)    /* pause, update, resume */                           \
    X(KEEP, "keep-update", false, true)      /* kept requests go on with the new weights */
enum kve_form {
#define X(name, label, sleeps, updates) KVE_FORM_##name,
    KVE_FORMS(X)
#undef X
};

/* What kvplane is told of the weights. */
#define KVE_NAMINGS(X) X(VERSION, "version") X(FINGERPRINT, "fingerprint") X(NONE, "none")
enum kve_naming {
#define X(name, label) KVE_NAMING_##name,
    KVE_NAMINGS(X)
#undef X
};

/* ---- the stage ---- */

#define KVE_BLOCK_BYTES 16384u

/* What tells that a process is ready. */
enum kve_readiness {
    KVE_READY_LINE,    /* a line `kvplane [store] ready … URL`; the URL is its REST API */
    KVE_READY_HEALTH,  /* its URL is known; GET /health answers 200 */
    KVE_READY_ATTACHED /* an engine: it says so itself */
};

#define KVE_ARGS_MAX 40
struct kve_process {
    char name[32];       /* also of its log */
    const char *program; /* NULL: this one */
    bool far;            /* lives behind the link that can be cut */
    bool share;          /* holds memory of the store */
    bool sound;          /* keeps its protections, whatever fault the others have */
    enum kve_readiness ready;
    char *argv[KVE_ARGS_MAX + 1];
    uint32_t nargs;
    char url[128];
    struct kve_rest *rest; /* to it; NULL: not ready, or it has none */
    struct kve_child child;
    bool frozen;         /* by SIGSTOP */
    uint64_t first_anon; /* anonymous bytes after the first tenant reset of this life; 0: not yet */
};

#define KVE_MEMBERS       3 /* at most */
#define KVE_STORES        3 /* at most */
#define KVE_PROCESSES_MAX (KVE_MEMBERS + KVE_STORES + 4)

/* In the order in which they are started. */
struct kve_stage {
    struct kve_net net;
    struct kve_process processes[KVE_PROCESSES_MAX];
    uint32_t nprocesses;
    struct kve_process *members, *stores;
    uint32_t nmembers, nstores;
};

struct kve_side {
    struct kve_process *engine, *daemon; /* both sides may have one daemon */
    const char *instance;
    bool tracks_lineage;
    uint64_t weights; /* id it holds */
    char name[64];    /* what kvplane can know of it; "" = nothing vouches: it shares with nobody */
    bool unseen;      /* its daemon has seen no version of it: the next one does not vouch */
    struct kve_counts past; /* of earlier lives of its engine */
};

/* ---- the plays ---- */

struct kve_row {
    uint32_t step;
    const char *form, *naming;
    const char *happening;    /* "" = none */
    uint64_t requests;        /* of the trace, finished */
    struct kve_counts counts; /* of both engines, all that was done in the step */
    uint64_t promised, kept;  /* blocks that had to hit, and did */
    uint64_t hoped, had;      /* the same while something happened to the cluster: may miss */
    bool shared;              /* both held the same weights under one name at the end */
    double sleep_ms, wake_ms; /* negative: did not happen */
    uint64_t awake_bytes,
        asleep_bytes;     /* of A's regions, by the kernel; asleep: of released ones */
    uint64_t engine_rss;  /* of A while asleep, without regions; 0: not measured */
    uint64_t daemon_anon; /* of A's, after a tenant reset; 0: there was none */
};

struct kve_rehearsal;
struct kve_play {
    const char *step; /* what one of its steps is called */
    uint32_t steps;   /* how many, if nobody says */
    /* Before anything is started: what will be run. Told why not on stderr. */
    kvb_status_t (*prepare)(struct kve_rehearsal *r);
    /* Plays one, of which r->row tells. False: it cannot go on. */
    bool (*play)(struct kve_rehearsal *r, uint32_t step);
    void (*head)(const struct kve_rehearsal *r);
    void (*row)(const struct kve_rehearsal *r, const struct kve_row *row);
    /* The last line, and before it the story if there is one. */
    void (*end)(const struct kve_rehearsal *r, bool ok);
    void (*cleanup)(struct kve_rehearsal *r);
};
extern const struct kve_play kve_play_trace, kve_play_model;

/* What can happen to a cluster while a step is played. */
#define KVE_HAPPENINGS(X)                                                                          \
    X(STORE_KILLED, "store-killed", 5, "a store node gets kill -9, and is started again")          \
    X(STORE_FROZEN, "store-frozen", 20, "a store node gets SIGSTOP, and goes on")                  \
    X(STORE_CUT, "store-cut", 20, "the link to a store node goes down, and up again")              \
    X(ETCD_MEMBER_KILLED, "etcd-member-killed", 10,                                                \
      "the leader of etcd gets kill -9, and is started again")                                     \
    X(ETCD_AWAY, "etcd-away", 30, "all of etcd is silent during a reset, a sleep and a wake")      \
    X(DAEMON_KILLED, "daemon-killed", 30,                                                          \
      "all of etcd is gone, and A's daemon gets kill -9 before it is back")                        \
    X(ENGINE_KILLED, "engine-killed", 30,                                                          \
      "all of etcd is gone, and engine A gets kill -9 before it is back")
enum kve_happening {
    KVE_HAPPENS_NOTHING,
#define X(name, label, seconds, what) KVE_HAPPENS_##name,
    KVE_HAPPENINGS(X)
#undef X
        KVE_HAPPENING_COUNT
};

struct kve_rehearsal {
    const struct kve_play *play;

    /* asked for */
    const char *trace_path;
    const char *fault; /* NULL: none */
    bool cluster;
    const char *happening;    /* NULL: all, in turn */
    uint32_t happens_seconds; /* how long; 0: as the list above says */
    uint32_t tp;              /* ranks of engine A, and parts of a stored block; B has one rank; 0:
                                 as the play has it */
    uint32_t prompts, prompt_tokens, max_tokens; /* of a model; 0: as the play has it */
    uint32_t share_mib;                          /* of each daemon of a cluster; 0: none */
    uint32_t nmembers;                           /* of etcd */
    uint32_t nstores;                            /* of a cluster */
    const char *transport;                       /* of its nodes and daemons; NULL: as they are */
    uint32_t block_bytes;                        /* of the engines; small ones need small stores */
    uint32_t slow;                               /* every bound is so many times as long */
    uint32_t steps, requests;
    uint64_t seed;
    bool json;

    struct kve_trace trace;
    struct kve_model *model; /* NULL: a trace is played */
    char dir[64];
    struct kve_stage stage;
    struct kve_side a, b;
    struct kve_side control; /* of a model: never sleeps, shares nothing */
    uint64_t random;
    json_int_t last_id;
    uint64_t last_weights;
    uint64_t first_engine_rss;
    bool away;    /* the coordinator is */
    bool pending; /* and the daemons have noticed: answers must say so */
    uint64_t happens_until_ns;
    struct kve_process *struck; /* by what happens now; NULL: none */
    uint32_t nhappened;
    uint32_t told_skipped; /* bits: happenings that cannot be, and that was told */

    struct kve_row *rows; /* steps */
    uint32_t nrows;
    struct kve_row *row; /* the one that is played */
    char where[96];      /* the same in words; "" = none is */
    struct kve_counts total;
    uint64_t requests_done;
    uint64_t errors;
    char skipped[256]; /* why there is no network of its own; "" */
    char story[1024];  /* of the first thing that went wrong */
    bool progress;
};

extern volatile int kve_rehearse_stop; /* a signal came */

/* Begins the row of a step: r->row and r->where are its. happening "": none. */
void kve_rehearse_row(struct kve_rehearsal *r, uint32_t step, enum kve_form form,
                      enum kve_naming naming, const char *happening);
bool kve_form_sleeps(enum kve_form form);
bool kve_form_updates(enum kve_form form);

/* Keeps the words of the first thing that went wrong, with the step. */
void kve_rehearse_story(struct kve_rehearsal *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same, and counts an error. Returns false. */
bool kve_rehearse_fail(struct kve_rehearsal *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A bound, on this machine. */
uint32_t kve_rehearse_bound(const struct kve_rehearsal *r, uint32_t ms);
uint64_t kve_rehearse_draw(struct kve_rehearsal *r, uint64_t below);

/* ---- rehearse_stage.c ---- */

/* Sets up what is to be started, on one machine or on a cluster. */
bool kve_stage_set(struct kve_rehearsal *r);
/* Starts all of it, in order. */
bool kve_stage_start(struct kve_rehearsal *r);
/* Ends all of it, in reverse order; what ends badly is an error. */
void kve_stage_end(struct kve_rehearsal *r);

/* One of them: starts it, without waiting; waits until it is ready; both. */
bool kve_process_spawn(struct kve_rehearsal *r, struct kve_process *process);
bool kve_process_await(struct kve_rehearsal *r, struct kve_process *process);
bool kve_process_start(struct kve_rehearsal *r, struct kve_process *process);
void kve_process_kill(struct kve_process *process); /* KILL */
void kve_process_freeze(struct kve_process *process, bool frozen);
/* An engine, as a side's next life: with the weights it holds. */
void kve_side_engine_args(struct kve_rehearsal *r, struct kve_side *side, bool fingerprint);

/* ---- rehearse_ask.c: all false after kve_rehearse_fail() ---- */

/* Tells an engine a command, which is taken; waits for the answer (one of a NULL-terminated list of
 * names) to the command of this id, owned by the caller. The answer "error" is a failure. */
bool kve_side_tell(struct kve_rehearsal *r, struct kve_side *side, json_t *command);
bool kve_side_await(struct kve_rehearsal *r, struct kve_side *side, const char *const *names,
                    json_int_t id, json_t **event_p);
/* Both, for a command (taken, without its id) that is answered "ok". */
bool kve_side_obeys(struct kve_rehearsal *r, struct kve_side *side, json_t *command);
bool kve_side_fingerprint(struct kve_rehearsal *r, struct kve_side *side, bool on);
/* What an engine has counted in all its life, as its stats command says; owned by the caller. */
bool kve_side_stats(struct kve_rehearsal *r, struct kve_side *side, json_t **stats_p);
/* Until that many requests wait for bytes: those are what is to be run into. If none come, they do
 * not. All that the engine was told before has begun, or waits to begin. */
bool kve_side_await_loading(struct kve_rehearsal *r, struct kve_side *side, uint32_t wanted);
/* It holds the weights that it should. */
bool kve_side_check_held(struct kve_rehearsal *r, struct kve_side *side);

/* What an answer must say of the shared store. */
enum kve_external {
    KVE_ANY,     /* that it was done, if it says something of success */
    KVE_LEFT,    /* the same, and while the coordinator is known to be away, that this is pending */
    KVE_CLEARED, /* the same of a reset; while the coordinator is away it is no success */
};
/* A POST to a side's daemon that must be answered so; its time is added to *ms if that is not NULL.
 * body is borrowed. */
bool kve_side_post(struct kve_rehearsal *r, const struct kve_side *side, enum kve_external external,
                   double *ms, const json_t *body, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* The weights are named v<id>: a trainer numbers its steps. */
void kve_version_of(uint64_t weights, char out[64]);
/* start, update, finish: the new API. Tells a version only if it should. */
bool kve_side_update_bracket(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights,
                             enum kve_naming naming);
/* One call that loads weights, as trainers with their own worker extension do. */
bool kve_side_update_rpc(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights,
                         enum kve_naming naming);
/* Notes what kvplane can know of this side from now on. */
void kve_side_named(struct kve_side *side, uint64_t weights, enum kve_naming naming);
bool kve_side_reset_external(struct kve_rehearsal *r, struct kve_side *side, double *ms);
/* Its way until it lies down; mode: of the pause before. */
bool kve_side_lie_down(struct kve_rehearsal *r, struct kve_side *side, enum kve_form form,
                       const char *mode, double *ms);
/* Waits until lookups and puts are let through, under its name if it has one. */
bool kve_side_await_open(struct kve_rehearsal *r, struct kve_side *side);

/* ---- rehearse_memory.c: all false after kve_rehearse_fail() ---- */

/* What the kernel holds of A's regions of a tag, whoever keeps it. */
bool kve_region_bytes(struct kve_rehearsal *r, const char *tag, uint64_t *bytes_p);
/* A is asleep: nothing of what it released may be held by anybody. */
bool kve_judge_asleep(struct kve_rehearsal *r, bool weights_too);
/* Space comes back in small steps: until the store says that none is used. after: for the story. */
bool kve_await_empty(struct kve_rehearsal *r, const char *after);
/* Resets the tenant; then the store is empty, and what serves has not grown since the last time. */
bool kve_tenant_reset(struct kve_rehearsal *r);

/* ---- rehearse_fault.c ---- */

void kve_happenings_list(void);
/* What is asked for by "all", "none" or a label, where `planned` was to happen. COUNT: unknown. */
enum kve_happening kve_happening_of(const char *label, enum kve_happening planned);
const char *kve_happening_label(enum kve_happening happening); /* "": nothing */
/* False: not here; told once, as `SKIP: `, and counted. */
bool kve_happening_possible(struct kve_rehearsal *r, enum kve_happening happening);
/* Begins it; goes on with it once A is awake again; tells when it has lasted long enough; ends it,
 * and waits until the cluster is whole. */
bool kve_happening_begin(struct kve_rehearsal *r, enum kve_happening happening);
bool kve_happening_middle(struct kve_rehearsal *r, enum kve_happening happening);
bool kve_happening_over(const struct kve_rehearsal *r);
bool kve_happening_end(struct kve_rehearsal *r, enum kve_happening happening);
/* Both daemons use every node. */
bool kve_cluster_well(struct kve_rehearsal *r);

/* ---- rehearse_table.c ---- */

void kve_table_progress(const struct kve_rehearsal *r, const char *what);
void kve_trace_table_head(const struct kve_rehearsal *r);
void kve_trace_table_row(const struct kve_rehearsal *r, const struct kve_row *row);
void kve_trace_table_end(const struct kve_rehearsal *r, bool ok);
void kve_model_table_head(const struct kve_rehearsal *r);
void kve_model_table_row(const struct kve_rehearsal *r, const struct kve_row *row);
void kve_model_table_end(const struct kve_rehearsal *r, bool ok);

#endif
