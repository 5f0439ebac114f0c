/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_H
#define SERVER_CLI_H

#include "commands.h"

#define KVP_CLI_URL "http://127.0.0.1:8100"
#define KVP_CLI_EXIT_CODES                                                                         \
    "Exit codes: 0 done; 1 refused or failed, why is on stderr; 2 a bad command line; 3 no "       \
    "daemon answers; 4 what was waited for has not ended yet."

/* Client commands over the REST API; argv[0] is the command, of which main.c names no other.
 * Returns one of the exit codes above. */
int kvp_cli_main(int argc, char **argv);
/* The options of one. */
void kvp_cli_options(const char *command, kvp_tell_option_fn tell, void *ctx);

#endif
