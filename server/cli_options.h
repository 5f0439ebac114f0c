/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_OPTIONS_H
#define SERVER_CLI_OPTIONS_H

#include "cli_call.h"
#include "commands.h"

enum { KVP_CLI_QUERY_MAX = 2048 };

/* The command line of a client command. */
struct kvp_cli {
    struct kvp_call call;
    const char *command;
    const char *operand;  /* NULL: none */
    const char *instance; /* NULL: none; it is in the query as well */
    const char *wait;     /* seconds; NULL: not to be waited for */
    const char *after;    /* an event's id; NULL: all that are known */
    const char *interval; /* seconds between two screens; NULL: the usual */
    bool json;            /* print answers as they come */
    bool follow;
    bool cancel;
    char query[KVP_CLI_QUERY_MAX]; /* what becomes parameters of the request: "" or ?name=value&...
                                    */
};

/* cli.call.curl is made. BAD_USAGE: told why. */
int kvp_cli_read(struct kvp_cli *cli, int argc, char **argv);
int kvp_cli_bad_usage(const struct kvp_cli *cli, const char *what, const char *why);

/* Puts text into a URL's path or query, after what is there; false: it does not fit. */
bool kvp_cli_escape(const struct kvp_cli *cli, char *out, size_t cap, const char *text);

#endif
