/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include "cli_run.h"

#include "base/link.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* For people: what could move a terminal's cursor is shown as `?`. */
static void print_text(const char *text, const char *after)
{
    char *clean = strdup(text != NULL ? text : "");
    if (clean != NULL) {
        kvb_utf8_clean(clean);
        (void)printf("%s%s", clean, after);
    }
    free(clean);
}

/* Key and value of each member on a line; what is nested as JSON. */
void kvp_cli_print_object(const json_t *object, const char *indent)
{
    const char *key;
    const json_t *value;
    /* jansson's iterator takes the object without const; it is not changed. */
    void *at = json_object_iter((json_t *)(uintptr_t)object);
    for (; at != NULL; at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        key = json_object_iter_key(at);
        value = json_object_iter_value(at);
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        (void)printf("%s", indent);
        print_text(key, ": ");
        print_text(json_is_string(value) ? json_string_value(value) : text, "\n");
        free(text);
    }
}

static const char *answer_of(const struct kvp_cli *cli)
{
    return cli->call.answer != NULL ? cli->call.answer : "";
}

/* An answer that is one list is shown item by item, anything else member by member. */
void kvp_cli_print_answer(const struct kvp_cli *cli)
{
    json_t *json = json_loads(answer_of(cli), 0, NULL);
    if (cli->json) {
        (void)printf("%s\n", answer_of(cli));
        json_decref(json);
        return;
    }
    if (!json_is_object(json)) {
        print_text(answer_of(cli), "\n");
        json_decref(json);
        return;
    }
    void *only = json_object_size(json) == 1 ? json_object_iter(json) : NULL;
    const json_t *list = json_object_iter_value(only);
    if (json_is_array(list)) {
        size_t i;
        const json_t *item;
        json_array_foreach(list, i, item)
        {
            (void)printf("%s", i == 0 ? "" : "\n");
            print_text(json_object_iter_key(only), "\n");
            kvp_cli_print_object(item, "  ");
        }
    } else {
        kvp_cli_print_object(json, "");
    }
    json_decref(json);
}

int kvp_cli_show(struct kvp_cli *cli, long code)
{
    if (code >= 200 && code < 300) {
        json_t *json = json_loads(answer_of(cli), 0, NULL);
        bool failed = json_is_false(json_object_get(json, "success"));
        json_decref(json);
        kvp_cli_print_answer(cli);
        return failed ? KVP_CLI_REFUSED : KVP_CLI_DONE;
    }
    if (cli->json) {
        (void)printf("%s\n", answer_of(cli));
    }
    return kvp_call_refused(&cli->call, code);
}

/* ---- the commands ---- */

static int status(struct kvp_cli *cli)
{
    char path[KVP_CLI_QUERY_MAX] = "/v1/kvplane/instances/";
    long code = 0;
    if (cli->instance == NULL) {
        return kvp_cli_overview(&cli->call, cli->json);
    }
    /* A route of its own, which knows when there is none of that name. */
    if (!kvp_cli_escape(cli, path, sizeof path, cli->instance)) {
        return kvp_cli_bad_usage(cli, cli->instance, "too long");
    }
    int rc = kvp_call_send(&cli->call, false, path, &code);
    return rc == KVP_CLI_DONE ? kvp_cli_show(cli, code) : rc;
}

static const struct {
    const char *name;
    int (*run)(struct kvp_cli *cli); /* NULL: POST path */
    const char *path;
} commands[] = {
    {"status", status, NULL},
    {"ops", kvp_cli_ops, NULL},
    {"events", kvp_cli_events, NULL},
    {"regions", kvp_cli_list, NULL},
    {"queues", kvp_cli_list, NULL},
    {"objects", kvp_cli_list, NULL},
    {"top", kvp_cli_top, NULL},
    {"pause", NULL, "/pause"},
    {"resume", NULL, "/resume"},
    {"sleep", NULL, "/sleep"},
    {"wake", NULL, "/wake_up"},
    {"reset", NULL, "/reset_prefix_cache"},
    {"release", NULL, "/release_kv_cache_memory"},
};

int kvp_cli_main(int argc, char **argv)
{
    struct kvp_cli cli = {.call = {.curl = curl_easy_init()}};
    if (cli.call.curl == NULL) {
        (void)fprintf(stderr, "kvplane: %s\n", kvb_status_text(KVB_ERR_NO_MEMORY));
        return KVP_CLI_REFUSED;
    }
    size_t i = 0;
    while (strcmp(commands[i].name, argv[0]) != 0) {
        i++; /* main.c names no other */
    }
    int rc = kvp_cli_read(&cli, argc, argv);
    if (rc == KVP_CLI_DONE) {
        kvp_call_reach(&cli.call);
        rc = commands[i].run != NULL ? commands[i].run(&cli) : kvp_cli_verb(&cli, commands[i].path);
    }
    free(cli.call.answer);
    curl_easy_cleanup(cli.call.curl);
    (void)curl_multi_cleanup(cli.call.multi);
    return rc;
}
