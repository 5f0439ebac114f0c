/* SPDX-License-Identifier: Apache-2.0 */
#include "instance_fixture.h"

#include <criterion/criterion.h>

Test(instance, an_engine_attaches_opens_and_serves)
{
    struct world w;
    world_open(&w, 1, true);
    cr_assert(world_view(&w).ready);
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(fake_engine_open(&w.engine));
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w0");
    world_close(&w);
}

Test(instance, every_form_of_sleep_and_wake_goes_there_and_back)
{
    static const struct {
        const char *down;
        const char *up[3];
    } forms[] = {
        {"sleep 0", {"wake"}},
        {"sleep 0", {"wake scheduling"}},
        {"sleep 1", {"wake"}},
        {"sleep 1", {"wake weights", "wake kv_cache"}},
        {"sleep 1", {"wake kv_cache", "wake weights"}},
        {"sleep 2", {"wake weights kv_cache"}},
        {"sleep 2", {"wake"}},
        {"sleep 1 optout", {"wake"}},
        {"release", {"wake kv_cache"}},
        {"pause", {"resume"}},
    };
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
            struct world w;
            world_open(&w, ranks, true);
            for (int cycle = 0; cycle < 20; cycle++) {
                struct told *down = world_do(&w, forms[i].down);
                cr_assert_eq(down->status, KVB_OK, "%s: %s", forms[i].down, down->message);
                cr_assert_not(fake_engine_serves(&w.engine));
                cr_assert_not(world_view(&w).ready);
                for (int u = 0; u < 3 && forms[i].up[u] != NULL; u++) {
                    struct told *up = world_do(&w, forms[i].up[u]);
                    cr_assert_eq(up->status, KVB_OK, "%s: %s", forms[i].up[u], up->message);
                }
                cr_assert(fake_engine_serves(&w.engine), "%s cycle %d", forms[i].down, cycle);
                cr_assert(world_view(&w).ready, "%s: %s", forms[i].down, world_view(&w).not_ready);
                cr_assert(fake_engine_open(&w.engine));
                cr_assert_str_eq(world_view(&w).weights_name,
                                 ranks == 1 ? "fingerprint:w0" : world_view(&w).weights_name);
                cr_assert_neq(world_view(&w).weights_name[0], '\0');
            }
            world_close(&w);
        }
    }
}
