/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_options.h"

#include "cli.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define VERBS "pause resume sleep wake reset release"

enum kind {
    PARAMETER, /* of the request: the same with _ for - */
    TEXT,      /* a field */
    SWITCH,    /* a field that is true if it is there */
};

#define FIELD(name) .offset = offsetof(struct kvp_cli, name)
static const struct {
    const char *commands; /* that take it; NULL: all */
    struct kvp_option told;
    enum kind kind;
    size_t offset;
} options[] = {
    {VERBS " status ops regions queues",
     {"instance", "NAME", NULL, "which one, where several are attached; '*' (of a verb): all",
      NULL},
     TEXT,
     FIELD(instance)},
    {VERBS,
     {"all-or-nothing", NULL, NULL, "of all instances, or of none; =false: wherever it can be done",
      NULL},
     PARAMETER,
     0},
    {"sleep",
     {"level", "N", "0 1 2", "0: only stop; 1: keep weights aside; 2: discard all", NULL},
     PARAMETER,
     0},
    {"pause sleep",
     {"mode", "HOW", "abort wait keep retract in_place", "what becomes of running requests", NULL},
     PARAMETER,
     0},
    {"pause",
     {"clear-cache", "BOOL", "true false", "empty the cache, leave the lineage (true)", NULL},
     PARAMETER,
     0},
    {"pause sleep release reset",
     {"reset-external", "BOOL", "true false", "also the shared store", NULL},
     PARAMETER,
     0},
    {"reset",
     {"reset-running-requests", NULL, NULL, "preempt what holds blocks", NULL},
     PARAMETER,
     0},
    {"reset", {"strict", NULL, NULL, "an answer of no success is an error", NULL}, PARAMETER, 0},
    {"wake", {"tags", "TAG", "kv_cache weights", "of memory; may be repeated", NULL}, PARAMETER, 0},
    {"wake resume",
     {"weight-version", "NAME", NULL, "of the weights it holds now", NULL},
     PARAMETER,
     0},
    {"ops", {"wait", "SECONDS", NULL, "for the end of that one", NULL}, TEXT, FIELD(wait)},
    {"ops", {"cancel", NULL, NULL, "that one", NULL}, SWITCH, FIELD(cancel)},
    {"events",
     {"follow", NULL, NULL, "go on with what happens, until Ctrl-C", NULL},
     SWITCH,
     FIELD(follow)},
    {"events", {"after", "ID", NULL, "only what came after that one", NULL}, TEXT, FIELD(after)},
    {"objects", {"namespace", "TENANT", NULL, "whose objects", NULL}, PARAMETER, 0},
    {"objects", {"layout", "TEXT", NULL, "only of that one", NULL}, PARAMETER, 0},
    {"objects", {"lineage", "ID", NULL, "only of that one", NULL}, PARAMETER, 0},
    {"objects", {"limit", "N", NULL, "so many at most, 1 to 1000 (100)", NULL}, PARAMETER, 0},
    {"objects",
     {"cursor", "NEXT", NULL, "go on behind another page, as it said", NULL},
     PARAMETER,
     0},
    {"top", {"interval", "SECONDS", NULL, "between two screens (1)", NULL}, TEXT, FIELD(interval)},
    {NULL,
     {"json", NULL, NULL, "the answer as it came; of events one on each line", NULL},
     SWITCH,
     FIELD(json)},
    {NULL,
     {"url", "URL", NULL, "of the daemon; else $KVPLANE_URL; else " KVP_CLI_URL, NULL},
     TEXT,
     FIELD(call.base)},
    {NULL,
     {"unix-socket", "PATH", NULL, "of the daemon (its http-socket); else $KVPLANE_HTTP_SOCKET",
      NULL},
     TEXT,
     FIELD(call.socket)},
    {NULL,
     {"tls-ca-file", "FILE", NULL,
      "PEM of the authorities that the daemon's certificate may come from; else $KVPLANE_CA_FILE; "
      "else the system's",
      NULL},
     TEXT,
     FIELD(call.ca_file)},
    {NULL,
     {"tls-cert-file", "FILE", NULL,
      "PEM of the certificate shown to it; else $KVPLANE_CLIENT_CERT_FILE", NULL},
     TEXT,
     FIELD(call.cert_file)},
    {NULL,
     {"tls-key-file", "FILE", NULL, "PEM of its key; else $KVPLANE_CLIENT_KEY_FILE", NULL},
     TEXT,
     FIELD(call.key_file)},
    {NULL, {"token", "TOKEN", NULL, "else $KVPLANE_TOKEN", NULL}, TEXT, FIELD(call.token)},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

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

void kvp_cli_options(const char *command, kvp_tell_option_fn tell, void *ctx)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (options[i].commands == NULL || is_word_of(options[i].commands, command)) {
            tell(ctx, &options[i].told);
        }
    }
}

int kvp_cli_bad_usage(const struct kvp_cli *cli, const char *what, const char *why)
{
    char clean[256];
    (void)snprintf(clean, sizeof clean, "%s", what);
    kvb_utf8_clean(clean);
    (void)fprintf(stderr, "kvplane %s: %s: %s; see kvplane help %s\n", cli->command, clean, why,
                  cli->command);
    return KVP_CLI_BAD_USAGE;
}

bool kvp_cli_escape(const struct kvp_cli *cli, char *out, size_t cap, const char *text)
{
    size_t used = strlen(out);
    char *escaped = curl_easy_escape(cli->call.curl, text, 0);
    bool fits = escaped != NULL && strlen(escaped) < cap - used;
    if (fits) {
        strcpy(out + used, escaped);
    }
    curl_free(escaped);
    return fits;
}

static bool add_parameter(struct kvp_cli *cli, const char *name, const char *value)
{
    size_t used = strlen(cli->query);
    int n =
        snprintf(cli->query + used, sizeof cli->query - used, "%c%s=", used == 0 ? '?' : '&', name);
    if (n < 0 || (size_t)n >= sizeof cli->query - used) {
        return false;
    }
    for (char *at = cli->query + used; *at != '\0'; at++) {
        *at = *at == '-' ? '_' : *at;
    }
    return kvp_cli_escape(cli, cli->query, sizeof cli->query, value);
}

/* OPTIONS: the command has none of that name. */
static size_t find_option(const char *command, const char *name, size_t len)
{
    size_t i = 0;
    while (i < OPTIONS &&
           (strlen(options[i].told.name) != len || strncmp(options[i].told.name, name, len) != 0 ||
            (options[i].commands != NULL && !is_word_of(options[i].commands, command)))) {
        i++;
    }
    return i;
}

/* False: too long. */
static bool take(struct kvp_cli *cli, size_t i, const char *value)
{
    void *field = (char *)cli + options[i].offset;
    switch (options[i].kind) {
    case PARAMETER:
        return add_parameter(cli, options[i].told.name, value);
    case TEXT:
        *(const char **)field = value;
        return true;
    case SWITCH:
        *(bool *)field = strcmp(value, "false") != 0;
        return true;
    }
    return false;
}

int kvp_cli_read(struct kvp_cli *cli, int argc, char **argv)
{
    cli->command = argv[0];
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        const char *name = arg + 2;
        if (strncmp(arg, "--", 2) != 0) {
            if (strcmp(cli->command, "ops") != 0 || cli->operand != NULL) {
                return kvp_cli_bad_usage(cli, arg, "options begin with --");
            }
            cli->operand = arg;
            continue;
        }
        const char *equals = strchr(name, '=');
        size_t found = find_option(cli->command, name,
                                   equals != NULL ? (size_t)(equals - name) : strlen(name));
        if (found == OPTIONS) {
            return kvp_cli_bad_usage(cli, arg, "there is no such option");
        }
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && options[found].told.value == NULL) {
            value = "true";
        } else if (value == NULL && i + 1 < argc) {
            value = argv[++i];
        } else if (value == NULL) {
            return kvp_cli_bad_usage(cli, arg, "needs a value");
        }
        if (!take(cli, found, value)) {
            return kvp_cli_bad_usage(cli, arg, "too long");
        }
    }
    bool named = cli->instance != NULL && is_word_of(VERBS " regions queues", cli->command);
    return named && !add_parameter(cli, "instance", cli->instance)
               ? kvp_cli_bad_usage(cli, cli->instance, "too long")
               : KVP_CLI_DONE;
}
