/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_EVENTS_H
#define SERVER_EVENTS_H

#include "connector/instance.h"

#include <jansson.h>

/*
 * What has happened, newest last, for who watches: the last KVP_EVENTS_MAX of it, numbered from 1.
 * The loop adds, any thread reads; under a lock that is held for a copy.
 */
struct kvp_events;

#define KVP_EVENTS_MAX      1024u
#define KVP_EVENT_TEXT_MAX  512u
#define KVP_EVENTS_PAGE_MAX 256u /* of one read */

struct kvp_event {
    uint64_t id;
    uint64_t at_ms;              /* since 1970 */
    char instance[KVB_NAME_MAX]; /* "": of none */
    char kind[32];
    char detail[KVP_EVENT_TEXT_MAX]; /* text; of kind `state` a JSON object */
};

/* NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_events_create(struct kvp_events **events_p);
void kvp_events_destroy(struct kvp_events *events);

/* Loop thread. A text that is too long is cut. */
void kvp_events_add(struct kvp_events *events, const char *instance, const char *kind,
                    const char *detail);
/* The same, of kind `state`, if the state of its instance is another than was last told. Takes
 * state: an object, or NULL (out of memory: not told). */
void kvp_events_add_state(struct kvp_events *events, const char *instance, json_t *state);

/*
 * Any thread: those after `after` (0: from the oldest), oldest first, at most max. *lost_p: how
 * many between were forgotten. An id that was never given (by an earlier daemon) is as good as 0.
 */
uint32_t kvp_events_read(struct kvp_events *events, uint64_t after, struct kvp_event *out,
                         uint32_t max, uint64_t *lost_p);

/* Those after *cursor, which moves on, as server-sent events, as many as fit; 0: none, or cap is
 * too small for one. What was forgotten is an event of its own, `lost`. Any thread. */
size_t kvp_events_stream(struct kvp_events *events, uint64_t *cursor, char *text, size_t cap);

json_t *kvp_event_json(const struct kvp_event *event); /* NULL: out of memory */

#endif
