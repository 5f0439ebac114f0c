/* SPDX-License-Identifier: Apache-2.0 */
#include "redis.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static bool answers(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return ok;
}

void redis_start(struct redis *redis)
{
    rig_temp_dir(redis->dir);
    uint16_t port = rig_free_port();
    snprintf(redis->port, sizeof redis->port, "%u", port);
    redis->pid = fork();
    if (redis->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(RIG_SERVER_CPU);
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, 1);
        execlp("redis-server", "redis-server", "--port", redis->port, "--bind", "127.0.0.1",
               "--save", "", "--appendonly", "no", "--dir", redis->dir, NULL);
        _exit(127);
    }
    for (uint64_t end_ns = rig_now_ns() + 10 * KVB_NS_PER_S; !answers(port); usleep(10000)) {
        if (rig_now_ns() > end_ns || waitpid(redis->pid, NULL, WNOHANG) != 0) {
            rig_fail("redis-server does not come up");
        }
    }
}

void redis_stop(struct redis *redis)
{
    kill(redis->pid, SIGTERM);
    waitpid(redis->pid, NULL, 0);
}

void redis_forget(struct redis *redis, struct rig_net *net)
{
    char out[256];
    rig_net_spawn(net, (const char *[]){"redis-cli", "-p", redis->port, "flushall", NULL}, out,
                  sizeof out);
}

double redis_per_s(struct redis *redis, struct rig_net *net, const char *test, uint32_t len,
                   uint32_t n, uint32_t keys, uint32_t connections, uint32_t pipeline)
{
    char numbers[5][16], out[4096];
    const uint32_t values[5] = {len, n, keys, connections, pipeline};
    for (int i = 0; i < 5; i++) {
        snprintf(numbers[i], sizeof numbers[i], "%u", values[i]);
    }
    rig_net_spawn(net,
                  (const char *[]){"redis-benchmark", "-p", redis->port, "-t", test, "-d",
                                   numbers[0], "-n", numbers[1], "-r", numbers[2], "-c", numbers[3],
                                   "-P", numbers[4], "--csv", NULL},
                  out, sizeof out);
    /* "test","rps",… and a line "SET","3546.10",… */
    char *line = strcasestr(out, test[0] == 's' ? "\"SET\",\"" : "\"GET\",\"");
    if (line == NULL) {
        rig_fail("redis-benchmark said: %s", out);
    }
    return atof(line + strlen("\"SET\",\""));
}
