/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONFIG_TABLE_H
#define SERVER_CONFIG_TABLE_H

#include "commands.h"
#include "config_values.h"

#include "base/status.h"

#include <jansson.h>

#include <stdio.h>

/*
 * The keys of one program as a table, and what is made from it: reading, checking, help, markdown.
 * Each program has a list (server/config.h, server/node/config.h) that yields its struct and its
 * table.
 */
struct kvp_key {
    const char *key;
    enum kvp_value_type type;
    const char *standard;
    const char *limits;
    const char *what;
    size_t offset; /* in the program's struct */
};
#define KVP_KEYS_MAX 128

struct kvp_given; /* what was given for each key, by the strongest source so far */

struct kvp_config_table {
    const struct kvp_key *keys;
    uint32_t nkeys; /* at most KVP_KEYS_MAX */
    size_t size;    /* of the struct */
    /* A source that counts less than all others; NULL: none. config: zeroes yet, but for what it
     * writes to fields that are no keys. */
    kvb_status_t (*weakest)(struct kvp_given *given, void *config, char *error);
    /* What values mean together, and defaults that depend; may replace TEXT (malloc'd). */
    kvb_status_t (*check)(void *config, char *error);
};

/* See kvp_config_read(). config: the program's struct. */
KVB_MUST_USE kvb_status_t kvp_table_read(const struct kvp_config_table *table, int argc,
                                         const char *const *argv, void *config, char *error);
void kvp_table_cleanup(const struct kvp_config_table *table, void *config);

/* Each key as an option, and --config. */
void kvp_table_options(const struct kvp_config_table *table, kvp_tell_option_fn tell, void *ctx);
void kvp_table_markdown(const struct kvp_config_table *table, FILE *out);
void kvp_table_show(const struct kvp_config_table *table, const void *config, FILE *out);

/* ---- for sources ---- */

/* What a stronger source gave for that key (one of the table); NULL: none did. Borrowed. */
const char *kvp_given_text(const struct kvp_given *given, const char *key);
/* Counts where nothing stronger gave that key. source: for messages; copied. */
KVB_MUST_USE kvb_status_t kvp_give(struct kvp_given *given, const char *key, const char *text,
                                   const char *source);
/* A file that is a JSON object. INVALID: error says what is wrong with it. */
KVB_MUST_USE kvb_status_t kvp_load_object(const char *path, json_t **json_p, char *error);
/* Text of a scalar; false: a list, an object or null, or it does not fit. */
bool kvp_scalar_text(const json_t *value, char *out, size_t cap);

/* ---- for checks ---- */

/* INVALID, and writes the error. */
kvb_status_t kvp_refuse(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
