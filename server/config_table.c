/* SPDX-License-Identifier: Apache-2.0 */
#include "config_table.h"

#include "base/assert.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct kvp_given {
    const struct kvp_config_table *table;
    char *text[KVP_KEYS_MAX];
    char *source[KVP_KEYS_MAX]; /* for messages */
};

kvb_status_t kvp_refuse(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error, KVP_CONFIG_ERROR_MAX, format, arguments);
    va_end(arguments);
    kvb_utf8_clean(error); /* it repeats what was given, and may cut it */
    return KVB_ERR_INVALID;
}

static int find_key(const struct kvp_config_table *table, const char *name, size_t len)
{
    for (uint32_t i = 0; i < table->nkeys; i++) {
        if (strlen(table->keys[i].key) == len && strncmp(table->keys[i].key, name, len) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* Keeps the first that is given: sources are read from the strongest to the weakest. */
static kvb_status_t give(struct kvp_given *given, int key, const char *text, const char *source)
{
    if (given->text[key] != NULL) {
        return KVB_OK;
    }
    free(given->source[key]); /* of a repeated option */
    given->text[key] = strdup(text);
    given->source[key] = strdup(source);
    return given->text[key] == NULL || given->source[key] == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

const char *kvp_given_text(const struct kvp_given *given, const char *key)
{
    int found = find_key(given->table, key, strlen(key));
    kvb_assert(found >= 0);
    return given->text[found];
}

kvb_status_t kvp_give(struct kvp_given *given, const char *key, const char *text,
                      const char *source)
{
    int found = find_key(given->table, key, strlen(key));
    kvb_assert(found >= 0);
    return give(given, found, text, source);
}

/* ---- arguments ---- */

/* Of a repeated key the last wins; a list's add up. */
static kvb_status_t give_argument(struct kvp_given *given, int key, const char *value)
{
    char *before = given->text[key];
    given->text[key] = NULL;
    if (before == NULL || given->table->keys[key].type != KVP_VALUE_LIST) {
        free(before);
        return give(given, key, value, "command line");
    }
    size_t len = strlen(before) + strlen(value) + 2;
    char *both = malloc(len);
    if (both == NULL) {
        free(before);
        return KVB_ERR_NO_MEMORY;
    }
    (void)snprintf(both, len, "%s,%s", before, value);
    free(before);
    kvb_status_t status = give(given, key, both, "command line");
    free(both);
    return status;
}

static kvb_status_t read_arguments(int argc, const char *const *argv, struct kvp_given *given,
                                   const char **file_p, char *error)
{
    for (int i = 0; i < argc; i++) {
        const char *name = argv[i];
        if (strncmp(name, "--", 2) != 0) {
            return kvp_refuse(error, "`%s` is not an option; options begin with --, see --help",
                              name);
        }
        name += 2;
        const char *equals = strchr(name, '=');
        size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
        bool is_file = len == strlen("config") && strncmp(name, "config", len) == 0;
        int key = find_key(given->table, name, len);
        if (key < 0 && !is_file) {
            return kvp_refuse(error, "there is no option --%.*s; see --help", (int)len, name);
        }
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && !is_file && given->table->keys[key].type == KVP_VALUE_SWITCH) {
            value = "true";
        } else if (value == NULL) {
            if (i + 1 >= argc) {
                return kvp_refuse(error, "--%.*s needs a value", (int)len, name);
            }
            value = argv[++i];
        }
        if (is_file) {
            *file_p = value;
            continue;
        }
        kvb_status_t status = give_argument(given, key, value);
        if (status != KVB_OK) {
            return status;
        }
    }
    return KVB_OK;
}

static kvb_status_t read_environment(struct kvp_given *given)
{
    for (uint32_t i = 0; i < given->table->nkeys; i++) {
        char name[64];
        int len = snprintf(name, sizeof name, "KVPLANE_%s", given->table->keys[i].key);
        for (int k = 0; k < len; k++) {
            name[k] = name[k] == '-' ? '_' : (char)toupper((unsigned char)name[k]);
        }
        const char *value = getenv(name);
        kvb_status_t status = value == NULL ? KVB_OK : give(given, (int)i, value, "environment");
        if (status != KVB_OK) {
            return status;
        }
    }
    return KVB_OK;
}

/* ---- files ---- */

kvb_status_t kvp_load_object(const char *path, json_t **json_p, char *error)
{
    json_error_t why;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (json == NULL) {
        return kvp_refuse(error, "%s: %s (line %d)", path, why.text, why.line);
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return kvp_refuse(error, "%s: must be a JSON object", path);
    }
    *json_p = json;
    return KVB_OK;
}

bool kvp_scalar_text(const json_t *value, char *out, size_t cap)
{
    int len = -1;
    if (json_is_string(value)) {
        len = snprintf(out, cap, "%s", json_string_value(value));
    } else if (json_is_integer(value)) {
        len = snprintf(out, cap, "%lld", (long long)json_integer_value(value));
    } else if (json_is_boolean(value)) {
        len = snprintf(out, cap, "%s", json_is_true(value) ? "true" : "false");
    }
    return len >= 0 && (size_t)len < cap;
}

static kvb_status_t read_file(const char *path, struct kvp_given *given, char *error)
{
    json_t *json;
    kvb_status_t status = kvp_load_object(path, &json, error);
    if (status != KVB_OK) {
        return status;
    }
    const char *name;
    json_t *value;
    json_object_foreach(json, name, value)
    {
        char text[4096];
        int key = find_key(given->table, name, strlen(name));
        if (key < 0) {
            status = kvp_refuse(error, "%s: there is no key `%s`; see --help", path, name);
        } else if (!kvp_scalar_text(value, text, sizeof text)) {
            status = kvp_refuse(error, "%s: `%s` must be text, a whole number, true or false", path,
                                name);
        } else {
            status = give(given, key, text, path);
        }
        if (status != KVB_OK) {
            break;
        }
    }
    json_decref(json);
    return status;
}

/* ---- the check ---- */

static kvb_status_t check_key(const struct kvp_key *key, const char *text, const char *source,
                              void *config, char *error)
{
    union kvp_value value;
    char allowed[192];
    if (!kvp_value_parse(key->type, key->limits, text, &value, allowed, sizeof allowed)) {
        return kvp_refuse(error, "%s: `%.64s` (%.128s) is not allowed: %s", key->key, text, source,
                          allowed);
    }
    char *field = (char *)config + key->offset;
    switch (key->type) {
    case KVP_VALUE_TEXT:
    case KVP_VALUE_LIST:
    case KVP_VALUE_CHOICE: {
        char *copy = strdup(text);
        if (copy == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        memcpy(field, &copy, sizeof copy);
        break;
    }
    case KVP_VALUE_SWITCH:
        memcpy(field, &value.on, sizeof value.on);
        break;
    case KVP_VALUE_BYTES:
    case KVP_VALUE_COUNT:
    case KVP_VALUE_TIME:
        memcpy(field, &value.number, sizeof value.number);
        break;
    }
    return KVB_OK;
}

static kvb_status_t check(const struct kvp_given *given, void *config, char *error)
{
    const struct kvp_config_table *table = given->table;
    for (uint32_t i = 0; i < table->nkeys; i++) {
        const char *text = given->text[i] != NULL ? given->text[i] : table->keys[i].standard;
        const char *source = given->text[i] != NULL ? given->source[i] : "default";
        kvb_status_t status = check_key(&table->keys[i], text, source, config, error);
        if (status != KVB_OK) {
            return status;
        }
    }
    return table->check(config, error);
}

static kvb_status_t read_sources(struct kvp_given *given, int argc, const char *const *argv,
                                 void *config, char *error)
{
    const char *file = NULL;
    kvb_status_t status = read_arguments(argc, argv, given, &file, error);
    if (status == KVB_OK) {
        status = read_environment(given);
    }
    if (file == NULL) {
        file = getenv("KVPLANE_CONFIG");
    }
    if (status == KVB_OK && file != NULL) {
        status = read_file(file, given, error);
    }
    if (status == KVB_OK && given->table->weakest != NULL) {
        status = given->table->weakest(given, config, error);
    }
    return status;
}

kvb_status_t kvp_table_read(const struct kvp_config_table *table, int argc, const char *const *argv,
                            void *config, char *error)
{
    kvb_assert(table->nkeys <= KVP_KEYS_MAX);
    struct kvp_given given = {.table = table};
    void *read = calloc(1, table->size);
    (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "%s", kvb_status_text(KVB_ERR_NO_MEMORY));
    if (read == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = read_sources(&given, argc, argv, read, error);
    if (status == KVB_OK) {
        status = check(&given, read, error);
    }
    if (status == KVB_OK) {
        memcpy(config, read, table->size);
    } else {
        kvp_table_cleanup(table, read);
    }
    free(read);
    for (uint32_t i = 0; i < table->nkeys; i++) {
        free(given.text[i]);
        free(given.source[i]);
    }
    return status;
}

void kvp_table_cleanup(const struct kvp_config_table *table, void *config)
{
    for (uint32_t i = 0; i < table->nkeys; i++) {
        const struct kvp_key *key = &table->keys[i];
        if (key->type == KVP_VALUE_TEXT || key->type == KVP_VALUE_LIST ||
            key->type == KVP_VALUE_CHOICE) {
            char *text;
            memcpy(&text, (const char *)config + key->offset, sizeof text);
            free(text);
        }
    }
    memset(config, 0, table->size);
}

/* ---- what people read ---- */

static const char *default_text(const struct kvp_key *key)
{
    return key->standard[0] != '\0' ? key->standard : "-";
}

void kvp_table_options(const struct kvp_config_table *table, kvp_tell_option_fn tell, void *ctx)
{
    static const struct kvp_option file = {.name = "config",
                                           .value = "FILE",
                                           .what = "a JSON object of these keys",
                                           .more = "also KVPLANE_CONFIG"};
    for (uint32_t i = 0; i < table->nkeys; i++) {
        const struct kvp_key *key = &table->keys[i];
        char allowed[192];
        char more[384];
        kvp_value_allowed(key->type, key->limits, allowed, sizeof allowed);
        (void)snprintf(more, sizeof more, "default %s; %s", default_text(key), allowed);
        tell(ctx, &(struct kvp_option){
                      .name = key->key,
                      .value = kvp_value_type_text(key->type),
                      .words = key->type == KVP_VALUE_CHOICE   ? key->limits
                               : key->type == KVP_VALUE_SWITCH ? "true false"
                                                               : NULL,
                      .what = key->what,
                      .more = more,
                  });
    }
    tell(ctx, &file);
}

void kvp_table_markdown(const struct kvp_config_table *table, FILE *out)
{
    (void)fprintf(out, "| key | default | allowed | what it says |\n|---|---|---|---|\n");
    for (uint32_t i = 0; i < table->nkeys; i++) {
        char allowed[192];
        kvp_value_allowed(table->keys[i].type, table->keys[i].limits, allowed, sizeof allowed);
        (void)fprintf(out, "| `%s` | %s | %s | %s |\n", table->keys[i].key,
                      default_text(&table->keys[i]), allowed, table->keys[i].what);
    }
}

void kvp_table_show(const struct kvp_config_table *table, const void *config, FILE *out)
{
    json_t *json = json_object();
    for (uint32_t i = 0; i < table->nkeys; i++) {
        const char *field = (const char *)config + table->keys[i].offset;
        char *text;
        bool on;
        uint64_t number;
        json_t *value = NULL;
        switch (table->keys[i].type) {
        case KVP_VALUE_TEXT:
        case KVP_VALUE_LIST:
        case KVP_VALUE_CHOICE:
            memcpy(&text, field, sizeof text);
            value = json_string(text);
            break;
        case KVP_VALUE_SWITCH:
            memcpy(&on, field, sizeof on);
            value = json_boolean(on);
            break;
        case KVP_VALUE_TIME:
            memcpy(&number, field, sizeof number);
            value = json_sprintf("%llums", (unsigned long long)number);
            break;
        case KVP_VALUE_BYTES:
        case KVP_VALUE_COUNT:
            memcpy(&number, field, sizeof number);
            value = json_integer((json_int_t)number);
            break;
        }
        (void)json_object_set_new(json, table->keys[i].key, value);
    }
    (void)json_dumpf(json, out, JSON_INDENT(2));
    (void)fprintf(out, "\n");
    json_decref(json);
}
