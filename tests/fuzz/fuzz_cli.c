/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client command and what it is answered. The first line: its arguments, separated by blanks.
 * Each further one: the HTTP status, a blank, the answer; then there is no daemon any more. However
 * it lies, what people are shown moves no cursor, and every command ends.
 */
#include <curl/curl.h>

#undef curl_easy_perform
#undef curl_easy_getinfo
#define curl_easy_perform(curl)             fuzz_perform(call)
#define curl_easy_getinfo(curl, what, code) fuzz_code(code)

struct kvp_call;
static CURLcode fuzz_perform(struct kvp_call *call);
static CURLcode fuzz_code(long *code_p);
#include "cli_call.c" /* instead of the library's */
#include "fuzz.h"

enum { ARGS_MAX = 16, ANSWERS_MAX = 64 };

static struct {
    struct fuzz_lines answers;
    long code;
    uint32_t n;
} daemon_;

static CURLcode fuzz_perform(struct kvp_call *call)
{
    char *line = daemon_.n++ < ANSWERS_MAX ? fuzz_line(&daemon_.answers) : NULL;
    if (line == NULL) {
        return CURLE_COULDNT_CONNECT;
    }
    char *answer = line;
    daemon_.code = strtol(line, &answer, 10);
    answer += *answer == ' ';
    size_t len = strlen(answer), half = len / 2;
    bool took = take_answer(answer, 1, half, call) == half &&
                take_answer(answer + half, 1, len - half, call) == len - half;
    free(line);
    return took ? CURLE_OK : CURLE_WRITE_ERROR;
}

static CURLcode fuzz_code(long *code_p)
{
    *code_p = daemon_.code;
    return CURLE_OK;
}

static bool is_command(const char *name)
{
    static const char *const names[] = {"status",  "ops",   "events", "regions", "queues",
                                        "objects", "top",   "pause",  "resume",  "sleep",
                                        "wake",    "reset", "release"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static int run(int argc, char **argv, bool *raw_p)
{
    static char json[] = "--json";
    int rc = 0;
    for (int i = 1; i < argc; i++) {
        *raw_p = *raw_p || strncmp(argv[i], "--json", 6) == 0;
        /* What needs a connection of its own is not asked for. */
        if (strncmp(argv[i], "--follow", 8) == 0) {
            argv[i] = json;
            *raw_p = true;
        }
    }
    rc = kvp_cli_main(argc, argv);
    kvb_assert(rc >= KVP_CLI_DONE && rc <= KVP_CLI_UNFINISHED);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *argv[ARGS_MAX + 1] = {0}, *shown = NULL, *told = NULL, *rest = NULL;
    size_t shown_len, told_len;
    FILE *out = stdout, *err = stderr;
    int argc = 0;
    bool raw = false;

    (void)setenv("TERM", "dumb", 1); /* not a terminal that is drawn on */
    (void)setenv("TZ", "UTC", 1);
    memset(&daemon_, 0, sizeof daemon_);
    daemon_.answers = (struct fuzz_lines){(const char *)data, size};
    char *line = fuzz_line(&daemon_.answers);
    if (line == NULL) {
        return 0;
    }
    for (char *arg = strtok_r(line, " ", &rest); arg != NULL && argc < ARGS_MAX;
         arg = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = arg;
    }
    if (argc > 0 && is_command(argv[0])) {
        stdout = open_memstream(&shown, &shown_len);
        stderr = open_memstream(&told, &told_len);
        int rc = run(argc, argv, &raw);
        (void)fclose(stdout);
        (void)fclose(stderr);
        stdout = out;
        stderr = err;
        kvb_assert(raw || rc == KVP_CLI_DONE || shown_len + told_len > 0 ||
                   rc == KVP_CLI_UNFINISHED);
        if (!raw) {
            fuzz_shown(shown, shown_len);
        }
        fuzz_shown(told, told_len);
        free(shown);
        free(told);
    }
    free(line);
    return 0;
}
