/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_MOONCAKE_H
#define SERVER_MOONCAKE_H

#include "config_table.h"

#include <stdio.h>

/*
 * What users of Mooncake bring along: its JSON file (key `mooncake-config`, or
 * MOONCAKE_CONFIG_PATH) and variables of the environment. One table says what becomes of each:
 * taken over as a key of ours, where nothing stronger gave that, or checked and left aside. All of
 * it counts less than our own options, environment and file.
 */
#define KVP_MOONCAKE_ROWS_MAX   64
#define KVP_MOONCAKE_SOURCE_MAX 320

enum kvp_mooncake_fate {
    KVP_MOONCAKE_ABSENT,
    KVP_MOONCAKE_TAKEN,
    KVP_MOONCAKE_OVERRIDDEN,
    KVP_MOONCAKE_LEFT, /* nothing here is like it, or not in this configuration */
};

/* What was found. No pointers: part of a program's configuration. */
struct kvp_mooncake {
    char file[256]; /* "": none */
    struct {
        unsigned char fate; /* kvp_mooncake_fate */
        bool of_file;       /* else of the environment */
    } rows[KVP_MOONCAKE_ROWS_MAX];
    char others[256]; /* names that are not in the table, as far as they fit */
    /* for the gate; "": not said, or something stronger was */
    char protocol[32], protocol_source[KVP_MOONCAKE_SOURCE_MAX];
    char pool[32], pool_source[KVP_MOONCAKE_SOURCE_MAX];
};

/* INVALID: error names the file or variable, the field, and what it may be. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_mooncake_read(struct kvp_given *given, struct kvp_mooncake *found_p,
                                            char *error);
/* Sleep or not, there must be such a transport. */
KVB_MUST_USE kvb_status_t kvp_mooncake_check(const struct kvp_mooncake *found, char *error);
/* One line of the log for each that was found: what became of it. */
void kvp_mooncake_tell(const struct kvp_mooncake *found);
/* The table, as markdown. */
void kvp_mooncake_table(FILE *out);

#endif
