/* SPDX-License-Identifier: Apache-2.0 */
#include "mooncake.h"

#include "base/assert.h"
#include "base/link.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a value in the file; a variable is always text. */
enum type {
    TEXT,
    BYTES,   /* a whole number, or text as "4GB" */
    SWITCH,  /* true or false */
    PRESENT, /* a variable that counts whatever it is */
};

enum when { NEVER, ALWAYS, CLUSTER };

/*
 * In the order in which they count. A variable counts where the file does not have the field; one
 * that ends in * stands for all of that beginning.
 */
#define MOONCAKE(X)                                                                                \
    /* id, field of the file, variable, type, key of ours, when it is taken, what to know */       \
    X(FORCE_TCP, NULL, "MC_FORCE_TCP", PRESENT, "transport", CLUSTER, "tcp, whatever its value")   \
    X(PROTOCOL, "protocol", "MOONCAKE_PROTOCOL", TEXT, "transport", CLUSTER,                       \
      "rdma or tcp; anything else is refused")                                                     \
    X(DEVICE, "device_name", "MOONCAKE_DEVICE", TEXT, "rdma-device", ALWAYS,                       \
      "the first, if it is a list: one device is used")                                            \
    X(GID_INDEX, NULL, "MC_GID_INDEX", TEXT, "rdma-gid-index", ALWAYS, "")                         \
    X(PORT, NULL, "MC_IB_PORT", TEXT, "rdma-port", ALWAYS, "")                                     \
    X(MTU, NULL, "MC_MTU", TEXT, "rdma-mtu", ALWAYS, "")                                           \
    X(DEPTH, NULL, "MC_MAX_WR", TEXT, "rdma-depth", ALWAYS, "")                                    \
    X(SGE, NULL, "MC_MAX_SGE", TEXT, "rdma-sge", ALWAYS, "")                                       \
    X(INLINE, NULL, "MC_MAX_INLINE", TEXT, "rdma-inline", ALWAYS, "")                              \
    X(MODE, "mode", NULL, TEXT, NULL, NEVER,                                                       \
      "embedded needs global_segment_size > 0, standalone-store needs 0")                          \
    X(SEGMENT, "global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE", BYTES, "store-bytes",        \
      ALWAYS, "0, no share of one's own, only with etcd")                                          \
    X(BUFFER, "local_buffer_size", "MOONCAKE_LOCAL_BUFFER_SIZE", BYTES, NULL, NEVER,               \
      "must be more than 0; transfers need no buffer here, but for GPU memory: cuda-pool-bytes")   \
    X(TENANT, "tenant_id", NULL, TEXT, "tenants", ALWAYS, "empty: any")                            \
    X(METADATA, "metadata_server", "MOONCAKE_TE_META_DATA_SERVER", TEXT, NULL, NEVER,              \
      "members are found through etcd: give --etcd")                                               \
    X(MASTER, "master_server_address", "MOONCAKE_MASTER", TEXT, NULL, NEVER,                       \
      "there is no master; members are found through etcd: give --etcd")                           \
    X(HOSTNAME, "local_hostname", "MOONCAKE_LOCAL_HOSTNAME", TEXT, NULL, NEVER,                    \
      "others reach the share at cluster-listen, or advertise")                                    \
    X(REQUESTER, NULL, "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", TEXT, NULL, NEVER,                     \
      "others reach the share at cluster-listen, or advertise")                                    \
    X(OFFLOAD, "enable_offload", NULL, SWITCH, NULL, NEVER, "the store is in memory alone")        \
    X(SSD_OFFLOAD, "enable_ssd_offload", NULL, SWITCH, NULL, NEVER,                                \
      "the store is in memory alone")                                                              \
    X(SSD_PATH, "ssd_offload_path", NULL, TEXT, NULL, NEVER, "the store is in memory alone")       \
    X(POOL, "custom_mem_pool", NULL, TEXT, NULL, NEVER, "refused with sleep mode")                 \
    X(DRAIN, NULL, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", TEXT, "drain-bound", ALWAYS,             \
      "in seconds")                                                                                \
    X(MNNVL, NULL, "MC_FORCE_MNNVL", PRESENT, NULL, NEVER, "refused with sleep mode")              \
    X(INTRANODE, NULL, "MC_INTRANODE_NVLINK", PRESENT, NULL, NEVER, "refused with sleep mode")     \
    X(FORCE_HCA, NULL, "MC_FORCE_HCA", PRESENT, NULL, NEVER, "give --transport rdma")              \
    X(SEGMENT_NAME, NULL, "MOONCAKE_PREFERRED_SEGMENT", PRESENT, NULL, NEVER,                      \
      "blocks are placed by their keys")                                                           \
    X(TENT, NULL, "MC_USE_TENT", PRESENT, NULL, NEVER, "an engine of Mooncake's own")              \
    X(OF_TCP, NULL, "MC_TCP_*", PRESENT, NULL, NEVER, "how Mooncake's own transport works")        \
    X(OF_IB, NULL, "MC_IB_*", PRESENT, NULL, NEVER, "how Mooncake's own transport works")          \
    X(OF_MS, NULL, "MC_MS_*", PRESENT, NULL, NEVER, "how Mooncake's own transport works")          \
    X(OF_NUMBERS, NULL, "MC_NUM_*", PRESENT, NULL, NEVER, "how Mooncake's own transport works")    \
    X(OF_LIMITS, NULL, "MC_MAX_*", PRESENT, NULL, NEVER, "how Mooncake's own transport works")     \
    X(OF_SLICES, NULL, "MC_SLICE_*", PRESENT, NULL, NEVER, "how Mooncake's own transport works")   \
    X(OF_RPC, NULL, "MC_RPC_*", PRESENT, NULL, NEVER, "how Mooncake's client asks its master")     \
    X(OF_HANDSHAKE, NULL, "MC_HANDSHAKE_*", PRESENT, NULL, NEVER,                                  \
      "how Mooncake's own transport works")                                                        \
    X(OF_STORE, NULL, "MC_STORE_*", PRESENT, NULL, NEVER, "how Mooncake's client works")

enum row_id {
#define X(id, field, variable, type, key, when, what) ROW_##id,
    MOONCAKE(X)
#undef X
        ROWS_N
};
_Static_assert(ROWS_N <= KVP_MOONCAKE_ROWS_MAX, "each has its place");

static const struct row {
    const char *field;
    const char *variable;
    enum type type;
    const char *key;
    enum when when;
    const char *what;
} rows[] = {
#define X(id, field, variable, type, key, when, what) {field, variable, type, key, when, what},
    MOONCAKE(X)
#undef X
};

struct reader {
    struct kvp_given *given;
    struct kvp_mooncake *found;
    json_t *json; /* NULL: no file */
    char *error;
    /* of the row that is read: what it says, and what says so */
    char text[512];
    char source[KVP_MOONCAKE_SOURCE_MAX];
    bool standalone, embedded; /* said by `mode` */
};

static kvb_status_t refuse(const struct reader *reader, const char *allowed)
{
    return kvp_refuse(reader->error, "%.300s must be %s", reader->source, allowed);
}

/* ---- values ---- */

static const char *const allowed[] = {
    [TEXT] = "text",
    [BYTES] = "a number of bytes, or like \"4GB\"",
    [SWITCH] = "true or false",
    [PRESENT] = "",
};

/* As Mooncake writes sizes: "4GB", "1.5 gb"; or as we do. */
static bool parse_size(const char *text, uint64_t *bytes_p)
{
    char trimmed[64], one[sizeof trimmed + 1], whole_text[sizeof trimmed];
    uint64_t whole, factor, scale = 1, fraction = 0;
    if (!kvp_trim(text, trimmed, sizeof trimmed)) {
        return false;
    }
    if (kvp_parse_bytes(trimmed, bytes_p)) {
        return true;
    }
    const char *point = strchr(trimmed, '.');
    if (point == NULL || point == trimmed) {
        return false;
    }
    const char *unit = point + 1;
    for (; *unit >= '0' && *unit <= '9' && scale < 1000000000; unit++) {
        fraction = fraction * 10 + (uint64_t)(*unit - '0');
        scale *= 10;
    }
    (void)snprintf(one, sizeof one, "1%s", unit);
    (void)snprintf(whole_text, sizeof whole_text, "%.*s", (int)(point - trimmed), trimmed);
    if (scale == 1 || (*unit >= '0' && *unit <= '9') || !kvp_parse_bytes(one, &factor) ||
        !kvp_parse_count(whole_text, &whole) || whole >= UINT64_MAX / factor) {
        return false;
    }
    *bytes_p = whole * factor + (uint64_t)((double)fraction / (double)scale * (double)factor);
    return true;
}

/* reader->text: as one of our own keys would be written. */
static kvb_status_t check_value(struct reader *reader, enum type type)
{
    uint64_t bytes;
    bool on;
    if (type == BYTES) {
        if (!parse_size(reader->text, &bytes)) {
            return refuse(reader, allowed[type]);
        }
        (void)snprintf(reader->text, sizeof reader->text, "%llu", (unsigned long long)bytes);
    }
    if (type == SWITCH && !kvp_parse_switch(reader->text, &on)) {
        return refuse(reader, allowed[type]);
    }
    return KVB_OK;
}

/* null is as if it were not there. */
static kvb_status_t read_field(struct reader *reader, const struct row *row, bool *there_p)
{
    const json_t *value = row->field != NULL ? json_object_get(reader->json, row->field) : NULL;
    *there_p = value != NULL && !json_is_null(value);
    if (!*there_p) {
        return KVB_OK;
    }
    (void)snprintf(reader->source, sizeof reader->source, "`%s` of %s", row->field,
                   reader->found->file);
    bool fits = json_is_string(value) || (row->type == BYTES && json_is_integer(value)) ||
                (row->type == SWITCH && json_is_boolean(value));
    if (!fits || !kvp_scalar_text(value, reader->text, sizeof reader->text)) {
        return refuse(reader, allowed[row->type]);
    }
    return check_value(reader, row->type);
}

static kvb_status_t read_variable(struct reader *reader, const struct row *row, bool *there_p)
{
    const char *value = row->variable != NULL ? getenv(row->variable) : NULL;
    *there_p = value != NULL;
    if (value == NULL) {
        return KVB_OK;
    }
    (void)snprintf(reader->source, sizeof reader->source, "%s", row->variable);
    if (strlen(value) >= sizeof reader->text) {
        return refuse(reader, "shorter");
    }
    (void)snprintf(reader->text, sizeof reader->text, "%s", value);
    return check_value(reader, row->type);
}

/* ---- what some of them mean ---- */

static bool in_cluster(const struct reader *reader)
{
    const char *etcd = kvp_given_text(reader->given, "etcd");
    return etcd != NULL && etcd[0] != '\0';
}

static bool is_ours(const char *protocol)
{
    return strcmp(protocol, "rdma") == 0 || strcmp(protocol, "tcp") == 0;
}

static kvb_status_t take_protocol(struct reader *reader, bool *take_p)
{
    struct kvp_mooncake *found = reader->found;
    if (kvp_given_text(reader->given, "transport") != NULL) {
        return KVB_OK; /* so it counts for nothing, whatever it is */
    }
    if (strlen(reader->text) >= sizeof found->protocol) {
        return refuse(reader, "rdma or tcp");
    }
    if (reader->text[0] == '\0') {
        return refuse(reader, "rdma or tcp, or left out");
    }
    memcpy(found->protocol, reader->text, strlen(reader->text) + 1);
    memcpy(found->protocol_source, reader->source, sizeof found->protocol_source);
    *take_p = *take_p && is_ours(found->protocol); /* else it is refused later, with the reason */
    return KVB_OK;
}

static kvb_status_t take_mode(struct reader *reader)
{
    reader->standalone = strcmp(reader->text, "standalone-store") == 0;
    reader->embedded = strcmp(reader->text, "embedded") == 0;
    return reader->standalone || reader->embedded
               ? KVB_OK
               : refuse(reader, "one of: embedded standalone-store");
}

static kvb_status_t take_segment(struct reader *reader, bool *take_p)
{
    bool none = strcmp(reader->text, "0") == 0;
    if (none && reader->embedded) {
        return refuse(reader, "more than 0 in mode embedded");
    }
    if (!none && reader->standalone) {
        return refuse(reader, "0 in mode standalone-store");
    }
    *take_p = !none || in_cluster(reader);
    return KVB_OK;
}

static kvb_status_t take_tenant(struct reader *reader, bool *take_p)
{
    char name[KVB_NAME_MAX];
    if (!kvp_trim(reader->text, name, sizeof name)) {
        return refuse(reader, "text of at most 63 characters");
    }
    if (name[0] != '\0' && !kvb_name_valid(name)) {
        return refuse(reader, "made of letters, digits and ._-");
    }
    memcpy(reader->text, name, sizeof name);
    *take_p = name[0] != '\0';
    return KVB_OK;
}

static kvb_status_t take_pool(struct reader *reader)
{
    struct kvp_mooncake *found = reader->found;
    if (strlen(reader->text) >= sizeof found->pool) {
        return refuse(reader, "left out");
    }
    memcpy(found->pool, reader->text, strlen(reader->text) + 1);
    memcpy(found->pool_source, reader->source, sizeof found->pool_source);
    return KVB_OK;
}

/* Checks what only this row must be, and says what it comes to (reader->text) and whether. */
static kvb_status_t judge(struct reader *reader, enum row_id id, bool *take_p)
{
    char first[KVB_LAYOUT_MAX];
    switch (id) {
    case ROW_FORCE_TCP:
        (void)snprintf(reader->text, sizeof reader->text, "tcp");
        return KVB_OK;
    case ROW_PROTOCOL:
        return take_protocol(reader, take_p);
    case ROW_DEVICE:
        (void)kvp_next_item(reader->text, first, sizeof first);
        (void)snprintf(reader->text, sizeof reader->text, "%s", first);
        *take_p = first[0] != '\0';
        return KVB_OK;
    case ROW_MODE:
        return take_mode(reader);
    case ROW_SEGMENT:
        return take_segment(reader, take_p);
    case ROW_BUFFER:
        return strcmp(reader->text, "0") == 0 ? refuse(reader, "more than 0") : KVB_OK;
    case ROW_TENANT:
        return take_tenant(reader, take_p);
    case ROW_POOL:
        return take_pool(reader);
    default: /* as it stands in the table */
        return KVB_OK;
    }
}

/* Nobody needs to be told of what is as if it were not there. */
static bool says_nothing(const struct reader *reader, enum row_id id)
{
    bool on = true;
    if (rows[id].type == SWITCH) {
        (void)kvp_parse_switch(reader->text, &on);
    }
    return !on || id == ROW_MODE || (reader->text[0] == '\0' && rows[id].type != PRESENT);
}

static kvb_status_t read_row(struct reader *reader, enum row_id id)
{
    const struct row *row = &rows[id];
    bool of_file, there;
    kvb_status_t status = read_field(reader, row, &of_file);
    there = of_file;
    if (status == KVB_OK && !there) {
        status = read_variable(reader, row, &there);
    }
    if (status != KVB_OK || !there) {
        return status;
    }
    bool take = row->when == ALWAYS || (row->when == CLUSTER && in_cluster(reader));
    status = judge(reader, id, &take);
    if (status != KVB_OK) {
        return status;
    }
    if (says_nothing(reader, id)) {
        return KVB_OK;
    }
    bool stronger = row->key != NULL && kvp_given_text(reader->given, row->key) != NULL;
    reader->found->rows[id].of_file = of_file;
    reader->found->rows[id].fate = stronger ? KVP_MOONCAKE_OVERRIDDEN
                                   : take   ? KVP_MOONCAKE_TAKEN
                                            : KVP_MOONCAKE_LEFT;
    return take && !stronger ? kvp_give(reader->given, row->key, reader->text, reader->source)
                             : KVB_OK;
}

/* ---- what is not in the table ---- */

static void add_other(struct kvp_mooncake *found, const char *name, size_t len)
{
    size_t at = strlen(found->others);
    if (at + len + 2 < sizeof found->others) {
        (void)snprintf(found->others + at, sizeof found->others - at, "%s%.*s", at > 0 ? " " : "",
                       (int)len, name);
    }
}

static bool is_field(const char *name)
{
    for (size_t i = 0; i < ROWS_N; i++) {
        if (rows[i].field != NULL && strcmp(rows[i].field, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The row of a variable; ROWS_N: none. */
static size_t row_of(const char *name, size_t len)
{
    for (size_t i = 0; i < ROWS_N; i++) {
        const char *variable = rows[i].variable;
        size_t n = variable != NULL ? strlen(variable) : 0;
        bool stands_for_all = n > 0 && variable[n - 1] == '*';
        if (n > 0 && strncmp(variable, name, stands_for_all ? n - 1 : len) == 0 &&
            (stands_for_all ? len >= n : n == len)) {
            return i;
        }
    }
    return ROWS_N;
}

static void find_others(struct reader *reader)
{
    const char *name;
    json_t *value;
    json_object_foreach(reader->json, name, value)
    {
        if (!is_field(name)) {
            add_other(reader->found, name, strlen(name));
        }
    }
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        size_t len = strcspn(*at, "=");
        size_t row = row_of(*at, len);
        if (row < ROWS_N && strchr(rows[row].variable, '*') != NULL) {
            reader->found->rows[row].fate = KVP_MOONCAKE_LEFT;
        }
    }
}

/* ---- all of it ---- */

static kvb_status_t open_file(struct reader *reader)
{
    const char *ours = kvp_given_text(reader->given, "mooncake-config");
    const char *by = ours != NULL ? "mooncake-config" : "MOONCAKE_CONFIG_PATH";
    const char *path = ours != NULL ? ours : getenv("MOONCAKE_CONFIG_PATH");
    if (path == NULL || (ours != NULL && ours[0] == '\0')) { /* empty: none, whatever else says */
        return KVB_OK;
    }
    char why[KVP_CONFIG_ERROR_MAX];
    if (strlen(path) >= sizeof reader->found->file) {
        return kvp_refuse(reader->error, "%s: the path is too long", by);
    }
    kvb_status_t status = kvp_load_object(path, &reader->json, why);
    if (status != KVB_OK) {
        return kvp_refuse(reader->error, "%s: %.*s", by, KVP_CONFIG_ERROR_MAX - 32, why);
    }
    (void)snprintf(reader->found->file, sizeof reader->found->file, "%s", path);
    return KVB_OK;
}

kvb_status_t kvp_mooncake_read(struct kvp_given *given, struct kvp_mooncake *found_p, char *error)
{
    struct reader reader = {.given = given, .found = found_p, .error = error};
    memset(found_p, 0, sizeof *found_p);
    kvb_status_t status = open_file(&reader);
    for (enum row_id id = 0; status == KVB_OK && id < ROWS_N; id++) {
        status = read_row(&reader, id);
    }
    if (status == KVB_OK) {
        find_others(&reader);
    }
    json_decref(reader.json);
    return status;
}

kvb_status_t kvp_mooncake_check(const struct kvp_mooncake *found, char *error)
{
    const char *protocol = found->protocol;
    if (protocol[0] != '\0' && !is_ours(protocol)) {
        return kvp_refuse(error,
                          "%.300s is `%s`: there is no such transport here: one of: rdma tcp",
                          found->protocol_source, protocol);
    }
    return KVB_OK;
}

void kvp_mooncake_tell(const struct kvp_mooncake *found)
{
    for (size_t i = 0; i < ROWS_N; i++) {
        const struct row *row = &rows[i];
        bool of_file = found->rows[i].of_file;
        const char *name = of_file ? row->field : row->variable;
        const char *from = of_file ? found->file : "environment";
        switch ((enum kvp_mooncake_fate)found->rows[i].fate) {
        case KVP_MOONCAKE_ABSENT:
            break;
        case KVP_MOONCAKE_TAKEN:
            KVB_LOG(INFO, "mooncake: taken over", KVB_STR("name", name), KVB_STR("from", from),
                    KVB_STR("as", row->key));
            break;
        case KVP_MOONCAKE_OVERRIDDEN:
            KVB_LOG(INFO, "mooncake: not taken over, for a stronger source gave that key",
                    KVB_STR("name", name), KVB_STR("from", from), KVB_STR("key", row->key));
            break;
        case KVP_MOONCAKE_LEFT:
            KVB_LOG(INFO, "mooncake: not used", KVB_STR("name", name), KVB_STR("from", from),
                    KVB_STR("reason", row->when == CLUSTER ? "there is no --etcd" : row->what));
            break;
        }
    }
    if (found->others[0] != '\0') {
        KVB_LOG(INFO, "mooncake: not known here, and not used", KVB_STR("names", found->others),
                KVB_STR("from", found->file));
    }
}

void kvp_mooncake_table(FILE *out)
{
    (void)fprintf(out, "| in the file | variable | becomes | |\n|---|---|---|---|\n");
    for (size_t i = 0; i < ROWS_N; i++) {
        const struct row *row = &rows[i];
        (void)fprintf(out, row->field != NULL ? "| `%s` |" : "| %s|",
                      row->field != NULL ? row->field : "");
        (void)fprintf(out, row->variable != NULL ? " `%s` |" : " %s|",
                      row->variable != NULL ? row->variable : "");
        (void)fprintf(out, row->key != NULL ? " `%s`%s |" : " –%s%s |",
                      row->key != NULL ? row->key : "", row->when == CLUSTER ? ", with etcd" : "");
        (void)fprintf(out, " %s |\n", row->what);
    }
}
