/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include "base/assert.h"
#include "base/mutex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a state tells, of one instance. Compared byte by byte: what is not used is zero. */
struct told {
    char instance[KVB_NAME_MAX];
    bool attached, degraded;
    enum kvp_scheduler scheduler;
    unsigned stopped_by;
    uint32_t ntags;
    struct kvb_tag_state tags[KVB_TAGS_MAX];
};

struct kvp_events {
    struct kvb_mutex lock;
    uint64_t epoch;                        /* immutable after create */
    uint64_t last;                         /* id; guarded by lock */
    struct kvp_event ring[KVP_EVENTS_MAX]; /* id % KVP_EVENTS_MAX; guarded by lock */
    struct told told[KVP_INSTANCES_MAX];   /* loop thread: what was last told of each instance */
    uint32_t ntold;
};

/* `{"instance":"…","tags":{"…":"discarded",…},…}` */
_Static_assert(KVP_EVENT_TEXT_MAX > KVB_NAME_MAX + KVB_TAGS_MAX * (KVB_NAME_MAX + 16) + 256,
               "a state fits");

/* Unix time, as people and other programs read it; nothing here goes by it. */
static uint64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t kvp_events_epoch(void)
{
    return wall_ms() * 1000;
}

kvb_status_t kvp_events_create(uint64_t epoch, struct kvp_events **events_p)
{
    struct kvp_events *events = calloc(1, sizeof *events);
    if (events == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    events->epoch = events->last = epoch;
    kvb_mutex_init(&events->lock, "events");
    *events_p = events;
    return KVB_OK;
}

void kvp_events_destroy(struct kvp_events *events)
{
    if (events != NULL) {
        kvb_mutex_cleanup(&events->lock);
        free(events);
    }
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

void kvp_events_add_state(struct kvp_events *events, const struct kvp_view *view,
                          json_t *(*make)(const struct kvp_view *view))
{
    char text[KVP_EVENT_TEXT_MAX];
    struct told now;
    uint32_t i = 0;

    memset(&now, 0, sizeof now); /* padding, too */
    strcpy(now.instance, view->instance);
    now.attached = view->attached;
    now.degraded = view->degraded;
    now.scheduler = view->scheduler;
    now.stopped_by = view->stopped_by;
    now.ntags = view->ntags;
    for (uint32_t t = 0; t < view->ntags; t++) {
        strcpy(now.tags[t].tag, view->tags[t].tag);
        now.tags[t].residency = view->tags[t].residency;
    }
    while (i < events->ntold && strcmp(events->told[i].instance, now.instance) != 0) {
        i++;
    }
    if (i == KVP_INSTANCES_MAX ||
        (i < events->ntold && memcmp(&events->told[i], &now, sizeof now) == 0)) {
        return;
    }
    json_t *state = make(view);
    size_t len = json_dumpb(state, text, sizeof text - 1, JSON_COMPACT);
    json_decref(state);
    if (len == 0) {
        return;
    }
    kvb_assert(len < sizeof text);
    text[len] = '\0';
    events->ntold += i == events->ntold;
    events->told[i] = now;
    kvp_events_add(events, now.instance, "state", text);
}

uint32_t kvp_events_read(struct kvp_events *events, uint64_t after, struct kvp_event *out,
                         uint32_t max, struct kvp_events_gap *gap_p)
{
    uint32_t n = 0;

    kvb_mutex_lock(&events->lock);
    uint64_t kept = events->last - events->epoch;
    uint64_t oldest = kept < KVP_EVENTS_MAX ? events->epoch + 1 : events->last - KVP_EVENTS_MAX + 1;
    bool own = after >= events->epoch && after <= events->last;
    uint64_t next = own ? after + 1 : events->epoch + 1;
    gap_p->lost = next < oldest && after > 0 ? oldest - next : 0;
    gap_p->restarted = !own && after > 0;
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
    struct kvp_events_gap gap;
    size_t used = 0;

    for (uint32_t n = 1; n > 0;) {
        n = kvp_events_read(events, *cursor, page, 8, &gap);
        if (n > 0 && (gap.restarted || gap.lost > 0)) {
            json_t *data = json_pack("{s:s, s:I}", "kind", gap.restarted ? "restarted" : "lost",
                                     "lost", (json_int_t)gap.lost);
            size_t len = put_event(page[0].id - 1, gap.restarted ? "restarted" : "lost", data,
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
