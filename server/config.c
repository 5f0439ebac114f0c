/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "config_values.h"

#include <jansson.h>

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct key {
    const char *key;
    enum kvp_value_type type;
    const char *standard;
    const char *limits;
    const char *what;
    size_t offset;
};

static const struct key keys[] = {
#define X(name, type, key, standard, limits, what)                                                 \
    {key, KVP_VALUE_##type, standard, limits, what, offsetof(struct kvp_config, name)},
    KVP_CONFIG(X)
#undef X
};
enum { KEYS = sizeof keys / sizeof keys[0] };

/* What was given for each key, by the strongest source so far. */
struct given {
    char *text[KEYS];
    const char *source[KEYS]; /* for messages; static, or the file's name */
};

static int find_key(const char *name, size_t len)
{
    for (int i = 0; i < KEYS; i++) {
        if (strlen(keys[i].key) == len && strncmp(keys[i].key, name, len) == 0) {
            return i;
        }
    }
    return -1;
}

/* Keeps the first that is given: sources are read from the strongest to the weakest. */
static kvb_status_t give(struct given *given, int key, const char *text, const char *source)
{
    if (given->text[key] != NULL) {
        return KVB_OK;
    }
    given->text[key] = strdup(text);
    given->source[key] = source;
    return given->text[key] == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

/* ---- arguments ---- */

static kvb_status_t read_arguments(int argc, const char *const *argv, struct given *given,
                                   const char **file_p, char *error)
{
    for (int i = 0; i < argc; i++) {
        const char *name = argv[i];
        if (strncmp(name, "--", 2) != 0) {
            (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                           "`%s` is not an option; options begin with --, see --help", name);
            return KVB_ERR_INVALID;
        }
        name += 2;
        const char *equals = strchr(name, '=');
        size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
        bool is_file = len == strlen("config") && strncmp(name, "config", len) == 0;
        int key = find_key(name, len);
        if (key < 0 && !is_file) {
            (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "there is no option --%.*s; see --help",
                           (int)len, name);
            return KVB_ERR_INVALID;
        }
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && !is_file && keys[key].type == KVP_VALUE_SWITCH) {
            value = "true";
        } else if (value == NULL) {
            if (i + 1 >= argc) {
                (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "--%.*s needs a value", (int)len, name);
                return KVB_ERR_INVALID;
            }
            value = argv[++i];
        }
        if (is_file) {
            *file_p = value;
            continue;
        }
        free(given->text[key]); /* of a repeated key the last wins */
        given->text[key] = NULL;
        kvb_status_t status = give(given, key, value, "command line");
        if (status != KVB_OK) {
            return status;
        }
    }
    return KVB_OK;
}

static kvb_status_t read_environment(struct given *given)
{
    for (int i = 0; i < KEYS; i++) {
        char name[64];
        int len = snprintf(name, sizeof name, "KVPLANE_%s", keys[i].key);
        for (int k = 0; k < len; k++) {
            name[k] = name[k] == '-' ? '_' : (char)toupper((unsigned char)name[k]);
        }
        const char *value = getenv(name);
        kvb_status_t status = value == NULL ? KVB_OK : give(given, i, value, "environment");
        if (status != KVB_OK) {
            return status;
        }
    }
    return KVB_OK;
}

/* ---- files ---- */

static kvb_status_t load_file(const char *path, json_t **json_p, char *error)
{
    json_error_t why;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (json == NULL) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "%s: %s (line %d)", path, why.text, why.line);
        return KVB_ERR_INVALID;
    }
    if (!json_is_object(json)) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "%s: must be a JSON object", path);
        json_decref(json);
        return KVB_ERR_INVALID;
    }
    *json_p = json;
    return KVB_OK;
}

/* Text of a scalar; false: a list, an object or null. */
static bool scalar_text(const json_t *value, char *out, size_t cap)
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

static kvb_status_t read_file(const char *path, struct given *given, char *error)
{
    json_t *json;
    kvb_status_t status = load_file(path, &json, error);
    if (status != KVB_OK) {
        return status;
    }
    const char *name;
    json_t *value;
    json_object_foreach(json, name, value)
    {
        char text[4096];
        int key = find_key(name, strlen(name));
        if (key < 0) {
            (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "%s: there is no key `%s`; see --help",
                           path, name);
            status = KVB_ERR_INVALID;
        } else if (!scalar_text(value, text, sizeof text)) {
            (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                           "%s: `%s` must be text, a whole number, true or false", path, name);
            status = KVB_ERR_INVALID;
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

/* ---- what users of Mooncake bring along ---- */

static kvb_status_t refuse_field(const char *path, const char *field, const char *allowed,
                                 char *error)
{
    (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "MOONCAKE_CONFIG_PATH: %s: `%s` must be %s", path,
                   field, allowed);
    return KVB_ERR_INVALID;
}

static kvb_status_t mooncake_tenant(const json_t *json, const char *path, struct given *given,
                                    char *error)
{
    const json_t *value = json_object_get(json, "tenant_id");
    if (value == NULL || json_is_null(value)) {
        return KVB_OK;
    }
    char name[KVB_NAME_MAX];
    if (!json_is_string(value) || !kvp_trim(json_string_value(value), name, sizeof name)) {
        return refuse_field(path, "tenant_id", "text of at most 63 characters", error);
    }
    if (name[0] == '\0') {
        return KVB_OK;
    }
    if (!kvb_name_valid(name)) {
        return refuse_field(path, "tenant_id", "made of letters, digits and ._-", error);
    }
    return give(given, find_key("tenants", strlen("tenants")), name, path);
}

static kvb_status_t mooncake_fields(const json_t *json, const char *path, struct given *given,
                                    char *error)
{
    char text[64];
    const json_t *protocol = json_object_get(json, "protocol");
    if (protocol != NULL &&
        (!json_is_string(protocol) || (strcmp(json_string_value(protocol), "rdma") != 0 &&
                                       strcmp(json_string_value(protocol), "tcp") != 0))) {
        return refuse_field(path, "protocol",
                            "rdma or tcp: others hand out keys to engine memory, so no engine "
                            "could sleep safely",
                            error);
    }
    const json_t *size = json_object_get(json, "global_segment_size");
    uint64_t bytes;
    if (size != NULL && (!scalar_text(size, text, sizeof text) || !kvp_parse_bytes(text, &bytes))) {
        return refuse_field(path, "global_segment_size", "a number of bytes, or like 4GB", error);
    }
    if (size != NULL && bytes > 0) {
        kvb_status_t status =
            give(given, find_key("store-bytes", strlen("store-bytes")), text, path);
        if (status != KVB_OK) {
            return status;
        }
    }
    return mooncake_tenant(json, path, given, error);
}

static kvb_status_t read_mooncake(struct given *given, char *error)
{
    /* Present is enough, whatever the value: that is how that system reads them. */
    static const char *const unsafe[] = {"MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"};
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++) {
        if (getenv(unsafe[i]) != NULL) {
            (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                           "%s is set (to `%s`): it asks for a transport that hands out keys to "
                           "engine memory, so sleep mode cannot be offered. Unset it",
                           unsafe[i], getenv(unsafe[i]));
            return KVB_ERR_INVALID;
        }
    }
    const char *bound = getenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
    if (bound != NULL) {
        kvb_status_t status = give(given, find_key("drain-bound", strlen("drain-bound")), bound,
                                   "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
        if (status != KVB_OK) {
            return status;
        }
    }
    const char *path = getenv("MOONCAKE_CONFIG_PATH");
    if (path == NULL) {
        return KVB_OK;
    }
    json_t *json;
    char why[KVP_CONFIG_ERROR_MAX];
    kvb_status_t status = load_file(path, &json, why);
    if (status != KVB_OK) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "MOONCAKE_CONFIG_PATH: %.*s",
                       KVP_CONFIG_ERROR_MAX - 32, why);
        return status;
    }
    status = mooncake_fields(json, path, given, error);
    json_decref(json);
    return status;
}

/* ---- the check ---- */

static kvb_status_t check_key(const struct key *key, const char *text, const char *source,
                              struct kvp_config *config, char *error)
{
    union kvp_value value;
    char allowed[192];
    if (!kvp_value_parse(key->type, key->limits, text, &value, allowed, sizeof allowed)) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "%s: `%.64s` (%.128s) is not allowed: %s",
                       key->key, text, source, allowed);
        return KVB_ERR_INVALID;
    }
    char *field = (char *)config + key->offset;
    switch (key->type) {
    case KVP_VALUE_TEXT:
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

static void ignore_tenant(void *arg, const char *tenant, uint64_t quota)
{
    (void)arg;
    (void)tenant;
    (void)quota;
}

static bool instances_valid(const char *list)
{
    char name[KVB_NAME_MAX];
    while (*list != '\0') {
        list = kvp_next_item(list, name, sizeof name);
        if (!kvb_name_valid(name)) {
            return false;
        }
    }
    return true;
}

static bool loopback_host(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

/* What values mean together. */
static kvb_status_t check_whole(struct kvp_config *config, char *error)
{
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    if (kvp_config_split_listen(config->listen, host, sizeof host, &port) != KVB_OK) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                       "listen: `%.64s` is not allowed: HOST:PORT, as 127.0.0.1:8100 or [::1]:0",
                       config->listen);
        return KVB_ERR_INVALID;
    }
    if (!loopback_host(host) && config->token_file[0] == '\0' && !config->insecure) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                       "listen: `%.64s` can be reached by others: give --token-file, or "
                       "--insecure if they may all sleep and reset these engines",
                       config->listen);
        return KVB_ERR_INVALID;
    }
    if (!kvp_config_each_tenant(config->tenants, ignore_tenant, NULL)) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                       "tenants: `%.64s` is not allowed: NAME or NAME=QUOTA, separated by commas, "
                       "as a=2GiB,b",
                       config->tenants);
        return KVB_ERR_INVALID;
    }
    if (!instances_valid(config->instances)) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX,
                       "instances: `%.64s` is not allowed: names of letters, digits and ._-, "
                       "separated by commas",
                       config->instances);
        return KVB_ERR_INVALID;
    }
    return KVB_OK;
}

static kvb_status_t default_socket(struct kvp_config *config)
{
    if (config->engine_socket[0] != '\0') {
        return KVB_OK;
    }
    char path[512];
    const char *dir = getenv("XDG_RUNTIME_DIR");
    if (dir != NULL && dir[0] == '/') {
        (void)snprintf(path, sizeof path, "%s/kvplane.sock", dir);
    } else {
        (void)snprintf(path, sizeof path, "/tmp/kvplane-%u.sock", (unsigned)geteuid());
    }
    char *copy = strdup(path);
    if (copy == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    free(config->engine_socket);
    config->engine_socket = copy;
    return KVB_OK;
}

static kvb_status_t check(const struct given *given, struct kvp_config *config, char *error)
{
    for (int i = 0; i < KEYS; i++) {
        const char *text = given->text[i] != NULL ? given->text[i] : keys[i].standard;
        const char *source = given->text[i] != NULL ? given->source[i] : "default";
        kvb_status_t status = check_key(&keys[i], text, source, config, error);
        if (status != KVB_OK) {
            return status;
        }
    }
    kvb_status_t status = check_whole(config, error);
    return status == KVB_OK ? default_socket(config) : status;
}

kvb_status_t kvp_config_read(int argc, const char *const *argv, struct kvp_config *config_p,
                             char *error)
{
    struct given given = {{NULL}, {NULL}};
    struct kvp_config config;
    memset(&config, 0, sizeof config);
    const char *file = NULL;
    (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "%s", kvb_status_text(KVB_ERR_NO_MEMORY));
    kvb_status_t status = read_arguments(argc, argv, &given, &file, error);
    if (status == KVB_OK) {
        status = read_environment(&given);
    }
    if (file == NULL) {
        file = getenv("KVPLANE_CONFIG");
    }
    if (status == KVB_OK && file != NULL) {
        status = read_file(file, &given, error);
    }
    if (status == KVB_OK) {
        status = read_mooncake(&given, error);
    }
    if (status == KVB_OK) {
        status = check(&given, &config, error);
    }
    if (status == KVB_OK) {
        *config_p = config;
    } else {
        kvp_config_cleanup(&config);
    }
    for (int i = 0; i < KEYS; i++) {
        free(given.text[i]);
    }
    return status;
}

void kvp_config_cleanup(struct kvp_config *config)
{
    for (int i = 0; i < KEYS; i++) {
        if (keys[i].type == KVP_VALUE_TEXT || keys[i].type == KVP_VALUE_CHOICE) {
            char *text;
            memcpy(&text, (const char *)config + keys[i].offset, sizeof text);
            free(text);
        }
    }
    memset(config, 0, sizeof *config);
}

kvb_status_t kvp_config_split_listen(const char *listen, char *host, size_t host_cap,
                                     uint16_t *port_p)
{
    const char *colon = strrchr(listen, ':');
    if (colon == NULL || colon == listen) {
        return KVB_ERR_INVALID;
    }
    const char *from = listen;
    const char *to = colon;
    if (*from == '[') {
        from++;
        to--;
        if (to <= from || *to != ']') {
            return KVB_ERR_INVALID;
        }
    } else if (memchr(from, ':', (size_t)(to - from)) != NULL) {
        return KVB_ERR_INVALID; /* a bare IPv6 address: which colon is which? */
    }
    uint64_t port;
    if ((size_t)(to - from) >= host_cap || !kvp_parse_count(colon + 1, &port) || port > 65535) {
        return KVB_ERR_INVALID;
    }
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    *port_p = (uint16_t)port;
    return KVB_OK;
}

bool kvp_config_each_tenant(const char *tenants,
                            void (*each)(void *arg, const char *tenant, uint64_t quota), void *arg)
{
    char item[KVB_NAME_MAX + 32];
    while (*tenants != '\0') {
        tenants = kvp_next_item(tenants, item, sizeof item);
        uint64_t quota = KVP_QUOTA_NONE;
        char *equals = strchr(item, '=');
        if (equals != NULL) {
            *equals = '\0';
            if (!kvp_parse_bytes(equals + 1, &quota)) {
                return false;
            }
        }
        if (!kvb_name_valid(item)) {
            return false;
        }
        each(arg, item, quota);
    }
    return true;
}

/* ---- what people read ---- */

static const char *default_text(const struct key *key)
{
    return key->standard[0] != '\0' ? key->standard : "-";
}

void kvp_config_help(FILE *out)
{
    for (int i = 0; i < KEYS; i++) {
        char allowed[192];
        kvp_value_allowed(keys[i].type, keys[i].limits, allowed, sizeof allowed);
        (void)fprintf(out, "  --%s %s\n      %s.\n      default %s; %s\n", keys[i].key,
                      kvp_value_type_text(keys[i].type), keys[i].what, default_text(&keys[i]),
                      allowed);
    }
    (void)fprintf(out,
                  "  --config FILE\n      a JSON object of these keys; also KVPLANE_CONFIG.\n");
}

void kvp_config_table(FILE *out)
{
    (void)fprintf(out, "| key | default | allowed | what it says |\n|---|---|---|---|\n");
    for (int i = 0; i < KEYS; i++) {
        char allowed[192];
        kvp_value_allowed(keys[i].type, keys[i].limits, allowed, sizeof allowed);
        (void)fprintf(out, "| `%s` | %s | %s | %s |\n", keys[i].key, default_text(&keys[i]),
                      allowed, keys[i].what);
    }
}

void kvp_config_show(const struct kvp_config *config, FILE *out)
{
    json_t *json = json_object();
    for (int i = 0; i < KEYS; i++) {
        const char *field = (const char *)config + keys[i].offset;
        char *text;
        bool on;
        uint64_t number;
        json_t *value = NULL;
        switch (keys[i].type) {
        case KVP_VALUE_TEXT:
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
        (void)json_object_set_new(json, keys[i].key, value);
    }
    (void)json_dumpf(json, out, JSON_INDENT(2));
    (void)fprintf(out, "\n");
    json_decref(json);
}
