/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include "base/mutex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kvp_events {
    struct kvb_mutex lock;
    uint64_t last;                         /* id; guarded by lock */
    struct kvp_event ring[KVP_EVENTS_MAX]; /* id % KVP_EVENTS_MAX; guarded by lock */
    /* loop thread: what was last told of each instance */
    struct {
        char instance[KVB_NAME_MAX];
        json_t *state;
    } told[KVP_INSTANCES_MAX];
    uint32_t ntold;
};

kvb_status_t kvp_events_create(struct kvp_events **events_p)
{
    struct kvp_events *events = calloc(1, sizeof *events);
    if (events == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_mutex_init(&events->lock, "events");
    *events_p = events;
    return KVB_OK;
}

void kvp_events_destroy(struct kvp_events *events)
{
    if (events != NULL) {
        for (uint32_t i = 0; i < events->ntold; i++) {
            json_decref(events->told[i].state);
        }
        kvb_mutex_cleanup(&events->lock);
        free(events);
    }
}

/* Unix time, as people and other programs read it; nothing here goes by it. */
static uint64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void kvp_events_add(struct kvp_events *events, const char *instance, const char *kind,
                    const char *detail)
{
    uint64_t at_ms = wall_ms();

    kvb_mutex_lock(&events->lock);
    struct kvp_event *event = &events->ring[++events->last % KVP_EVENTS_MAX];
    event->id = events->last;
    event->at_ms = at_ms;
    snprintf(event->instance, sizeof event->instance, "%s", instance != NULL ? instance : "");
    snprintf(event->kind, sizeof event->kind, "%s", kind);
    snprintf(event->detail, sizeof event->detail, "%s", detail != NULL ? detail : "");
    kvb_mutex_unlock(&events->lock);
}

void kvp_events_add_state(struct kvp_events *events, const char *instance, json_t *state)
{
    char text[KVP_EVENT_TEXT_MAX];
    uint32_t i = 0;

    while (i < events->ntold && strcmp(events->told[i].instance, instance) != 0) {
        i++;
    }
    size_t len = json_dumpb(state, text, sizeof text - 1, JSON_COMPACT);
    if (i == KVP_INSTANCES_MAX || len == 0 || len >= sizeof text ||
        json_equal(events->told[i].state, state)) {
        json_decref(state);
        return;
    }
    if (i == events->ntold) {
        snprintf(events->told[events->ntold++].instance, KVB_NAME_MAX, "%s", instance);
    }
    json_decref(events->told[i].state);
    events->told[i].state = state;
    text[len] = '\0';
    kvp_events_add(events, instance, "state", text);
}

uint32_t kvp_events_read(struct kvp_events *events, uint64_t after, struct kvp_event *out,
                         uint32_t max, uint64_t *lost_p)
{
    uint32_t n = 0;

    kvb_mutex_lock(&events->lock);
    uint64_t oldest = events->last < KVP_EVENTS_MAX ? 1 : events->last - KVP_EVENTS_MAX + 1;
    uint64_t next = after > events->last ? oldest : after + 1;
    *lost_p = next < oldest && after > 0 ? oldest - next : 0;
    for (uint64_t id = next < oldest ? oldest : next; id <= events->last && n < max; id++) {
        out[n++] = events->ring[id % KVP_EVENTS_MAX];
    }
    kvb_mutex_unlock(&events->lock);
    return n;
}

json_t *kvp_event_json(const struct kvp_event *event)
{
    json_t *json = json_pack("{s:I, s:I, s:s}", "id", (json_int_t)event->id, "at_ms",
                             (json_int_t)event->at_ms, "kind", event->kind);
    json_t *state = strcmp(event->kind, "state") == 0 ? json_loads(event->detail, 0, NULL) : NULL;

    if (event->instance[0] != '\0') {
        (void)json_object_set_new(json, "instance", json_string(event->instance));
    }
    if (state != NULL) {
        (void)json_object_set_new(json, "state", state);
    } else if (event->detail[0] != '\0') {
        (void)json_object_set_new(json, "detail", json_string(event->detail));
    }
    return json;
}

/* Takes data. Returns the length; 0: it does not fit, or there is no memory for it. */
static size_t put_event(uint64_t id, const char *kind, json_t *data, char *text, size_t cap)
{
    char *line = json_dumps(data, JSON_COMPACT); /* one line, whatever is in it */
    int len = line == NULL ? 0
                           : snprintf(text, cap, "id: %llu\nevent: %s\ndata: %s\n\n",
                                      (unsigned long long)id, kind, line);

    json_decref(data);
    free(line);
    return len > 0 && (size_t)len < cap ? (size_t)len : 0;
}

size_t kvp_events_stream(struct kvp_events *events, uint64_t *cursor, char *text, size_t cap)
{
    struct kvp_event page[8];
    size_t used = 0;
    uint64_t lost;

    for (uint32_t n = 1; n > 0;) {
        n = kvp_events_read(events, *cursor, page, 8, &lost);
        if (lost > 0) {
            size_t len =
                put_event(page[0].id - 1, "lost", json_pack("{s:I}", "lost", (json_int_t)lost),
                          text + used, cap - used);
            if (len == 0) {
                return used;
            }
            used += len;
            *cursor = page[0].id - 1;
        }
        for (uint32_t i = 0; i < n; i++) {
            size_t len = put_event(page[i].id, page[i].kind, kvp_event_json(&page[i]), text + used,
                                   cap - used);
            if (len == 0) {
                return used;
            }
            used += len;
            *cursor = page[i].id;
        }
    }
    return used;
}
