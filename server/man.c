/* SPDX-License-Identifier: Apache-2.0 */
/* Manual pages in roff (man(7)), out of the table of commands. */
#include "commands.h"

#include <string.h>

/* Text as it is, whatever roff would make of it: \, -, and . or ' at the beginning of a line. */
static void put(FILE *out, const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        bool begins = at == text || at[-1] == '\n';
        if (*at == '\\') {
            (void)fprintf(out, "\\e");
        } else if (*at == '-') {
            (void)fprintf(out, "\\-");
        } else if (*at == '\'') {
            (void)fprintf(out, "\\(aq");
        } else if (*at == '^') {
            (void)fprintf(out, "\\(ha");
        } else if (*at == '~') {
            (void)fprintf(out, "\\(ti");
        } else if (*at == '.' && begins) {
            (void)fprintf(out, "\\&.");
        } else {
            (void)fputc(*at, out);
        }
    }
}

static void put_option(void *ctx, const struct kvp_option *option)
{
    FILE *out = ctx;
    (void)fprintf(out, ".TP\n\\fB\\-\\-");
    put(out, option->name);
    (void)fprintf(out, "\\fR");
    if (option->value != NULL) {
        (void)fprintf(out, " \\fI");
        put(out, option->value);
        (void)fprintf(out, "\\fR");
    }
    (void)fprintf(out, "\n");
    put(out, option->what);
    (void)fprintf(out, ".\n");
    if (option->more != NULL) {
        (void)fprintf(out, ".br\n");
        put(out, option->more);
        (void)fprintf(out, ".\n");
    } else if (option->words != NULL) {
        (void)fprintf(out, ".br\nOne of: ");
        put(out, option->words);
        (void)fprintf(out, ".\n");
    }
}

static void put_head(const struct kvp_commands *commands, const char *of, const char *what,
                     FILE *out)
{
    (void)fprintf(out, ".\\\" Written by kvplane man.\n.TH KVPLANE%s", of != NULL ? "\\-" : "");
    for (const char *at = of != NULL ? of : ""; *at != '\0'; at++) {
        (void)fputc(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at, out);
    }
    (void)fprintf(out, " 1 \"\" \"kvplane %s\" \"kvplane\"\n.SH NAME\nkvplane%s%s \\- ",
                  commands->version, of != NULL ? "\\-" : "", of != NULL ? of : "");
    put(out, what);
    (void)fprintf(out, "\n.SH SYNOPSIS\n");
}

static void put_all(const struct kvp_commands *commands, FILE *out)
{
    put_head(commands, NULL, "control plane and KV store of a fleet of inference engines", out);
    (void)fprintf(out, ".B kvplane\n.I COMMAND\n[\\fIOPTIONS\\fR]\n"
                       ".SH DESCRIPTION\n"
                       "A fleet of inference engines shares one KV cache while a trainer puts them "
                       "to sleep,\ngives them new weights and wakes them. After a weight change "
                       "nobody is served KV of the\nold weights.\n"
                       ".SH COMMANDS\n");
    for (size_t i = 0; i < commands->n; i++) {
        if (commands->list[i].what != NULL) {
            (void)fprintf(out, ".TP\n\\fBkvplane\\-%s\\fR(1)\n", commands->list[i].name);
            put(out, commands->list[i].what);
            (void)fprintf(out, "\n");
        }
    }
    (void)fprintf(out, ".SH ENVIRONMENT\n"
                       ".TP\n.B KVPLANE_URL\nOf the daemon, for the client commands.\n"
                       ".TP\n.B KVPLANE_HTTP_SOCKET\nThe Unix socket that it is reached by.\n"
                       ".TP\n.B KVPLANE_CA_FILE\nOf the authorities that its certificate may come "
                       "from.\n"
                       ".TP\n.B KVPLANE_CLIENT_CERT_FILE\n.TQ\n.B KVPLANE_CLIENT_KEY_FILE\n"
                       "Shown to it.\n"
                       ".TP\n.B KVPLANE_TOKEN\nTheir token.\n");
}

static void put_one(const struct kvp_commands *commands, const struct kvp_command *command,
                    FILE *out)
{
    put_head(commands, command->name, command->what, out);
    (void)fprintf(out, ".B kvplane %s\n", command->name);
    if (command->operands != NULL) {
        (void)fprintf(out, "\\&");
        put(out, command->operands);
        (void)fprintf(out, "\n");
    }
    if (command->options != NULL) {
        (void)fprintf(out, "[\\fIOPTIONS\\fR]\n");
    }
    (void)fprintf(out, ".SH DESCRIPTION\n");
    put(out, command->what);
    (void)fprintf(out, ".\n");
    if (command->about != NULL) {
        (void)fprintf(out, ".PP\n");
        put(out, command->about);
        (void)fprintf(out, "\n");
    }
    if (command->options != NULL) {
        (void)fprintf(out, ".SH OPTIONS\n");
        command->options(command->name, put_option, out);
    }
    (void)fprintf(out, ".SH SEE ALSO\n.BR kvplane (1)\n");
}

bool kvp_man(const struct kvp_commands *commands, const char *name, FILE *out)
{
    const struct kvp_command *command = name != NULL ? kvp_command_find(commands, name) : NULL;
    if (name == NULL) {
        put_all(commands, out);
    } else if (command != NULL && command->what != NULL) {
        put_one(commands, command, out);
    } else {
        return false;
    }
    return true;
}
