/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_EVENTS_H
#define SERVER_EVENTS_H

#include "connector/instance.h"

#include <jansson.h>

/*
 * What has happened, newest last, for who watches: the last KVP_EVENTS_MAX of it, numbered one by
 * one, from a number that no earlier daemon reached: so an id says of which life it is, and who
 * goes on from it after a restart is told that there is a gap.
 * The loop adds, any thread reads; under a lock that is held for a copy.
 */
struct kvp_events;

#define KVP_EVENTS_MAX      1024u
#define KVP_EVENT_TEXT_MAX  1024u /* any state fits: names are of letters and digits */
#define KVP_EVENTS_PAGE_MAX 256u  /* of one read */

struct kvp_event {
    uint64_t id;
    uint64_t at_ms;              /* since 1970 */
    char instance[KVB_NAME_MAX]; /* "": of none */
    char kind[32];
    char detail[KVP_EVENT_TEXT_MAX]; /* text; of kind `state` a JSON object */
};

/* The first one has the id epoch + 1. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_events_create(uint64_t epoch, struct kvp_events **events_p);
/* An epoch for a daemon that starts now: larger than any id of an earlier one, unless the machine's
 * clock was set back or there was more than an event each microsecond; exact as a JSON number. */
uint64_t kvp_events_epoch(void);
void kvp_events_destroy(struct kvp_events *events);

/* Loop thread. A text that is too long is cut. */
void kvp_events_add(struct kvp_events *events, const char *instance, const char *kind,
                    const char *detail);
/* The same, of kind `state`, if what make() tells of the instance is another than was last told; it
 * is asked only then. make() returns an object, or NULL (out of memory: the next call tells). */
void kvp_events_add_state(struct kvp_events *events, const struct kvp_view *view,
                          json_t *(*make)(const struct kvp_view *view));

/* What came between the id that a reader named and what it gets. */
struct kvp_events_gap {
    uint64_t lost;  /* how many are forgotten */
    bool restarted; /* the id is of an earlier daemon: nobody knows what that told since */
};

/*
 * Any thread: those after `after` (0: from the oldest), oldest first, at most max. An id that this
 * daemon never gave is of an earlier one: then everything that is known comes.
 */
uint32_t kvp_events_read(struct kvp_events *events, uint64_t after, struct kvp_event *out,
                         uint32_t max, struct kvp_events_gap *gap_p);

/* Those after *cursor, which moves on, as server-sent events, as many as fit; 0: none, or cap is
 * too small for one. A gap is an event of its own, `lost` or `restarted`, before what follows it.
 * Any thread. */
size_t kvp_events_stream(struct kvp_events *events, uint64_t *cursor, char *text, size_t cap);

json_t *kvp_event_json(const struct kvp_event *event); /* NULL: out of memory */

#endif
