/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of GPU memory. One helper at a time:
 *
 *   none     nothing runs; an import starts one
 *   running  started; questions may be sent, also before it has said that it is ready
 *   dying    killed, or gone by itself, and not reaped yet: nothing new is begun
 *
 * Every job is in one list until it is done, and done in one of three ways: by its answer, by the
 * end of the helper (reaped: only then is it certain that nothing is held and nothing copies into
 * the pool any more), or, where nothing was begun, from an event. A job that is late has the helper
 * killed: that is the release that always works. Only a drop is answered before a helper that
 * cannot be killed is gone: TIMEOUT, it is held.
 */
#include "transport/cuda.h"

#include "lock.h"
#include "message.h"

#include "base/assert.h"
#include "base/log.h"
#include "transport_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 30000u
#define KILL_MS  5000u /* a process that is not gone by then cannot be killed */

enum state { NONE, RUNNING, DYING };

enum step { IMPORT, UNDO_IMPORT, DROP, DROP_AGAIN, COPY, MOVE };

struct out { /* a message that the socket did not take yet */
    struct kvb_list link;
    int fd; /* its own; -1 */
    size_t len;
    uint8_t data[];
};

struct cuda {
    struct kvt_device base;
    struct kvt_cuda_config config;
    char *lock_path;
    char *program;
    int pool_fd;

    enum state state;
    bool ready;
    bool ended_by_us; /* and why is known */
    pid_t pid;
    int process; /* pidfd */
    int socket;
    struct kvb_io_watch process_watch;
    struct kvb_io_watch socket_watch;
    uint64_t ready_by_ns;
    uint64_t kill_by_ns; /* dying: until when it must be gone */
    kvb_status_t died_of;

    uint64_t last_seq;
    uint64_t direct_seq;   /* of DIRECT, until it is answered; 0 */
    struct kvb_list jobs;  /* running */
    struct kvb_list ended; /* done, to be told from the event */
    struct kvb_list outs;
    struct kvb_event event;
    struct kvb_timer timer;
    struct kvt_device_info info;
    uint8_t data[CUDA_MESSAGE_MAX];            /* of what is read */
    struct cuda_piece pieces[CUDA_PIECES_MAX]; /* of what is asked */

    void (*closed)(void *arg); /* closing */
    void *closed_arg;
};

static struct cuda *of(struct kvt_device *device)
{
    return kvb_container_of(device, struct cuda, base);
}

static uint64_t now_ns(const struct cuda *cuda)
{
    return kvb_now_ns(cuda->base.sched->clock);
}

/* ---- jobs ---- */

static void set_timer(struct cuda *cuda)
{
    uint64_t at_ns = cuda->state == DYING ? cuda->kill_by_ns : KVB_NEVER;
    if (cuda->state == RUNNING) {
        at_ns = cuda->ready ? KVB_NEVER : cuda->ready_by_ns;
        kvb_list_each(&cuda->jobs, link)
        {
            const struct kvt_device_job *job = kvb_container_of(link, struct kvt_device_job, link);
            at_ns = job->deadline_ns < at_ns ? job->deadline_ns : at_ns;
        }
    }
    kvb_sched_timer_set(cuda->base.sched, &cuda->timer, at_ns);
}

static void end(struct kvt_device_job *job, kvb_status_t status)
{
    kvb_list_remove(&job->link);
    job->done(job, status);
}

/* Not begun: told later. */
static void end_later(struct cuda *cuda, struct kvt_device_job *job, kvb_status_t status)
{
    job->impl.status = status;
    kvb_list_remove(&job->link);
    kvb_list_push_back(&cuda->ended, &job->link);
    kvb_sched_post(cuda->base.sched, &cuda->event);
}

static struct kvt_device_job *first_job(struct kvb_list *jobs)
{
    struct kvb_list *link = kvb_list_first(jobs);
    return link != NULL ? kvb_container_of(link, struct kvt_device_job, link) : NULL;
}

static void finish_close(struct cuda *cuda);

static void on_event(struct kvb_event *event)
{
    struct cuda *cuda = kvb_container_of(event, struct cuda, event);
    for (struct kvt_device_job *job; (job = first_job(&cuda->ended)) != NULL;) {
        end(job, job->impl.status);
    }
    if (cuda->closed != NULL && cuda->state == NONE) {
        finish_close(cuda);
    }
}

/* ---- the end of a helper ---- */

static void drop_outs(struct cuda *cuda)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&cuda->outs)) != NULL;) {
        struct out *out = kvb_container_of(link, struct out, link);
        if (out->fd >= 0) {
            (void)close(out->fd);
        }
        free(out);
    }
}

static void close_socket(struct cuda *cuda)
{
    drop_outs(cuda);
    kvb_io_unwatch(cuda->config.io, &cuda->socket_watch);
    if (cuda->socket >= 0) {
        (void)close(cuda->socket);
        cuda->socket = -1;
    }
}

static void tell_changed(const struct cuda *cuda)
{
    if (cuda->base.changed != NULL) {
        cuda->base.changed(cuda->base.changed_arg);
    }
}

static void set_cause(struct cuda *cuda, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void set_cause(struct cuda *cuda, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(cuda->info.cause, sizeof cuda->info.cause, format, args);
    va_end(args);
    cuda->info.failures++;
    tell_changed(cuda);
}

/* died_of: what jobs that it leaves unanswered are told. */
static void end_helper(struct cuda *cuda, kvb_status_t died_of, bool by_us)
{
    if (cuda->state != RUNNING) {
        return;
    }
    cuda->state = DYING;
    cuda->ended_by_us = by_us;
    cuda->died_of = died_of;
    cuda->kill_by_ns = kvb_deadline_in_ms(cuda->base.sched->clock, KILL_MS);
    (void)syscall(SYS_pidfd_send_signal, cuda->process, SIGKILL, NULL, 0);
    close_socket(cuda);
    set_timer(cuda);
}

static void kill_helper(struct cuda *cuda, kvb_status_t died_of, const char *why)
{
    if (cuda->state == RUNNING) {
        cuda->info.kills++;
        KVB_LOG(WARN, "killing a CUDA helper", KVB_U64("owner", cuda->config.owner),
                KVB_U64("pid", (uint64_t)cuda->pid), KVB_STR("reason", why));
        end_helper(cuda, died_of, true);
        tell_changed(cuda);
    }
}

static void forget_holdings(struct cuda *cuda)
{
    struct kvt_device_info *info = &cuda->info;
    info->pid = 0;
#define X(member) info->member = 0;
    KVT_DEVICE_HOLDINGS(X)
#undef X
    tell_changed(cuda);
}

/* Nothing of it is left: neither what it held nor what it was copying. */
static void on_reaped(struct cuda *cuda)
{
    kvb_io_unwatch(cuda->config.io, &cuda->process_watch);
    (void)close(cuda->process);
    cuda->process = -1;
    cuda->state = NONE;
    forget_holdings(cuda);
    set_timer(cuda);
    for (struct kvt_device_job *job; (job = first_job(&cuda->jobs)) != NULL;) {
        kvb_status_t status = cuda->died_of;
        if (job->impl.step == DROP || job->impl.step == DROP_AGAIN) {
            status = KVB_OK;
        } else if (job->impl.status != KVB_OK) {
            status = job->impl.status;
        }
        end_later(cuda, job, status);
    }
    kvb_sched_post(cuda->base.sched, &cuda->event);
}

static void take_answers(struct cuda *cuda);

static void on_process(struct kvb_io_watch *watch, unsigned events)
{
    struct cuda *cuda = kvb_container_of(watch, struct cuda, process_watch);
    (void)events;
    int how = 0;
    pid_t pid = waitpid(cuda->pid, &how, WNOHANG);
    if (pid == 0) {
        return;
    }
    take_answers(cuda); /* its last words may lie in the socket */
    end_helper(cuda, KVB_ERR_UNAVAILABLE, false);
    if (!cuda->ended_by_us) {
        KVB_LOG(WARN, "a CUDA helper ended", KVB_U64("owner", cuda->config.owner),
                KVB_U64("pid", (uint64_t)cuda->pid),
                KVB_I64("exit", pid > 0 && WIFEXITED(how) ? WEXITSTATUS(how) : -1),
                KVB_I64("signal", pid > 0 && WIFSIGNALED(how) ? WTERMSIG(how) : 0));
        set_cause(cuda, "the CUDA helper ended by itself or was killed by another (%s %d)",
                  WIFSIGNALED(how) ? "signal" : "exit",
                  WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    }
    on_reaped(cuda);
}

static void on_timer(struct kvb_timer *timer)
{
    struct cuda *cuda = kvb_container_of(timer, struct cuda, timer);
    uint64_t now = now_ns(cuda);
    if (cuda->state == RUNNING) {
        bool late = !cuda->ready && cuda->ready_by_ns <= now;
        kvb_list_each(&cuda->jobs, link)
        {
            struct kvt_device_job *job = kvb_container_of(link, struct kvt_device_job, link);
            if (job->deadline_ns <= now) {
                late = true;
                job->impl.status = job->impl.status != KVB_OK ? job->impl.status : KVB_ERR_TIMEOUT;
            }
        }
        if (late) {
            set_cause(cuda, "the CUDA helper did not answer in time and was killed");
            kill_helper(cuda, KVB_ERR_UNAVAILABLE, "it did not answer in time");
        }
    } else if (cuda->state == DYING && cuda->kill_by_ns <= now) {
        cuda->kill_by_ns = KVB_NEVER;
        KVB_LOG(ERROR, "a CUDA helper cannot be killed: what it holds stays held",
                KVB_U64("owner", cuda->config.owner), KVB_U64("pid", (uint64_t)cuda->pid));
        kvb_list_each(&cuda->jobs, link)
        {
            struct kvt_device_job *job = kvb_container_of(link, struct kvt_device_job, link);
            if (job->impl.step == DROP || job->impl.step == DROP_AGAIN) {
                end_later(cuda, job, KVB_ERR_TIMEOUT);
            }
        }
    }
    set_timer(cuda);
}

/* ---- talking to it ---- */

/* OK, AGAIN, or it is gone. */
static kvb_status_t send_out(struct cuda *cuda, const struct out *out)
{
    struct iovec iov;
    iov.iov_base = (void *)(uintptr_t)out->data;
    iov.iov_len = out->len;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (out->fd >= 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof out->fd);
        memcpy(CMSG_DATA(cmsg), &out->fd, sizeof out->fd);
    }
    ssize_t sent;
    do {
        sent = sendmsg(cuda->socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)out->len) {
        return KVB_OK;
    }
    return sent < 0 && errno == EAGAIN ? KVB_ERR_AGAIN : KVB_ERR_DISCONNECTED;
}

/* Its watches are what can go wrong here; then it is as if it had died. */
static void watch_socket(struct cuda *cuda)
{
    unsigned events = KVB_IO_READ | (kvb_list_empty(&cuda->outs) ? 0u : (unsigned)KVB_IO_WRITE);
    if (kvb_io_watch(cuda->config.io, &cuda->socket_watch, events) != KVB_OK) {
        kill_helper(cuda, KVB_ERR_NO_MEMORY, "its socket cannot be watched");
    }
}

static void flush(struct cuda *cuda)
{
    for (struct kvb_list *link; (link = kvb_list_first(&cuda->outs)) != NULL;) {
        struct out *out = kvb_container_of(link, struct out, link);
        kvb_status_t status = send_out(cuda, out);
        if (status == KVB_ERR_AGAIN) {
            break;
        }
        if (status != KVB_OK) {
            return; /* its end is on the way to us */
        }
        kvb_list_remove(link);
        if (out->fd >= 0) {
            (void)close(out->fd);
        }
        free(out);
    }
    watch_socket(cuda);
}

/* The socket may be full, never the list: it is bounded by the jobs. fd: borrowed. */
static kvb_status_t say(struct cuda *cuda, struct cuda_message *message, int fd)
{
    struct kvb_writer writer;
    struct out *out = NULL;
    message->seq = ++cuda->last_seq;
    kvb_writer_init(&writer, CUDA_MESSAGE_MAX);
    cuda_message_pack(&writer, message);
    kvb_status_t status = writer.status;
    if (status == KVB_OK) {
        out = malloc(sizeof *out + writer.len);
        status = out == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
    }
    if (status == KVB_OK) {
        *out = (struct out){.fd = -1, .len = writer.len};
        memcpy(out->data, writer.data, writer.len);
        out->fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
        if (fd >= 0 && out->fd < 0) {
            free(out);
            status = KVB_ERR_LIMIT;
        }
    }
    kvb_writer_cleanup(&writer);
    if (status == KVB_OK) {
        kvb_list_push_back(&cuda->outs, &out->link);
        flush(cuda);
    }
    return status;
}

static kvb_status_t ask(struct cuda *cuda, struct kvt_device_job *job, struct cuda_message *message,
                        int fd)
{
    job->impl.seq = cuda->last_seq + 1; /* it may be over, with the helper, before say() returns */
    return say(cuda, message, fd);
}

static void ask_drop(struct cuda *cuda, struct kvt_device_job *job, enum step step)
{
    struct cuda_message message = {.type = CUDA_DROP, .drop = job->impl.id};
    job->impl.step = step;
    if (ask(cuda, job, &message, -1) != KVB_OK) {
        kill_helper(cuda, KVB_ERR_NO_MEMORY, "out of memory for asking it to let go");
    }
}

static void note(struct cuda *cuda, const struct cuda_message *message)
{
    const struct gpu_ledger *ledger = &message->answer.ledger;
#define X(member) cuda->info.member = ledger->member;
    KVT_DEVICE_HOLDINGS(X)
#undef X
    tell_changed(cuda);
}

static void note_cause(struct cuda *cuda, kvb_status_t status, const struct gpu_cause *cause)
{
    set_cause(cuda, "%s", cause->text);
    KVB_LOG_LIMITED(WARN, "CUDA failed", KVB_U64("owner", cuda->config.owner), KVB_STATUS(status),
                    KVB_STR("cause", cuda->info.cause));
}

/* Whatever the helper held goes with it; this job is told its own cause, the others that it died.
 */
static void lose_helper(struct cuda *cuda, struct kvt_device_job *job, kvb_status_t status,
                        const struct gpu_cause *cause)
{
    job->impl.status = status;
    kill_helper(cuda, KVB_ERR_UNAVAILABLE, cause->text);
}

static void on_ready(struct cuda *cuda, kvb_status_t status)
{
    cuda->ready = true;
    if (status == KVB_OK) {
        KVB_LOG(INFO, "a CUDA helper is ready", KVB_U64("owner", cuda->config.owner),
                KVB_U64("pid", (uint64_t)cuda->pid));
        return;
    }
    bool absent = status == KVB_ERR_NOT_FOUND || status == KVB_ERR_UNAVAILABLE;
    end_helper(cuda, absent ? KVB_ERR_UNSUPPORTED : status, true);
}

/* Said once for each reason, and kept for the status. */
static void use_pool(struct cuda *cuda, const char *why)
{
    if (strcmp(cuda->info.pool_cause, why) == 0) {
        return;
    }
    (void)snprintf(cuda->info.pool_cause, sizeof cuda->info.pool_cause, "%s", why);
    KVB_LOG_LIMITED(WARN,
                    "GPU memory is not reached by the RDMA device: its bytes go through the pool",
                    KVB_U64("owner", cuda->config.owner), KVB_STR("reason", why));
    tell_changed(cuda);
}

static struct kvt_device_job *job_of(struct cuda *cuda, uint64_t seq)
{
    struct kvt_device_job *job = NULL;
    kvb_list_each(&cuda->jobs, link)
    {
        struct kvt_device_job *each = kvb_container_of(link, struct kvt_device_job, link);
        job = each->impl.seq == seq ? each : job;
    }
    return job;
}

static void on_direct(struct cuda *cuda, const struct cuda_message *message)
{
    cuda->direct_seq = 0;
    if (message->answer.status != KVB_OK) {
        use_pool(cuda, message->answer.cause.text);
    }
}

static void note_import(struct cuda *cuda, struct kvt_device_job *job,
                        const struct cuda_message *message)
{
    job->direct = message->answer.direct;
    if (!message->answer.direct && message->answer.cause.text[0] != '\0') {
        use_pool(cuda, message->answer.cause.text);
    }
}

static void on_moved(struct cuda *cuda, const struct cuda_message *message)
{
    struct kvt_device_job *job = job_of(cuda, message->seq);
    struct kvt_device_move *move = job != NULL ? job->impl.move : NULL;
    if (move == NULL || message->moved.answer.len > move->answer_cap) {
        kill_helper(cuda, KVB_ERR_PROTOCOL, "it answered what it was not asked");
        return;
    }
    if (message->moved.answer.len > 0) {
        memcpy(move->answer, message->moved.answer.data, message->moved.answer.len);
    }
    move->answer_len = (uint32_t)message->moved.answer.len;
    move->told = true;
    if (message->moved.status == KVB_OK) {
        cuda->info.moves++;
    } else if (message->moved.status == KVB_ERR_UNSUPPORTED) {
        use_pool(cuda, "a node is not reached by the helper's own connections");
    }
    if (message->moved.cause.text[0] != '\0') {
        note_cause(cuda, message->moved.status, &message->moved.cause);
    }
    if (message->moved.cause.poisoned) {
        lose_helper(cuda, job, message->moved.status, &message->moved.cause);
        return;
    }
    end(job, message->moved.status);
}

static void on_answer(struct cuda *cuda, const struct cuda_message *message)
{
    kvb_status_t status = message->answer.status;
    if (cuda->direct_seq != 0 && message->seq == cuda->direct_seq) {
        on_direct(cuda, message);
        return;
    }
    if (status != KVB_OK) {
        note_cause(cuda, status, &message->answer.cause);
    }
    if (message->seq == 0) {
        on_ready(cuda, status);
        return;
    }
    struct kvt_device_job *job = job_of(cuda, message->seq);
    if (job == NULL || job->impl.move != NULL) {
        kill_helper(cuda, KVB_ERR_PROTOCOL, "it answered what it was not asked");
        return;
    }
    if (job->impl.step != COPY) {
        note(cuda, message);
    }
    if (message->answer.cause.poisoned) {
        lose_helper(cuda, job, status, &message->answer.cause);
        return;
    }
    switch ((enum step)job->impl.step) {
    case IMPORT:
        if (status == KVB_OK) {
            note_import(cuda, job, message);
            break;
        }
        job->impl.status = status; /* if something of it could not be undone, once more */
        ask_drop(cuda, job, UNDO_IMPORT);
        return;
    case DROP:
        if (status == KVB_OK) {
            break;
        }
        ask_drop(cuda, job, DROP_AGAIN); /* it goes on from where it failed */
        return;
    case UNDO_IMPORT:
    case DROP_AGAIN:
        if (status != KVB_OK) {
            kill_helper(cuda, KVB_ERR_UNAVAILABLE, "it cannot let go of memory");
            return;
        }
        status = job->impl.status;
        break;
    case COPY:
    case MOVE:
        break;
    }
    end(job, status);
}

/* What is there, but never without end. */
static void take_answers(struct cuda *cuda)
{
    for (int i = 0; i < 64 && cuda->state == RUNNING; i++) {
        ssize_t len = recv(cuda->socket, cuda->data, sizeof cuda->data, MSG_DONTWAIT);
        struct cuda_message message;
        if (len < 0 && (errno == EINTR || errno == ECONNRESET)) {
            continue; /* the latter comes before what it said, if it left something unread */
        }
        if (len < 0 && errno == EAGAIN) {
            break;
        }
        if (len <= 0) {
            end_helper(cuda, KVB_ERR_UNAVAILABLE, false);
        } else if (cuda_message_unpack(cuda->data, (size_t)len, NULL, &message) != KVB_OK ||
                   (message.type != CUDA_ANSWER && message.type != CUDA_MOVED)) {
            kill_helper(cuda, KVB_ERR_PROTOCOL, "it broke the protocol");
        } else if (message.type == CUDA_MOVED) {
            on_moved(cuda, &message);
        } else {
            on_answer(cuda, &message);
        }
    }
}

static void on_socket(struct kvb_io_watch *watch, unsigned events)
{
    struct cuda *cuda = kvb_container_of(watch, struct cuda, socket_watch);
    if ((events & KVB_IO_WRITE) != 0 && !kvb_list_empty(&cuda->outs)) {
        flush(cuda);
    }
    take_answers(cuda);
    if (cuda->state == RUNNING) {
        set_timer(cuda);
    }
}

/* ---- starting one ---- */

static kvb_status_t from_errno(int error)
{
    return error == ENOMEM                                         ? KVB_ERR_NO_MEMORY
           : error == EMFILE || error == ENFILE || error == EAGAIN ? KVB_ERR_LIMIT
                                                                   : KVB_ERR_IO;
}

/* With nothing open but what it is meant to have, no signal blocked, and in no group of ours. */
static int spawn(struct cuda *cuda, int socket_fd)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;
    char parent[16];
    char command[] = KVT_CUDA_HELPER_COMMAND;
    char *argv[] = {cuda->program, command, cuda->lock_path, parent, NULL};
    (void)snprintf(parent, sizeof parent, "%d", (int)getpid());
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawnattr_init(&attributes);
    if (error != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return error;
    }
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setsigdefault(&attributes, &all);
    (void)posix_spawnattr_setpgroup(&attributes, 0);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                    POSIX_SPAWN_SETPGROUP);
    error = posix_spawn_file_actions_adddup2(&actions, socket_fd, KVT_CUDA_SOCKET_FD);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, cuda->pool_fd, KVT_CUDA_POOL_FD);
    }
    if (error == 0) {
        error = posix_spawn_file_actions_addclosefrom_np(&actions, KVT_CUDA_POOL_FD + 1);
    }
    if (error == 0) {
        error = posix_spawn(&cuda->pid, cuda->program, &actions, &attributes, argv, environ);
    }
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Beyond those that the helper is given: else one dup2 could overwrite the other's source. */
static int move_up(int fd)
{
    int up = fcntl(fd, F_DUPFD_CLOEXEC, KVT_CUDA_POOL_FD + 1);
    int error = errno;
    (void)close(fd);
    errno = error;
    return up;
}

/* Before anything else; if it cannot be said, all goes through the pool. */
static void ask_direct(struct cuda *cuda)
{
    struct cuda_message message = {.type = CUDA_DIRECT};
    cuda->direct_seq = 0;
    if (cuda->config.direct == NULL) {
        return;
    }
    const char *device = cuda->config.direct->rdma->device;
    if (device != NULL && strlen(device) >= sizeof message.direct.device) {
        use_pool(cuda, "there is no RDMA device of that name: it is longer than any");
        return; /* the helper would take it for a broken message, and end */
    }
    message.direct.rdma = *cuda->config.direct->rdma;
    message.direct.common = *cuda->config.direct->common;
    cuda->direct_seq = cuda->last_seq + 1;
    if (say(cuda, &message, -1) != KVB_OK) {
        use_pool(cuda, "out of memory for asking the helper to");
    }
    explicit_bzero(&message.direct.common, sizeof message.direct.common);
}

static kvb_status_t start_helper(struct cuda *cuda)
{
    kvb_status_t status = KVB_OK;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return from_errno(errno);
    }
    int theirs = move_up(pair[1]);
    int error = theirs < 0 ? errno : spawn(cuda, theirs);
    if (theirs >= 0) {
        (void)close(theirs);
    }
    if (error != 0) {
        KVB_LOG(ERROR, "a CUDA helper cannot be started", KVB_U64("owner", cuda->config.owner),
                KVB_ERRNO(error));
        status = from_errno(error);
        goto err_socket;
    }
    cuda->process = (int)syscall(SYS_pidfd_open, cuda->pid, 0);
    if (cuda->process < 0) {
        status = from_errno(errno);
        goto err_process;
    }
    cuda->process_watch = (struct kvb_io_watch){.fd = cuda->process, .fn = on_process};
    cuda->socket = pair[0];
    cuda->socket_watch = (struct kvb_io_watch){.fd = cuda->socket, .fn = on_socket};
    status = kvb_io_watch(cuda->config.io, &cuda->process_watch, KVB_IO_READ);
    if (status != KVB_OK) {
        goto err_pidfd;
    }
    status = kvb_io_watch(cuda->config.io, &cuda->socket_watch, KVB_IO_READ);
    if (status != KVB_OK) {
        goto err_watch;
    }
    cuda->state = RUNNING;
    cuda->ready = false;
    cuda->ready_by_ns = kvb_deadline_in_ms(cuda->base.sched->clock, cuda->config.start_ms);
    cuda->info.pid = (int)cuda->pid;
    cuda->info.starts++;
    tell_changed(cuda);
    ask_direct(cuda);
    return KVB_OK;

err_watch:
    kvb_io_unwatch(cuda->config.io, &cuda->process_watch);
err_pidfd:
    (void)close(cuda->process);
    cuda->process = -1;
    cuda->socket = -1;
err_process:
    (void)kill(cuda->pid, SIGKILL); /* just started: it is gone in no time */
    (void)waitpid(cuda->pid, NULL, 0);
err_socket:
    (void)close(pair[0]);
    return status;
}

/* ---- what a device does ---- */

static void begin(struct cuda *cuda, struct kvt_device_job *job, uint64_t id, enum step step)
{
    job->impl.seq = 0;
    job->impl.id = id;
    job->impl.step = step;
    job->impl.status = KVB_OK;
    job->impl.move = NULL;
    job->direct = false;
    kvb_list_push_back(&cuda->jobs, &job->link);
}

/* From an engine, so it may be anything: a memfd never keeps its reader waiting. */
static kvb_status_t read_fabric(int fd, uint8_t handle[KVT_CU_FABRIC_LEN])
{
    return fcntl(fd, F_GET_SEALS) >= 0 &&
                   pread(fd, handle, KVT_CU_FABRIC_LEN, 0) == KVT_CU_FABRIC_LEN
               ? KVB_OK
               : KVB_ERR_INVALID;
}

static void cuda_import(struct kvt_device *device, uint64_t id, const struct kvt_region_desc *desc,
                        int fd, struct kvt_device_job *job)
{
    struct cuda *cuda = of(device);
    struct cuda_message message = {.type = CUDA_IMPORT,
                                   .import = {.id = id,
                                              .source = GPU_SOURCE_FD,
                                              .fd = -1,
                                              .offset = desc->fd_offset,
                                              .len = desc->len}};
    kvb_status_t status = KVB_OK;
    begin(cuda, job, id, IMPORT);
    if (desc->fabric) {
        message.import.source = GPU_SOURCE_FABRIC;
        status = read_fabric(fd, message.import.fabric);
    }
    if (status == KVB_OK) {
        status = cuda->state == DYING || cuda->closed != NULL ? KVB_ERR_UNAVAILABLE
                 : cuda->state == NONE                        ? start_helper(cuda)
                                                              : KVB_OK;
    }
    if (status == KVB_OK) {
        status = ask(cuda, job, &message, desc->fabric ? -1 : fd);
    }
    if (status != KVB_OK) {
        end_later(cuda, job, status);
    }
    set_timer(cuda);
}

static void cuda_drop(struct kvt_device *device, uint64_t id, struct kvt_device_job *job)
{
    struct cuda *cuda = of(device);
    begin(cuda, job, id, DROP);
    if (cuda->state == NONE) {
        end_later(cuda, job, KVB_OK); /* it went with its helper */
    } else if (cuda->state == DYING && cuda->kill_by_ns == KVB_NEVER) {
        end_later(cuda, job, KVB_ERR_TIMEOUT);
    } else if (cuda->state == RUNNING) {
        ask_drop(cuda, job, DROP);
    }
    set_timer(cuda);
}

static void cuda_copy(struct kvt_device *device, bool to_pool,
                      const struct kvt_device_piece *pieces, uint32_t n, struct kvt_device_job *job)
{
    struct cuda *cuda = of(device);
    kvb_assert(n > 0 && n <= CUDA_PIECES_MAX);
    _Static_assert(KVT_DEVICE_PIECES_MAX == CUDA_PIECES_MAX, "one message takes them");
    for (uint32_t i = 0; i < n; i++) {
        cuda->pieces[i] = (struct cuda_piece){pieces[i].id, pieces[i].offset, pieces[i].pool_offset,
                                              pieces[i].len};
    }
    struct cuda_message message = {.type = CUDA_COPY,
                                   .copy = {.to_pool = to_pool, .n = n, .pieces = cuda->pieces}};
    begin(cuda, job, 0, COPY);
    kvb_status_t status =
        cuda->state == RUNNING ? ask(cuda, job, &message, -1) : KVB_ERR_UNAVAILABLE;
    if (status != KVB_OK) {
        end_later(cuda, job, status);
    }
    set_timer(cuda);
}

static void cuda_move(struct kvt_device *device, struct kvt_device_move *move,
                      struct kvt_device_job *job)
{
    struct cuda *cuda = of(device);
    uint64_t now = now_ns(cuda);
    kvb_assert(move->n > 0 && move->n <= CUDA_PIECES_MAX);
    for (uint32_t i = 0; i < move->n; i++) {
        cuda->pieces[i] = (struct cuda_piece){
            .id = move->pieces[i].id, .offset = move->pieces[i].offset, .len = move->pieces[i].len};
    }
    struct cuda_message message = {
        .type = CUDA_MOVE,
        .move = {.to_node = move->to_node,
                 .type = move->type,
                 .within_ms = move->deadline_ns == KVB_NEVER ? UINT64_MAX
                              : move->deadline_ns > now ? (move->deadline_ns - now) / KVB_NS_PER_MS
                                                        : 0,
                 .answer_cap = move->answer_cap,
                 .ask = move->ask,
                 .n = move->n,
                 .pieces = cuda->pieces},
    };
    (void)snprintf(message.move.address, sizeof message.move.address, "%s", move->address);
    begin(cuda, job, 0, MOVE);
    job->impl.move = move;
    move->answer_len = 0;
    move->told = false;
    kvb_status_t status =
        cuda->state == RUNNING ? ask(cuda, job, &message, -1) : KVB_ERR_UNAVAILABLE;
    if (status != KVB_OK) {
        end_later(cuda, job, status);
    }
    set_timer(cuda);
}

/* By half of the time, so that it is over without anybody being killed for it. */
static void stop_move(struct cuda *cuda, const struct kvt_device_job *job, uint64_t deadline_ns)
{
    uint64_t now = now_ns(cuda);
    uint64_t left_ns = deadline_ns > now ? deadline_ns - now : 0;
    struct cuda_message message = {
        .type = CUDA_STOP,
        .stop = {.seq = job->impl.seq, .within_ms = left_ns / 2 / KVB_NS_PER_MS}};
    if (say(cuda, &message, -1) != KVB_OK) {
        kill_helper(cuda, KVB_ERR_NO_MEMORY, "out of memory for asking it to stop");
    }
}

static void cuda_hurry(struct kvt_device *device, struct kvt_device_job *job, uint64_t deadline_ns)
{
    struct cuda *cuda = of(device);
    if (deadline_ns < job->deadline_ns) {
        job->deadline_ns = deadline_ns;
        if (job->impl.move != NULL && cuda->state == RUNNING) {
            stop_move(cuda, job, deadline_ns);
        }
        set_timer(cuda);
    }
}

static void cuda_info(struct kvt_device *device, struct kvt_device_info *info_p)
{
    *info_p = of(device)->info;
}

static const struct kvt_device_ops cuda_ops = {
    .name = "cuda",
    .import = cuda_import,
    .drop = cuda_drop,
    .copy = cuda_copy,
    .move = cuda_move,
    .hurry = cuda_hurry,
    .info = cuda_info,
};

/* ---- life ---- */

static kvb_status_t make_pool(struct cuda *cuda)
{
    uint64_t len = cuda->config.pool_len;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (len == 0 || len % page != 0 || len > INT64_MAX) {
        return KVB_ERR_INVALID;
    }
    int fd = memfd_create("kvplane-cuda-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return from_errno(errno);
    }
    cuda->pool_fd = move_up(fd);
    if (cuda->pool_fd < 0) {
        return from_errno(errno);
    }
    if (ftruncate(cuda->pool_fd, (off_t)len) != 0 ||
        fcntl(cuda->pool_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        return from_errno(errno);
    }
    int fd_of_region = fcntl(cuda->pool_fd, F_DUPFD_CLOEXEC, 0);
    if (fd_of_region < 0) {
        return from_errno(errno);
    }
    struct kvt_region_desc desc = {
        .owner = cuda->config.owner,
        .number = UINT32_MAX,
        .kind = KVT_MEMORY_HOST,
        .tag = "cuda pool",
        .host_resident = true,
        .len = len,
        .generation = 1,
    };
    const char *reason = "";
    kvb_status_t status =
        kvt_region_create(cuda->config.regions, &desc, fd_of_region, &cuda->base.pool, &reason);
    if (status != KVB_OK) {
        (void)close(fd_of_region);
        return status;
    }
    status = kvt_region_register(cuda->base.pool);
    if (status != KVB_OK) {
        kvt_region_destroy(cuda->base.pool);
    }
    return status;
}

static void free_all(struct cuda *cuda)
{
    if (cuda->pool_fd >= 0) {
        (void)close(cuda->pool_fd);
    }
    free(cuda->lock_path);
    free(cuda->program);
    free(cuda);
}

kvb_status_t kvt_cuda_open(const struct kvt_cuda_config *config, struct kvt_device **device_p)
{
    struct cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    cuda->base =
        (struct kvt_device){.ops = &cuda_ops, .sched = config->sched, .pool_len = config->pool_len};
    cuda->config = *config;
    cuda->config.start_ms = config->start_ms > 0 ? config->start_ms : START_MS;
    cuda->info.direct = config->direct != NULL;
    cuda->lock_path = strdup(config->lock_path);
    cuda->program = strdup(config->program != NULL ? config->program : "/proc/self/exe");
    cuda->pool_fd = cuda->process = cuda->socket = -1;
    kvb_list_init(&cuda->jobs);
    kvb_list_init(&cuda->ended);
    kvb_list_init(&cuda->outs);
    kvb_event_init(&cuda->event, on_event);
    kvb_timer_init(&cuda->timer, on_timer);
    kvt_staging_init(&cuda->base);
    kvb_status_t status =
        cuda->lock_path == NULL || cuda->program == NULL ? KVB_ERR_NO_MEMORY : make_pool(cuda);
    if (status != KVB_OK) {
        free_all(cuda);
        return status;
    }
    *device_p = &cuda->base;
    return KVB_OK;
}

static void on_pool_unregistered(void *arg, struct kvt_region *pool, kvb_status_t status)
{
    struct cuda *cuda = arg;
    kvb_assert(status == KVB_OK); /* nothing is staged, so no transfer names it */
    kvt_region_destroy(pool);
    void (*closed)(void *) = cuda->closed;
    void *closed_arg = cuda->closed_arg;
    kvt_staging_cleanup(&cuda->base);
    kvb_sched_unpost(&cuda->event);
    kvb_sched_timer_clear(cuda->base.sched, &cuda->timer);
    free_all(cuda);
    closed(closed_arg);
}

static void finish_close(struct cuda *cuda)
{
    uint64_t now = now_ns(cuda);
    if (kvt_region_state(cuda->base.pool) == KVT_REGION_REGISTERED) {
        kvt_region_unregister(cuda->base.pool, now, now + KVB_NS_PER_S, on_pool_unregistered, cuda);
    }
}

void kvt_cuda_close(struct kvt_device *device, void (*done)(void *arg), void *arg)
{
    struct cuda *cuda = of(device);
    kvb_assert(cuda->closed == NULL && kvb_list_empty(&cuda->jobs));
    cuda->closed = done;
    cuda->closed_arg = arg;
    end_helper(cuda, KVB_ERR_CANCELED, true);
    kvb_sched_post(cuda->base.sched, &cuda->event);
}

kvb_status_t kvt_cuda_evict(const char *lock_path)
{
    return cuda_lock_evict(lock_path);
}
