/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_RANK_H
#define TESTS_FAKE_RANK_H

#include "connector/instance.h"
#include "sim_sched.h"

/*
 * An engine of one or more ranks behind struct kvp_rank_ops, told truthfully: what is mapped, what
 * is registered, what it acknowledged. It aborts the test when a promise is broken that no answer
 * may excuse: memory released while registered, registered while not mapped or not handed over
 * anew, work scheduled onto memory that is not there (DESIGN.md, P3 and section 8).
 *
 * Every call is counted; the one chosen by fake_engine.fault_at goes wrong in the chosen way.
 */
#define FAKE_RANKS_MAX 4
#define FAKE_TAGS_MAX  3 /* kv_cache, weights; draft, if a test wants it */

enum fake_fault {
    FAKE_OK,
    FAKE_ERROR,  /* an error answer; nothing was done */
    FAKE_SILENT, /* no answer, nothing was done */
    FAKE_LATE,   /* done at once, but the answer comes after the daemon gave up */
    FAKE_SLOW,   /* done only after the daemon gave up */
    FAKE_DIE,    /* the engine process dies instead, and starts again on fake_engine_attach() */
    FAKE_VANISH, /* that rank alone dies, and starts again on fake_engine_attach() */
    FAKE_VANISH_OTHER, /* that rank is answered, and the next one dies alone */
    FAKE_FAULT_COUNT
};
const char *fake_fault_text(enum fake_fault fault);

struct fake_tag {
    const char *tag;
    enum kvb_residency residency;
    bool registered;
    bool released; /* unregister() was called, register_() not yet */
    bool handed;   /* handed over since unregistered */
    uint64_t generation;
};

struct fake_engine;
struct fake_rank {
    struct kvp_rank rank;
    struct fake_engine *engine;
    struct kvp_instance *instance;       /* NULL: not attached */
    struct fake_tag tags[FAKE_TAGS_MAX]; /* engine->ntags of them */
    uint32_t transfers;                  /* running puts and gets */
    struct kvb_list calls;
    const char *cause; /* what the device says of a failure; NULL: there is none */
    bool dying;
    bool alone; /* its fellows do not die with it */
    bool refuses_unregister;
    bool refuses_release; /* answers every RELEASE that would free memory with an error */
    struct kvb_event gone;
    uint64_t stays; /* stay_changed calls */
    struct fake_call *drain;
    /* acknowledged */
    struct kvb_link_lineage lineage;
    bool weights_written;
    bool updating; /* between start and finish */
    uint32_t weights;
};

/* One call that the daemon makes of a rank. */
struct fake_step {
    uint32_t rank;
    enum kvb_link_type type; /* EVENT: drain, REGISTER_REGION: register or unregister */
    bool register_;
    bool commit; /* RELEASE: memory goes */
};

struct fake_engine {
    struct sim_sched *sim;
    struct kvp_fleet *fleet;
    struct kvb_link_hello hello; /* what every rank says, but for rank, roles and state */
    uint32_t nranks;
    uint32_t ntags; /* 2, unless changed before it attaches */
    struct fake_rank ranks[FAKE_RANKS_MAX];
    bool paused;
    enum kvb_pause_mode pause_mode;
    struct kvb_list pauses; /* not idle yet */
    bool stopping;          /* the same, also when nobody waits for it any more */
    uint32_t busy;          /* running requests */
    uint32_t held;          /* blocks of the local cache that are held */
    uint32_t cached;        /* and those that are not */
    bool local_reset_done;
    bool update;
    bool fingerprints;
    kvb_status_t no_fingerprint; /* that is the answer, if it is not OK */
    uint64_t resets, preempts;
    char last_method[KVB_RELAY_METHOD_MAX];

    uint64_t ncalls; /* ever; the fault_at-th (from 1) goes wrong */
    uint64_t fault_at;
    enum fake_fault fault;
    kvb_status_t says;   /* the error of that answer; OK: as such a thing fails */
    bool mute;           /* answers nothing at all any more */
    uint32_t lineage_ms; /* LINEAGE is answered so much later, within its bound */
    /* Told of every call twice: IN_PROGRESS when it is made, then how it ended. NULL: nobody is. */
    void (*watch)(void *ctx, const struct fake_step *step, kvb_status_t status);
    void *watch_ctx;
};

void fake_engine_init(struct fake_engine *engine, struct sim_sched *sim, struct kvp_fleet *fleet,
                      const char *instance, uint32_t nranks);
/* Attaches every rank that is not, up to the first that is refused. */
kvb_status_t fake_engine_try_attach(struct fake_engine *engine);
/* The same; aborts if refused. */
void fake_engine_attach(struct fake_engine *engine);
/* Its sockets close; the engine goes on and may attach again, echoing. */
void fake_engine_drop_link(struct fake_engine *engine);
/* It dies: what it held is gone, and it starts anew with everything resident. */
void fake_engine_restart(struct fake_engine *engine);
/* That rank alone dies; it starts anew on fake_engine_attach(). */
void fake_engine_lose_rank(struct fake_engine *engine, uint32_t index);
bool fake_engine_attached(const struct fake_engine *engine);
/* Ends running requests and transfers. */
void fake_engine_finish_requests(struct fake_engine *engine);
void fake_engine_report(struct fake_engine *engine);
/* Aborts if something is registered that is not mapped. */
void fake_engine_check(const struct fake_engine *engine);
/* All resident, registered, scheduled. */
bool fake_engine_serves(const struct fake_engine *engine);
/* The last acknowledged lineage is the one its instance is in, and it is open. */
bool fake_engine_open(const struct fake_engine *engine);

#endif
