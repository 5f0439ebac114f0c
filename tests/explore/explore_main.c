/* SPDX-License-Identifier: Apache-2.0 */
#include "explore_main.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STATES_MAX 20000000u /* with all that is kept of them 2 GB at most */

struct options {
    const char *lens;
    const char *trace;
    uint32_t depth; /* 0: each lens has its own */
    uint64_t states_max;
    bool exact;
};

static bool parse(int argc, char **argv, struct options *options_p)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--depth") == 0) {
            options_p->depth = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--states") == 0) {
            options_p->states_max = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--exact") == 0) {
            options_p->exact = strcmp(value, "yes") == 0;
        } else if (strcmp(argv[i], "--lens") == 0) {
            options_p->lens = value;
        } else if (strcmp(argv[i], "--replay") == 0) {
            options_p->trace = value;
        } else {
            return false;
        }
    }
    return argc % 2 == 1 && (options_p->trace == NULL || options_p->lens != NULL);
}

static bool run_lens(const struct explore_lens *lens, const struct options *options,
                     const char *program)
{
    char replay[256];
    struct search_result result;
    struct timespec begun, ended;
    uint32_t depth = options->depth != 0 ? options->depth : lens->depth;
    struct search_limits limits = {.depth = depth != 0 ? depth : UINT32_MAX,
                                   .states_max = options->states_max};
    (void)snprintf(replay, sizeof replay, "%s --lens %s", program, lens->name);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    bool ok = search_run(explore.model, &limits, replay, &result);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%-8s depth %u%s: %llu states, %llu events, %llu followed, %.1f s\n", lens->name,
           result.depth, result.whole ? " (all)" : "", (unsigned long long)result.states,
           (unsigned long long)result.events, (unsigned long long)result.followed,
           (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) / 1e9);
    limits.exact = true;
    if (ok && options->exact && explore.model->exact != NULL) {
        uint64_t states = result.states;
        ok = search_run(explore.model, &limits, replay, &result);
        printf("%-8s told apart by all that is in it: %llu states of %llu forms\n", lens->name,
               (unsigned long long)result.states, (unsigned long long)result.forms);
        if (ok && result.forms != states) {
            printf("VIOLATION forms leave out what counts\n");
            ok = false;
        }
    }
    (void)fflush(stdout);
    return ok;
}

int main(int argc, char **argv)
{
    struct options options = {.states_max = STATES_MAX};
    bool any = false;
    if (!parse(argc, argv, &options)) {
        (void)fprintf(
            stderr,
            "usage: %s [--depth N] [--states N] [--exact yes] [--lens NAME [--replay TRACE]]\n",
            argv[0]);
        return 2;
    }
    if (options.trace != NULL) { /* what the code says to it */
        kvb_log_setup(KVB_LOG_DEBUG, KVB_LOG_LOGFMT, STDERR_FILENO);
    } else {
        kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, open("/dev/null", O_WRONLY | O_CLOEXEC));
    }
    for (uint32_t i = 0; i < explore.nlenses; i++) {
        const void *at = (const char *)explore.lenses + i * explore.lens_bytes;
        const struct explore_lens *lens = at;
        if (options.lens != NULL && strcmp(options.lens, lens->name) != 0) {
            continue;
        }
        any = true;
        explore.create(lens);
        bool ok = options.trace != NULL ? search_replay(explore.model, options.trace)
                                        : run_lens(lens, &options, argv[0]);
        if (!ok) {
            return 1;
        }
    }
    if (!any) {
        (void)fprintf(stderr, "%s: no lens %s\n", argv[0], options.lens);
    }
    return any ? 0 : 2;
}
