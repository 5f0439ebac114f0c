/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_RUN_H
#define SERVER_CLI_RUN_H

#include "cli_options.h"

/* The client commands that are more than a call; each returns an exit code. */
int kvp_cli_ops(struct kvp_cli *cli);
int kvp_cli_events(struct kvp_cli *cli);

/* Members of an answer's object, one on a line. */
void kvp_cli_print_object(const json_t *object, const char *indent);
/* As --json wants it, or item by item. */
void kvp_cli_print_answer(const struct kvp_cli *cli);
/* What an answer of that status says; DONE or REFUSED. */
int kvp_cli_show(const struct kvp_cli *cli, long code);

#endif
