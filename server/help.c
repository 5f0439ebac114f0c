/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <string.h>

enum { LEFT = 30 }; /* columns of an option's name and value */

const struct kvp_command *kvp_command_find(const struct kvp_commands *commands, const char *name)
{
    for (size_t i = 0; i < commands->n; i++) {
        if (strcmp(commands->list[i].name, name) == 0) {
            return &commands->list[i];
        }
    }
    return NULL;
}

void kvp_help_commands(const struct kvp_commands *commands, FILE *out)
{
    (void)fprintf(out, "usage: kvplane COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < commands->n; i++) {
        if (commands->list[i].what != NULL) {
            (void)fprintf(out, "  %-10s %s\n", commands->list[i].name, commands->list[i].what);
        }
    }
    (void)fprintf(out, "\nkvplane help COMMAND, or kvplane COMMAND --help: its options\n");
}

static void tell_option(void *ctx, const struct kvp_option *option)
{
    FILE *out = ctx;
    char left[128];
    const char *value = option->value != NULL ? option->value : "";

    if (option->more != NULL) {
        (void)fprintf(out, "  --%s %s\n      %s.\n      %s\n", option->name, value, option->what,
                      option->more);
        return;
    }
    (void)snprintf(left, sizeof left, "--%s %s", option->name, value);
    (void)fprintf(out, "  %-*s %s\n", LEFT, left, option->what);
}

void kvp_help_command(const struct kvp_command *command, FILE *out)
{
    (void)fprintf(out, "usage: kvplane %s%s%s%s\n\n%s\n", command->name,
                  command->operands != NULL ? " " : "",
                  command->operands != NULL ? command->operands : "",
                  command->options != NULL ? " [OPTIONS]" : "", command->what);
    if (command->about != NULL) {
        (void)fprintf(out, "\n%s\n", command->about);
    }
    if (command->options != NULL) {
        (void)fprintf(out, "\n");
        command->options(command->name, tell_option, out);
    }
}
