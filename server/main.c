/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/main.h"

#include "cli.h"
#include "config.h"
#include "daemon.h"
#include "gate.h"
#include "node/config.h"
#include "node/store.h"

#include "transport/cuda.h"

#include <stdio.h>
#include <string.h>

/* The one program: subcommands, and nothing else. */
static int help_main(int argc, char **argv);
static int version_main(int argc, char **argv);
static int config_main(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"serve", kvp_serve_main, "the daemon beside an engine: REST API, engine socket, store"},
    {"store", kvp_store_main, "a store node: memory for the engines of other machines"},
    {"engine", kve_engine_main, "a reference engine that attaches and may replay a trace"},
    {"rehearse", kve_rehearse_main, "a whole RL run against real processes, every byte checked"},
    {"status", kvp_cli_main, "the cluster: nodes, tenants, instances; --instance NAME: all of one"},
    {"pause", kvp_cli_main, "stop scheduling"},
    {"resume", kvp_cli_main, "schedule again"},
    {"sleep", kvp_cli_main, "give up the engine's memory"},
    {"wake", kvp_cli_main, "take it back"},
    {"reset", kvp_cli_main, "empty the prefix cache"},
    {"release", kvp_cli_main, "give up the memory of the KV cache alone"},
    {"ops", kvp_cli_main, "operations, running and finished"},
    {"config", config_main,
     "config [store] [show] OPTIONS: what is in force; config [store] table: every key, as "
     "markdown; config mooncake, config gate: what becomes of Mooncake's, what can sleep"},
    {"version", version_main, "the version"},
    {"help", help_main, "this"},
    {KVT_CUDA_HELPER_COMMAND, kvt_cuda_helper_main, NULL}, /* started by serve, never by hand */
};

static kvb_status_t show_serve(int argc, const char *const *argv, char *error)
{
    struct kvp_config config;
    kvb_status_t status = kvp_config_read(argc, argv, &config, error);
    if (status == KVB_OK) {
        kvp_config_show(&config, stdout);
        kvp_mooncake_tell(&config.mooncake);
        kvp_config_cleanup(&config);
    }
    return status;
}

static kvb_status_t show_store(int argc, const char *const *argv, char *error)
{
    struct kvp_store_config config;
    kvb_status_t status = kvp_store_config_read(argc, argv, &config, error);
    if (status == KVB_OK) {
        kvp_store_config_show(&config, stdout);
        kvp_store_config_cleanup(&config);
    }
    return status;
}

/* Those with a configuration. */
static const struct {
    const char *command;
    void (*help)(FILE *out);
    void (*table)(FILE *out);
    kvb_status_t (*show)(int argc, const char *const *argv, char *error);
} servers[] = {
    {"serve", kvp_config_help, kvp_config_table, show_serve},
    {"store", kvp_store_config_help, kvp_store_config_table, show_store},
};

static int help_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    (void)printf("kvplane COMMAND [options]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (commands[i].what != NULL) {
            (void)printf("  %-9s %s\n", commands[i].name, commands[i].what);
        }
    }
    for (size_t i = 0; i < sizeof servers / sizeof servers[0]; i++) {
        (void)printf("\nOptions of %s (each also as KVPLANE_KEY in the environment):\n\n",
                     servers[i].command);
        servers[i].help(stdout);
    }
    (void)printf("\nOptions of the client commands:\n\n");
    kvp_cli_help(stdout);
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
} tables[] = {{"mooncake", kvp_mooncake_table}, {"gate", kvp_gate_table}};

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
    if (argc > options && strcmp(argv[options], "show") == 0) {
        options++;
    }
    if (argc == options || strncmp(argv[options], "--", 2) == 0) {
        char error[KVP_CONFIG_ERROR_MAX];
        if (servers[store].show(argc - options, (const char *const *)argv + options, error) !=
            KVB_OK) {
            (void)fprintf(stderr, "kvplane config: %s\n", error);
            return 2;
        }
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
        (void)help_main(argc, argv);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(name, commands[i].name) != 0) {
            continue;
        }
        bool own_help = commands[i].run == kve_engine_main || commands[i].run == kve_rehearse_main;
        if (!own_help && asks_for_help(argc - 1, argv + 1)) {
            return help_main(argc, argv);
        }
        return commands[i].run(argc - 1, argv + 1);
    }
    (void)fprintf(stderr, "kvplane: there is no command `%s`; see kvplane help\n", name);
    return 2;
}
