/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_H
#define SERVER_CLI_H

#include <stdio.h>

/*
 * Client commands over the REST API: status pause resume sleep wake reset release ops; argv[0] is
 * the command. Exit codes: 0 done; 1 the daemon refused or the operation failed (what it said is on
 * stderr); 2 a bad command line; 3 no daemon answers.
 */
int kvp_cli_main(int argc, char **argv);
void kvp_cli_help(FILE *out);

#endif
