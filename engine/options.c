/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/assert.h"
#include "base/faults.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

bool kve_options_parse(const char *program, const struct kve_option *options, size_t n, int argc,
                       char **argv, bool (*take)(void *ctx, size_t i, const char *value), void *ctx)
{
    struct option longs[KVE_OPTIONS_MAX + 1] = {0};
    int found;

    kvb_assert(n <= KVE_OPTIONS_MAX);
    for (size_t i = 0; i < n; i++) {
        longs[i].name = options[i].name;
        longs[i].has_arg = options[i].value != NULL ? required_argument : no_argument;
        longs[i].val = (int)i;
    }
    optind = 1;
    while ((found = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (found == '?') {
            return false;
        }
        if (!take(ctx, (size_t)found, optarg)) {
            fprintf(stderr, "%s: --%s: %s is not allowed\n", program, options[found].name, optarg);
            return false;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: %s is not an option\n", program, argv[optind]);
        return false;
    }
    return true;
}

bool kve_option_number(const char *text, uint64_t min, uint64_t max, uint64_t *value_p)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < min || value > max) {
        return false;
    }
    *value_p = value;
    return true;
}

bool kve_option_number32(const char *text, uint32_t min, uint32_t max, uint32_t *value_p)
{
    uint64_t value;

    if (!kve_option_number(text, min, max, &value)) {
        return false;
    }
    *value_p = (uint32_t)value;
    return true;
}

bool kve_options_choose_fault(const char *program)
{
    const char *fault = getenv("KVPLANE_FAULT");

    if (fault == NULL || fault[0] == '\0') {
        return true;
    }
#ifdef KVB_FAULTS
    if (kvb_fault_choose(fault) == KVB_OK) {
        return true;
    }
    fprintf(stderr, "%s: KVPLANE_FAULT: there is no fault %s\n", program, fault);
#else
    fprintf(stderr, "%s: KVPLANE_FAULT is set, but this build has no fault switches\n", program);
#endif
    return false;
}
