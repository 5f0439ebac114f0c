/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

/*
 * One status type for the whole program. 0 is success, positive values are "not finished yet",
 * negative values are failures. The list below is the only place where a status is declared: the
 * enum, its name (logs, metric labels, link messages) and its text (what a user reads) are made
 * from it. The numbers travel on the link: append only.
 */
#define KVB_STATUS_LIST(X)                                                                         \
    /*  name            value  label              text */                                          \
    X(OK, 0, "ok", "done")                                                                         \
    X(IN_PROGRESS, 1, "in_progress", "started, not finished")                                      \
    /* the request is at fault */                                                                  \
    X(ERR_INVALID, -1, "invalid", "an argument is not allowed")                                    \
    X(ERR_NOT_FOUND, -2, "not_found", "no such thing")                                             \
    X(ERR_EXISTS, -3, "exists", "it is there already")                                             \
    X(ERR_TOO_LARGE, -4, "too_large", "larger than the limit")                                     \
    X(ERR_UNSUPPORTED, -5, "unsupported", "not supported here")                                    \
    X(ERR_BAD_STATE, -6, "bad_state", "not allowed in the present state")                          \
    X(ERR_BUSY, -7, "busy", "something else is running")                                           \
    /* the promise of the store is at stake: the bytes were refused, which is a miss */            \
    X(ERR_FENCED, -10, "fenced", "begun in another stay: the lineage was left")                    \
    X(ERR_TICKET, -11, "ticket", "the ticket was no longer held")                                  \
    X(ERR_GENERATION, -12, "generation", "the region was released meanwhile")                      \
    X(ERR_CHECKSUM, -13, "checksum", "the bytes do not match their checksum")                      \
    X(ERR_CLOSED, -14, "closed", "the instance is between two lineages")                           \
    /* not now */                                                                                  \
    X(ERR_AGAIN, -20, "again", "full for the moment: try again")                                   \
    X(ERR_NO_SPACE, -21, "no_space", "no space, and eviction could not make any")                  \
    X(ERR_QUOTA, -22, "quota", "the tenant is over its quota")                                     \
    X(ERR_TIMEOUT, -23, "timeout", "not done within its bound")                                    \
    X(ERR_CANCELED, -24, "canceled", "canceled")                                                   \
    /* the other side is at fault */                                                               \
    X(ERR_PROTOCOL, -30, "protocol", "the peer broke the protocol")                                \
    X(ERR_DISCONNECTED, -31, "disconnected", "the peer went away")                                 \
    X(ERR_UNAVAILABLE, -32, "unavailable", "cannot be reached")                                    \
    X(ERR_REFUSED, -33, "refused", "the peer refused")                                             \
    X(ERR_DRAINING, -34, "draining", "takes nothing new: it is about to leave")                    \
    /* this process is at fault or out of something */                                             \
    X(ERR_NO_MEMORY, -40, "no_memory", "out of memory")                                            \
    X(ERR_IO, -41, "io", "a system call failed")                                                   \
    X(ERR_LIMIT, -42, "limit", "a limit of this process was reached")                              \
    X(ERR_INTERNAL, -43, "internal", "a fault in kvplane itself")

typedef enum {
#define X(name, value, label, text) KVB_##name = (value),
    KVB_STATUS_LIST(X)
#undef X
} kvb_status_t;

#define KVB_MUST_USE __attribute__((warn_unused_result))

/* Short name for logs and metric labels, "unknown" for a number that is not in the list. Static
 * storage. */
const char *kvb_status_label(kvb_status_t status);

/* One line for people. Static storage. */
const char *kvb_status_text(kvb_status_t status);

/* Turns a number read from a peer into a status; numbers not in the list become KVB_ERR_PROTOCOL.
 */
kvb_status_t kvb_status_from_wire(int value);

#endif
