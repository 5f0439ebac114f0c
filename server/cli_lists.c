/* SPDX-License-Identifier: Apache-2.0 */
/* `kvplane regions`, `kvplane queues` and `kvplane objects`: lists of the daemon as tables. */
#include "cli_grid.h"
#include "cli_run.h"

#include "base/utf8.h"

#include <string.h>

static const struct kvp_column of_regions[] = {
    {"INSTANCE", "instance", kvp_cell_text, false},
    {"RANK", "rank", kvp_cell_count, true},
    {"REGION", "id", kvp_cell_count, true},
    {"TAG", "tag", kvp_cell_text, false},
    {"KIND", "kind", kvp_cell_text, false},
    {"STATE", "state", kvp_cell_text, false},
    {"CURRENT", "current", kvp_cell_yes, false},
    {"GENERATION", "generation", kvp_cell_count, true},
    {"BYTES", "bytes", kvp_cell_bytes, true},
    {"PINNED", "pinned_bytes", kvp_cell_bytes, true},
    {"TRANSFERS", "transfers", kvp_cell_count, true},
    {.head = NULL},
};

static const struct kvp_column of_queues[] = {
    {"INSTANCE", "instance", kvp_cell_text, false},   {"RANK", "rank", kvp_cell_count, true},
    {"QUEUE", "queue", kvp_cell_text, false},         {"QUEUED", "queued", kvp_cell_count, true},
    {"RUNNING", "running", kvp_cell_count, true},     {"BYTES", "bytes", kvp_cell_bytes, true},
    {"OLDEST", "oldest_age_ms", kvp_cell_took, true}, {.head = NULL},
};

static const struct kvp_column of_objects[] = {
    {"NODE", "node", kvp_cell_text, false},
    {"KEY", "key", kvp_cell_text, false},
    {"GROUP", "group", kvp_cell_count, true},
    {"PART", "part", kvp_cell_count, true},
    {"BYTES", "bytes", kvp_cell_bytes, true},
    {"PIN", "pin", kvp_cell_text, false},
    {"LINEAGE", "lineage", kvp_cell_text, false},
    {"LAYOUT", "layout", kvp_cell_text, false},
    {.head = NULL},
};

static const struct view {
    const char *command, *path, *list;
    bool by_page; /* there may be millions */
    const struct kvp_column *columns;
} views[] = {
    {"regions", "/v1/kvplane/regions", "regions", false, of_regions},
    {"queues", "/v1/kvplane/queues", "queues", false, of_queues},
    {"objects", "/v1/kvplane/objects", "objects", true, of_objects},
};

/* Apart from the table: what it does not have. */
static void tell_rest(const struct kvp_cli *cli, const json_t *answer)
{
    const char *next = json_string_value(json_object_get(answer, "next"));
    size_t i;
    const json_t *node;
    char text[512];
    json_array_foreach(json_object_get(answer, "silent"), i, node)
    {
        (void)snprintf(text, sizeof text, "%.128s did not answer: %.256s",
                       kvp_text_of(json_object_get(node, "node")),
                       kvp_text_of(json_object_get(node, "result")));
        kvb_utf8_clean(text);
        (void)fprintf(stderr, "kvplane %s: %s\n", cli->command, text);
    }
    if (next != NULL) {
        (void)snprintf(text, sizeof text, "%s", next);
        kvb_utf8_clean(text);
        (void)fprintf(stderr, "kvplane %s: there is more: --cursor %s\n", cli->command, text);
    }
}

int kvp_cli_list(struct kvp_cli *cli)
{
    char path[KVP_CLI_QUERY_MAX + 64];
    const struct view *view = views;
    int rc;
    while (strcmp(view->command, cli->command) != 0) {
        view++; /* cli.c names no other */
    }
    (void)snprintf(path, sizeof path, "%s%s", view->path, cli->query);
    json_t *answer = view->by_page ? kvp_call_fetch(&cli->call, path, &rc)
                                   : kvp_call_fetch_all(&cli->call, path, view->list, &rc);
    if (answer == NULL) {
        return rc;
    }
    if (cli->json) {
        (void)json_dumpf(answer, stdout, JSON_COMPACT);
        (void)printf("\n");
    } else {
        kvp_table_print(stdout, NULL, false, view->columns, json_object_get(answer, view->list));
        tell_rest(cli, answer);
    }
    json_decref(answer);
    return KVP_CLI_DONE;
}
