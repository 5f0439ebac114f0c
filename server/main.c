/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/main.h"

#include "cli.h"
#include "commands.h"
#include "config.h"
#include "daemon.h"
#include "gate.h"
#include "metrics.h"
#include "node/config.h"
#include "node/store.h"

#include "transport/cuda.h"

#include <stdio.h>
#include <string.h>

/* The one program: subcommands, and nothing else. */
static int help_main(int argc, char **argv);
static int version_main(int argc, char **argv);
static int config_main(int argc, char **argv);
static int completion_main(int argc, char **argv);
static int man_main(int argc, char **argv);

static void tell_engine(const struct kve_option *options, size_t n, kvp_tell_option_fn tell,
                        void *ctx)
{
    for (size_t i = 0; i < n; i++) {
        char what[256];
        bool standard = options[i].standard[0] != '\0';
        (void)snprintf(what, sizeof what, standard ? "%s (%s)" : "%s", options[i].what,
                       options[i].standard);
        tell(ctx, &(struct kvp_option){
                      .name = options[i].name, .value = options[i].value, .what = what});
    }
}

static void engine_options(const char *command, kvp_tell_option_fn tell, void *ctx)
{
    size_t n;
    bool engine = strcmp(command, "engine") == 0;
    const struct kve_option *options = engine ? kve_engine_options(&n) : kve_rehearse_options(&n);
    tell_engine(options, n, tell, ctx);
}

#define SERVER_ABOUT "Each option is also a variable KVPLANE_KEY of the environment."
#define CLIENT(name, what, about)                                                                  \
    {                                                                                              \
        name, kvp_cli_main, NULL, NULL, what, about KVP_CLI_EXIT_CODES, kvp_cli_options            \
    }
static const struct kvp_command list[] = {
    {"serve", kvp_serve_main, NULL, NULL,
     "the daemon beside an engine: REST API, engine socket, store", SERVER_ABOUT,
     kvp_config_options},
    {"store", kvp_store_main, NULL, NULL, "a store node: memory for the engines of other machines",
     SERVER_ABOUT, kvp_store_config_options},
    {"engine", kve_engine_main, NULL, NULL,
     "a reference engine that attaches and may replay a trace",
     "It attaches to a daemon and idles, or replays a trace, or, with --model, computes by a "
     "small transformer: --prompt.",
     engine_options},
    {"rehearse", kve_rehearse_main, NULL, NULL,
     "a whole RL run against real processes, every byte checked",
     "It plays a run with two engines, on one machine or on a cluster, and checks every byte that "
     "is read; or, with --model, every token that is generated.",
     engine_options},
    CLIENT("status", "the cluster: nodes, tenants, instances",
           "With --instance NAME: all of that one. "),
    CLIENT("top", "the same and what runs, live",
           "A screen that is drawn anew each second, until q; where stdout is no terminal, once. "),
    CLIENT("pause", "stop scheduling", ""),
    CLIENT("resume", "schedule again", ""),
    CLIENT("sleep", "give up the engine's memory", ""),
    CLIENT("wake", "take it back", ""),
    CLIENT("reset", "empty the prefix cache", ""),
    CLIENT("release", "give up the memory of the KV cache alone", ""),
    {"ops", kvp_cli_main, "[ID]", NULL, "operations, running and finished",
     "With ID that one: as it is, or, with --wait, at its end; then the exit code is that of its "
     "result. " KVP_CLI_EXIT_CODES,
     kvp_cli_options},
    CLIENT("events", "what has happened, and what happens",
           "One on a line. With --follow it connects again when the daemon was away, and goes on "
           "where it was. "),
    CLIENT("regions", "memory that engines have handed over", ""),
    CLIENT("queues", "transfers and lookups that wait and run", ""),
    CLIENT("objects", "what is stored for a tenant",
           "A page: what comes after it, and nodes that did not answer, is said on stderr. "),
    {"config", config_main, "[store] [show|table] | mooncake | gate | metrics",
     "store show table mooncake gate metrics",
     "what is in force, every key, and what becomes of Mooncake's",
     "config [store] [show] OPTIONS: what is in force with these options; check instead of show: "
     "only whether it is allowed; config [store] table: "
     "every key, as markdown; config mooncake: what becomes of Mooncake's; config gate: what can "
     "sleep; config metrics: what /metrics has.",
     NULL},
    {"completion", completion_main, "bash|zsh|fish", "bash zsh fish",
     "a completion script for a shell", "As in: source <(kvplane completion bash).", NULL},
    {"man", man_main, "[COMMAND] | --write DIR", "COMMAND", "a manual page, in roff",
     "As in: kvplane man sleep | man -l -. With --write all of them and the completions, as files.",
     NULL},
    {"version", version_main, NULL, NULL, "the version", NULL, NULL},
    {"help", help_main, "[COMMAND]", "COMMAND", "this, or all of a command", NULL, NULL},
    {KVT_CUDA_HELPER_COMMAND, kvt_cuda_helper_main, NULL, NULL, NULL, NULL, NULL},
};
static const struct kvp_commands commands = {list, sizeof list / sizeof list[0], KVP_VERSION};

static kvb_status_t show_serve(int argc, const char *const *argv, bool check, char *error)
{
    struct kvp_config config;
    kvb_status_t status = kvp_config_read(argc, argv, &config, error);
    if (status == KVB_OK) {
        if (!check) {
            kvp_config_show(&config, stdout);
        }
        kvp_mooncake_tell(&config.mooncake);
        kvp_config_cleanup(&config);
    }
    return status;
}

static kvb_status_t show_store(int argc, const char *const *argv, bool check, char *error)
{
    struct kvp_store_config config;
    kvb_status_t status = kvp_store_config_read(argc, argv, &config, error);
    if (status == KVB_OK) {
        if (!check) {
            kvp_store_config_show(&config, stdout);
        }
        kvp_store_config_cleanup(&config);
    }
    return status;
}

/* Those with a configuration. */
static const struct {
    const char *command;
    void (*table)(FILE *out);
    kvb_status_t (*show)(int argc, const char *const *argv, bool check,
                         char *error); /* or only check */
} servers[] = {
    {"serve", kvp_config_table, show_serve},
    {"store", kvp_store_config_table, show_store},
};

static int help_main(int argc, char **argv)
{
    const struct kvp_command *command = argc < 2 ? NULL : kvp_command_find(&commands, argv[1]);
    if (argc > 2 || (argc == 2 && command == NULL)) {
        (void)fprintf(stderr, "kvplane help: there is no command `%s`\n", argv[argc - 1]);
        return 2;
    }
    if (command == NULL) {
        kvp_help_commands(&commands, stdout);
    } else {
        kvp_help_command(command, stdout);
    }
    return 0;
}

static int completion_main(int argc, char **argv)
{
    if (argc != 2 || !kvp_completion(&commands, argv[1], stdout)) {
        (void)fprintf(stderr, "kvplane completion: of bash, zsh or fish?\n");
        return 2;
    }
    return 0;
}

static int man_main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        return kvp_write_documents(&commands, argv[2]) ? 0 : 1;
    }
    if (argc > 2 || !kvp_man(&commands, argc == 2 ? argv[1] : NULL, stdout)) {
        (void)fprintf(stderr, "kvplane man: there is no command `%s`\n", argv[argc - 1]);
        return 2;
    }
    return 0;
}

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    (void)printf("kvplane %s\n", KVP_VERSION);
    return 0;
}

static const struct {
    const char *name;
    void (*print)(FILE *out);
} tables[] = {
    {"mooncake", kvp_mooncake_table}, {"gate", kvp_gate_table}, {"metrics", kvp_metrics_table}};

static int config_main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof tables / sizeof tables[0]; i++) {
        if (strcmp(argv[1], tables[i].name) == 0) {
            tables[i].print(stdout);
            return 0;
        }
    }
    bool store = argc >= 2 && strcmp(argv[1], "store") == 0;
    int options = store ? 2 : 1;
    if (argc == options + 1 && strcmp(argv[options], "table") == 0) {
        servers[store].table(stdout);
        return 0;
    }
    bool check = argc > options && strcmp(argv[options], "check") == 0;
    if (check || (argc > options && strcmp(argv[options], "show") == 0)) {
        options++;
    }
    if (argc == options || strncmp(argv[options], "--", 2) == 0) {
        char error[KVP_CONFIG_ERROR_MAX];
        if (servers[store].show(argc - options, (const char *const *)argv + options, check,
                                error) != KVB_OK) {
            (void)fprintf(stderr, "kvplane config: %s\n", error);
            return 2;
        }
        (void)printf("%s", check ? "ok\n" : "");
        return 0;
    }
    (void)fprintf(stderr, "kvplane config: options of serve, or `table`; `store` first: of that\n");
    return 2;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        kvp_help_commands(&commands, stdout);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    const struct kvp_command *command = kvp_command_find(&commands, name);
    if (command == NULL) {
        (void)fprintf(stderr, "kvplane: there is no command `%s`; see kvplane help\n", name);
        return 2;
    }
    if (asks_for_help(argc - 1, argv + 1)) {
        kvp_help_command(command, stdout);
        return 0;
    }
    return command->run(argc - 1, argv + 1);
}
