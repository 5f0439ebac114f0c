/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include "pattern.h"

#include "base/utf8.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static kvb_status_t refuse(struct kve_trace_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static kvb_status_t refuse(struct kve_trace_error *error, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    kvb_utf8_clean(error->text); /* it repeats what the file has */
    return KVB_ERR_INVALID;
}

static kvb_status_t whole_number(const json_t *object, const char *name, uint64_t max,
                                 uint64_t *value_p, struct kve_trace_error *error)
{
    const json_t *value = json_object_get(object, name);
    double number;

    if (value == NULL) {
        return refuse(error, "\"%s\" is missing", name);
    }
    if (json_is_integer(value)) {
        if (json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > max) {
            return refuse(error, "\"%s\" is not within 0 and %" PRIu64, name, max);
        }
        *value_p = (uint64_t)json_integer_value(value);
        return KVB_OK;
    }
    /* Some tools write timestamps as 27482.0. */
    number = json_is_real(value) ? json_real_value(value) : -1;
    if (!(number >= 0 && number <= (double)(max >> 1))) {
        return refuse(error, "\"%s\" is not a number within 0 and %" PRIu64, name, max);
    }
    *value_p = (uint64_t)number;
    return KVB_OK;
}

static kvb_status_t read_blocks(const json_t *object, struct kve_trace_request *request,
                                struct kve_trace_error *error)
{
    const json_t *ids = json_object_get(object, "hash_ids");
    size_t n = json_array_size(ids);

    if (!json_is_array(ids) || n == 0) {
        return refuse(error, "\"hash_ids\" is not a list of at least one number");
    }
    if (n > KVE_TRACE_BLOCKS_MAX) {
        return refuse(error, "\"hash_ids\" has %zu entries, at most %d are allowed", n,
                      KVE_TRACE_BLOCKS_MAX);
    }
    request->blocks = malloc(n * sizeof *request->blocks);
    if (request->blocks == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0) {
            free(request->blocks);
            return refuse(error, "\"hash_ids\"[%zu] is not a number of 0 or more", i);
        }
        request->blocks[i] = (uint64_t)json_integer_value(id);
    }
    request->nblocks = (uint32_t)n;
    return KVB_OK;
}

kvb_status_t kve_trace_parse(const char *line, size_t len, struct kve_trace_request *request_p,
                             struct kve_trace_error *error)
{
    struct kve_trace_request request = {.blocks = NULL};
    uint64_t input = 0, output = 0;
    json_error_t why;
    json_t *object = json_loadb(line, len, JSON_REJECT_DUPLICATES, &why);
    kvb_status_t status;

    if (object == NULL) {
        return refuse(error, "not JSON: %s at column %d", why.text, why.column);
    }
    if (!json_is_object(object)) {
        status = refuse(error, "not a JSON object");
        goto out;
    }
    status = whole_number(object, "timestamp", INT64_MAX, &request.timestamp_ms, error);
    if (status == KVB_OK) {
        status = whole_number(object, "input_length", UINT32_MAX, &input, error);
    }
    if (status == KVB_OK) {
        status = whole_number(object, "output_length", UINT32_MAX, &output, error);
    }
    if (status == KVB_OK) {
        status = read_blocks(object, &request, error);
    }
    if (status == KVB_OK) {
        request.input_length = (uint32_t)input;
        request.output_length = (uint32_t)output;
        *request_p = request;
    }
out:
    json_decref(object);
    return status;
}

void kve_trace_request_cleanup(struct kve_trace_request *request)
{
    free(request->blocks);
    request->blocks = NULL;
    request->nblocks = 0;
}

void kve_trace_reader_init(struct kve_trace_reader *reader, FILE *file)
{
    *reader = (struct kve_trace_reader){.file = file};
}

void kve_trace_reader_cleanup(struct kve_trace_reader *reader)
{
    free(reader->line);
    reader->line = NULL;
}

/* getline() with a limit: a file without line ends must not take all memory. */
static kvb_status_t read_line(struct kve_trace_reader *reader, size_t *len_p,
                              struct kve_trace_error *error)
{
    size_t len = 0;
    int c;

    while ((c = getc(reader->file)) != EOF && c != '\n') {
        if (len == reader->cap) {
            size_t cap = reader->cap == 0 ? 4096 : reader->cap * 2;
            char *line = cap > KVE_TRACE_LINE_MAX ? NULL : realloc(reader->line, cap);
            if (line == NULL) {
                error->line = reader->number + 1;
                if (cap > KVE_TRACE_LINE_MAX) {
                    return refuse(error, "the line is longer than %u bytes", KVE_TRACE_LINE_MAX);
                }
                (void)refuse(error, "out of memory");
                return KVB_ERR_NO_MEMORY;
            }
            reader->line = line;
            reader->cap = cap;
        }
        reader->line[len++] = (char)c;
    }
    if (ferror(reader->file)) {
        error->line = reader->number + 1;
        (void)refuse(error, "cannot read: %s", strerror(errno));
        return KVB_ERR_IO;
    }
    if (c == EOF && len == 0) {
        return KVB_ERR_NOT_FOUND;
    }
    reader->number++;
    *len_p = len;
    return KVB_OK;
}

kvb_status_t kve_trace_next(struct kve_trace_reader *reader, struct kve_trace_request *request_p,
                            struct kve_trace_error *error)
{
    size_t len = 0;
    kvb_status_t status;

    do {
        status = read_line(reader, &len, error);
        while (status == KVB_OK && len > 0 &&
               (reader->line[len - 1] == '\r' || reader->line[len - 1] == ' ')) {
            len--;
        }
    } while (status == KVB_OK && len == 0);
    if (status != KVB_OK) {
        return status;
    }
    status = kve_trace_parse(reader->line, len, request_p, error);
    error->line = reader->number;
    if (status == KVB_ERR_NO_MEMORY) {
        (void)refuse(error, "out of memory");
    }
    return status;
}

static kvb_status_t append(struct kve_trace *trace, uint32_t *cap,
                           const struct kve_trace_request *request)
{
    if (trace->nrequests == *cap) {
        uint32_t more = *cap == 0 ? 256 : *cap * 2;
        struct kve_trace_request *requests =
            realloc(trace->requests, more * sizeof *trace->requests);
        if (requests == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        trace->requests = requests;
        *cap = more;
    }
    trace->requests[trace->nrequests++] = *request;
    if (request->nblocks > trace->longest) {
        trace->longest = request->nblocks;
    }
    return KVB_OK;
}

kvb_status_t kve_trace_load(const char *path, uint32_t max, struct kve_trace *trace_p,
                            struct kve_trace_error *error)
{
    struct kve_trace trace = {.requests = NULL};
    struct kve_trace_reader reader;
    uint32_t cap = 0;
    kvb_status_t status = KVB_OK;
    FILE *file = fopen(path, "re");

    *error = (struct kve_trace_error){.line = 0};
    if (file == NULL) {
        (void)refuse(error, "cannot open: %s", strerror(errno));
        return KVB_ERR_IO;
    }
    kve_trace_reader_init(&reader, file);
    while (trace.nrequests < max && status == KVB_OK) {
        struct kve_trace_request request;
        status = kve_trace_next(&reader, &request, error);
        if (status == KVB_OK) {
            status = append(&trace, &cap, &request);
            if (status != KVB_OK) {
                kve_trace_request_cleanup(&request);
                (void)refuse(error, "out of memory");
            }
        }
    }
    if (status == KVB_ERR_NOT_FOUND) {
        status = KVB_OK;
    }
    if (status == KVB_OK && trace.nrequests == 0) {
        status = refuse(error, "there is no request in it");
        error->line = 0;
    }
    kve_trace_reader_cleanup(&reader);
    fclose(file);
    if (status != KVB_OK) {
        kve_trace_cleanup(&trace);
        return status;
    }
    *trace_p = trace;
    return KVB_OK;
}

void kve_trace_tell(const char *program, const char *path, const struct kve_trace_error *error)
{
    char line[24] = "";

    if (error->line != 0) {
        snprintf(line, sizeof line, ":%zu", error->line);
    }
    fprintf(stderr, "%s: %s%s: %s\n", program, path, line, error->text);
}

/* What the generated traces look like; the proportions are those of published chat traces. */
enum {
    GENERATED_BLOCKS_MAX = 128,
    GENERATED_TURN_PERCENT = 60,   /* requests that continue an earlier one */
    GENERATED_RECENT = 64,         /* conversations that may be continued */
    GENERATED_GAP_MS = 300,        /* mean time between requests */
    GENERATED_QUESTION_BLOCKS = 8, /* at most, new in a turn */
    GENERATED_PROMPT_BLOCKS = 24,  /* at most, of a first turn */
    GENERATED_ANSWER_TOKENS = 1024 /* at most */
};

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state += 0x9e3779b97f4a7c15u;
    return kve_mix64(*state) % below;
}

static kvb_status_t generate_one(uint64_t *state, const struct kve_trace *trace, uint64_t *next_id,
                                 struct kve_trace_request *request)
{
    const struct kve_trace_request *earlier = NULL;
    uint32_t kept = 1, fresh = 0;

    if (trace->nrequests > 0 && draw(state, 100) < GENERATED_TURN_PERCENT) {
        uint32_t recent = trace->nrequests < GENERATED_RECENT ? trace->nrequests : GENERATED_RECENT;
        earlier = &trace->requests[trace->nrequests - 1 - draw(state, recent)];
        /* The last block of a prompt is seldom full; the next turn has another in its place. */
        kept = earlier->nblocks > 1 ? earlier->nblocks - 1 : 1;
        fresh = 1 + (uint32_t)draw(state, GENERATED_QUESTION_BLOCKS) +
                earlier->output_length / KVE_TRACE_BLOCK_TOKENS;
    }
    if (earlier == NULL || kept + fresh > GENERATED_BLOCKS_MAX) {
        earlier = NULL;
        kept = 1;
        fresh = 1 + (uint32_t)draw(state, GENERATED_PROMPT_BLOCKS);
    }
    request->nblocks = kept + fresh;
    request->input_length = (request->nblocks - 1) * KVE_TRACE_BLOCK_TOKENS + 1 +
                            (uint32_t)draw(state, KVE_TRACE_BLOCK_TOKENS);
    request->output_length = 1 + (uint32_t)draw(state, GENERATED_ANSWER_TOKENS);
    request->timestamp_ms = trace->nrequests == 0
                                ? 0
                                : trace->requests[trace->nrequests - 1].timestamp_ms +
                                      draw(state, GENERATED_GAP_MS * 2ul);
    request->blocks = malloc(request->nblocks * sizeof *request->blocks);
    if (request->blocks == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    request->blocks[0] = 0;
    for (uint32_t i = 1; i < request->nblocks; i++) {
        request->blocks[i] = i < kept && earlier != NULL ? earlier->blocks[i] : (*next_id)++;
    }
    return KVB_OK;
}

kvb_status_t kve_trace_generate(uint64_t seed, uint32_t nrequests, struct kve_trace *trace_p)
{
    struct kve_trace trace = {.requests = NULL};
    uint64_t state = kve_mix64(seed), next_id = 1;
    uint32_t cap = 0;

    while (trace.nrequests < nrequests) {
        struct kve_trace_request request = {.blocks = NULL};
        kvb_status_t status = generate_one(&state, &trace, &next_id, &request);
        if (status == KVB_OK) {
            status = append(&trace, &cap, &request);
        }
        if (status != KVB_OK) {
            kve_trace_request_cleanup(&request);
            kve_trace_cleanup(&trace);
            return status;
        }
    }
    *trace_p = trace;
    return KVB_OK;
}

void kve_trace_cleanup(struct kve_trace *trace)
{
    for (uint32_t i = 0; i < trace->nrequests; i++) {
        kve_trace_request_cleanup(&trace->requests[i]);
    }
    free(trace->requests);
    *trace = (struct kve_trace){.requests = NULL};
}
