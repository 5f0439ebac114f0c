/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include "base/assert.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_MAX_  1024u
#define FOLLOW_MAX 600u /* events to come to rest */

struct state {
    uint64_t hash[2];
    uint32_t parent;
    uint16_t choice;
    uint16_t depth;
};
static struct state *states;
static uint64_t nstates, states_cap;
static uint32_t *table; /* state + 1, by hash; a power of two places */
static uint64_t table_cap;

/* States from which a way is known to come to rest: hashes. */
struct known {
    uint64_t *at;
    uint64_t n, cap;
};

static const struct search_model *model;
static bool exact;
static struct known forms;
static char failure[1024];
static uint16_t path[PATH_MAX_]; /* the events that led to the state being looked at */
static uint32_t npath;
static uint32_t nsearched; /* of them; the rest was followed */
static const char *way;    /* on which it is being followed; NULL: it is not */
static const char *replay_args;

void search_fail(const char *format, ...)
{
    if (failure[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(failure, sizeof failure, format, args);
    va_end(args);
}

bool search_failed(void)
{
    return failure[0] != '\0';
}

static void print_trace(void)
{
    printf("VIOLATION %s%s%s\n", failure, way != NULL ? ", when " : "", way != NULL ? way : "");
    model->begin();
    for (uint32_t i = 0; i < npath; i++) {
        char text[256];
        model->describe(path[i], text, sizeof text);
        printf("  %2u %s%s\n", i + 1, text, way != NULL && i == nsearched ? "   <- here" : "");
        if (i + 1 < npath) {
            model->apply(path[i]);
        }
    }
    printf("replay: %s --replay ", replay_args);
    for (uint32_t i = 0; i < npath; i++) {
        printf("%s%u", i > 0 ? "." : "", path[i]);
    }
    printf("\n");
    fflush(stdout);
}

static void on_abort(int signal)
{
    (void)signal;
    search_fail("an assertion does not hold");
    print_trace(); /* the code is at its end: nothing else of this process runs any more */
    _exit(1);
}

static void put(uint16_t choice)
{
    kvb_assert(npath < PATH_MAX_);
    path[npath++] = choice;
}

static void step(uint16_t choice)
{
    put(choice);
    model->apply(choice);
    if (!search_failed()) {
        model->judge();
    }
}

/* ---- what is known ---- */

static void *grown(void *at, uint64_t bytes)
{
    void *fresh = realloc(at, bytes);
    kvb_assert(fresh != NULL);
    return fresh;
}

static void table_grow(void)
{
    table_cap = table_cap == 0 ? 1u << 16 : table_cap * 2;
    free(table);
    table = calloc(table_cap, sizeof table[0]);
    kvb_assert(table != NULL);
    for (uint64_t i = 0; i < nstates; i++) {
        uint64_t place = states[i].hash[0] & (table_cap - 1);
        while (table[place] != 0) {
            place = (place + 1) & (table_cap - 1);
        }
        table[place] = (uint32_t)i + 1;
    }
}

static void add_state(const uint64_t hash[2], uint32_t parent, uint16_t choice, uint32_t depth)
{
    if (2 * (nstates + 1) > table_cap) {
        table_grow();
    }
    uint64_t place = hash[0] & (table_cap - 1);
    for (; table[place] != 0; place = (place + 1) & (table_cap - 1)) {
        const struct state *one = &states[table[place] - 1];
        if (one->hash[0] == hash[0] && one->hash[1] == hash[1]) {
            return;
        }
    }
    if (nstates == states_cap) {
        states_cap = states_cap == 0 ? 1u << 14 : states_cap * 2;
        states = grown(states, states_cap * sizeof states[0]);
    }
    states[nstates++] = (struct state){
        .hash = {hash[0], hash[1]}, .parent = parent, .choice = choice, .depth = (uint16_t)depth};
    table[place] = (uint32_t)nstates;
}

static bool known_has(const struct known *known, uint64_t hash)
{
    if (known->cap == 0) {
        return false;
    }
    for (uint64_t i = hash & (known->cap - 1); known->at[i] != 0; i = (i + 1) & (known->cap - 1)) {
        if (known->at[i] == hash) {
            return true;
        }
    }
    return false;
}

static void known_add(struct known *known, uint64_t hash)
{
    if (2 * (known->n + 1) > known->cap) {
        struct known old = *known;
        known->cap = old.cap == 0 ? 1u << 14 : old.cap * 2;
        known->at = calloc(known->cap, sizeof known->at[0]);
        kvb_assert(known->at != NULL);
        known->n = 0;
        for (uint64_t i = 0; i < old.cap; i++) {
            if (old.at[i] != 0) {
                known_add(known, old.at[i]);
            }
        }
        free(old.at);
    }
    uint64_t i = hash & (known->cap - 1);
    for (; known->at[i] != 0; i = (i + 1) & (known->cap - 1)) {
        if (known->at[i] == hash) {
            return;
        }
    }
    known->at[i] = hash;
    known->n++;
}

/* ---- the search ---- */

static void add_present(uint32_t parent, uint16_t choice, uint32_t depth)
{
    uint64_t hash[2];
    model->hash(hash);
    if (exact) {
        known_add(&forms, hash[0]);
        model->exact(hash);
    }
    add_state(hash, parent, choice, depth);
}

static void go_to(uint32_t index)
{
    npath = 0;
    for (uint32_t i = index; i != 0; i = states[i].parent) {
        put(states[i].choice);
    }
    for (uint32_t i = 0; i < npath / 2; i++) {
        uint16_t swap = path[i];
        path[i] = path[npath - 1 - i];
        path[npath - 1 - i] = swap;
    }
    model->begin();
    for (uint32_t i = 0; i < npath; i++) {
        model->apply(path[i]);
    }
}

/* To where it rests, or to where it is known that it will. */
static bool follow(uint32_t which, struct known *known, uint64_t *followed_p)
{
    uint64_t passed[FOLLOW_MAX];
    uint32_t npassed = 0;
    uint64_t hash[2];
    uint32_t depth = npath;
    nsearched = npath;
    way = model->way_text(which);
    model->hash(hash);
    while (!known_has(known, hash[0])) {
        if (model->rest(which)) {
            break;
        }
        uint16_t choice = model->follow(which);
        bool again = false;
        for (uint32_t i = 0; i < npassed; i++) {
            again = again || passed[i] == hash[0];
        }
        if (choice == SEARCH_NONE) {
            search_fail("deadlock: something is pending, and no event is left that could end it");
        } else if (again || npassed == FOLLOW_MAX) {
            search_fail("livelock: it comes back to where it was, and something is pending");
        } else {
            passed[npassed++] = hash[0];
            step(choice);
            ++*followed_p;
        }
        if (search_failed()) {
            print_trace();
            return false;
        }
        model->hash(hash);
    }
    known_add(known, hash[0]);
    for (uint32_t i = 0; i < npassed; i++) {
        known_add(known, passed[i]);
    }
    way = NULL;
    npath = depth;
    return true;
}

/* All that may come next. False: something was found. */
static bool expand(uint32_t index, struct search_result *result_p)
{
    uint16_t choices[SEARCH_CHOICES_MAX];
    uint32_t n = model->choices(choices);
    uint32_t depth = npath;
    for (uint32_t i = 0; i < n; i++) {
        if (model->load != NULL) {
            model->load();
        } else if (i > 0) {
            go_to(index);
        }
        npath = depth;
        step(choices[i]);
        result_p->events++;
        if (search_failed()) {
            print_trace();
            return false;
        }
        add_present(index, choices[i], depth + 1);
    }
    npath = depth;
    return true;
}

bool search_run(const struct search_model *searched, const struct search_limits *limits,
                const char *replay, struct search_result *result_p)
{
    struct known known[4] = {{0}};
    bool found = false;
    model = searched;
    exact = limits->exact;
    replay_args = replay;
    *result_p = (struct search_result){.whole = true};
    signal(SIGABRT, on_abort);
    nstates = 0;
    npath = 0;
    free(table);
    table = NULL;
    table_cap = 0;
    model->begin();
    model->judge();
    if (search_failed()) {
        print_trace();
        return false;
    }
    add_present(0, 0, 0);
    for (uint32_t i = 0; i < nstates && !found; i++) {
        result_p->depth = states[i].depth;
        if (nstates >= limits->states_max) {
            result_p->whole = false;
            result_p->depth--;
            break;
        }
        go_to(i);
        if (model->save != NULL) {
            model->save();
        }
        for (uint32_t w = 0; w < model->nways && !found; w++) {
            found = !follow(w, &known[w], &result_p->followed);
            if (!found && model->load != NULL) {
                model->load();
            } else if (!found) {
                go_to(i);
            }
        }
        if (found || states[i].depth >= limits->depth) {
            result_p->whole = false;
            continue;
        }
        found = !expand(i, result_p);
    }
    result_p->states = nstates;
    result_p->forms = exact ? forms.n : nstates;
    free(forms.at);
    forms = (struct known){0};
    for (size_t w = 0; w < sizeof known / sizeof known[0]; w++) {
        free(known[w].at);
    }
    return !found;
}

bool search_replay(const struct search_model *searched, const char *trace)
{
    model = searched;
    replay_args = "";
    signal(SIGABRT, on_abort);
    model->begin();
    model->judge();
    for (char *end = NULL; *trace != '\0' && !search_failed();
         trace = *end == '.' ? end + 1 : end) {
        uint16_t choice = (uint16_t)strtoul(trace, &end, 10);
        char text[256];
        if (end == trace) {
            fprintf(stderr, "a trace is numbers with dots between\n");
            return false;
        }
        model->describe(choice, text, sizeof text);
        printf("  %2u %s\n", npath + 1, text);
        fflush(stdout);
        step(choice);
    }
    if (search_failed()) {
        printf("VIOLATION %s\n", failure);
    }
    return !search_failed();
}
