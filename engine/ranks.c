/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include "generate.h"

#include "base/assert.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct other {
    struct kve_pipe pipe;
    pid_t pid;
    uint64_t busy; /* acknowledgements that are missing */
    bool attached;
};
struct kve_ranks {
    struct kve_gather gather; /* of the model; n 0: none */
    uint32_t n;
    struct other others[];
};

/* ---- in a rank other than 0 ---- */

struct follower {
    struct kve_engine *engine;
    struct kve_pipe pipe;
    bool told_attached;
    bool failed;
};

struct transfer {
    struct follower *follower;
    struct kve_rank_message message; /* its blocks follow */
};

static size_t size_of(uint32_t n)
{
    return sizeof(struct kve_rank_message) + n * sizeof(struct kve_block_of);
}

static void say(struct follower *follower, const struct kve_rank_message *message)
{
    /* Without memory this rank cannot go on, and rank 0 learns it by its end. */
    follower->failed =
        kve_pipe_send(&follower->pipe, message, size_of(message->n)) != KVB_OK || follower->failed;
}

/* Judges a block and notes it in the answer. True: it is right. */
static bool check(struct kve_engine *engine, const struct kve_block_of *what,
                  struct kve_rank_message *answer, const char *where)
{
    struct kve_finding finding;
    enum kve_verdict verdict = kve_parts_judge(engine, what, &finding);

    answer->checked++;
    answer->stale += verdict == KVE_STALE;
    answer->torn += verdict == KVE_TORN;
    if (verdict != KVE_GOOD && answer->story[0] == '\0') {
        snprintf(answer->story, sizeof answer->story,
                 "%s: instance %s, rank %" PRIu32 ", request %" PRIu64 ", key b%016" PRIx64
                 ", read from %s, should be of weights %" PRIu64
                 ": byte %zu is 0x%02x, expected 0x%02x, of weights %" PRIu64,
                 kve_verdict_text(verdict), engine->options.instance, engine->options.rank,
                 answer->request, what->key, where, what->weights, finding.offset, finding.got,
                 finding.expected, finding.weights);
    }
    return verdict == KVE_GOOD;
}

static void on_transfer(void *arg, const int *results, size_t n)
{
    struct transfer *transfer = arg;
    struct follower *follower = transfer->follower;
    struct kve_engine *engine = follower->engine;
    struct kve_rank_message *message = &transfer->message;

    kvb_assert(n == (size_t)message->n * kve_parts(&engine->options));
    kve_parts_results(engine, results, message->n, engine->results);
    for (uint32_t i = 0; i < message->n; i++) {
        struct kve_block_of *what = &message->blocks[i];
        what->result = engine->results[i];
        what->weights = kve_weights_held(engine);
        if (message->command == KVE_RANK_GET && what->result == KVPLANE_OK &&
            engine->computer->judge != NULL && !check(engine, what, message, "the store")) {
            what->result = KVE_RANK_BAD;
        }
    }
    message->command = KVE_RANK_DONE;
    if (!engine->closing) {
        say(follower, message);
    }
    free(transfer);
}

/* Asked of kvplane, or not: then every block has the reason. */
static void move(struct follower *follower, const struct kve_rank_message *message)
{
    struct kve_engine *engine = follower->engine;
    struct transfer *transfer = malloc(sizeof *transfer + size_of(message->n));
    int result = KVPLANE_ERR_BAD_STATE;

    if (transfer == NULL) {
        follower->failed = true;
        return;
    }
    transfer->follower = follower;
    memcpy(&transfer->message, message, size_of(message->n));
    transfer->message.checked = transfer->message.stale = transfer->message.torn = 0;
    transfer->message.story[0] = '\0';
    size_t n = kve_parts_entries(engine, message->blocks, message->n, message->token);
    if (engine->attached && message->command == KVE_RANK_GET && engine->kv_cache.fd >= 0) {
        for (uint32_t i = 0; i < message->n; i++) {
            kve_parts_poison(engine, &message->blocks[i]);
        }
        result = kvplane_get(engine->kv, message->request, message->token, engine->entries, n,
                             on_transfer, transfer);
    } else if (engine->attached && message->command == KVE_RANK_PUT) {
        result = kvplane_put(engine->kv, engine->entries, n, on_transfer, transfer);
    }
    if (result == KVPLANE_OK) {
        return;
    }
    for (uint32_t i = 0; i < message->n; i++) {
        transfer->message.blocks[i].result = result;
    }
    transfer->message.command = KVE_RANK_DONE;
    say(follower, &transfer->message);
    free(transfer);
}

static void obey(struct follower *follower, struct kve_rank_message *message)
{
    struct kve_engine *engine = follower->engine;
    struct kve_rank_message ack = {.command = KVE_RANK_ACK, .request = message->request};

    switch (message->command) {
    case KVE_RANK_FILL:
        for (uint32_t i = 0; i < message->n && engine->kv_cache.fd >= 0; i++) {
            message->blocks[i].weights = kve_weights_held(engine); /* it has no others */
            kve_parts_fill(engine, &message->blocks[i]);
        }
        break;
    case KVE_RANK_CHECK:
        for (uint32_t i = 0; i < message->n; i++) {
            (void)check(engine, &message->blocks[i], &ack, "its own blocks");
        }
        break;
    case KVE_RANK_SEE:
        kve_engine_see_weights(engine, message->weights);
        return;
    case KVE_RANK_FINGERPRINT:
        engine->fingerprinting = message->weights != 0;
        return;
    case KVE_RANK_GET:
    case KVE_RANK_PUT:
        say(follower, &ack); /* before its end can be told */
        move(follower, message);
        return;
    case KVE_RANK_ACK:
    case KVE_RANK_DONE:
    case KVE_RANK_ATTACHED:
        follower->failed = true;
        return;
    }
    say(follower, &ack);
}

static bool read_commands(struct follower *follower)
{
    void *message;
    size_t len;

    for (;;) {
        if (kve_pipe_receive(&follower->pipe, &message, &len) != KVB_OK) {
            return false; /* rank 0 is gone, or asks for the end */
        }
        if (message == NULL) {
            return true;
        }
        obey(follower, message);
        free(message);
    }
}

static void follow(struct follower *follower)
{
    struct kve_engine *engine = follower->engine;

    while (!follower->failed) {
        int wait_ms = kve_engine_turn(engine);
        if (engine->refused) {
            fprintf(stderr, "engine %s, rank %" PRIu32 ": refused: %s\n", engine->options.instance,
                    engine->options.rank, kvplane_last_error(engine->kv));
            return;
        }
        if (engine->attached != follower->told_attached) {
            follower->told_attached = engine->attached;
            struct kve_rank_message told = {.command = KVE_RANK_ATTACHED,
                                            .weights = engine->attached};
            say(follower, &told);
        }
        bool more = kve_pipe_flush(&follower->pipe);
        struct pollfd fds[] = {
            {.fd = follower->pipe.fd, .events = (short)(POLLIN | (more ? POLLOUT : 0))},
            {.fd = kvplane_fd(engine->kv), .events = POLLIN},
            {.fd = kve_generate_fd(engine), .events = POLLIN},
        };
        if (poll(fds, 3, wait_ms) < 0 && errno != EINTR) {
            return;
        }
        if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !read_commands(follower)) {
            return;
        }
        if (fds[2].revents != 0 && kve_generate_follow(engine) != KVB_OK) {
            return; /* rank 0 is gone, or will be when it sees this one go */
        }
    }
}

static _Noreturn void run_follower(const struct kve_engine_options *options, uint32_t rank, int fd,
                                   struct kve_gather_mesh *mesh, pid_t parent)
{
    struct kve_engine_options mine = *options;
    struct follower follower = {.engine = NULL};
    struct kve_gather gather;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mine.rank = rank;
    mine.trace = NULL;
    kve_pipe_init(&follower.pipe, fd);
    kve_gather_take(mesh, rank, &gather);
    mine.gather = mine.model ? &gather : NULL;
    if (getppid() != parent || kve_engine_create(&mine, &follower.engine) != KVB_OK) {
        _exit(1);
    }
    follow(&follower);
    kve_engine_destroy(follower.engine);
    kve_pipe_cleanup(&follower.pipe);
    kve_gather_close(&gather);
    _exit(follower.failed ? 1 : 0);
}

/* ---- in rank 0 ---- */

kvb_status_t kve_ranks_start(const struct kve_engine_options *options, struct kve_ranks **ranks_p)
{
    uint32_t n = kve_world(options) - 1;
    struct kve_gather_mesh mesh = {.n = 0};
    struct kve_ranks *ranks;
    pid_t self = getpid();

    if (n == 0) {
        *ranks_p = NULL;
        return KVB_OK;
    }
    ranks = calloc(1, sizeof *ranks + n * sizeof ranks->others[0]);
    if (ranks == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (options->model && kve_gather_mesh_open(n + 1, &mesh) != KVB_OK) {
        free(ranks);
        return KVB_ERR_IO;
    }
    for (uint32_t i = 0; i < n; i++) {
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
            fprintf(stderr, "kvplane engine: socketpair: %m\n");
            kve_gather_mesh_close(&mesh);
            kve_ranks_stop(ranks);
            return KVB_ERR_IO;
        }
        pid_t pid = fork();
        if (pid == 0) {
            close(fds[0]);
            for (uint32_t k = 0; k < i; k++) {
                kve_pipe_cleanup(&ranks->others[k].pipe); /* else a rank would outlive rank 0 */
            }
            free(ranks);
            if (options->control_fd >= 0) {
                close(options->control_fd);
            }
            run_follower(options, i + 1, fds[1], &mesh, self);
        }
        close(fds[1]);
        if (pid < 0) {
            fprintf(stderr, "kvplane engine: fork: %m\n");
            close(fds[0]);
            kve_gather_mesh_close(&mesh);
            kve_ranks_stop(ranks);
            return KVB_ERR_IO;
        }
        kve_pipe_init(&ranks->others[i].pipe, fds[0]);
        ranks->others[i].pid = pid;
        ranks->n++;
    }
    kve_gather_take(&mesh, 0, &ranks->gather);
    *ranks_p = ranks;
    return KVB_OK;
}

void kve_ranks_stop(struct kve_ranks *ranks)
{
    if (ranks == NULL) {
        return;
    }
    for (uint32_t i = 0; i < ranks->n; i++) {
        kve_pipe_cleanup(&ranks->others[i].pipe);
    }
    kve_gather_close(&ranks->gather);
    for (uint32_t i = 0; i < ranks->n; i++) {
        while (waitpid(ranks->others[i].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    free(ranks);
}

struct kve_gather *kve_ranks_gather(struct kve_ranks *ranks)
{
    return ranks == NULL || ranks->gather.n == 0 ? NULL : &ranks->gather;
}

uint32_t kve_ranks_count(const struct kve_ranks *ranks)
{
    return ranks == NULL ? 0 : ranks->n;
}

bool kve_ranks_attached(const struct kve_ranks *ranks)
{
    for (uint32_t i = 0; i < kve_ranks_count(ranks); i++) {
        if (!ranks->others[i].attached) {
            return false;
        }
    }
    return true;
}

uint64_t kve_ranks_busy(const struct kve_ranks *ranks)
{
    uint64_t busy = 0;

    for (uint32_t i = 0; i < kve_ranks_count(ranks); i++) {
        busy += ranks->others[i].busy;
    }
    return busy;
}

json_t *kve_ranks_pids(const struct kve_ranks *ranks)
{
    json_t *pids = json_array();

    (void)json_array_append_new(pids, json_integer(getpid()));
    for (uint32_t i = 0; i < kve_ranks_count(ranks); i++) {
        (void)json_array_append_new(pids, json_integer(ranks->others[i].pid));
    }
    return pids;
}

kvb_status_t kve_ranks_tell(struct kve_ranks *ranks, enum kve_rank_command command,
                            uint64_t request, uint64_t weights, kvplane_token token,
                            const struct kve_block_of *blocks, uint32_t n)
{
    kvb_status_t status = KVB_OK;

    if (kve_ranks_count(ranks) == 0) {
        return KVB_OK;
    }
    struct kve_rank_message *message = calloc(1, size_of(n));
    if (message == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    message->command = command;
    message->n = n;
    message->request = request;
    message->weights = weights;
    message->token = token;
    if (n > 0) {
        memcpy(message->blocks, blocks, n * sizeof blocks[0]);
    }
    for (uint32_t i = 0; i < ranks->n && status == KVB_OK; i++) {
        status = kve_pipe_send(&ranks->others[i].pipe, message, size_of(n));
        ranks->others[i].busy += status == KVB_OK && n > 0;
    }
    free(message);
    return status;
}

static kvb_status_t take(struct other *other, struct kve_engine *engine)
{
    struct kve_rank_message *message;
    size_t len;

    for (;;) {
        void *bytes;
        kvb_status_t status = kve_pipe_receive(&other->pipe, &bytes, &len);
        if (status != KVB_OK || bytes == NULL) {
            return status;
        }
        message = bytes;
        if (message->command == KVE_RANK_ATTACHED) {
            other->attached = message->weights != 0;
        } else {
            other->busy -= message->command == KVE_RANK_ACK;
            kve_request_told(engine, message);
        }
        free(bytes);
    }
}

kvb_status_t kve_ranks_turn(struct kve_ranks *ranks, struct kve_engine *engine)
{
    for (uint32_t i = 0; i < kve_ranks_count(ranks); i++) {
        (void)kve_pipe_flush(&ranks->others[i].pipe);
        kvb_status_t status = take(&ranks->others[i], engine);
        if (status != KVB_OK) {
            fprintf(stderr, "engine %s: rank %" PRIu32 " is gone: %s\n", engine->options.instance,
                    i + 1, kvb_status_text(status));
            return status;
        }
    }
    return KVB_OK;
}

size_t kve_ranks_poll(struct kve_ranks *ranks, struct pollfd *fds, size_t cap)
{
    size_t n = 0;

    for (; n < kve_ranks_count(ranks) && n < cap; n++) {
        bool more = kve_pipe_flush(&ranks->others[n].pipe);
        fds[n] = (struct pollfd){.fd = ranks->others[n].pipe.fd,
                                 .events = (short)(POLLIN | (more ? POLLOUT : 0))};
    }
    return n;
}
