/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kvb_status_t parse(const char *line, struct kve_trace_request *request,
                          struct kve_trace_error *error)
{
    memset(error, 0, sizeof *error);
    return kve_trace_parse(line, strlen(line), request, error);
}

Test(trace, a_line_becomes_a_request)
{
    struct kve_trace_request request;
    struct kve_trace_error error;

    cr_assert_eq(parse("{\"timestamp\": 27482, \"input_length\": 1030, \"output_length\": 52, "
                       "\"hash_ids\": [46, 47, 2366], \"more\": {}}",
                       &request, &error),
                 KVB_OK, "%s", error.text);
    cr_assert_eq(request.timestamp_ms, 27482);
    cr_assert_eq(request.input_length, 1030);
    cr_assert_eq(request.output_length, 52);
    cr_assert_eq(request.nblocks, 3);
    cr_assert_eq(request.blocks[2], 2366);
    kve_trace_request_cleanup(&request);
}

Test(trace, a_bad_line_is_refused_and_says_why)
{
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"{\"timestamp\": 1", "not JSON"},
        {"[1]", "not a JSON object"},
        {"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
         "\"timestamp\" is missing"},
        {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
         "\"timestamp\" is not within"},
        {"{\"timestamp\": 1, \"input_length\": \"1\", \"output_length\": 1, \"hash_ids\": [1]}",
         "\"input_length\" is not a number"},
        {"{\"timestamp\": 1, \"input_length\": 4294967296, \"output_length\": 1, \"hash_ids\": "
         "[1]}",
         "\"input_length\" is not within"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": null, \"hash_ids\": [1]}",
         "\"output_length\" is not a number"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}",
         "\"hash_ids\" is not a list"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
         "\"hash_ids\" is not a list"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, -2]}",
         "\"hash_ids\"[1]"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, 2.5]}",
         "\"hash_ids\"[1]"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kve_trace_request request;
        struct kve_trace_error error;
        cr_expect_eq(parse(cases[i].line, &request, &error), KVB_ERR_INVALID, "%s", cases[i].line);
        cr_expect_not_null(strstr(error.text, cases[i].text), "%s: %s", cases[i].line, error.text);
    }
}

static void write_file(char path[32], const char *text)
{
    int fd;

    strcpy(path, "/tmp/kve-trace-XXXXXX");
    fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

#define GOOD "{\"timestamp\": 5, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [7]}"

Test(trace, an_error_in_a_file_names_its_line)
{
    struct kve_trace trace;
    struct kve_trace_error error;
    char path[32];

    write_file(path, GOOD "\n\n" GOOD "\r\n{}\n" GOOD "\n");
    cr_assert_eq(kve_trace_load(path, 100, &trace, &error), KVB_ERR_INVALID);
    cr_assert_eq(error.line, 4, "line %zu: %s", error.line, error.text);
    unlink(path);
}

Test(trace, no_more_is_read_than_was_asked_for)
{
    struct kve_trace trace;
    struct kve_trace_error error;
    char path[32];

    write_file(path, GOOD "\n" GOOD "\nnot JSON");
    cr_assert_eq(kve_trace_load(path, 2, &trace, &error), KVB_OK, "%s", error.text);
    cr_assert_eq(trace.nrequests, 2);
    cr_assert_eq(trace.longest, 1);
    kve_trace_cleanup(&trace);
    unlink(path);
}

Test(trace, a_last_line_without_its_end_counts)
{
    struct kve_trace trace;
    struct kve_trace_error error;
    char path[32];

    write_file(path, GOOD "\n" GOOD);
    cr_assert_eq(kve_trace_load(path, 100, &trace, &error), KVB_OK, "%s", error.text);
    cr_assert_eq(trace.nrequests, 2);
    kve_trace_cleanup(&trace);
    unlink(path);
}

Test(trace, files_that_are_empty_missing_or_without_line_ends_are_refused)
{
    struct kve_trace trace;
    struct kve_trace_error error;
    char path[32], *long_line = malloc(KVE_TRACE_LINE_MAX + 2);

    cr_assert_eq(kve_trace_load("/nonexistent/trace", 1, &trace, &error), KVB_ERR_IO);
    cr_assert_not_null(strstr(error.text, "cannot open"));
    write_file(path, "\n\n");
    cr_assert_eq(kve_trace_load(path, 1, &trace, &error), KVB_ERR_INVALID);
    unlink(path);
    memset(long_line, 'x', KVE_TRACE_LINE_MAX + 1);
    long_line[KVE_TRACE_LINE_MAX + 1] = '\0';
    write_file(path, long_line);
    cr_assert_eq(kve_trace_load(path, 1, &trace, &error), KVB_ERR_INVALID);
    cr_assert_not_null(strstr(error.text, "longer"), "%s", error.text);
    unlink(path);
    free(long_line);
}

Test(trace, a_generated_one_repeats_for_its_seed_and_shares_prefixes)
{
    struct kve_trace a, b, c;
    uint32_t shared = 0, same = 0;

    cr_assert_eq(kve_trace_generate(7, 200, &a), KVB_OK);
    cr_assert_eq(kve_trace_generate(7, 200, &b), KVB_OK);
    cr_assert_eq(kve_trace_generate(8, 200, &c), KVB_OK);
    for (uint32_t i = 0; i < 200; i++) {
        const struct kve_trace_request *request = &a.requests[i];
        cr_assert_eq(request->nblocks, b.requests[i].nblocks);
        cr_assert_eq(memcmp(request->blocks, b.requests[i].blocks, request->nblocks * 8), 0);
        same += request->nblocks == c.requests[i].nblocks;
        cr_assert_eq(request->blocks[0], 0, "all begin with one block");
        cr_assert_eq((request->input_length + KVE_TRACE_BLOCK_TOKENS - 1) / KVE_TRACE_BLOCK_TOKENS,
                     request->nblocks);
        for (uint32_t j = 0; j < i && request->nblocks > 1; j++) {
            if (a.requests[j].nblocks > 1 && a.requests[j].blocks[1] == request->blocks[1]) {
                shared++;
                break;
            }
        }
        /* An id stands for the whole prefix: where two are equal, all before them are. */
        for (uint32_t j = 0; j < i; j++) {
            bool equal = true;
            for (uint32_t k = 0; k < request->nblocks && k < a.requests[j].nblocks; k++) {
                bool now = request->blocks[k] == a.requests[j].blocks[k];
                cr_assert(equal || !now);
                equal = now;
            }
        }
    }
    cr_assert_gt(shared, 50);
    cr_assert_lt(same, 100, "another seed is another trace");
    kve_trace_cleanup(&a);
    kve_trace_cleanup(&b);
    kve_trace_cleanup(&c);
}
