/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_SSE_H
#define SERVER_CLI_SSE_H

#include <stdbool.h>
#include <stddef.h>

/* Server-sent events out of bytes as they come. Pure; zeroes are a beginning. */
enum { KVP_SSE_LINE_MAX = 16 << 10, KVP_SSE_ID_MAX = 32 };

struct kvp_sse {
    char line[KVP_SSE_LINE_MAX];
    size_t len;
    bool skip;               /* the line is too long: all of it is left out */
    char id[KVP_SSE_ID_MAX]; /* of the last event that was whole: where to go on */
    char next_id[KVP_SSE_ID_MAX];
    char data[KVP_SSE_LINE_MAX]; /* of the event that is being read; a line of data is all of it */
};

/* on_event(ctx, data) for each event that is whole now. */
void kvp_sse_feed(struct kvp_sse *sse, const char *bytes, size_t len,
                  void (*on_event)(void *ctx, const char *data), void *ctx);
/* The connection is another one: what was half read is forgotten, the id is not. */
void kvp_sse_restart(struct kvp_sse *sse);

#endif
