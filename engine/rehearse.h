/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REHEARSE_H
#define ENGINE_REHEARSE_H

#include "child.h"
#include "rest.h"

#include "engine.h"

/*
 * The rehearsal: a daemon, two engines that share a tenant (A sleeps, B never does) and a trainer
 * that drives them through the REST API. Its own knowledge, which kvplane does not have, is which
 * weights each engine holds (the weights ids); from it follows what must hit and what must not.
 *
 *   rehearse.c        command line, processes, the run as a whole
 *   rehearse_step.c   one step: the forms, the promises
 *   rehearse_table.c  what is shown
 */

/* How A goes through a step; B takes the same weights without sleeping. */
#define KVE_FORMS(X)                                                                               \
    X(SLEEP_1, "sleep-1", true, true)    /* pause, sleep, wake weights, update, wake kv_cache */   \
    X(SLEEP_2, "sleep-2", true, true)    /* the same, weights discarded and loaded anew */         \
    X(RELEASE, "release-kv", true, true) /* release_kv_cache_memory instead of sleep */            \
    X(RESET, "reset-external", false, false) /* while it runs, weights unchanged */                \
    X(NAP, "sleep-1-same", true, false)      /* asleep and back with the same weights */           \
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

struct kve_side {
    struct kve_child child;
    const char *instance;
    uint64_t weights; /* id it holds */
    char name[64];    /* what kvplane can know of it; "" = nothing vouches: it shares with nobody */
    char version[64]; /* last version given */
};

struct kve_row {
    uint32_t step;
    const char *form, *naming;
    uint64_t requests;        /* of the trace, finished */
    struct kve_counts counts; /* of both engines, all that was done in the step */
    uint64_t promised, kept;  /* blocks that had to hit, and did */
    bool shared;              /* both held the same weights under one name at the end */
    double sleep_ms, wake_ms; /* negative: did not happen */
    uint64_t awake_bytes,
        asleep_bytes;     /* of A's regions, by the kernel; asleep: of released ones */
    uint64_t engine_rss;  /* of A while asleep, without regions; 0: not measured */
    uint64_t daemon_anon; /* after a tenant reset; 0: there was none */
};

struct kve_rehearsal {
    /* asked for */
    const char *trace_path;
    const char *fault;         /* NULL: none */
    const char *serve_options; /* more options for the daemon, separated by spaces; NULL */
    uint32_t steps, requests;
    uint64_t seed;
    bool json;
    bool help;

    struct kve_trace trace;
    char dir[64];
    struct kve_child daemon;
    struct kve_side a, b;
    struct kve_rest *rest;
    uint64_t random;
    json_int_t last_id;
    uint64_t last_weights;
    uint64_t first_engine_rss, first_daemon_anon;

    struct kve_row *rows; /* steps */
    uint32_t nrows;
    struct kve_row *row; /* the one that is played */
    uint64_t requests_done;
    uint64_t errors;
    char story[1024]; /* of the first thing that went wrong */
    bool progress;
};

extern volatile int kve_rehearse_stop; /* a signal came */

/* Plays step `step`; requests [first, first + count) of the trace. False: it cannot go on. */
bool kve_rehearse_step(struct kve_rehearsal *r, uint32_t step, uint32_t first, uint32_t count);

/* Notes what went wrong: counts an error, keeps the first one's words. Returns false. */
bool kve_rehearse_fail(struct kve_rehearsal *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t kve_rehearse_draw(struct kve_rehearsal *r, uint64_t below);

void kve_table_progress(const struct kve_rehearsal *r, const char *what);
void kve_table_head(const struct kve_rehearsal *r);
void kve_table_row(const struct kve_rehearsal *r, const struct kve_row *row);
/* The last line, and before it the story if there is one. */
void kve_table_end(const struct kve_rehearsal *r, const struct kve_counts *total, bool ok);

#endif
