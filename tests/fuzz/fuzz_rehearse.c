/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine tells a rehearsal, over the real socket. First byte: how many bytes arrive at a
 * time (0: all); then lines, of which those that are waited for are taken in turn. What is taken is
 * of the name and the number that were asked for; an answer of a model is whole, or refused with a
 * reason, and is the same as itself.
 */
#include "child.h"
#include "fuzz.h"
#include "rehearse_answer.h"

#include "engine.h"

#include <sys/socket.h>

enum { WAITS_MAX = 64, PARTS = 2 };

/* All that has come: the socket holds it, or what does not fit is not said. */
static void say(int fd, const uint8_t *data, size_t size, size_t step)
{
    step = step == 0 ? size : step;
    for (size_t at = 0; at < size; at += step) {
        size_t len = step < size - at ? step : size - at;
        if (send(fd, data + at, len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len) {
            return;
        }
    }
}

static void judge_output(const json_t *output)
{
    json_int_t all = json_integer_value(json_object_get(output, "computed_blocks"));
    uint32_t blocks = all > 0 && all < 8 ? (uint32_t)all : 1;
    struct kve_answer answer;
    struct kve_difference difference;
    struct kve_share share = {0};
    const char *why = "";
    if (kve_answer_parse(output, blocks, PARTS, &answer, &why) != KVB_OK) {
        fuzz_told(why);
        return;
    }
    kvb_assert(answer.ntokens > 0 && answer.nblocks >= blocks);
    kvb_assert((uint64_t)answer.local + answer.store + answer.computed == blocks);
    bool same = kve_answer_same(&answer, &answer, &difference);
    kvb_assert(same && difference.token == KVE_NOWHERE && difference.block == KVE_NOWHERE);
    kve_share_add(&share, &answer);
    kvb_assert(share.blocks == blocks);
    kve_answer_cleanup(&answer);
}

static void judge_event(const json_t *event, json_int_t id)
{
    struct kve_counts counts = {0};
    size_t i;
    const json_t *output;
    kvb_assert(json_is_object(event));
    kvb_assert(json_integer_value(json_object_get(event, "id")) == id);
    kve_counts_add_json(&counts, json_object_get(event, "counts"));
    json_array_foreach(json_object_get(event, "outputs"), i, output)
    {
        judge_output(output);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[2][3] = {{"done", "error", NULL}, {"ok", "stats", NULL}};
    static const volatile int stop;
    struct kve_child child = {.name = "e", .fd = -1};
    char text[64];
    int fds[2];
    if (size == 0) {
        return 0;
    }
    child.buffer = malloc(1u << 20); /* as kve_child_start() makes it */
    child.events = json_array();
    kvb_assert(child.buffer != NULL && child.events != NULL);
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
    kvb_assert(rc == 0);
    child.fd = fds[0];
    say(fds[1], data + 1, size - 1, data[0]);
    (void)close(fds[1]);
    kvb_status_t status =
        kve_child_await_text(&child, "kvplane ready ", text, sizeof text, 10000, &stop);
    kvb_assert(status != KVB_OK || strlen(text) < sizeof text);
    for (int i = 0; i < WAITS_MAX && (status == KVB_OK || i < 8); i++) {
        json_t *event = NULL;
        status = kve_child_await(&child, names[i % 2], i % 4, 10000, &stop, &event);
        kvb_assert(status == KVB_OK || status == KVB_ERR_DISCONNECTED);
        if (status == KVB_OK) {
            judge_event(event, i % 4);
            json_decref(event);
        }
    }
    kve_child_stop(&child);
    return 0;
}
