/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that was asked to let an RDMA device reach GPU memory, on a machine where none can: the
 * engine is served through the pool, and whoever looks is told so and why.
 */
#include "etcd_server.h"
#include "ranks.h"

#include <criterion/criterion.h>

static const char *text_of(const json_t *helper, const char *name)
{
    const char *text = json_string_value(json_object_get(helper, name));
    return text != NULL ? text : "";
}

Test(gpu_direct, where_it_cannot_be_the_pool_serves_and_the_status_says_why, .timeout = 200)
{
    static struct gpu_fleet fleet;
    static struct gpu_instance instance = {.name = "one", .kind = KVPLANE_MEMORY_CUDA, .n = 1};
    struct etcd_cluster etcd;
    if (!etcd_installed()) {
        cr_skip_test("there is no etcd here");
    }
    etcd_start(&etcd, 1, false);
    cr_assert_eq(setenv("KVPLANE_ETCD", etcd.members[0].url, 1), 0);
    cr_assert_eq(setenv("KVPLANE_CLUSTER_LISTEN", "127.0.0.1:0", 1), 0);
    cr_assert_eq(setenv("KVPLANE_GPU_RDMA", "direct", 1), 0);
    fleet_start(&fleet, "20s", NULL);
    instance_start(&fleet, &instance);
    instance_moves(&instance);
    json_t *view = fleet_view(&fleet, &instance);
    const json_t *helper = json_object_get(view_rank(view, 0), "helper");
    cr_assert_str_eq(text_of(helper, "gpu_rdma"), "direct");
    cr_assert_str_eq(text_of(helper, "path"), "pool");
    cr_assert_str_eq(text_of(helper, "integrity"), "checksum", "what went through it was hashed");
    cr_assert_str_not_empty(text_of(helper, "pool_cause"));
    cr_assert_eq(json_integer_value(json_object_get(helper, "direct_transfers")), 0);
    json_decref(view);
    POST_OK(&fleet, &instance, "/sleep?level=1");
    POST_OK(&fleet, &instance, "/wake_up");
    instance_moves(&instance);
    instance_stop(&fleet, &instance);
    fleet_stop(&fleet);
    etcd_stop(&etcd);
}
