/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_COMMANDS_H
#define SERVER_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * What the program's commands are, as a table, and what is made from it for people and shells.
 * Pure: it only writes to the file it is given.
 */

/* An option of a command, as it is told. */
struct kvp_option {
    const char *name;  /* without the dashes */
    const char *value; /* what its value is called; NULL: it is a switch */
    const char *words; /* the values it may have, separated by blanks; NULL: others too */
    const char *what;
    const char *more; /* a second line: default and limits; NULL: none */
};
typedef void (*kvp_tell_option_fn)(void *ctx, const struct kvp_option *option);

struct kvp_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the name */
    const char *operands;              /* as in `[ID]`; NULL: none */
    const char *words;                 /* that an operand may be; "COMMAND": a command; NULL: any */
    const char *what;                  /* in a line; NULL: it is started by others, never by hand */
    const char *about;                 /* more; NULL: nothing */
    void (*options)(const char *command, kvp_tell_option_fn tell, void *ctx); /* NULL: none */
};

struct kvp_commands {
    const struct kvp_command *list;
    size_t n;
    const char *version;
};

/* NULL: there is none of that name. */
const struct kvp_command *kvp_command_find(const struct kvp_commands *commands, const char *name);

void kvp_help_commands(const struct kvp_commands *commands, FILE *out);
void kvp_help_command(const struct kvp_command *command, FILE *out);
/* A completion script of bash, zsh or fish. False: another shell, nothing was written. */
bool kvp_completion(const struct kvp_commands *commands, const char *shell, FILE *out);
/* The manual page of a command, kvplane-NAME(1); name NULL: kvplane(1). False: there is none. */
bool kvp_man(const struct kvp_commands *commands, const char *name, FILE *out);
/* Manual pages into dir/man1, completions into dir/completions, under the names that they are
 * installed as. False: told why. */
bool kvp_write_documents(const struct kvp_commands *commands, const char *dir);

#endif
