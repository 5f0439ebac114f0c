/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command line, environment and files of the daemon and the store node. Lines: `d` or `s` (which
 * program; first), `--…` an argument, `NAME=VALUE` a variable; `c` begins the file of --config, `m`
 * Mooncake's, each up to a line of the other's or the end.
 *
 * What is refused says why and changes nothing; what is accepted can be shown, and what was shown
 * is a file that says the same.
 */
#include "config.h"
#include "fuzz.h"
#include "node/config.h"

#include "base/log.h"

enum { ARGS_MAX = 24, VARIABLES_MAX = 16 };

union config {
    struct kvp_config daemon;
    struct kvp_store_config store;
    unsigned char bytes[sizeof(struct kvp_config)];
};

struct input {
    bool store;
    int argc;
    const char *argv[ARGS_MAX + 2];
    char *owned[ARGS_MAX + VARIABLES_MAX];
    size_t nowned;
    size_t nvariables;
    char *variables[VARIABLES_MAX];
    struct {
        const char *text;
        size_t len;
        char path[32];
        int fd;
    } files[2]; /* of --config, Mooncake's */
};

static kvb_status_t read_config(bool store, int argc, const char *const *argv, union config *config,
                                char *error)
{
    memset(config, 0x5a, sizeof *config);
    memset(error, 0, KVP_CONFIG_ERROR_MAX);
    kvb_status_t status = store ? kvp_store_config_read(argc, argv, &config->store, error)
                                : kvp_config_read(argc, argv, &config->daemon, error);
    if (status != KVB_OK) {
        fuzz_told(error);
        for (size_t i = 0; i < sizeof *config; i++) {
            kvb_assert(config->bytes[i] == 0x5a);
        }
    }
    return status;
}

static void cleanup(bool store, union config *config)
{
    if (store) {
        kvp_store_config_cleanup(&config->store);
    } else {
        kvp_config_cleanup(&config->daemon);
    }
}

static char *show(bool store, const union config *config, size_t *len_p)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, len_p);
    kvb_assert(out != NULL);
    if (store) {
        kvp_store_config_show(&config->store, out);
    } else {
        kvp_config_show(&config->daemon, out);
    }
    (void)fclose(out);
    return text;
}

/* ---- the input ---- */

static void take_line(struct input *input, char *line, size_t n)
{
    char *equals = strchr(line, '=');
    bool variable = strspn(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") > 3 && equals != NULL;
    if (n == 0) {
        input->store = line[0] == 's';
    } else if (variable && input->nvariables < VARIABLES_MAX &&
               (strncmp(line, "KVPLANE_", 8) == 0 || strncmp(line, "MC_", 3) == 0 ||
                strncmp(line, "MOONCAKE_", 9) == 0 || strncmp(line, "VLLM_", 5) == 0)) {
        *equals = '\0';
        (void)setenv(line, equals + 1, 1);
        input->variables[input->nvariables++] = line;
        return;
    } else if (!variable && input->argc < ARGS_MAX) {
        input->argv[input->argc++] = line;
        input->owned[input->nowned++] = line;
        return;
    }
    free(line);
}

static bool begins_file(const struct fuzz_lines *lines, size_t *which_p)
{
    if (lines->left < 2 || lines->at[1] != '\n' || (lines->at[0] != 'c' && lines->at[0] != 'm')) {
        return false;
    }
    *which_p = lines->at[0] == 'm';
    return true;
}

static void take_files(struct input *input, struct fuzz_lines lines, size_t which)
{
    while (lines.left > 0) {
        lines.at += 2;
        lines.left -= 2;
        const char *text = lines.at;
        size_t other = which;
        while (lines.left > 0 && !(begins_file(&lines, &other) && other != which)) {
            const char *end = memchr(lines.at, '\n', lines.left);
            size_t len = end == NULL ? lines.left : (size_t)(end + 1 - lines.at);
            lines.at += len;
            lines.left -= len;
        }
        input->files[which].text = text;
        input->files[which].len = (size_t)(lines.at - text);
        which = other;
    }
}

static void read_input(struct input *input, const uint8_t *data, size_t size)
{
    struct fuzz_lines lines = {(const char *)data, size};
    size_t which = 0;
    for (size_t n = 0; lines.left > 0 && !begins_file(&lines, &which); n++) {
        take_line(input, fuzz_line(&lines), n);
    }
    take_files(input, lines, which);
    for (size_t i = 0; i < 2; i++) {
        input->files[i].fd = -1;
        if (input->files[i].text != NULL) {
            input->files[i].fd =
                fuzz_file(input->files[i].text, input->files[i].len, input->files[i].path);
        }
    }
    if (input->files[0].text != NULL) {
        input->argv[input->argc++] = "--config";
        input->argv[input->argc++] = input->files[0].path;
    }
    if (input->files[1].text != NULL) {
        (void)setenv("MOONCAKE_CONFIG_PATH", input->files[1].path, 1);
    }
}

static void drop_environment(struct input *input)
{
    for (size_t i = 0; i < input->nvariables; i++) {
        (void)unsetenv(input->variables[i]);
        free(input->variables[i]);
    }
    input->nvariables = 0;
    (void)unsetenv("MOONCAKE_CONFIG_PATH");
}

/* What was shown is read as the same. */
static void read_again(bool store, const char *text, size_t len)
{
    char error[KVP_CONFIG_ERROR_MAX], path[32];
    union config config;
    size_t again_len;
    int fd = fuzz_file(text, len, path);
    const char *const argv[] = {"--config", path};
    kvb_status_t status = read_config(store, 2, argv, &config, error);
    kvb_assert(status == KVB_OK);
    char *again = show(store, &config, &again_len);
    kvb_assert(again_len == len && memcmp(again, text, len) == 0);
    free(again);
    cleanup(store, &config);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {0};
    char error[KVP_CONFIG_ERROR_MAX];
    union config config;

    kvb_log_threshold = KVB_LOG_ERROR;
    read_input(&input, data, size);
    fuzz_memory_begin();
    kvb_status_t status = read_config(input.store, input.argc, input.argv, &config, error);
    fuzz_memory_end((256u << 10) + 400 * size); /* a value of two bytes is 50 of jansson's */
    if (status == KVB_OK) {
        size_t len;
        char *text = show(input.store, &config, &len);
        if (!input.store) {
            kvp_mooncake_tell(&config.daemon.mooncake);
        }
        cleanup(input.store, &config);
        drop_environment(&input);
        read_again(input.store, text, len);
        free(text);
    }
    drop_environment(&input);
    for (size_t i = 0; i < input.nowned; i++) {
        free(input.owned[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        if (input.files[i].fd >= 0) {
            (void)close(input.files[i].fd);
        }
    }
    return 0;
}
