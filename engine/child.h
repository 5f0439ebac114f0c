/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CHILD_H
#define ENGINE_CHILD_H

#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <sys/types.h>

/*
 * A process of this same program, or of another one, started for a rehearsal. It dies with its
 * parent. Its stderr goes to a file; a stream socket to it (descriptor KVE_CHILD_FD there, and its
 * stdout) carries lines.
 */
#define KVE_CHILD_FD 3

struct kve_child {
    const char *name;
    pid_t pid; /* 0: not started, or ended */
    int fd;
    char *buffer;
    size_t len;
    json_t *events; /* come, not yet asked for */
    bool ended;     /* the stream has */
    int exit_status;
};

struct kve_child_how {
    const char *program; /* looked for in PATH; NULL: this one */
    int netns;           /* network namespace; -1: this process's */
    const char *log;     /* file that its stderr is added to */
    bool sound;          /* without the fault switch that this process may have */
};
/* argv as for execv: program, subcommand, options. IO. */
KVB_MUST_USE kvb_status_t kve_child_start(struct kve_child *child, const char *name,
                                          char *const argv[], const struct kve_child_how *how);
/* TERM, then, if it does not end within the bound, KILL. Waits for its end. Idempotent. */
void kve_child_stop(struct kve_child *child);
/* KILL, and waits for its end. Idempotent. */
void kve_child_kill(struct kve_child *child);

/* Waits for one line of text that begins with `start`; the rest of it is copied to out. */
KVB_MUST_USE kvb_status_t kve_child_await_text(struct kve_child *child, const char *start,
                                               char *out, size_t cap, int timeout_ms,
                                               const volatile int *stop);
/* Takes `command`; writes it as one line. */
KVB_MUST_USE kvb_status_t kve_child_tell(struct kve_child *child, json_t *command);
/*
 * Waits for the event of this name (any of its names, a NULL-terminated list) and id, keeping
 * others for later. DISCONNECTED: the child has ended. TIMEOUT. CANCELED: *stop.
 */
KVB_MUST_USE kvb_status_t kve_child_await(struct kve_child *child, const char *const *names,
                                          json_int_t id, int timeout_ms, const volatile int *stop,
                                          json_t **event_p);

#endif
