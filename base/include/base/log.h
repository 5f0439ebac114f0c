/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Structured lines to stderr, logfmt or JSON. Levels: error (an operation was lost), warn
 * (degraded, still running), info (life cycle), debug (per object), trace (per operation). Identity
 * comes first and always in the same order: ts, level, req and op (the ids of the HTTP request and
 * of the lifecycle operation that caused this line), instance, then msg, then fields.
 *
 *   KVB_LOG(INFO, "instance asleep", KVB_STR("instance", name), KVB_U64("level", level),
 * KVB_MS("took", ns));
 *
 * Any thread. A line is formatted on the stack and written with one write(2); a line over
 * KVB_LOG_LINE_MAX bytes is cut and says so. One for which a pipe has no room, since nobody reads
 * it, is lost and counted as held back: writing never waits. Lines that a peer can trigger go
 * through KVB_LOG_LIMITED: at most 10 a second and place, the rest are counted and told in the next
 * one. Payload bytes and remote keys never appear above trace.
 */
#define KVB_LOG_LEVELS(X)                                                                          \
    X(ERROR, "error") X(WARN, "warn") X(INFO, "info") X(DEBUG, "debug") X(TRACE, "trace")
enum kvb_log_level {
#define X(name, text) KVB_LOG_##name,
    KVB_LOG_LEVELS(X)
#undef X
};
enum kvb_log_format { KVB_LOG_LOGFMT, KVB_LOG_JSON };

#define KVB_LOG_LINE_MAX   4096
#define KVB_REQUEST_ID_MAX 64 /* bytes, NUL included */

enum kvb_field_kind {
    KVB_FIELD_STR,
    KVB_FIELD_U64,
    KVB_FIELD_I64,
    KVB_FIELD_HEX,
    KVB_FIELD_DOUBLE,
    KVB_FIELD_ERRNO
};
struct kvb_field {
    const char *key;
    enum kvb_field_kind kind;
    union {
        const char *str; /* NULL: the field is left out */
        uint64_t u64;
        int64_t i64;
        double number;
        struct {
            const void *data;
            size_t len;
        } hex;
    };
};

#define KVB_STR(k, v)    ((struct kvb_field){.key = (k), .kind = KVB_FIELD_STR, .str = (v)})
#define KVB_U64(k, v)    ((struct kvb_field){.key = (k), .kind = KVB_FIELD_U64, .u64 = (uint64_t)(v)})
#define KVB_I64(k, v)    ((struct kvb_field){.key = (k), .kind = KVB_FIELD_I64, .i64 = (int64_t)(v)})
#define KVB_DBL(k, v)    ((struct kvb_field){.key = (k), .kind = KVB_FIELD_DOUBLE, .number = (v)})
#define KVB_MS(k, ns)    KVB_DBL(k "_ms", (double)(ns) / 1e6)
#define KVB_HEX(k, p, n) ((struct kvb_field){.key = (k), .kind = KVB_FIELD_HEX, .hex = {(p), (n)}})
/* errno's number and text, where errno really holds the cause */
#define KVB_ERRNO(e)  ((struct kvb_field){.key = "errno", .kind = KVB_FIELD_ERRNO, .i64 = (e)})
#define KVB_STATUS(s) KVB_STR("status", kvb_status_label(s))

/* Once, at start, before other threads run. fd is borrowed (2 in the daemon, a pipe in tests). */
void kvb_log_setup(enum kvb_log_level level, enum kvb_log_format format, int fd);
bool kvb_log_parse_level(const char *text, enum kvb_log_level *level_p);
extern enum kvb_log_level kvb_log_threshold;

/*
 * What every line of this thread carries: whose doing it is. Whoever begins something that others
 * end (a call to an engine, a question to the coordinator) keeps it, and sets it again before he
 * hands over how it ended: so all lines of one operation can be found by its id.
 */
struct kvb_log_context {
    char request[KVB_REQUEST_ID_MAX]; /* "": none */
    uint64_t operation;               /* 0: none */
};
struct kvb_log_context kvb_log_context(void);
/* NULL: none. */
void kvb_log_set_context(const struct kvb_log_context *context);
/* Returns what it was before. request_id: copied; NULL: none. */
struct kvb_log_context kvb_log_enter(const char *request_id, uint64_t operation);

/* The request alone, of no operation; NULL for none. */
void kvb_log_request(const char *request_id);
const char *kvb_log_current_request(void);

/* Lines written so far by level, and those that KVB_LOG_LIMITED held back. Any thread. */
uint64_t kvb_log_lines(enum kvb_log_level level);
uint64_t kvb_log_held_back(void);
const char *kvb_log_level_text(enum kvb_log_level level);

void kvb_log_write(enum kvb_log_level level, const char *msg, const struct kvb_field *fields,
                   size_t n);

#define KVB_LOG(level, msg, ...)                                                                   \
    do {                                                                                           \
        if (KVB_LOG_##level <= kvb_log_threshold) {                                                \
            const struct kvb_field kvb_fields_[] = {{.key = NULL}, ##__VA_ARGS__};                 \
            kvb_log_write(KVB_LOG_##level, msg, kvb_fields_ + 1,                                   \
                          sizeof kvb_fields_ / sizeof kvb_fields_[0] - 1);                         \
        }                                                                                          \
    } while (0)

/* State of one rate-limited place in the code. */
struct kvb_log_limit {
    uint64_t window; /* second in which `written` lines were written */
    uint32_t written;
    uint32_t held_back;
};
/* True if a line may be written now; *held_back_p is how many were not since the last one. Any
 * thread. */
bool kvb_log_allowed(struct kvb_log_limit *limit, uint32_t *held_back_p);

#define KVB_LOG_LIMITED(level, msg, ...)                                                           \
    do {                                                                                           \
        static struct kvb_log_limit kvb_limit_;                                                    \
        uint32_t kvb_held_;                                                                        \
        if (KVB_LOG_##level <= kvb_log_threshold && kvb_log_allowed(&kvb_limit_, &kvb_held_)) {    \
            KVB_LOG(level, msg, KVB_U64("held_back", kvb_held_), ##__VA_ARGS__);                   \
        }                                                                                          \
    } while (0)

#endif
