/* SPDX-License-Identifier: Apache-2.0 */
#include "web_rig.h"

#include "rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NS_PER_MS 1000000u

pid_t web_nginx(int cpu, const char *format, ...)
{
    char dir[64], path[96];
    va_list arguments;
    rig_temp_dir(dir);
    snprintf(path, sizeof path, "%s/nginx.conf", dir);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        rig_fail("%s: %m", path);
    }
    fprintf(file,
            "worker_processes 1; daemon off; master_process off; pid nginx.pid; error_log stderr;\n"
            "events { worker_connections 4096; }\n"
            "http {\n"
            "  access_log off; keepalive_requests 1000000000; keepalive_timeout 150s;\n"
            "  client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;\n"
            "  uwsgi_temp_path u; scgi_temp_path s; default_type application/json;\n");
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fprintf(file, "}\n");
    fclose(file);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(cpu);
        execlp("nginx", "nginx", "-p", dir, "-c", path, "-e", "stderr", NULL);
        _exit(127);
    }
    return pid;
}

void web_await(uint16_t port, pid_t pid, const char *what, const char *target, const char *body)
{
    struct rig rig = {.port = port};
    static struct rig_http http;
    for (uint64_t end_ns = rig_now_ns() + 10000ull * NS_PER_MS; !rig_http_try(&http, &rig);
         usleep(10000)) {
        if (rig_now_ns() > end_ns || waitpid(pid, NULL, WNOHANG) != 0) {
            rig_fail("%s does not come up", what);
        }
    }
    if (rig_http_call(&http, "GET", target, NULL) != 200 || strcmp(http.body, body) != 0) {
        rig_fail("%s answers: %s", what, http.body);
    }
    rig_http_close(&http);
}

void web_end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

double web_cpu_s(pid_t pid)
{
    char path[64];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL ||
        fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
               &system) != 2) {
        rig_fail("%s: cannot be read", path);
    }
    fclose(file);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

void web_wrk_start(struct web_wrk *wrk, int cpu, uint16_t port, const char *target,
                   const char *connections, unsigned seconds)
{
    char url[128], duration[16];
    int out[2];
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", port, target);
    snprintf(duration, sizeof duration, "%us", seconds);
    if (pipe2(out, O_CLOEXEC) != 0) {
        rig_fail("pipe: %m");
    }
    wrk->pid = fork();
    if (wrk->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(cpu);
        dup2(out[1], 1);
        execlp("wrk", "wrk", "-t1", "-c", connections, "-d", duration, "--timeout", "10s", url,
               NULL);
        _exit(127);
    }
    close(out[1]);
    wrk->out = fdopen(out[0], "re");
}

double web_wrk_end(struct web_wrk *wrk)
{
    static char text[4096];
    size_t len = fread(text, 1, sizeof text - 1, wrk->out);
    int status;
    text[len] = '\0';
    fclose(wrk->out);
    const char *rate = strstr(text, "Requests/sec:");
    if (waitpid(wrk->pid, &status, 0) != wrk->pid || status != 0 || rate == NULL ||
        strstr(text, "Non-2xx") != NULL || strstr(text, "Socket errors") != NULL) {
        rig_fail("wrk said: %s", text);
    }
    return atof(rate + strlen("Requests/sec:"));
}
