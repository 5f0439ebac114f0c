/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench retire: how long retiring a lineage takes with 10^4 to 10^7 live objects under it, while
 * puts under another lineage go on before and after; then what reclaim costs until used bytes are
 * back to those puts' own, and the longest single call of each kind. (bench reset measures the
 * whole way from the HTTP call.)
 */
#include "core_rig.h"

#define SIZES  4u
#define STEP   256u   /* objects per reclaim */
#define BESIDE 20000u /* puts under the other lineage after each retire */

static uint64_t worst(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A lineage of `objects` is filled, retired between puts, and reclaimed. */
static void measure(uint64_t objects, double *retire_us_p)
{
    struct kvs_core *core = rig_create(objects + BESIDE);
    struct kvs_core_where old = rig_where(1);
    struct kvs_core_where fresh = rig_where(2);
    for (uint64_t i = 0; i < objects; i++) {
        rig_put(core, &old, i);
    }
    kvb_assert(rig_stats(core).objects == objects);
    uint64_t put_ns = 0;
    for (uint64_t i = 0; i < BESIDE / 2; i++) {
        rig_put(core, &fresh, i);
    }
    uint64_t start_ns = rig_now_ns();
    kvs_core_retire(core, old.lineage);
    uint64_t retire_ns = rig_now_ns() - start_ns;
    for (uint64_t i = BESIDE / 2; i < BESIDE; i++) {
        start_ns = rig_now_ns();
        rig_put(core, &fresh, i);
        put_ns = worst(put_ns, rig_now_ns() - start_ns);
    }
    uint64_t step_ns = 0;
    uint64_t all_ns = rig_now_ns();
    for (bool more = true; more;) {
        start_ns = rig_now_ns();
        more = kvs_core_reclaim(core, 1, STEP);
        step_ns = worst(step_ns, rig_now_ns() - start_ns);
    }
    all_ns = rig_now_ns() - all_ns;
    kvb_assert(rig_stats(core).used_bytes == BESIDE * RIG_VALUE);
    kvs_core_retire(core, fresh.lineage);
    while (kvs_core_reclaim(core, 1, STEP)) {
    }
    kvb_assert(rig_stats(core).used_bytes == 0);
    *retire_us_p = (double)retire_ns / 1000;
    printf("%9llu %12.2f %14.1f %16.1f %14.2f\n", (unsigned long long)objects, *retire_us_p,
           (double)put_ns / 1000, (double)step_ns / 1000, (double)all_ns / 1e9);
    kvs_core_destroy(core);
}

int main(void)
{
    int cpu = rig_pin();
    printf("cpu %d\n%9s %12s %14s %16s %14s\n", cpu, "objects", "retire us", "worst put us",
           "worst reclaim us", "reclaim all s");
    double us[SIZES];
    uint64_t objects = 10000;
    for (uint32_t i = 0; i < SIZES; i++, objects *= 10) {
        measure(objects, &us[i]);
    }
    printf("bench retire: us_1e4=%.2f us_1e5=%.2f us_1e6=%.2f us_1e7=%.2f\n", us[0], us[1], us[2],
           us[3]);
    return 0;
}
