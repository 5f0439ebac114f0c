/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_EXPLORE_SEARCH_H
#define TESTS_EXPLORE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * All states that events can lead to, breadth first, so that what is found comes with a shortest
 * trace. A state is the real code's; the search keeps of each only its hash, and the event by which
 * it was first reached, and comes back to it by doing the events again from the beginning.
 *
 * Beside being judged, each state is followed to its end in each of the model's ways to go on (all
 * goes well; nobody answers any more): it must come to rest.
 */
#define SEARCH_CHOICES_MAX 256u
#define SEARCH_NONE        UINT16_MAX

struct search_model {
    void (*begin)(void); /* the first state */
    uint32_t (*choices)(uint16_t choices[SEARCH_CHOICES_MAX]);
    void (*apply)(uint16_t choice);
    void (*judge)(void); /* search_fail() if the state is not as it must be */
    void (*hash)(uint64_t hash_p[2]);
    /* Tells apart what hash() takes for one state. NULL: nothing does. */
    void (*exact)(uint64_t hash_p[2]);
    void (*describe)(uint16_t choice, char *out, size_t cap);
    /* The state as it is: kept, and put back. NULL: the events are done again instead. */
    void (*save)(void);
    void (*load)(void);
    uint32_t nways;
    /* The next event on that way; SEARCH_NONE: there is none. rest: nothing is left to come. */
    uint16_t (*follow)(uint32_t way);
    bool (*rest)(uint32_t way);
    const char *(*way_text)(uint32_t way);
};

struct search_limits {
    uint32_t depth;
    uint64_t states_max; /* the search stops, and says so */
    bool exact;          /* states are told apart by exact(); those by hash() are counted: forms */
};

struct search_result {
    uint64_t states, events, followed, forms;
    uint32_t depth; /* to which all is known */
    bool whole;     /* nothing is left beyond */
};

/* The first one counts; the search ends with it. */
void search_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool search_failed(void);

/* False: something was found; the trace is printed, with how to repeat it. */
bool search_run(const struct search_model *model, const struct search_limits *limits,
                const char *replay, struct search_result *result_p);
/* Does the events of a trace ("1.17.4"), saying each. False: something was found. */
bool search_replay(const struct search_model *model, const char *trace);

#endif
