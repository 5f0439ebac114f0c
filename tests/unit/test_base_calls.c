/* SPDX-License-Identifier: Apache-2.0 */
/* What base asks of the system, refused or interrupted, at every place in turn. */
#include "fail_calls.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* These are interrupted rather. */
static uint32_t interrupted;
#define WRAP(name, parameters, arguments)                                                          \
    ssize_t __real_##name parameters;                                                              \
    ssize_t __wrap_##name parameters;                                                              \
    ssize_t __wrap_##name parameters                                                               \
    {                                                                                              \
        if (FAIL_CALLS_NOW()) {                                                                    \
            interrupted++;                                                                         \
            errno = EINTR;                                                                         \
            return -1;                                                                             \
        }                                                                                          \
        return __real_##name arguments;                                                            \
    }
WRAP(write, (int fd, const void *from, size_t len), (fd, from, len))
WRAP(getrandom, (void *to, size_t len, unsigned flags), (to, len, flags))

Test(base_calls, metrics_are_there_whole_or_not_at_all_and_none_is_lost)
{
    enum { SERIES = 64 };
    static const double bounds[] = {0.5, 1};
    static const struct kvb_metric table[] = {
        {"t_calls_total", KVB_COUNTER, "Calls.", {NULL}, NULL, 0},
        {"t_took_seconds", KVB_HISTOGRAM, "Took.", {"what", NULL}, bounds, 2},
    };
    for (uint32_t nth = 1; nth <= 6; nth++) {
        FAIL_CALLS_EACH(nth)
        {
            struct kvb_metrics *metrics = kvb_metrics_create(table, 2);
            if (metrics == NULL) {
                cr_assert(fail_hit);
                metrics = kvb_metrics_create(table, 2);
            }
            cr_assert_not_null(metrics);
            kvb_series_add(kvb_series0(metrics, 0), 3);
            for (int i = 0; i < SERIES; i++) {
                char name[16];
                (void)snprintf(name, sizeof name, "get%d", i);
                struct kvb_series *series = kvb_series(metrics, 1, (const char *const[]){name});
                cr_assert_not_null(series, "never NULL: what finds no memory is counted as other");
                kvb_series_observe(series, 0.7);
            }
            char *text = NULL;
            size_t len = 0;
            kvb_status_t status = kvb_metrics_write(metrics, &text, &len);
            if (status != KVB_OK) {
                cr_assert(fail_hit && status == KVB_ERR_NO_MEMORY && text == NULL && len == 0);
                cr_assert_eq(kvb_metrics_write(metrics, &text, &len), KVB_OK);
            }
            cr_assert_not_null(strstr(text, "t_calls_total 3\n"));
            double counted = 0; /* of all of them; it takes the text several steps to grow */
            for (const char *at = text; (at = strstr(at, "t_took_seconds_count{")) != NULL; at++) {
                counted += atof(strchr(at, ' '));
            }
            cr_assert_eq(counted, SERIES, "place %zx: %f were counted", fail_calls_place(),
                         counted);
            free(text);
            fail_calls_stop();
            kvb_metrics_destroy(metrics);
        }
    }
}

Test(base_calls, what_is_interrupted_goes_on)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    kvb_log_setup(KVB_LOG_INFO, KVB_LOG_LOGFMT, ends[1]);
    FAIL_CALLS_EACH(1)
    {
        char line[256] = "";
        uint64_t drawn[2] = {0, 0};
        KVB_LOG(INFO, "said");
        ssize_t len = read(ends[0], line, sizeof line - 1);
        cr_assert(len > 0 && strstr(line, "msg=said") != NULL, "%s", line);
        kvb_random_real.fill(kvb_random_real.ctx, drawn, sizeof drawn);
        cr_assert(drawn[0] != 0 || drawn[1] != 0, "nothing was drawn");
        fail_calls_stop();
    }
    cr_assert_eq(interrupted, 2, "both of them");
    (void)close(ends[0]);
    (void)close(ends[1]);
}
