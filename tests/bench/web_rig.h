/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_WEB_RIG_H
#define BENCH_WEB_RIG_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Web servers beside ours, and wrk, which asks them; failures as in rig.h. */

/* nginx with one worker; format and what follows: what is in its http block. */
pid_t web_nginx(int cpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Until it answers, and it must answer so. */
void web_await(uint16_t port, pid_t pid, const char *what, const char *target, const char *body);
void web_end(pid_t pid);
double web_cpu_s(pid_t pid); /* that all its threads have used so far */

struct web_wrk {
    pid_t pid;
    FILE *out;
};
void web_wrk_start(struct web_wrk *wrk, int cpu, uint16_t port, const char *target,
                   const char *connections, unsigned seconds);
/* Requests a second; every one of them was answered with 200. */
double web_wrk_end(struct web_wrk *wrk);

#endif
