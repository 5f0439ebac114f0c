/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_TRACE_H
#define ENGINE_TRACE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Request traces: JSON lines {"timestamp": ms, "input_length": tokens, "output_length": tokens,
 * "hash_ids": [...]}, one id for each block of KVE_TRACE_BLOCK_TOKENS tokens of the prompt. An id
 * names the whole prefix up to its block, so equal ids mean equal prefixes. Unknown members are
 * ignored.
 */
#define KVE_TRACE_BLOCK_TOKENS 512
#define KVE_TRACE_BLOCKS_MAX   4096       /* blocks of one request */
#define KVE_TRACE_LINE_MAX     (1u << 20) /* bytes of one line */

struct kve_trace_request {
    uint64_t timestamp_ms;
    uint32_t input_length;
    uint32_t output_length;
    uint32_t nblocks; /* at least 1 */
    uint64_t *blocks; /* owned */
};

struct kve_trace_error {
    size_t line; /* 1 is the first; 0: the file as a whole */
    char text[200];
};

/*
 * One line, without its end. OK: *request_p is filled, kve_trace_request_cleanup() frees it.
 * INVALID: error->text says what is wrong (line is left alone). NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kve_trace_parse(const char *line, size_t len,
                                          struct kve_trace_request *request_p,
                                          struct kve_trace_error *error);
void kve_trace_request_cleanup(struct kve_trace_request *request);

/* Reads line by line and holds one line at a time. */
struct kve_trace_reader {
    FILE *file; /* borrowed */
    char *line;
    size_t cap;
    size_t number;
};
void kve_trace_reader_init(struct kve_trace_reader *reader, FILE *file);
void kve_trace_reader_cleanup(struct kve_trace_reader *reader);
/* Empty lines are skipped. NOT_FOUND: the end. INVALID, IO, NO_MEMORY: *error says where and why.
 */
KVB_MUST_USE kvb_status_t kve_trace_next(struct kve_trace_reader *reader,
                                         struct kve_trace_request *request_p,
                                         struct kve_trace_error *error);

struct kve_trace {
    struct kve_trace_request *requests;
    uint32_t nrequests;
    uint32_t longest; /* blocks of the longest request */
};

/* The first `max` requests of a file. INVALID also for a file without any. */
KVB_MUST_USE kvb_status_t kve_trace_load(const char *path, uint32_t max, struct kve_trace *trace_p,
                                         struct kve_trace_error *error);
/* "PROGRAM: PATH:LINE: TEXT" to stderr. */
void kve_trace_tell(const char *program, const char *path, const struct kve_trace_error *error);

/*
 * A trace of the same shape out of nothing but a seed: every prompt begins with one common block,
 * and most requests are a further turn of an earlier conversation, whose prompt, answer and a new
 * question they repeat. The same seed gives the same trace. NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kve_trace_generate(uint64_t seed, uint32_t nrequests,
                                             struct kve_trace *trace_p);
void kve_trace_cleanup(struct kve_trace *trace);

#endif
