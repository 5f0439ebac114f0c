/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd_server.h"

#include "base/assert.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_S 60

bool etcd_installed(void)
{
    return access("/usr/bin/etcd", X_OK) == 0 && access("/usr/bin/etcdctl", X_OK) == 0;
}

/* Ours alone among all that claim ports so (harness.py does), also while nobody listens there. The
 * socket is the claim: it ends with this process. */
static bool claim(unsigned port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "kvplane-test-port-%u", port);
    kvb_assert(fd >= 0);
    if (bind(fd, (struct sockaddr *)&name,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)) == 0) {
        return true;
    }
    (void)close(fd);
    return false;
}

/* One that is free, and that nobody is given while this process lives. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned first = 32768, last = 60999, port;
    FILE *given = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (given != NULL) {
        (void)(fscanf(given, "%u %u", &first, &last) == 2);
        (void)fclose(given);
    }
    bool all = first <= 10000 && last >= 65535; /* there is no other */
    for (;;) {
        port = 10000 + arc4random_uniform(55536);
        if (!all && port >= first && port <= last) {
            continue;
        }
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        kvb_assert(fd >= 0);
        address.sin_port = htons((uint16_t)port);
        bool bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        (void)close(fd);
        if (bound && claim(port)) {
            return (int)port;
        }
    }
}

static void shell(const char *command)
{
    int rc = system(command);
    kvb_assert(rc == 0);
}

static void start_member(struct etcd_cluster *cluster, uint32_t i)
{
    char name[16], data[96], log[96], peers[512] = "";
    char ca[96], cert[96], key[96];
    for (uint32_t j = 0; j < cluster->n; j++) {
        size_t len = strlen(peers);
        snprintf(peers + len, sizeof peers - len, "%sm%u=%s", j == 0 ? "" : ",", j,
                 cluster->members[j].peer_url);
    }
    snprintf(name, sizeof name, "m%u", i);
    snprintf(data, sizeof data, "%s/m%u", cluster->dir, i);
    snprintf(log, sizeof log, "%s/m%u.log", cluster->dir, i);
    snprintf(ca, sizeof ca, "%s/ca.pem", cluster->dir);
    snprintf(cert, sizeof cert, "%s/cert.pem", cluster->dir);
    snprintf(key, sizeof key, "%s/key.pem", cluster->dir);
    const char *argv[48];
    int n = 0;
    const char *const words[] = {
        "/usr/bin/etcd", "--name", name, "--data-dir", data, "--listen-client-urls",
        cluster->members[i].url, "--advertise-client-urls", cluster->members[i].url,
        "--listen-peer-urls", cluster->members[i].peer_url, "--initial-advertise-peer-urls",
        cluster->members[i].peer_url, "--initial-cluster", peers, "--initial-cluster-token",
        cluster->dir,
        /* leases as short as they come */
        "--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap",
        "--log-outputs", log};
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        argv[n++] = words[w];
    }
    if (cluster->tls) {
        const char *const tls[] = {"--cert-file",       cert, "--key-file",        key,
                                   "--trusted-ca-file", ca,   "--client-cert-auth"};
        for (size_t w = 0; w < sizeof tls / sizeof tls[0]; w++) {
            argv[n++] = tls[w];
        }
    }
    argv[n] = NULL;
    pid_t pid = fork();
    kvb_assert(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        (void)dup2(null, 0);
        (void)dup2(null, 1);
        (void)dup2(null, 2);
        for (int fd = 3; fd < 1024; fd++) {
            (void)close(fd);
        }
        execv(argv[0], (char *const *)(void *)argv);
        _exit(127);
    }
    cluster->members[i].pid = pid;
}

int etcd_ctl(const struct etcd_cluster *cluster, const char *words, char *out, int cap)
{
    char command[1024], endpoints[256] = "", tls[512] = "";
    for (uint32_t i = 0; i < cluster->n; i++) {
        size_t len = strlen(endpoints);
        snprintf(endpoints + len, sizeof endpoints - len, "%s%s", i == 0 ? "" : ",",
                 cluster->members[i].url);
    }
    if (cluster->tls) {
        snprintf(tls, sizeof tls, "--cacert %s/ca.pem --cert %s/cert.pem --key %s/key.pem",
                 cluster->dir, cluster->dir, cluster->dir);
    }
    snprintf(command, sizeof command,
             "ETCDCTL_API=3 /usr/bin/etcdctl --command-timeout 3s --endpoints %s %s %s 2>/dev/null",
             endpoints, tls, words);
    FILE *pipe = popen(command, "r");
    kvb_assert(pipe != NULL);
    size_t len = out == NULL ? 0 : fread(out, 1, (size_t)cap - 1, pipe);
    if (out != NULL) {
        out[len] = '\0';
    }
    char rest[4096];
    while (fread(rest, 1, sizeof rest, pipe) > 0) {
    }
    int rc = pclose(pipe);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

void etcd_await(struct etcd_cluster *cluster)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    for (int i = 0; i < START_S * 20; i++) {
        if (etcd_ctl(cluster, "endpoint health", NULL, 0) == 0) {
            return;
        }
        nanosleep(&pause, NULL);
    }
    KVB_UNREACHABLE("etcd does not serve");
}

static void make_certs(const struct etcd_cluster *cluster)
{
    char command[2048];
    const char *d = cluster->dir;
    snprintf(command, sizeof command,
             "cd %s && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout "
             "ca.key -out ca.pem 2>/dev/null && openssl req -newkey rsa:2048 -nodes -subj "
             "/CN=localhost -keyout key.pem -out req.pem 2>/dev/null && printf "
             "'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' >ext && "
             "openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
             "-extfile ext -out cert.pem 2>/dev/null",
             d);
    shell(command);
}

void etcd_start(struct etcd_cluster *cluster, uint32_t n, bool tls)
{
    *cluster = (struct etcd_cluster){.n = n, .tls = tls};
    kvb_assert(n <= ETCD_MEMBERS_MAX);
    snprintf(cluster->dir, sizeof cluster->dir, "%s/kvplane-etcd-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    kvb_assert(mkdtemp(cluster->dir) != NULL);
    if (tls) {
        make_certs(cluster);
    }
    for (uint32_t i = 0; i < n; i++) {
        snprintf(cluster->members[i].url, sizeof cluster->members[i].url, "%s://127.0.0.1:%d",
                 tls ? "https" : "http", free_port());
        snprintf(cluster->members[i].peer_url, sizeof cluster->members[i].peer_url,
                 "http://127.0.0.1:%d", free_port());
    }
    for (uint32_t i = 0; i < n; i++) {
        start_member(cluster, i);
    }
    etcd_await(cluster);
}

void etcd_kill(struct etcd_cluster *cluster, uint32_t i)
{
    if (cluster->members[i].pid != 0) {
        (void)kill(cluster->members[i].pid, SIGKILL);
        while (waitpid(cluster->members[i].pid, NULL, 0) < 0 && errno == EINTR) {
        }
        cluster->members[i].pid = 0;
    }
}

void etcd_restart(struct etcd_cluster *cluster, uint32_t i)
{
    start_member(cluster, i);
}

void etcd_pause_one(struct etcd_cluster *cluster, uint32_t i, bool paused)
{
    (void)kill(cluster->members[i].pid, paused ? SIGSTOP : SIGCONT);
}

void etcd_pause(struct etcd_cluster *cluster, bool paused)
{
    for (uint32_t i = 0; i < cluster->n; i++) {
        etcd_pause_one(cluster, i, paused);
    }
}

void etcd_stop(struct etcd_cluster *cluster)
{
    char command[128];
    for (uint32_t i = 0; i < cluster->n; i++) {
        etcd_kill(cluster, i);
    }
    snprintf(command, sizeof command, "rm -rf %s", cluster->dir);
    shell(command);
}
