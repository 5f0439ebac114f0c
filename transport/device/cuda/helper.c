/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helper process: all that ever touches an engine's GPU memory, so that a fault of CUDA is a
 * fault of this process and its end gives everything back (DESIGN.md section 6).
 *
 * It is started by exec of the same program with a socket to the daemon (descriptor 3) and the pool
 * (4). It ends with its parent, and as soon as its socket is closed, whatever it is doing: a thread
 * of its own watches for that, because a call of the driver may never return. It undoes nothing
 * then; the driver does, for a process that ends.
 *
 * The main thread answers imports and drops, one at a time, and, where the memory is reached by an
 * RDMA device, drives that (gpu_direct.h). A thread for each direction copies: it takes what is
 * queued, submits it, waits, and answers. Each answer is one datagram, so they need no lock.
 */
#include "helper.h"

#include "gpu.h"
#include "gpu_direct.h"
#include "lock.h"
#include "loop.h"
#include "message.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/queue.h"
#include "transport/cuda.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define COPIES_MAX   4096u /* queued in one direction */
#define JOBS_AT_ONCE 32u   /* begun before the first of them is waited for */
#define READS_MAX    64u   /* questions taken before anything else has its turn */

struct job {
    struct kvb_item item;
    uint64_t seq;
    uint32_t n;
    struct gpu_piece pieces[];
};

struct copier {
    struct helper *helper;
    bool to_pool;
    struct kvb_queue queue;
    int wake_fd;
    pthread_t thread;
};

struct helper {
    struct kvt_cu cu;
    struct gpu gpu; /* regions: main thread only */
    struct copier copiers[2];
    /* main thread only */
    struct helper_loop loop;
    struct kvb_io_watch socket;
    bool over;                 /* the socket is of no use any more */
    struct gpu_direct *direct; /* NULL: not asked for, or not to be had */
    const struct kvt_verbs *verbs;
};

static void say(const struct cuda_message *message)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, CUDA_MESSAGE_MAX);
    cuda_message_pack(&writer, message);
    ssize_t sent = -1;
    if (writer.status == KVB_OK) {
        do {
            sent = send(KVT_CUDA_SOCKET_FD, writer.data, writer.len, MSG_NOSIGNAL);
        } while (sent < 0 && errno == EINTR);
    }
    if (sent != (ssize_t)writer.len) {
        _exit(1); /* an answer that cannot be given: the end of this process is one */
    }
    kvb_writer_cleanup(&writer);
}

static void answer(uint64_t seq, kvb_status_t status, const struct gpu_ledger *ledger,
                   const struct gpu_cause *cause)
{
    say(&(struct cuda_message){
        .type = CUDA_ANSWER,
        .seq = seq,
        .answer = {.status = status, .ledger = *ledger, .cause = *cause},
    });
}

/* ---- copies ---- */

static void wake_copier(void *ctx)
{
    struct copier *copier = ctx;
    uint64_t one = 1;
    (void)!write(copier->wake_fd, &one, sizeof one); /* full: it is awake */
}

/* What was queued together is begun together, and waited for once: else the copy engine would stand
 * still between two jobs. All of one device: the rest comes next. Returns how many were run. */
static uint32_t run_jobs(struct copier *copier, struct job *const *jobs, uint32_t n)
{
    struct gpu *gpu = &copier->helper->gpu;
    const struct gpu_device *device = jobs[0]->pieces[0].region->device;
    struct gpu_cause causes[JOBS_AT_ONCE] = {0};
    kvb_status_t status[JOBS_AT_ONCE];
    struct gpu_cause cause = {0};
    struct gpu_ledger ledger = {0};
    uint32_t begun = 0;
    while (begun < n && jobs[begun]->pieces[0].region->device == device) {
        status[begun] =
            gpu_begin(gpu, copier->to_pool, jobs[begun]->pieces, jobs[begun]->n, &causes[begun]);
        begun++;
    }
    kvb_status_t end = gpu_finish(gpu, copier->to_pool, device, &cause);
    for (uint32_t i = 0; i < begun; i++) {
        for (uint32_t j = 0; j < jobs[i]->n; j++) { /* pairs with gpu_drop's look */
            (void)atomic_fetch_sub_explicit(&jobs[i]->pieces[j].region->copies, 1,
                                            memory_order_release);
        }
        bool own = status[i] != KVB_OK;
        causes[i].poisoned = causes[i].poisoned || cause.poisoned;
        answer(jobs[i]->seq, own ? status[i] : end, &ledger, own ? &causes[i] : &cause);
        free(jobs[i]);
    }
    return begun;
}

static void *copier_main(void *arg)
{
    struct copier *copier = arg;
    struct job *jobs[JOBS_AT_ONCE];
    for (;;) {
        uint64_t woken;
        (void)!read(copier->wake_fd, &woken, sizeof woken);
        uint32_t n = 0;
        for (;;) {
            struct kvb_item *item = NULL;
            while (n < JOBS_AT_ONCE && (item = kvb_queue_pop(&copier->queue)) != NULL) {
                jobs[n++] = kvb_container_of(item, struct job, item);
            }
            if (n == 0) {
                break;
            }
            uint32_t run = run_jobs(copier, jobs, n);
            n -= run;
            memmove(jobs, jobs + run, n * sizeof jobs[0]);
        }
    }
    return NULL;
}

static kvb_status_t find_pieces(struct helper *helper, const struct cuda_message *message,
                                struct job *job)
{
    for (uint32_t i = 0; i < message->copy.n; i++) {
        const struct cuda_piece *piece = &message->copy.pieces[i];
        job->pieces[i] = (struct gpu_piece){
            .region = gpu_find(&helper->gpu, piece->id),
            .offset = piece->offset,
            .pool_offset = piece->pool_offset,
            .len = piece->len,
        };
        if (job->pieces[i].region == NULL) {
            return KVB_ERR_GENERATION;
        }
        if (!gpu_piece_fits(&helper->gpu, &job->pieces[i]) ||
            job->pieces[i].region->device != job->pieces[0].region->device) {
            return KVB_ERR_INVALID;
        }
    }
    return KVB_OK;
}

static void count_copies(struct job *job, int by)
{
    for (uint32_t i = 0; i < job->n; i++) {
        (void)atomic_fetch_add_explicit(&job->pieces[i].region->copies, (unsigned)by,
                                        memory_order_relaxed);
    }
}

static kvb_status_t start_copy(struct helper *helper, const struct cuda_message *message)
{
    struct job *job = malloc(sizeof *job + message->copy.n * sizeof job->pieces[0]);
    if (job == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    job->seq = message->seq;
    kvb_status_t status = find_pieces(helper, message, job);
    if (status == KVB_OK) {
        job->n = gpu_coalesce(job->pieces, message->copy.n);
        count_copies(job, 1);
        status = kvb_queue_put(&helper->copiers[message->copy.to_pool ? 1 : 0].queue, &job->item);
        if (status != KVB_OK) {
            count_copies(job, -1);
        }
    }
    if (status != KVB_OK) {
        free(job);
    }
    return status;
}

static void start_copier(struct helper *helper, bool to_pool)
{
    struct copier *copier = &helper->copiers[to_pool ? 1 : 0];
    copier->helper = helper;
    copier->to_pool = to_pool;
    copier->wake_fd = eventfd(0, EFD_CLOEXEC);
    kvb_queue_init(&copier->queue, "cuda copies", COPIES_MAX, wake_copier, copier);
    if (copier->wake_fd < 0 || pthread_create(&copier->thread, NULL, copier_main, copier) != 0) {
        _exit(1);
    }
}

/* ---- memory that an RDMA device reaches ---- */

static struct gpu_ledger count(const struct helper *helper)
{
    struct gpu_ledger ledger = gpu_count(&helper->gpu);
    if (helper->direct != NULL) {
        gpu_direct_count(helper->direct, &ledger);
    }
    return ledger;
}

static void on_moved(void *ctx, uint64_t seq, kvb_status_t status, const uint8_t *text,
                     uint32_t len, const struct gpu_cause *cause)
{
    (void)ctx;
    say(&(struct cuda_message){
        .type = CUDA_MOVED,
        .seq = seq,
        .moved = {.status = status, .answer = {text, len}, .cause = *cause}});
}

static const struct gpu_direct_ops direct_ops = {.moved = on_moved};

static kvb_status_t open_direct(struct helper *helper, const struct cuda_message *message,
                                struct gpu_cause *cause)
{
    struct kvt_rdma_config rdma = message->direct.rdma;
    rdma.verbs = helper->verbs;
    const struct gpu_direct_config config = {
        .sched = &helper->loop.sched,
        .io = &helper->loop.io,
        .cu = &helper->cu,
        .rdma = &rdma,
        .common = &message->direct.common,
        .ops = &direct_ops,
        .ctx = helper,
    };
    return helper->direct != NULL ? KVB_ERR_EXISTS
                                  : gpu_direct_open(&config, &helper->direct, cause);
}

static void move(struct helper *helper, const struct cuda_message *message)
{
    kvb_status_t status =
        helper->direct != NULL ? gpu_direct_move(helper->direct, message) : KVB_ERR_UNSUPPORTED;
    if (status != KVB_OK) {
        on_moved(helper, message->seq, status, NULL, 0, &(struct gpu_cause){.poisoned = false});
    }
}

/* The registration first: a NIC must not hold what is unmapped. */
struct drop {
    struct helper *helper;
    uint64_t seq, id;
};

static void on_deregistered(void *arg, kvb_status_t status)
{
    struct drop *drop = arg;
    struct helper *helper = drop->helper;
    struct gpu_cause cause = {0};
    if (status == KVB_OK) {
        status = gpu_drop(&helper->gpu, drop->id, &cause);
    } else {
        (void)snprintf(cause.text, sizeof cause.text,
                       "the RDMA device does not let go of the memory");
    }
    struct gpu_ledger ledger = count(helper);
    answer(drop->seq, status, &ledger, &cause);
    free(drop);
}

static void drop_direct(struct helper *helper, const struct cuda_message *message)
{
    struct drop *drop = malloc(sizeof *drop);
    if (drop == NULL) {
        _exit(1); /* the release that always works */
    }
    *drop = (struct drop){.helper = helper, .seq = message->seq, .id = message->drop};
    gpu_direct_remove(helper->direct, drop->id, on_deregistered, drop);
}

/* ---- questions ---- */

/* Registered, too, if that was asked for; if it cannot be, the pool serves the region. */
static void import(struct helper *helper, const struct cuda_message *message)
{
    struct cuda_message said = {.type = CUDA_ANSWER, .seq = message->seq};
    kvb_status_t status = gpu_import(&helper->gpu, &message->import, &said.answer.cause);
    if (status == KVB_OK && helper->direct != NULL) {
        const struct gpu_region *region = gpu_find(&helper->gpu, message->import.id);
        said.answer.direct = gpu_direct_add(helper->direct, region, &said.answer.cause) == KVB_OK;
    }
    said.answer.status = status;
    said.answer.ledger = count(helper);
    say(&said);
}

static void handle(struct helper *helper, struct cuda_message *message, int fd)
{
    struct gpu_cause cause = {0};
    kvb_status_t status;
    switch (message->type) {
    case CUDA_IMPORT:
        message->import.fd = fd;
        import(helper, message);
        return;
    case CUDA_DROP:
        if (helper->direct != NULL) {
            drop_direct(helper, message);
            return;
        }
        status = gpu_drop(&helper->gpu, message->drop, &cause);
        break;
    case CUDA_COPY:
        status = start_copy(helper, message);
        if (status == KVB_OK) {
            return; /* answered when it is over */
        }
        break;
    case CUDA_DIRECT:
        status = open_direct(helper, message, &cause);
        break;
    case CUDA_MOVE:
        move(helper, message);
        return;
    case CUDA_STOP:
        if (helper->direct != NULL) {
            gpu_direct_stop(helper->direct, message->stop.seq, message->stop.within_ms);
        }
        return;
    case CUDA_ANSWER:
    case CUDA_MOVED:
    default:
        _exit(1);
    }
    struct gpu_ledger ledger = count(helper);
    answer(message->seq, status, &ledger, &cause);
}

/* -1: none. More than one is not ours. */
static int take_fd(struct msghdr *msg)
{
    int fd = -1;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
            cmsg->cmsg_len == CMSG_LEN(sizeof fd)) {
            memcpy(&fd, CMSG_DATA(cmsg), sizeof fd);
        }
    }
    return fd;
}

/* One question. False: there is none now. */
static bool take_question(struct helper *helper)
{
    static uint8_t data[CUDA_MESSAGE_MAX];
    static struct cuda_piece pieces[CUDA_PIECES_MAX];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {data, sizeof data};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t len = recvmsg(KVT_CUDA_SOCKET_FD, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (len < 0 && (errno == EINTR || errno == EAGAIN)) {
        return errno == EINTR;
    }
    struct cuda_message message;
    helper->over = len <= 0 || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
                   cuda_message_unpack(data, (size_t)len, pieces, &message) != KVB_OK;
    if (helper->over) {
        return false;
    }
    int fd = take_fd(&msg);
    bool wants_fd = message.type == CUDA_IMPORT && message.import.source == GPU_SOURCE_FD;
    helper->over = wants_fd != (fd >= 0);
    if (!helper->over) {
        handle(helper, &message, fd);
    }
    return !helper->over;
}

static void on_socket(struct kvb_io_watch *watch, unsigned events)
{
    struct helper *helper = kvb_container_of(watch, struct helper, socket);
    (void)events;
    for (uint32_t i = 0; i < READS_MAX && take_question(helper); i++) {
    }
}

static void serve(struct helper *helper, const struct cuda_helper_edges *edges)
{
    helper->socket = (struct kvb_io_watch){.fd = KVT_CUDA_SOCKET_FD, .fn = on_socket};
    if (helper_loop_init(&helper->loop) != KVB_OK ||
        kvb_io_watch(&helper->loop.io, &helper->socket, KVB_IO_READ) != KVB_OK) {
        return;
    }
    helper->verbs = edges->verbs;
    if (edges->started != NULL) {
        edges->started(&helper->loop.sched, &helper->loop.io);
    }
    while (!helper->over) {
        helper_loop_step(&helper->loop);
    }
}

/* ---- the process ---- */

static void *watch_socket(void *arg)
{
    (void)arg;
    struct pollfd fd = {.fd = KVT_CUDA_SOCKET_FD, .events = POLLRDHUP};
    while (poll(&fd, 1, -1) < 0 && errno == EINTR) {
    }
    _exit(0);
}

static void live_with(pid_t parent)
{
    pthread_t thread;
    /* What ends the daemon is not to end it: that is the daemon's part. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent ||
        pthread_create(&thread, NULL, watch_socket, NULL) != 0) {
        _exit(1);
    }
    (void)pthread_detach(thread);
}

/* Waits for as long as the daemon lets it. */
static kvb_status_t take_lock(const char *path)
{
    kvb_status_t status;
    while ((status = cuda_lock_take(path)) == KVB_ERR_BUSY) {
        status = cuda_lock_evict(path);
        if (status != KVB_OK && status != KVB_ERR_BUSY) {
            return status;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return status;
}

static kvb_status_t start(struct helper *helper, const char *lock_path, struct gpu_cause *cause)
{
    struct stat st;
    char why[256];
    kvb_status_t status = take_lock(lock_path);
    if (status != KVB_OK) {
        (void)snprintf(cause->text, sizeof cause->text, "the instance's lock file: %s", lock_path);
        return status;
    }
    void *pool = MAP_FAILED;
    if (fstat(KVT_CUDA_POOL_FD, &st) == 0 && st.st_size > 0) {
        pool =
            mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, KVT_CUDA_POOL_FD, 0);
    }
    if (pool == MAP_FAILED) {
        (void)snprintf(cause->text, sizeof cause->text, "the pool cannot be mapped");
        return KVB_ERR_IO;
    }
    (void)close(KVT_CUDA_POOL_FD);
    /* It is the engine's memory that says which GPU: all of them must be seen. */
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    status = kvt_cu_open(KVT_CU_LIBRARY, &helper->cu, why);
    if (status != KVB_OK) {
        (void)snprintf(cause->text, sizeof cause->text, "%.*s", (int)sizeof cause->text - 1, why);
        return status;
    }
    gpu_init(&helper->gpu, &helper->cu, pool, (size_t)st.st_size);
    start_copier(helper, false);
    start_copier(helper, true);
    return KVB_OK;
}

int cuda_helper_main(int argc, char **argv, const struct cuda_helper_edges *edges)
{
    static struct helper helper; /* to the end of the process */
    if (argc != 3) {
        (void)fprintf(stderr, "started by kvplane serve, never by hand\n");
        return 2;
    }
    live_with((pid_t)strtol(argv[2], NULL, 10));
    struct gpu_cause cause = {0};
    struct gpu_ledger ledger = {0};
    kvb_status_t status = start(&helper, argv[1], &cause);
    answer(0, status, &ledger, &cause);
    if (status == KVB_OK) {
        serve(&helper, edges);
    }
    return 1; /* the daemon ends it by closing its socket, which is noticed elsewhere */
}

int kvt_cuda_helper_main(int argc, char **argv)
{
    return cuda_helper_main(argc, argv, &(struct cuda_helper_edges){.verbs = NULL});
}
