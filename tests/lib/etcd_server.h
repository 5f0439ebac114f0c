/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ETCD_SERVER_H
#define TESTS_ETCD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Real etcd processes on free ports of 127.0.0.1, their data below a folder of their own in
 * memory or /tmp. They end with this process at the latest. Test code: what goes wrong aborts.
 */
#define ETCD_MEMBERS_MAX 3

struct etcd_member {
    char url[64]; /* of clients */
    char peer_url[64];
    pid_t pid; /* 0: does not run */
};
struct etcd_cluster {
    char dir[64];
    uint32_t n;
    struct etcd_member members[ETCD_MEMBERS_MAX];
    bool tls; /* with the certificates that etcd_make_certs() made in dir */
};

/* False: there is no etcd on this machine. */
bool etcd_installed(void);
/* Runs and serves when it returns. tls: also makes certificates (dir/ca.pem, cert.pem, key.pem). */
void etcd_start(struct etcd_cluster *cluster, uint32_t n, bool tls);
void etcd_stop(struct etcd_cluster *cluster); /* also removes its folder */
void etcd_kill(struct etcd_cluster *cluster, uint32_t i);
void etcd_restart(struct etcd_cluster *cluster, uint32_t i); /* after etcd_kill */
void etcd_pause(struct etcd_cluster *cluster, bool paused);  /* SIGSTOP, SIGCONT: all */
void etcd_pause_one(struct etcd_cluster *cluster, uint32_t i, bool paused);
void etcd_await(struct etcd_cluster *cluster); /* until it serves */
/* etcdctl with these words; its exit code. out: its standard output, NUL-terminated. */
int etcd_ctl(const struct etcd_cluster *cluster, const char *words, char *out, int cap);

#endif
