/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_RANKS_H
#define TESTS_CUDA_RANKS_H

/*
 * A daemon and engines whose every rank is a process of its own, on the fake driver (or with host
 * memory): the ranks speak through the public API and do what they are told, through a page that
 * they share with the test. Each has two tags, kv_cache and weights, one region each. When one
 * dies, the others stay.
 */
#include "rig.h"

#include "kvplane.h"

#include <jansson.h>

#include <sys/types.h>

enum { RANKS_MAX = 4, RANK_TAGS = 2, RANK_LEN = 2 << 20, RANK_BLOCK = 64 << 10 };
#define RANK_WAIT_MS 240000

/* Of one rank. */
struct rank_page {
    /* the test's: die at the n-th call of the daemon from now on; 0: do not */
    atomic_uint die_at;
    atomic_uint die_late; /* when it is done, before it is answered; else before anything is done */
    atomic_uint ask;      /* a put and a get, as often as this grows */
    /* the rank's */
    atomic_uint attached, registered; /* registered: hand-overs taken by the daemon, ever */
    atomic_uint refused;              /* and refused */
    atomic_uint calls;                /* of the daemon, ever */
    atomic_uint commits;              /* releases that gave memory up, ever */
    atomic_uint dying;
    atomic_uint paused;
    atomic_uint residency[RANK_TAGS]; /* enum kvplane_residency */
    atomic_uint asked;                /* how many of ask were done */
    atomic_int result;                /* of the last */
    atomic_uint wrong_bytes;          /* after a wake, or a get */
};

struct gpu_rank {
    pid_t pid; /* 0: none */
    struct rank_page *page;
};

struct gpu_instance {
    const char *name;
    enum kvplane_memory kind;
    uint32_t n;
    struct gpu_rank ranks[RANKS_MAX];
};

struct gpu_fleet {
    struct cuda_rig rig;
    pid_t daemon;
    uint16_t port;
    char socket[128];
};

/* Skips the test where nothing can be mounted. bound: transfer-bound of the daemon; fault: a switch
 * of base/faults.h, or NULL. */
void fleet_start(struct gpu_fleet *fleet, const char *bound, const char *fault);
/* Every rank is gone: the daemon ends, and nothing is held. */
void fleet_stop(struct gpu_fleet *fleet);

/* All ranks run, are attached and registered. */
void instance_start(struct gpu_fleet *fleet, struct gpu_instance *instance);
void instance_start_rank(struct gpu_fleet *fleet, struct gpu_instance *instance, uint32_t rank);
void instance_stop(struct gpu_fleet *fleet, struct gpu_instance *instance);
/* Reaps a rank that was killed, or kills itself. */
void instance_reap(struct gpu_instance *instance, uint32_t rank);

/* POST path, for that instance. The status; *body_p (may be NULL) is the caller's. */
int fleet_post(struct gpu_fleet *fleet, const struct gpu_instance *instance, const char *path,
               char **body_p);
#define POST_OK(fleet, instance, path)                                                             \
    do {                                                                                           \
        char *body_;                                                                               \
        int code_ = fleet_post(fleet, instance, path, &body_);                                     \
        cr_assert_eq(code_, 200, "%s: %d %s", path, code_, body_);                                 \
        free(body_);                                                                               \
    } while (0)
/* Begun; the answer by http_receive(). */
int fleet_post_start(struct gpu_fleet *fleet, const struct gpu_instance *instance,
                     const char *path);

/* As the daemon shows it; the caller's. */
json_t *fleet_view(struct gpu_fleet *fleet, const struct gpu_instance *instance);
/* rank_states[rank] of a view; borrowed. */
json_t *view_rank(const json_t *view, uint32_t rank);
int fleet_helper_pid(struct gpu_fleet *fleet, const struct gpu_instance *instance, uint32_t rank);
/* Until the view's `attached` is that, and no operation runs. */
void fleet_wait_attached(struct gpu_fleet *fleet, const struct gpu_instance *instance,
                         bool attached);

/* What must be held of the device's memory by these instances, from what their ranks say of
 * themselves and the daemon of its registrations: nothing else may keep any. */
uint64_t fleet_due(struct gpu_fleet *fleet, const struct gpu_instance *const *instances, size_t n);
/* Descriptors and mappings of the engines' host memory that the daemon has. */
uint32_t fleet_host_references(const struct gpu_fleet *fleet);

/* Every rank puts a block and gets it back. */
void instance_moves(struct gpu_instance *instance);
bool instance_all(const struct gpu_instance *instance, uint32_t tag,
                  enum kvplane_residency residency);

uint64_t ranks_now_ms(void);
void ranks_pause(void); /* between two looks at what is waited for */
#define RANKS_UNTIL(condition, ...)                                                                \
    do {                                                                                           \
        uint64_t end_ms_ = ranks_now_ms() + RANK_WAIT_MS;                                          \
        while (!(condition)) {                                                                     \
            cr_assert_lt(ranks_now_ms(), end_ms_, __VA_ARGS__);                                    \
            ranks_pause();                                                                         \
        }                                                                                          \
    } while (0)

#endif
