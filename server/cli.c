/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include "cli_call.h"

#include "base/link.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_URL "http://127.0.0.1:8100"
enum { URL_MAX = 2048 };

/* An option that becomes a parameter of the request. */
struct option {
    const char *name; /* as --name; the parameter has _ for - */
    bool is_switch;
    const char *commands; /* that take it */
    const char *what;
};
static const struct option options[] = {
    {"level", false, "sleep", "0, 1 or 2"},
    {"mode", false, "pause sleep", "abort, wait or keep"},
    {"clear-cache", false, "pause", "true or false"},
    {"reset-external", false, "pause sleep release reset", "true or false: also the shared store"},
    {"reset-running-requests", true, "reset", "preempt what holds blocks"},
    {"strict", true, "reset", "an answer of no success is an error"},
    {"tags", false, "wake", "of memory: kv_cache, weights; may be repeated"},
    {"weight-version", false, "wake resume", "name of the weights it holds now"},
};
static const struct {
    const char *name;
    bool post;
    const char *path;
} commands[] = {
    {"status", false, "/v1/kvplane/instances"},
    {"ops", false, "/v1/kvplane/operations"},
    {"pause", true, "/pause"},
    {"resume", true, "/resume"},
    {"sleep", true, "/sleep"},
    {"wake", true, "/wake_up"},
    {"reset", true, "/reset_prefix_cache"},
    {"release", true, "/release_kv_cache_memory"},
};

struct request {
    struct kvp_call call;
    size_t command;     /* index of commands */
    char path[URL_MAX]; /* below the command's: the one instance to show */
    char query[URL_MAX];
    bool json; /* print the answer as it came */
};

void kvp_cli_help(FILE *out)
{
    (void)fprintf(out, "  --url URL        of the daemon; else $KVPLANE_URL; else " DEFAULT_URL "\n"
                       "  --token TOKEN    else $KVPLANE_TOKEN\n"
                       "  --instance NAME  where several are attached\n"
                       "  --json           the answer as it came\n");
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        (void)fprintf(out, "  --%s%s  %s (%s)\n", options[i].name,
                      options[i].is_switch ? "" : " VALUE", options[i].what, options[i].commands);
    }
    (void)fprintf(out, "  exit code: 0 done, 1 refused or failed, 2 usage, 3 no daemon answers\n");
}

static bool is_word_of(const char *words, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += len) {
        if ((at == words || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

/* Adds name=value, with what must not stand in a URL escaped. False: it does not fit. */
static bool add_parameter(struct request *request, const char *name, const char *value)
{
    char *escaped = curl_easy_escape(request->call.curl, value, 0);
    if (escaped == NULL) {
        return false;
    }
    size_t used = strlen(request->query);
    int n = snprintf(request->query + used, sizeof request->query - used, "%c%s=%s",
                     used == 0 ? '?' : '&', name, escaped);
    curl_free(escaped);
    if (n < 0 || (size_t)n >= sizeof request->query - used) {
        return false;
    }
    for (char *at = request->query + used; *at != '\0' && *at != '='; at++) {
        *at = *at == '-' ? '_' : *at;
    }
    return true;
}

/* One instance has a route of its own, which knows when there is none of that name. */
static bool set_instance(struct request *request, const char *name)
{
    if (strcmp(commands[request->command].name, "status") != 0) {
        return add_parameter(request, "instance", name);
    }
    char *escaped = curl_easy_escape(request->call.curl, name, 0);
    int n = escaped == NULL ? -1 : snprintf(request->path, sizeof request->path, "/%s", escaped);
    curl_free(escaped);
    return n >= 0 && (size_t)n < sizeof request->path;
}

static const struct option *find_option(const char *name, size_t len, const char *command)
{
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strlen(options[i].name) == len && strncmp(options[i].name, name, len) == 0) {
            return is_word_of(options[i].commands, command) ? &options[i] : NULL;
        }
    }
    return NULL;
}

static bool is_named(const char *name, size_t len, const char *want)
{
    return strlen(want) == len && strncmp(name, want, len) == 0;
}

static int bad_option(const char *command, const char *option, const char *why)
{
    (void)fprintf(stderr, "kvplane %s: %s: %s; see kvplane help\n", command, option, why);
    return KVP_CLI_BAD_USAGE;
}

static int read_options(struct request *request, int argc, char **argv)
{
    const char *command = argv[0];
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i] + 2;
        if (strncmp(argv[i], "--", 2) != 0) {
            return bad_option(command, argv[i], "options begin with --");
        }
        const char *equals = strchr(name, '=');
        size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
        if (is_named(name, len, "json")) {
            request->json = true;
            continue;
        }
        bool common = is_named(name, len, "url") || is_named(name, len, "token") ||
                      is_named(name, len, "instance");
        const struct option *option = find_option(name, len, command);
        if (option == NULL && !common) {
            return bad_option(command, argv[i], "there is no such option");
        }
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && option != NULL && option->is_switch) {
            value = "true";
        } else if (value == NULL && i + 1 < argc) {
            value = argv[++i];
        } else if (value == NULL) {
            return bad_option(command, argv[i], "needs a value");
        }
        if (is_named(name, len, "url")) {
            request->call.base = value;
        } else if (is_named(name, len, "token")) {
            request->call.token = value;
        } else if (option != NULL ? !add_parameter(request, option->name, value)
                                  : !set_instance(request, value)) {
            return bad_option(command, argv[i], "too long");
        }
    }
    return KVP_CLI_DONE;
}

static int send_request(struct request *request, long *code_p)
{
    char path[2 * URL_MAX + 128];
    (void)snprintf(path, sizeof path, "%s%s%s", commands[request->command].path, request->path,
                   request->query);
    return kvp_call_send(&request->call, commands[request->command].post, path, code_p);
}

/* Key and value of each member on a line; what is nested as JSON. */
static void print_object(const json_t *object, const char *indent)
{
    const char *key;
    const json_t *value;
    /* jansson's iterator takes the object without const; it is not changed. */
    void *at = json_object_iter((json_t *)(uintptr_t)object);
    for (; at != NULL; at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        key = json_object_iter_key(at);
        value = json_object_iter_value(at);
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        (void)printf("%s%s: %s\n", indent, key,
                     json_is_string(value) ? json_string_value(value) : text);
        free(text);
    }
}

/* An answer that is one list is shown item by item, anything else member by member. */
static void print_answer(const struct request *request)
{
    json_t *json = json_loads(request->call.answer != NULL ? request->call.answer : "", 0, NULL);
    if (request->json || !json_is_object(json)) {
        (void)printf("%s\n", request->call.answer != NULL ? request->call.answer : "");
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
            (void)printf("%s%s\n", i == 0 ? "" : "\n", json_object_iter_key(only));
            print_object(item, "  ");
        }
    } else {
        print_object(json, "");
    }
    json_decref(json);
}

static int show(const struct request *request, long code)
{
    if (code >= 200 && code < 300) {
        print_answer(request);
        return KVP_CLI_DONE;
    }
    if (request->json) {
        (void)printf("%s\n", request->call.answer != NULL ? request->call.answer : "");
    }
    return kvp_call_refused(&request->call, code);
}

int kvp_cli_main(int argc, char **argv)
{
    const char *url = getenv("KVPLANE_URL");
    struct request request = {.call = {.base = url != NULL ? url : DEFAULT_URL,
                                       .token = getenv("KVPLANE_TOKEN"),
                                       .curl = curl_easy_init()}};
    if (request.call.curl == NULL) {
        (void)fprintf(stderr, "kvplane: %s\n", kvb_status_text(KVB_ERR_NO_MEMORY));
        return KVP_CLI_REFUSED;
    }
    while (strcmp(commands[request.command].name, argv[0]) != 0) {
        request.command++; /* main.c names no other */
    }
    long code = 0;
    int rc = read_options(&request, argc, argv);
    bool overview = strcmp(argv[0], "status") == 0 && request.path[0] == '\0';
    if (rc == KVP_CLI_DONE && overview) {
        rc = kvp_cli_overview(&request.call, request.json);
    } else if (rc == KVP_CLI_DONE) {
        rc = send_request(&request, &code);
        if (rc == KVP_CLI_DONE) {
            rc = show(&request, code);
        }
    }
    free(request.call.answer);
    curl_easy_cleanup(request.call.curl);
    return rc;
}
