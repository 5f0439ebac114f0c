/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests passed on to the engine's own server. First answers of 1 KiB at 64 connections of wrk,
 * from an nginx that returns a constant: through an nginx as reverse proxy, through kvplane, and
 * through the limit, a bare program of the two libraries that kvplane is made of, in turns. Then a
 * stream of chunks, straight from its server and through kvplane at once: how much later each one
 * is there. Then 1,000 slow streams at once, and probes meanwhile.
 */
#include "limit_proxy.h"
#include "rig.h"
#include "web_rig.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS      7
#define ROUND_S     1
#define CONNECTIONS 64
#define BODY        1024
#define CHUNKS      400u
#define CHUNK_US    4000u
#define GROUP       20u /* streams that get their next chunk together */
#define STREAMS     1000u
#define PROBES      300u
#define MS(ns)      ((double)(ns) / 1e6)

/* ---- a server of streams ---- */

static int listen_at(uint16_t *port_p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 4096) != 0 || getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        rig_fail("listen: %m");
    }
    *port_p = ntohs(address.sin_port);
    return fd;
}

static const char stream_head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n";

static void send_all(int fd, const char *data, size_t len)
{
    if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len) {
        rig_fail("a stream broke off: %m");
    }
}

static void read_head(int fd)
{
    char text[4096];
    size_t len = 0;
    do {
        ssize_t got = recv(fd, text + len, sizeof text - 1 - len, 0);
        if (got <= 0) {
            rig_fail("no request: %m");
        }
        len += (size_t)got;
        text[len] = '\0';
    } while (strstr(text, "\r\n\r\n") == NULL);
}

/* A process: n streams, and then to each of them every pace_us the time it is; not to all at once.
 */
static pid_t serve_streams(int listener, unsigned n, unsigned chunks, unsigned pace_us)
{
    pid_t pid = fork();
    if (pid != 0) {
        close(listener);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int *fds = calloc(n, sizeof *fds);
    for (unsigned i = 0; fds != NULL && i < n; i++) {
        fds[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fds[i] < 0) {
            rig_fail("accept: %m");
        }
        read_head(fds[i]);
        send_all(fds[i], stream_head, sizeof stream_head - 1);
    }
    for (unsigned k = 0; fds != NULL && k < chunks; k++) {
        for (unsigned i = 0; i < n; i++) {
            if (i % GROUP == 0) {
                usleep(n > GROUP ? pace_us / (n / GROUP) : pace_us);
            }
            char chunk[64];
            int len = snprintf(chunk, sizeof chunk, "18\r\ndata: %016llx\n\n\r\n",
                               (unsigned long long)rig_now_ns());
            send_all(fds[i], chunk, (size_t)len);
        }
    }
    for (;;) {
        pause();
    }
}

static int ask_stream(uint16_t port)
{
    static const char request[] = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        rig_fail("connect: %m");
    }
    send_all(fd, request, sizeof request - 1);
    return fd;
}

/* Ages of what it reads, in milliseconds. */
struct reader {
    int fd;
    double ms[CHUNKS];
    unsigned n;
};

static void *read_stream(void *arg)
{
    struct reader *reader = arg;
    char text[8192];
    while (reader->n < CHUNKS) {
        ssize_t len = recv(reader->fd, text, sizeof text - 1, 0);
        uint64_t now_ns = rig_now_ns();
        if (len <= 0) {
            rig_fail("a stream ended: %m");
        }
        text[len] = '\0';
        for (char *at = text; reader->n < CHUNKS && (at = strstr(at, "data: ")) != NULL; at++) {
            reader->ms[reader->n++] = MS(now_ns - strtoull(at + 6, NULL, 16));
        }
    }
    return NULL;
}

/* By how much a chunk is later through kvplane, at the median. */
static double chunk_ms(void)
{
    static struct reader readers[2]; /* straight, through */
    pthread_t threads[2];
    char url[64];
    uint16_t port;
    struct rig rig;
    int listener = listen_at(&port);
    pid_t server = serve_streams(listener, 2, CHUNKS, CHUNK_US);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    rig_start(&rig, RIG_ANY_CPU,
              (const char *[]){"--store-bytes", "8MiB", "--upstream", url, NULL});
    for (int i = 0; i < 2; i++) {
        readers[i].fd = ask_stream(i == 0 ? port : rig.port);
        if (pthread_create(&threads[i], NULL, read_stream, &readers[i]) != 0) {
            rig_fail("no thread");
        }
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        close(readers[i].fd);
    }
    double straight = rig_quantile(readers[0].ms, CHUNKS, 0.5);
    double through = rig_quantile(readers[1].ms, CHUNKS, 0.5);
    printf("%u chunks: straight p50 %.3f ms p99 %.3f ms, through kvplane p50 %.3f ms p99 %.3f ms\n",
           CHUNKS, straight, rig_quantile(readers[0].ms, CHUNKS, 0.99), through,
           rig_quantile(readers[1].ms, CHUNKS, 0.99));
    rig_stop(&rig);
    web_end(server);
    return through - straight;
}

/* ---- many slow streams ---- */

static double probes_p99_ms(const struct rig *rig)
{
    static double ms[PROBES];
    for (unsigned i = 0; i < PROBES; i++) {
        static struct rig_http http;
        uint64_t begun_ns = rig_now_ns();
        rig_http_open(&http, rig);
        if (rig_http_call(&http, "GET", "/livez", NULL) != 200) {
            rig_fail("/livez: %s", http.body);
        }
        rig_http_close(&http);
        ms[i] = MS(rig_now_ns() - begun_ns);
        usleep(2000);
    }
    return rig_quantile(ms, PROBES, 0.99);
}

static void *drain(void *arg)
{
    static char dropped[65536];
    struct pollfd *fds = arg;
    for (;;) {
        if (poll(fds, STREAMS, -1) < 0) {
            rig_fail("poll: %m");
        }
        for (unsigned i = 0; i < STREAMS; i++) {
            if ((fds[i].revents & POLLIN) != 0 &&
                recv(fds[i].fd, dropped, sizeof dropped, 0) <= 0) {
                rig_fail("a stream ended: %m");
            }
        }
    }
}

static void probe_beside_streams(void)
{
    static struct pollfd fds[STREAMS];
    pthread_t thread;
    char url[64], text[256];
    uint16_t port;
    struct rig rig;
    int listener = listen_at(&port);
    pid_t server = serve_streams(listener, STREAMS, 1000000, 200000); /* five a second, each */
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    rig_start(&rig, RIG_ANY_CPU,
              (const char *[]){"--store-bytes", "8MiB", "--upstream", url, NULL});
    double alone = probes_p99_ms(&rig);
    for (unsigned i = 0; i < STREAMS; i++) {
        fds[i] = (struct pollfd){.fd = ask_stream(rig.port), .events = POLLIN};
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        if (recv(fds[i].fd, text, sizeof text, 0) < 12 || memcmp(text, "HTTP/1.1 200", 12) != 0) {
            rig_fail("stream %u is not answered", i);
        }
    }
    if (pthread_create(&thread, NULL, drain, fds) != 0) {
        rig_fail("no thread");
    }
    printf("probe_p99_ms=%.3f alone, stream_probe_p99_ms=%.3f beside %u streams of 5 events a "
           "second\n",
           alone, probes_p99_ms(&rig), STREAMS);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < STREAMS; i++) {
        close(fds[i].fd);
    }
    rig_stop(&rig);
    web_end(server);
}

/* ---- requests ---- */

/* That wrk has used so far: nobody else is waited for meanwhile. */
static double wrk_cpu_s(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double nginx_ratio(void)
{
    static char body[BODY + 1];
    char url[64];
    struct rig rig;
    uint16_t behind = rig_free_port(), before = rig_free_port(), bare = rig_free_port();
    memset(body, 'x', BODY);
    pid_t upstream =
        web_nginx(RIG_ANY_CPU, "server { listen 127.0.0.1:%u; location / { return 200 '%s'; } }\n",
                  behind, body);
    web_await(behind, upstream, "the server", "/x", body);
    pid_t nginx = web_nginx(RIG_ANY_CPU,
                            "upstream u { server 127.0.0.1:%u; keepalive 128; }\n"
                            "server { listen 127.0.0.1:%u; location / { proxy_pass http://u;\n"
                            "  proxy_http_version 1.1; proxy_set_header Connection ''; } }\n",
                            behind, before);
    web_await(before, nginx, "nginx", "/x", body);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", behind);
    rig_start(&rig, RIG_ANY_CPU,
              (const char *[]){"--store-bytes", "8MiB", "--upstream", url, NULL});
    web_await(rig.port, rig.daemon, "kvplane", "/x", body);
    pid_t limit = limit_proxy(bare, url);
    web_await(bare, limit, "the limit", "/x", body);

    enum { NGINX, KVPLANE, LIMIT, NPROXIES };
    double rps[NPROXIES][ROUNDS], us[NPROXIES][ROUNDS], ratio[ROUNDS], best[ROUNDS], cpu[ROUNDS];
    const uint16_t ports[NPROXIES] = {before, rig.port, bare};
    const pid_t pids[NPROXIES] = {nginx, rig.daemon, limit};
    for (int i = 0; i < ROUNDS; i++) {
        double both_us = 0; /* of a request, by wrk and the server behind, with nginx */
        for (int j = 0; j < NPROXIES; j++) {
            struct web_wrk wrk;
            double both_s = wrk_cpu_s() + web_cpu_s(upstream);
            double begun_s = web_cpu_s(pids[j]);
            web_wrk_start(&wrk, RIG_ANY_CPU, ports[j], "/x", "64", ROUND_S);
            rps[j][i] = web_wrk_end(&wrk);
            us[j][i] = (web_cpu_s(pids[j]) - begun_s) * 1e6 / (rps[j][i] * ROUND_S);
            if (j == NGINX) {
                both_s = wrk_cpu_s() + web_cpu_s(upstream) - both_s;
                both_us = both_s * 1e6 / (rps[j][i] * ROUND_S);
            }
        }
        cpu[i] = (us[NGINX][i] + both_us) / (us[LIMIT][i] + both_us);
        ratio[i] = rps[KVPLANE][i] / rps[NGINX][i];
        best[i] = rps[LIMIT][i] / rps[NGINX][i];
        printf("round %d: nginx %.0f, kvplane %.0f, limit %.0f requests/s\n", i + 1, rps[NGINX][i],
               rps[KVPLANE][i], rps[LIMIT][i]);
    }
    printf("CPU of a request: nginx %.1f us, kvplane %.1f us, limit %.1f us\n",
           rig_quantile(us[NGINX], ROUNDS, 0.5), rig_quantile(us[KVPLANE], ROUNDS, 0.5),
           rig_quantile(us[LIMIT], ROUNDS, 0.5));
    printf("limit_ratio=%.3f (libmicrohttpd and libcurl alone, beside nginx)\n",
           rig_quantile(best, ROUNDS, 0.5));
    printf("cpu_limit_ratio=%.3f (what that program's CPU allows, if no core ever waited)\n",
           rig_quantile(cpu, ROUNDS, 0.5));
    web_end(limit);
    rig_stop(&rig);
    web_end(nginx);
    web_end(upstream);
    return rig_quantile(ratio, ROUNDS, 0.5);
}

int main(void)
{
    struct rlimit files;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    double ratio = nginx_ratio();
    double later_ms = chunk_ms();
    probe_beside_streams();
    printf("bench proxy: nginx_ratio=%.3f chunk_ms=%.3f\n", ratio, later_ms);
    return 0;
}
