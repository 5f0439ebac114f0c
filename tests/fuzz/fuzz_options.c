/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of the reference engine and of a rehearsal, up to where they would begin. First
 * line: `e` or `r`; then a line for each argument. What is refused says why; what is accepted is
 * within its limits.
 */
#include "fuzz.h"

#include "engine_main.c" /* instead of the library's */

enum { ARGS_MAX = 24 };

/* Of a rehearsal (fuzz_options_rehearse.c), which has a table of the same names. */
bool fuzz_rehearse_options(int argc, char **argv);

static bool engine_options(int argc, char **argv)
{
    struct settings settings = {.engine = {.instance = "engine",
                                           .tenant = "default",
                                           .weights = 1,
                                           .nblocks = 2048,
                                           .max_running = 8,
                                           .tp = 1,
                                           .pp = 1,
                                           .control_fd = -1},
                                .requests = 1000,
                                .speed = -1,
                                .max_tokens = 32};
    const struct kve_engine_options *engine = &settings.engine;
    if (!kve_options_parse("kvplane engine", options, SET_COUNT, argc, argv, take, &settings) ||
        !complete(&settings) || kve_parts_check(engine) != KVB_OK) {
        return false;
    }
    kvb_assert(engine->nblocks > 0 && engine->max_running > 0 && engine->weights > 0);
    kvb_assert(kve_world(engine) > 0 && kve_world(engine) <= KVE_WORLD_MAX);
    kvb_assert(kve_parts(engine) > 0 && kve_parts_bytes(engine) >= kve_parts(engine));
    kvb_assert(engine->weights_bytes >= KVE_WEIGHTS_HEAD_BYTES);
    kvb_assert(settings.speed <= 1e9 && settings.requests > 0 && settings.max_tokens > 0);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_lines lines = {(const char *)data, size};
    char *argv[ARGS_MAX + 1] = {0}, *told = NULL, *line;
    FILE *err = stderr, *out = stdout;
    size_t told_len;
    int argc = 0;

    while (argc < ARGS_MAX && (line = fuzz_line(&lines)) != NULL) {
        argv[argc++] = line;
    }
    if (argc > 0) {
        bool rehearsal = argv[0][0] == 'r';
        stdout = stderr = open_memstream(&told, &told_len);
        bool taken = rehearsal ? fuzz_rehearse_options(argc, argv) : engine_options(argc, argv);
        (void)fclose(stderr);
        stdout = out;
        stderr = err;
        kvb_assert(taken || told_len > 0);
        free(told);
    }
    for (int i = 0; i < argc; i++) {
        free(argv[i]); /* getopt has put them in another order */
    }
    return 0;
}
