/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that was asked to let an RDMA device reach GPU memory: on a machine where none can, the
 * engine is served through the pool, and whoever looks is told so and why. Where there is a soft
 * device (tests/rdma-vm), the kernel really pins the pages, of a fake GPU's memory that it can
 * reach by address.
 */
#include "etcd_server.h"
#include "ranks.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static const char *text_of(const json_t *helper, const char *name)
{
    const char *text = json_string_value(json_object_get(helper, name));
    return text != NULL ? text : "";
}

/* What every process of the test takes from its environment. */
static void ask_for_it(const struct etcd_cluster *etcd)
{
    cr_assert_eq(setenv("KVPLANE_ETCD", etcd->members[0].url, 1), 0);
    cr_assert_eq(setenv("KVPLANE_CLUSTER_LISTEN", "127.0.0.1:0", 1), 0);
    cr_assert_eq(setenv("KVPLANE_GPU_RDMA", "direct", 1), 0);
}

Test(gpu_direct, where_it_cannot_be_the_pool_serves_and_the_status_says_why, .timeout = 1100)
{
    static struct gpu_fleet fleet;
    static struct gpu_instance instance = {.name = "one", .kind = KVPLANE_MEMORY_CUDA, .n = 1};
    struct etcd_cluster etcd;
    if (!etcd_installed()) {
        cr_skip_test("there is no etcd here");
    }
    etcd_start(&etcd, 1, false);
    ask_for_it(&etcd);
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

/* ---- over a real stack ---- */

static void make_secret(char path[64])
{
    (void)snprintf(path, 64, "/tmp/kvplane-secret-XXXXXX");
    int fd = mkstemp(path);
    static const char text[] = "a secret of the cluster, long enough for anybody\n";
    cr_assert(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    (void)close(fd);
    cr_assert_eq(setenv("KVPLANE_SECRET_FILE", path, 1), 0);
}

/* Of so much more than the daemon's own that nearly all lies there. */
static pid_t start_store(void)
{
    int out[2];
    char line[256] = "";
    char *argv[] = {(char[]){KVPLANE_PROGRAM},
                    (char[]){"store"},
                    (char[]){"--node-name"},
                    (char[]){"store-0"},
                    (char[]){"--listen"},
                    (char[]){"127.0.0.1:0"},
                    (char[]){"--store-bytes"},
                    (char[]){"256MiB"},
                    (char[]){"--log-level"},
                    (char[]){"error"},
                    NULL};
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(out[1], 1);
        (void)unsetenv("KVPLANE_GPU_RDMA");
        (void)execv(argv[0], argv);
        _exit(127);
    }
    (void)close(out[1]);
    for (size_t len = 0; strchr(line, '\n') == NULL;) {
        ssize_t n = read(out[0], line + len, sizeof line - 1 - len);
        cr_assert_gt(n, 0, "the store node starts");
        len += (size_t)n;
    }
    (void)close(out[0]);
    return pid;
}

static uint64_t pinned_kib(int pid)
{
    char path[64], line[128];
    unsigned long kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "VmPin: %lu kB", &kib);
    }
    (void)fclose(file);
    return kib;
}

struct seen {
    int64_t moves;
    int pid;
    char path[16], integrity[16], pool_cause[256];
};

static struct seen look(struct gpu_fleet *fleet, const struct gpu_instance *instance)
{
    struct seen seen = {0};
    json_t *view = fleet_view(fleet, instance);
    const json_t *helper = json_object_get(view_rank(view, 0), "helper");
    seen.moves = json_integer_value(json_object_get(helper, "direct_transfers"));
    seen.pid = (int)json_integer_value(json_object_get(helper, "pid"));
    (void)snprintf(seen.path, sizeof seen.path, "%s", text_of(helper, "path"));
    (void)snprintf(seen.integrity, sizeof seen.integrity, "%s", text_of(helper, "integrity"));
    (void)snprintf(seen.pool_cause, sizeof seen.pool_cause, "%s", text_of(helper, "pool_cause"));
    json_decref(view);
    return seen;
}

/* Puts and gets of right bytes until so many more of them went without the pool. */
static void move_directly(struct gpu_fleet *fleet, struct gpu_instance *instance, int64_t more)
{
    struct seen seen = look(fleet, instance);
    int64_t wanted = seen.moves + more;
    for (int i = 0; i < 200 && seen.moves < wanted; i++) {
        instance_moves(instance);
        seen = look(fleet, instance);
    }
    cr_assert_geq(seen.moves, wanted, "%s", seen.pool_cause);
}

Test(gpu_direct, the_device_reaches_it_and_a_sleep_unpins_all_of_it, .timeout = 1100)
{
    static struct gpu_fleet fleet;
    static struct gpu_instance instance = {.name = "one", .kind = KVPLANE_MEMORY_CUDA, .n = 1};
    struct etcd_cluster etcd;
    char secret[64];
    if (getenv("KVPLANE_RDMA_ADDRESS") == NULL || !etcd_installed()) {
        cr_skip_test("there is no RDMA device here, or no etcd");
    }
    etcd_start(&etcd, 1, false);
    ask_for_it(&etcd);
    make_secret(secret);
    pid_t store = start_store();
    fleet_start(&fleet, "20s", NULL);
    atomic_store(&fleet.rig.control->visible, 1);
    instance_start(&fleet, &instance);
    move_directly(&fleet, &instance, 4);
    struct seen seen = look(&fleet, &instance);
    cr_assert_str_eq(seen.path, "direct");
    cr_assert_str_eq(seen.integrity, "transport");
    uint64_t awake = pinned_kib(seen.pid);
    for (int cycle = 0; cycle < 5; cycle++) {
        POST_OK(&fleet, &instance, "/sleep?level=1");
        cr_assert_eq(pinned_kib(seen.pid), awake - RANK_TAGS * (RANK_LEN >> 10), "cycle %d", cycle);
        POST_OK(&fleet, &instance, "/wake_up");
        cr_assert_eq(pinned_kib(seen.pid), awake, "cycle %d", cycle);
        move_directly(&fleet, &instance, 4);
    }
    cr_assert_eq(look(&fleet, &instance).pid, seen.pid, "one helper all along");
    instance_stop(&fleet, &instance);
    fleet_stop(&fleet);
    (void)kill(store, SIGTERM);
    (void)waitpid(store, NULL, 0);
    etcd_stop(&etcd);
    (void)unlink(secret);
}
