/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_RUN_H
#define SERVER_CLI_RUN_H

#include "cli_options.h"

/* The client commands that are more than a call; each returns an exit code. */
int kvp_cli_ops(struct kvp_cli *cli);
int kvp_cli_list(struct kvp_cli *cli); /* regions, queues, objects */
int kvp_cli_events(struct kvp_cli *cli);
int kvp_cli_top(struct kvp_cli *cli);

/* A verb: POST path. */
int kvp_cli_verb(struct kvp_cli *cli, const char *path);

/* Its output is for people who watch it. */
bool kvp_cli_on_terminal(const struct kvp_cli *cli);
/* Shows the progress of an operation until it has ended, or for that time. The operation as it was
 * last; NULL: *rc_p says why, it was told. After Ctrl-C it does not return. */
json_t *kvp_cli_watch(struct kvp_cli *cli, const char *id, double seconds, int *rc_p);

/* Members of an answer's object, one on a line. */
void kvp_cli_print_object(const json_t *object, const char *indent);
/* As --json wants it, or item by item. */
void kvp_cli_print_answer(const struct kvp_cli *cli);
/* What an answer of that status says; DONE or REFUSED. */
int kvp_cli_show(struct kvp_cli *cli, long code);

#endif
