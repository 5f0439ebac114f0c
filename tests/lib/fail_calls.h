/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAIL_CALLS_H
#define TESTS_FAIL_CALLS_H

/*
 * Every call that can fail, failing: one place in the code at a time. A scenario is run over and
 * over; each run lets the calls of one place fail (the first of them, or the n-th), until every
 * place that any run has come by had its turn. So a scenario of thousands of calls takes as many
 * runs as it has places, and each error path is taken.
 *
 *     FAIL_CALLS_EACH(nth)
 *     {
 *         … open, run the scenario, retry what failed …
 *         fail_calls_stop();
 *         … close, check …
 *     }
 *
 * A place that many ways lead to (a function that makes JSON, say) fails for each of them, where
 * the program defines FAIL_CALLS_CALLERS, before this is included: how many callers, with the place
 * itself, make a place another one.
 *
 * Allocations are wrapped here: include this in one source file of the program and link it with
 * FAIL_ALLOC_LINK (tests/unit/CMakeLists.txt). For other calls the test writes __wrap_NAME itself,
 * which asks FAIL_CALLS_NOW(). Doubles that run in the same program take their memory by
 * own_alloc.h, or between fail_calls_pause() and fail_calls_resume(). Only the thread that runs the
 * loop sees failures.
 */
#include "wrap_alloc.h"

#include "base/assert.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FAIL_CALLS_SITES 4096
#ifndef FAIL_CALLS_CALLERS
#define FAIL_CALLS_CALLERS 1
#endif

struct fail_site {
    const void *at[FAIL_CALLS_CALLERS];
    uint32_t calls; /* in this run */
};
static struct fail_site fail_sites[FAIL_CALLS_SITES];
static uint32_t fail_nsites;
static uint32_t fail_target;     /* whose turn it is */
static uint32_t fail_stride = 1; /* more: only each so-manieth place has its turn */
static uint32_t fail_nth;        /* which of its calls, from 1 */
static bool fail_hit;            /* it has failed, in this run */
static uint32_t fail_callers = FAIL_CALLS_CALLERS; /* a test may take fewer */
static uint32_t fail_hits;                         /* runs in which something did */
static _Thread_local bool fail_armed;

/* Frames, of code that keeps its frame pointer; the first one of a library that does not ends it.
 */
__attribute__((no_sanitize_address)) static inline void
fail_calls_callers_(const void *const *frame, struct fail_site *site)
{
    for (uint32_t i = 0; i < fail_callers; i++) {
        site->at[i] = frame[1];
        const void *const *next = frame[0];
        if (next <= frame || (size_t)(next - frame) > (1u << 16) ||
            (uintptr_t)next % sizeof *next != 0) {
            break;
        }
        frame = next;
    }
}

static inline bool fail_calls_now_(const void *const *frame)
{
    struct fail_site site = {{NULL}, 0};
    if (!fail_armed) {
        return false;
    }
    fail_calls_callers_(frame, &site);
    uint32_t i = 0;
    while (i < fail_nsites && memcmp(fail_sites[i].at, site.at, sizeof site.at) != 0) {
        i++;
    }
    if (i == fail_nsites) {
        kvb_assert(fail_nsites < FAIL_CALLS_SITES);
        fail_sites[fail_nsites++] = site;
    }
    fail_sites[i].calls++;
    if (fail_hit || i != fail_target || fail_sites[i].calls != fail_nth) {
        return false;
    }
    fail_hit = true;
    fail_hits++;
    return true;
}
/* In a wrapper: true, and this call fails. */
#define FAIL_CALLS_NOW() fail_calls_now_(__builtin_frame_address(0))

static inline void fail_calls_pause(void)
{
    fail_armed = false;
}
static inline void fail_calls_resume(void)
{
    fail_armed = true;
}
/* Nothing fails any more in this run. True: something did. */
static inline bool fail_calls_stop(void)
{
    fail_armed = false;
    return fail_hit;
}

extern const char __executable_start[];

/* For `addr2line -f -e PROGRAM`: whose turn it is. */
static inline size_t fail_calls_place(void)
{
    return fail_target < fail_nsites
               ? (size_t)((const char *)fail_sites[fail_target].at[0] - __executable_start) - 1
               : 0;
}

static inline void fail_calls_begin_(uint32_t nth)
{
    fail_nsites = fail_target = fail_hits = 0;
    fail_nth = nth;
}
/* False: every place had its turn. */
static inline bool fail_calls_run_(void)
{
    if (fail_target > 0 && fail_target >= fail_nsites) {
        fail_armed = false;
        kvb_assert(fail_hits > 0 || fail_nth > 1); /* else nothing is wrapped */
        return false;
    }
    for (uint32_t i = 0; i < fail_nsites; i++) {
        fail_sites[i].calls = 0;
    }
    fail_hit = false;
    fail_armed = true;
    return true;
}
#define FAIL_CALLS_EACH(nth)                                                                       \
    for (fail_calls_begin_(nth); fail_calls_run_(); fail_target += fail_stride)

bool wrap_alloc_fails(const void *const *frame)
{
    return fail_calls_now_(frame);
}

#endif
