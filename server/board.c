/* SPDX-License-Identifier: Apache-2.0 */
#include "board.h"

#include "base/log.h"
#include "base/mutex.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    bool configured;
    bool published;
    struct kvp_view view; /* only its name is valid before it is published */
};

struct thread {
    char name[KVB_NAME_MAX];
    uint64_t bound_ns;
    uint64_t (*beat_ns)(void *ctx, uint32_t which);
    void *ctx;
    uint32_t which;
};

struct kvp_board {
    struct thread *threads;        /* immutable once questions are asked */
    uint32_t nthreads;             /* the same */
    const struct kvb_clock *clock; /* immutable */
    uint64_t heartbeat_ns;         /* immutable */
    bool as_one;                   /* immutable */
    _Atomic(uint64_t) beat_ns;     /* relaxed: only its age is looked at */
    atomic_bool stopping;
    struct kvb_mutex lock;
    struct entry *entries; /* guarded by lock */
    uint32_t n;            /* guarded by lock */
    uint32_t cap;          /* guarded by lock */
    uint32_t lost;         /* guarded by lock: instances there was no memory for */
};

/* An instance that must be there: its absence is a fault. */
static bool expected(const struct entry *entry)
{
    return entry->configured || (entry->published && entry->view.ever_attached);
}

static struct entry *find_locked(struct kvp_board *board, const char *name)
{
    for (uint32_t i = 0; i < board->n; i++) {
        if (strcmp(board->entries[i].view.instance, name) == 0) {
            return &board->entries[i];
        }
    }
    return NULL;
}

static struct entry *add_locked(struct kvp_board *board, const char *name)
{
    if (board->n == board->cap) {
        uint32_t cap = board->cap * 2;
        struct entry *entries = realloc(board->entries, cap * sizeof *entries);
        if (entries == NULL) {
            return NULL;
        }
        board->entries = entries;
        board->cap = cap;
    }
    struct entry *entry = &board->entries[board->n++];
    *entry = (struct entry){.published = false};
    snprintf(entry->view.instance, sizeof entry->view.instance, "%s", name);
    return entry;
}

kvb_status_t kvp_board_create(const struct kvp_board_config *config, struct kvp_board **board_p)
{
    struct kvp_board *board = calloc(1, sizeof *board);
    if (board == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    board->clock = config->clock;
    board->heartbeat_ns = config->heartbeat_ms * KVB_NS_PER_MS;
    board->as_one = config->as_one;
    board->cap = config->ninstances > 4 ? config->ninstances : 4;
    board->entries = calloc(board->cap, sizeof *board->entries);
    if (board->entries == NULL) {
        free(board);
        return KVB_ERR_NO_MEMORY;
    }
    kvb_mutex_init(&board->lock, "board");
    atomic_init(&board->stopping, false);
    atomic_init(&board->beat_ns, kvb_now_ns(board->clock));
    kvb_mutex_lock(&board->lock);
    for (uint32_t i = 0; i < config->ninstances; i++) {
        add_locked(board, config->instances[i])->configured = true; /* fits: see cap */
    }
    kvb_mutex_unlock(&board->lock);
    *board_p = board;
    return KVB_OK;
}

void kvp_board_destroy(struct kvp_board *board)
{
    if (board != NULL) {
        kvb_mutex_cleanup(&board->lock);
        free(board->threads);
        free(board->entries);
        free(board);
    }
}

kvb_status_t kvp_board_watch(struct kvp_board *board, const char *name, uint64_t bound_ms,
                             uint64_t (*beat_ns)(void *ctx, uint32_t which), void *ctx,
                             uint32_t which)
{
    struct thread *threads =
        realloc(board->threads, (board->nthreads + 1) * sizeof *board->threads);
    if (threads == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    board->threads = threads;
    struct thread *thread = &threads[board->nthreads++];
    *thread = (struct thread){
        .bound_ns = bound_ms * KVB_NS_PER_MS, .beat_ns = beat_ns, .ctx = ctx, .which = which};
    snprintf(thread->name, sizeof thread->name, "%s", name);
    return KVB_OK;
}

void kvp_board_publish(struct kvp_board *board, const struct kvp_view *view)
{
    bool lost = false;

    kvb_mutex_lock(&board->lock);
    struct entry *entry = find_locked(board, view->instance);
    if (entry == NULL) {
        entry = add_locked(board, view->instance);
    }
    if (entry != NULL) {
        entry->view = *view;
        entry->published = true;
    } else {
        board->lost++;
        lost = true;
    }
    kvb_mutex_unlock(&board->lock);
    if (lost) {
        KVB_LOG_LIMITED(ERROR, "no memory to show an instance: health is failing",
                        KVB_STR("instance", view->instance));
    }
}

void kvp_board_beat(struct kvp_board *board)
{
    atomic_store_explicit(&board->beat_ns, kvb_now_ns(board->clock), memory_order_relaxed);
}

void kvp_board_stopping(struct kvp_board *board)
{
    atomic_store(&board->stopping, true);
}

bool kvp_board_is_stopping(struct kvp_board *board)
{
    return atomic_load(&board->stopping);
}

/* A copy of what is there, malloc'd. */
static struct entry *snapshot(struct kvp_board *board, uint32_t *n_p, uint32_t *lost_p)
{
    kvb_mutex_lock(&board->lock);
    struct entry *entries = malloc((board->n + 1) * sizeof *entries);
    if (entries != NULL) {
        memcpy(entries, board->entries, board->n * sizeof *entries);
    }
    *n_p = board->n;
    *lost_p = board->lost;
    kvb_mutex_unlock(&board->lock);
    return entries;
}

struct asking {
    kvp_board_reason_fn reason;
    void *arg;
    bool yes;
};

static void no(struct asking *asking, const char *reason)
{
    asking->yes = false;
    asking->reason(asking->arg, reason);
}

static void ask_instance(struct asking *asking, enum kvp_board_question question,
                         const struct entry *entry)
{
    const struct kvp_view *view = &entry->view;
    char reason[KVP_BOARD_REASON_MAX];
    const char *why = NULL;
    bool once = entry->published && view->ever_attached;

    if (question == KVP_BOARD_STARTED) {
        why = once ? NULL : "its engine has not attached yet";
    } else if (!once) {
        why = "its engine has not attached yet";
    } else if (!view->attached) {
        why = view->message[0] != '\0' ? view->message : "its engine is disconnected";
    } else if (question == KVP_BOARD_READY && !view->ready) {
        why = view->not_ready[0] != '\0' ? view->not_ready : "not ready";
    }
    if (why != NULL) {
        snprintf(reason, sizeof reason, "%s: %s", view->instance, why);
        no(asking, reason);
    }
}

static void ask_thread(struct asking *asking, const struct thread *thread, uint64_t now_ns)
{
    char reason[KVP_BOARD_REASON_MAX];
    uint64_t beat_ns = thread->beat_ns(thread->ctx, thread->which);

    if (now_ns > beat_ns && now_ns - beat_ns > thread->bound_ns) {
        snprintf(reason, sizeof reason, "thread %s is stuck: nothing from it for %.1f s",
                 thread->name, (double)(now_ns - beat_ns) / (double)KVB_NS_PER_S);
        no(asking, reason);
    }
}

bool kvp_board_ask(struct kvp_board *board, enum kvp_board_question question,
                   kvp_board_reason_fn reason, void *arg)
{
    struct asking asking = {.reason = reason, .arg = arg, .yes = true};
    uint32_t n;
    uint32_t lost;
    uint32_t asked = 0;
    uint64_t beat_ns = atomic_load_explicit(&board->beat_ns, memory_order_relaxed);
    uint64_t now_ns = kvb_now_ns(board->clock);

    if (question != KVP_BOARD_STARTED && now_ns > beat_ns &&
        now_ns - beat_ns > board->heartbeat_ns) {
        no(&asking, "thread main is stuck: the daemon's loop does not turn");
    }
    if (question == KVP_BOARD_LIVE) {
        for (uint32_t i = 0; i < board->nthreads; i++) {
            ask_thread(&asking, &board->threads[i], now_ns);
        }
        return asking.yes;
    }
    if (kvp_board_is_stopping(board) && question != KVP_BOARD_STARTED) {
        no(&asking, "the daemon is shutting down");
    }
    struct entry *entries = snapshot(board, &n, &lost);
    if (entries == NULL || lost > 0) {
        no(&asking, "out of memory: instances cannot be shown");
    }
    for (uint32_t i = 0; entries != NULL && i < n; i++) {
        if (expected(&entries[i])) {
            ask_instance(&asking, question, &entries[i]);
            asked++;
        }
    }
    if (asked == 0) {
        no(&asking, "no engine has attached yet");
    }
    free(entries);
    return asking.yes;
}

/* Appends ", NAME" while there is room. */
static void append_name(char *list, const char *name)
{
    size_t used = strlen(list);
    snprintf(list + used, KVP_BOARD_REASON_MAX - used, "%s%s", used > 0 ? ", " : "", name);
}

kvb_status_t kvp_board_view(struct kvp_board *board, const char *name, struct kvp_view *view_p,
                            char *message)
{
    char names[KVP_BOARD_REASON_MAX] = "";
    const struct entry *found = NULL;
    uint32_t published = 0;
    struct kvp_view view;
    bool any = name == NULL || name[0] == '\0';
    bool paused = false;
    bool sleeping = false;

    kvb_mutex_lock(&board->lock);
    for (uint32_t i = 0; i < board->n; i++) {
        const struct entry *entry = &board->entries[i];
        if (any ? entry->published : strcmp(entry->view.instance, name) == 0) {
            /* Of all, one that is gone says so: nobody knows what it is in. */
            found = found == NULL || found->view.attached ? entry : found;
            append_name(names, entry->view.instance);
            published += entry->published;
            paused |= entry->view.is_paused;
            sleeping |= entry->view.is_sleeping;
        }
    }
    if (found != NULL) {
        view = found->view;
        view.is_paused = paused;
        view.is_sleeping = sleeping;
    }
    kvb_mutex_unlock(&board->lock);

    if (any && published > 1 && !board->as_one) {
        snprintf(message, KVP_BOARD_REASON_MAX, "say which by ?instance=NAME: %.300s", names);
        return KVB_ERR_INVALID;
    }
    if (found == NULL && !any) {
        snprintf(message, KVP_BOARD_REASON_MAX, "there is no instance of that name");
        return KVB_ERR_NOT_FOUND;
    }
    if (found == NULL || published == 0) {
        snprintf(message, KVP_BOARD_REASON_MAX, "no engine has attached yet");
        return KVB_ERR_UNAVAILABLE;
    }
    if (!view.attached) {
        snprintf(message, KVP_BOARD_REASON_MAX, "%.63s: %.255s", view.instance,
                 view.message[0] != '\0' ? view.message : "its engine is disconnected");
        return KVB_ERR_UNAVAILABLE;
    }
    *view_p = view;
    return KVB_OK;
}

void kvp_board_each(struct kvp_board *board, void (*each)(void *arg, const struct kvp_view *view),
                    void *arg)
{
    kvb_mutex_lock(&board->lock);
    for (uint32_t i = 0; i < board->n; i++) {
        if (board->entries[i].published && board->entries[i].view.ever_attached) {
            each(arg, &board->entries[i].view);
        }
    }
    kvb_mutex_unlock(&board->lock);
}
