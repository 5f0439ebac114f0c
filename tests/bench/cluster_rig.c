/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster_rig.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- etcd ---- */

static size_t swallow(char *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

static CURLcode post(struct rig_etcd *etcd, uint32_t member, const char *path, const char *body,
                     long *status_p)
{
    char url[96];
    snprintf(url, sizeof url, "%s%s", etcd->urls[member], path);
    curl_easy_setopt(etcd->curl, CURLOPT_URL, url);
    curl_easy_setopt(etcd->curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(etcd->curl, CURLOPT_WRITEFUNCTION, swallow);
    curl_easy_setopt(etcd->curl, CURLOPT_TIMEOUT_MS, 10000L);
    curl_easy_setopt(etcd->curl, CURLOPT_TCP_NODELAY, 1L);
    CURLcode code = curl_easy_perform(etcd->curl);
    *status_p = 0;
    curl_easy_getinfo(etcd->curl, CURLINFO_RESPONSE_CODE, status_p);
    return code;
}

static void base64(const char *in, size_t len, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = 0;
        size_t n = len - i < 3 ? len - i : 3;
        for (size_t k = 0; k < 3; k++) {
            bits = bits << 8 | (k < n ? (uint8_t)in[i + k] : 0u);
        }
        for (size_t k = 0; k < 4; k++) {
            *out++ = k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=';
        }
    }
    *out = '\0';
}

static void start_member(struct rig_etcd *etcd, uint32_t i, const char *cluster, uint16_t peer)
{
    char name[16], dir[96], client[32], url[32];
    snprintf(name, sizeof name, "m%u", i);
    snprintf(dir, sizeof dir, "%s/%s", etcd->dir, name);
    snprintf(client, sizeof client, "%s", etcd->urls[i]);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", peer);
    etcd->pids[i] = fork();
    if (etcd->pids[i] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(RIG_SERVER_CPU);
        execlp("etcd", "etcd", "--name", name, "--data-dir", dir, "--listen-client-urls", client,
               "--advertise-client-urls", client, "--listen-peer-urls", url,
               "--initial-advertise-peer-urls", url, "--initial-cluster", cluster, "--logger",
               "zap", "--log-level", "error", NULL);
        _exit(127);
    }
}

void rig_etcd_start(struct rig_etcd *etcd, uint32_t n)
{
    *etcd = (struct rig_etcd){.n = n, .curl = curl_easy_init()};
    if (etcd->curl == NULL) {
        rig_fail("curl");
    }
    rig_temp_dir(etcd->dir);
    uint16_t peers[RIG_ETCD_MAX];
    char cluster[256] = "";
    for (uint32_t i = 0; i < n; i++) {
        peers[i] = rig_free_port();
        snprintf(etcd->urls[i], sizeof etcd->urls[i], "http://127.0.0.1:%u", rig_free_port());
        size_t at = strlen(cluster);
        snprintf(cluster + at, sizeof cluster - at, "%sm%u=http://127.0.0.1:%u", i > 0 ? "," : "",
                 i, peers[i]);
        at = strlen(etcd->endpoints);
        snprintf(etcd->endpoints + at, sizeof etcd->endpoints - at, "%s%s", i > 0 ? "," : "",
                 etcd->urls[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        start_member(etcd, i, cluster, peers[i]);
    }
    uint64_t end_ns = rig_now_ns() + 30000000000u;
    for (uint32_t i = 0; i < n;) {
        long status;
        if (post(etcd, i, "/v3/kv/range", "{\"key\":\"eA==\"}", &status) == CURLE_OK &&
            status == 200) {
            i++;
        } else if (rig_now_ns() > end_ns) {
            rig_fail("etcd does not come up");
        } else {
            usleep(20000);
        }
    }
}

void rig_etcd_stop(struct rig_etcd *etcd)
{
    for (uint32_t i = 0; i < etcd->n; i++) {
        kill(etcd->pids[i], SIGKILL);
        waitpid(etcd->pids[i], NULL, 0);
    }
    curl_easy_cleanup(etcd->curl);
}

double rig_etcd_txn_us(struct rig_etcd *etcd, uint32_t puts, size_t bytes)
{
    char value[1024], value64[1500], key[64], key64[96], body[8192];
    if (bytes >= sizeof value || puts > 4) {
        rig_fail("a transaction of %u puts of %zu bytes", puts, bytes);
    }
    memset(value, 'v', bytes);
    base64(value, bytes, value64);
    etcd->count++;
    snprintf(key, sizeof key, "/bench/absent/%llu", (unsigned long long)etcd->count);
    base64(key, strlen(key), key64);
    int at = snprintf(body, sizeof body,
                      "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"result\":\"EQUAL\","
                      "\"create_revision\":\"0\"}],\"success\":[",
                      key64);
    for (uint32_t i = 0; i < puts; i++) {
        snprintf(key, sizeof key, "/bench/put/%llu/%u", (unsigned long long)etcd->count, i);
        base64(key, strlen(key), key64);
        at += snprintf(body + at, sizeof body - (size_t)at,
                       "%s{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\"}}", i > 0 ? "," : "",
                       key64, value64);
    }
    snprintf(body + at, sizeof body - (size_t)at, "]}");
    long status;
    uint64_t start_ns = rig_now_ns();
    CURLcode code = post(etcd, 0, "/v3/kv/txn", body, &status);
    double us = (double)(rig_now_ns() - start_ns) / 1e3;
    if (code != CURLE_OK || status != 200) {
        rig_fail("etcd: %s, status %ld", curl_easy_strerror(code), status);
    }
    return us;
}

/* ---- store nodes ---- */

void rig_store_start(struct rig_store *store, const char *name, const struct rig_etcd *etcd,
                     const char *bytes)
{
    unsigned port = 0;
    char line[256];
    store->pid = rig_program(
        RIG_SERVER_CPU,
        (const char *[]){"store", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0",
                         "--node-name", name, "--store-bytes", bytes, "--etcd", etcd->endpoints,
                         "--io-threads", "1", "--log-level", "error", NULL},
        "kvplane store ready ", line, sizeof line);
    const char *url = strstr(line, "http://127.0.0.1:");
    if (url == NULL || sscanf(url, "http://127.0.0.1:%u", &port) != 1) {
        rig_fail("a store node said: %s", line);
    }
    store->rest.port = (uint16_t)port;
}

void rig_store_kill(struct rig_store *store)
{
    kill(store->pid, SIGKILL);
    waitpid(store->pid, NULL, 0);
}

double rig_cpu_ms(pid_t pid)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL) {
        rig_fail("%s: %s", path, strerror(errno));
    }
    double ms = 0;
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;) {
        unsigned long long ns = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/schedstat", (int)pid, task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file != NULL) {
            ms += fscanf(file, "%llu", &ns) == 1 ? (double)ns / 1e6 : 0;
            fclose(file);
        }
    }
    closedir(tasks);
    return ms;
}
