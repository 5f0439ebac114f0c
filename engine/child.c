/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (1u << 20)
#define STOP_MS      10000
#define SLICE_MS     100 /* how often a wait looks whether it should stop */

/* In the child: never returns. */
static void become(pid_t parent, int fd, int log, char *const argv[],
                   const struct kve_child_how *how)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127); /* it went before the line above */
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (dup2(fd, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) {
        _exit(127);
    }
    if (fd == KVE_CHILD_FD) {
        fcntl(fd, F_SETFD, 0);
    } else if (dup2(fd, KVE_CHILD_FD) < 0) {
        _exit(127);
    }
    if (how->sound) {
        unsetenv("KVPLANE_FAULT");
    }
    if (how->netns >= 0 && setns(how->netns, CLONE_NEWNET) != 0) {
        _exit(127);
    }
    if (how->program == NULL) {
        execv("/proc/self/exe", argv);
    } else {
        execvp(how->program, argv);
    }
    _exit(127);
}

kvb_status_t kve_child_start(struct kve_child *child, const char *name, char *const argv[],
                             const struct kve_child_how *how)
{
    pid_t parent = getpid();
    int fds[2], log;

    *child = (struct kve_child){.name = name, .fd = -1};
    child->buffer = malloc(BUFFER_BYTES);
    child->events = json_array();
    log = open(how->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (child->buffer == NULL || child->events == NULL || log < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        if (log >= 0) {
            close(log);
        }
        return KVB_ERR_IO;
    }
    child->pid = fork();
    if (child->pid == 0) {
        become(parent, fds[1], log, argv, how);
    }
    close(fds[1]);
    close(log);
    if (child->pid < 0) {
        child->pid = 0;
        close(fds[0]);
        return KVB_ERR_IO;
    }
    child->fd = fds[0];
    return KVB_OK;
}

static bool reaped(struct kve_child *child, int timeout_ms)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, (uint64_t)timeout_ms);

    while (waitpid(child->pid, &child->exit_status, WNOHANG) == 0) {
        struct timespec pause = {.tv_nsec = 2000000};
        if (kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

static void forget(struct kve_child *child)
{
    child->pid = 0;
    if (child->fd >= 0) {
        close(child->fd);
        child->fd = -1;
    }
    free(child->buffer);
    child->buffer = NULL;
    json_decref(child->events);
    child->events = NULL;
}

void kve_child_kill(struct kve_child *child)
{
    if (child->pid > 0) {
        kill(child->pid, SIGKILL);
        waitpid(child->pid, &child->exit_status, 0);
    }
    forget(child);
}

void kve_child_stop(struct kve_child *child)
{
    if (child->pid > 0) {
        kill(child->pid, SIGTERM);
        if (!reaped(child, STOP_MS)) {
            kve_child_kill(child);
        }
    }
    forget(child);
}

/* Waits for bytes. */
static kvb_status_t fill(struct kve_child *child, uint64_t deadline_ns, const volatile int *stop)
{
    for (;;) {
        struct pollfd poll_fd = {.fd = child->fd, .events = POLLIN};
        ssize_t n;
        if (*stop != 0) {
            return KVB_ERR_CANCELED;
        }
        if (kvb_now_ns(&kvb_clock_real) >= deadline_ns) {
            return KVB_ERR_TIMEOUT;
        }
        if (child->ended || child->len == BUFFER_BYTES) {
            return KVB_ERR_DISCONNECTED;
        }
        if (poll(&poll_fd, 1, SLICE_MS) <= 0) {
            continue;
        }
        n = read(child->fd, child->buffer + child->len, BUFFER_BYTES - child->len);
        if (n > 0) {
            child->len += (size_t)n;
            return KVB_OK;
        }
        if (n == 0 || errno != EINTR) {
            child->ended = true;
            return KVB_ERR_DISCONNECTED;
        }
    }
}

/* Waits for a line; NUL-terminated in place, *len_p with its end. */
static kvb_status_t line(struct kve_child *child, uint64_t deadline_ns, const volatile int *stop,
                         size_t *len_p)
{
    char *end;

    while ((end = memchr(child->buffer, '\n', child->len)) == NULL) {
        kvb_status_t status = fill(child, deadline_ns, stop);
        if (status != KVB_OK) {
            return status;
        }
    }
    *end = '\0';
    *len_p = (size_t)(end - child->buffer) + 1;
    return KVB_OK;
}

static void consume(struct kve_child *child, size_t len)
{
    child->len -= len;
    memmove(child->buffer, child->buffer + len, child->len);
}

kvb_status_t kve_child_await_text(struct kve_child *child, const char *start, char *out, size_t cap,
                                  int timeout_ms, const volatile int *stop)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, (uint64_t)timeout_ms);

    for (;;) {
        size_t len = 0;
        kvb_status_t status = line(child, deadline_ns, stop, &len);
        bool found;
        if (status != KVB_OK) {
            return status;
        }
        found = strncmp(child->buffer, start, strlen(start)) == 0;
        if (found) {
            snprintf(out, cap, "%s", child->buffer + strlen(start));
        }
        consume(child, len);
        if (found) {
            return KVB_OK;
        }
    }
}

kvb_status_t kve_child_tell(struct kve_child *child, json_t *command)
{
    char *text = command == NULL ? NULL : json_dumps(command, JSON_COMPACT);
    size_t len, done = 0;

    json_decref(command);
    if (text == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    len = strlen(text);
    text[len++] = '\n'; /* in place of the NUL */
    while (done < len) {
        ssize_t n = send(child->fd, text + done, len - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            free(text);
            return KVB_ERR_DISCONNECTED;
        }
        done += (size_t)n;
    }
    free(text);
    return KVB_OK;
}

static bool is(const json_t *event, const char *const *names, json_int_t id)
{
    const char *name = json_string_value(json_object_get(event, "event"));

    if (name == NULL || json_integer_value(json_object_get(event, "id")) != id) {
        return false;
    }
    for (; *names != NULL; names++) {
        if (strcmp(*names, name) == 0) {
            return true;
        }
    }
    return false;
}

kvb_status_t kve_child_await(struct kve_child *child, const char *const *names, json_int_t id,
                             int timeout_ms, const volatile int *stop, json_t **event_p)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, (uint64_t)timeout_ms);

    for (;;) {
        size_t len = 0;
        kvb_status_t status;
        json_t *event;
        for (size_t i = 0; i < json_array_size(child->events); i++) {
            event = json_array_get(child->events, i);
            if (is(event, names, id)) {
                *event_p = json_incref(event);
                json_array_remove(child->events, i);
                return KVB_OK;
            }
        }
        status = line(child, deadline_ns, stop, &len);
        if (status != KVB_OK) {
            return status;
        }
        event = json_loads(child->buffer, 0, NULL);
        consume(child, len);
        if (json_is_object(event)) {
            json_array_append_new(child->events, event);
        } else {
            json_decref(event);
        }
    }
}
