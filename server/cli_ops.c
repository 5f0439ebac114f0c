/* SPDX-License-Identifier: Apache-2.0 */
/* `kvplane ops`: operations, one of them, its end, and its cancellation. */
#include "cli_grid.h"
#include "cli_run.h"

#include <stdlib.h>
#include <string.h>

static bool is_of(const struct kvp_cli *cli, const json_t *operation)
{
    const char *instance = json_string_value(json_object_get(operation, "instance"));
    return cli->instance == NULL || (instance != NULL && strcmp(instance, cli->instance) == 0);
}

/* Whose it is: an instance's, or a tenant's. */
static void put_whose(char *cell, const json_t *operation)
{
    const char *instance = json_string_value(json_object_get(operation, "instance"));
    bool none = instance != NULL && instance[0] == '\0';
    kvp_cell_text(cell, json_object_get(operation, none ? "tenant" : "instance"));
}

static const struct kvp_column columns[] = {
    {"ID", "id", kvp_cell_count, false},         {"OPERATION", "operation", kvp_cell_text, false},
    {"INSTANCE", "", put_whose, false},          {"STATUS", "status", kvp_cell_text, false},
    {"RESULT", "result", kvp_cell_text, false},  {"STEP", "step", kvp_cell_text, false},
    {"TOOK", "elapsed_ms", kvp_cell_took, true}, {.head = NULL},
};

static int list(struct kvp_cli *cli)
{
    size_t i;
    json_t *operation;
    int rc;
    json_t *answer = kvp_call_fetch_all(&cli->call, "/v1/kvplane/operations", "operations", &rc);
    if (answer == NULL) {
        return rc;
    }
    if (cli->json) {
        (void)json_dumpf(answer, stdout, JSON_COMPACT);
        (void)printf("\n");
    } else {
        json_t *wanted = json_array();
        json_array_foreach(json_object_get(answer, "operations"), i, operation)
        {
            if (is_of(cli, operation)) {
                (void)json_array_append(wanted, operation);
            }
        }
        kvp_table_print(stdout, NULL, false, columns, wanted);
        json_decref(wanted);
    }
    json_decref(answer);
    return KVP_CLI_DONE;
}

static int cancel(struct kvp_cli *cli)
{
    char path[128];
    long code = 0;
    (void)snprintf(path, sizeof path, "/v1/kvplane/operations/%.20s/cancel", cli->operand);
    int rc = kvp_call_send(&cli->call, true, path, &code);
    if (rc != KVP_CLI_DONE) {
        return rc;
    }
    return cli->wait != NULL && code == 200 ? KVP_CLI_DONE : kvp_cli_show(cli, code);
}

/* What it is now, or at its end. */
static int show(struct kvp_cli *cli)
{
    char path[128];
    char *end = NULL;
    double seconds = cli->wait != NULL ? strtod(cli->wait, &end) : 0;
    if (cli->wait != NULL &&
        (end == cli->wait || *end != '\0' || !(seconds >= 0 && seconds <= 3600))) {
        return kvp_cli_bad_usage(cli, "--wait", "must be seconds, at most 3600");
    }
    int rc;
    (void)snprintf(path, sizeof path, "/v1/kvplane/operations/%.20s?timeout=%.3f", cli->operand,
                   seconds);
    json_t *operation = seconds > 0 && kvp_cli_on_terminal(cli)
                            ? kvp_cli_watch(cli, cli->operand, seconds, &rc)
                            : kvp_call_fetch(&cli->call, path, &rc);
    if (operation == NULL) {
        return rc;
    }
    const char *status = json_string_value(json_object_get(operation, "status"));
    const char *result = json_string_value(json_object_get(operation, "result"));
    kvp_cli_print_answer(cli);
    if (cli->wait != NULL && status != NULL) {
        bool canceled = result != NULL && strcmp(result, "canceled") == 0;
        rc = strcmp(status, "running") == 0 ? KVP_CLI_UNFINISHED
             : (strcmp(status, "succeeded") == 0) != cli->cancel && (!cli->cancel || canceled)
                 ? KVP_CLI_DONE
                 : KVP_CLI_REFUSED;
    }
    json_decref(operation);
    return rc;
}

int kvp_cli_ops(struct kvp_cli *cli)
{
    if (cli->operand == NULL) {
        return cli->wait == NULL && !cli->cancel
                   ? list(cli)
                   : kvp_cli_bad_usage(cli, cli->cancel ? "--cancel" : "--wait", "of which ID?");
    }
    if (cli->operand[0] == '\0' || strlen(cli->operand) > 19 ||
        cli->operand[strspn(cli->operand, "0123456789")] != '\0') {
        return kvp_cli_bad_usage(cli, cli->operand, "is no operation's ID");
    }
    int rc = cli->cancel ? cancel(cli) : KVP_CLI_DONE;
    return rc == KVP_CLI_DONE && (!cli->cancel || cli->wait != NULL) ? show(cli) : rc;
}
