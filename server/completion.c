/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions for shells, out of the table of commands: whole scripts, which ask nobody while a
 * key is pressed. What a value may be is completed where it is one of some words, or a file.
 */
#include "commands.h"

#include <string.h>

static bool is_file(const struct kvp_option *option)
{
    return option->value != NULL && option->words == NULL &&
           (strcmp(option->value, "FILE") == 0 || strcmp(option->value, "PATH") == 0 ||
            strstr(option->name, "-file") != NULL || strstr(option->name, "socket") != NULL);
}

static void put_names(const struct kvp_commands *commands, FILE *out)
{
    for (size_t i = 0; i < commands->n; i++) {
        if (commands->list[i].what != NULL) {
            (void)fprintf(out, " %s", commands->list[i].name);
        }
    }
}

/* Those that an operand may be. */
static void put_words(const struct kvp_commands *commands, const struct kvp_command *command,
                      FILE *out)
{
    if (command->words != NULL && strcmp(command->words, "COMMAND") == 0) {
        put_names(commands, out);
    } else if (command->words != NULL) {
        (void)fprintf(out, " %s", command->words);
    }
}

/* Inside '...' of any of the shells, without what else is special in their descriptions. */
static void put_quoted(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            (void)fprintf(out, "’");
        } else if (strchr("[]\\", *text) == NULL) {
            (void)fputc(*text, out);
        }
    }
}

struct telling {
    FILE *out;
    const char *command;
};

/* ---- bash ---- */

static void bash_name(void *ctx, const struct kvp_option *option)
{
    struct telling *telling = ctx;
    (void)fprintf(telling->out, " --%s", option->name);
}

static void bash_value(void *ctx, const struct kvp_option *option)
{
    struct telling *telling = ctx;
    if (option->value == NULL) {
        return;
    }
    (void)fprintf(telling->out, "    '%s --%s') ", telling->command, option->name);
    if (option->words != NULL) {
        (void)fprintf(telling->out, "words='%s' ;;\n", option->words);
    } else {
        (void)fprintf(telling->out, "%s ;;\n", is_file(option) ? "files=1" : "words=");
    }
}

static void bash(const struct kvp_commands *commands, FILE *out)
{
    (void)fprintf(out,
                  "# bash completion of kvplane %s\n"
                  "_kvplane() {\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                  "    local command=${COMP_WORDS[1]} words= files=\n"
                  "    if [[ $cur == = ]]; then\n"
                  "        cur=\n"
                  "    elif [[ $prev == = ]]; then\n"
                  "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                  "    fi\n"
                  "    COMPREPLY=()\n"
                  "    if ((COMP_CWORD == 1)); then\n"
                  "        words='",
                  commands->version);
    put_names(commands, out);
    (void)fprintf(out, "'\n    else\n    case \"$command $prev\" in\n");
    for (size_t i = 0; i < commands->n; i++) {
        struct telling telling = {out, commands->list[i].name};
        if (commands->list[i].options != NULL) {
            commands->list[i].options(telling.command, bash_value, &telling);
        }
    }
    (void)fprintf(out, "    *)\n        case $command in\n");
    for (size_t i = 0; i < commands->n; i++) {
        const struct kvp_command *command = &commands->list[i];
        struct telling telling = {out, command->name};
        if (command->what == NULL) {
            continue;
        }
        (void)fprintf(out, "        %s) words='", command->name);
        put_words(commands, command, out);
        if (command->options != NULL) {
            command->options(command->name, bash_name, &telling);
        }
        (void)fprintf(out, " --help' ;;\n");
    }
    (void)fprintf(out, "        esac ;;\n    esac\n    fi\n"
                       "    if [[ -n $files ]]; then\n"
                       "        compopt -o filenames 2>/dev/null\n"
                       "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
                       "    else\n"
                       "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                       "    fi\n"
                       "}\n"
                       "complete -F _kvplane kvplane\n");
}

/* ---- zsh ---- */

static void zsh_option(void *ctx, const struct kvp_option *option)
{
    struct telling *telling = ctx;
    (void)fprintf(telling->out, " \\\n            '*--%s%s[", option->name,
                  option->value != NULL ? "=" : "");
    put_quoted(telling->out, option->what);
    (void)fprintf(telling->out, "]");
    if (option->value != NULL) {
        (void)fprintf(telling->out, ":%s:", option->value);
        if (option->words != NULL) {
            (void)fprintf(telling->out, "(%s)", option->words);
        } else if (is_file(option)) {
            (void)fprintf(telling->out, "_files");
        }
    }
    (void)fprintf(telling->out, "'");
}

static void zsh(const struct kvp_commands *commands, FILE *out)
{
    (void)fprintf(out,
                  "#compdef kvplane\n# zsh completion of kvplane %s\n"
                  "_kvplane() {\n"
                  "    local -a commands=(\n",
                  commands->version);
    for (size_t i = 0; i < commands->n; i++) {
        if (commands->list[i].what != NULL) {
            (void)fprintf(out, "        '%s:", commands->list[i].name);
            put_quoted(out, commands->list[i].what);
            (void)fprintf(out, "'\n");
        }
    }
    (void)fprintf(out, "    )\n"
                       "    if ((CURRENT == 2)); then\n"
                       "        _describe command commands\n"
                       "        return\n"
                       "    fi\n"
                       "    local command=$words[2]\n"
                       "    shift words\n"
                       "    ((CURRENT--))\n"
                       "    case $command in\n");
    for (size_t i = 0; i < commands->n; i++) {
        const struct kvp_command *command = &commands->list[i];
        struct telling telling = {out, command->name};
        if (command->what == NULL) {
            continue;
        }
        (void)fprintf(out, "        %s)\n            _arguments", command->name);
        if (command->options != NULL) {
            command->options(command->name, zsh_option, &telling);
        }
        if (command->words != NULL) {
            (void)fprintf(out, " \\\n            '*:word:(");
            put_words(commands, command, out);
            (void)fprintf(out, ")'");
        }
        (void)fprintf(out, " \\\n            '--help[its options]'\n            ;;\n");
    }
    (void)fprintf(out, "    esac\n}\n"
                       "if [[ $funcstack[1] == _kvplane ]]; then\n"
                       "    _kvplane \"$@\"\n"
                       "else\n"
                       "    compdef _kvplane kvplane\n"
                       "fi\n");
}

/* ---- fish ---- */

static void fish_option(void *ctx, const struct kvp_option *option)
{
    struct telling *telling = ctx;
    (void)fprintf(telling->out, "complete -c kvplane -n '__fish_seen_subcommand_from %s' -l %s",
                  telling->command, option->name);
    if (option->value != NULL) {
        (void)fprintf(telling->out, is_file(option) ? " -r -F" : " -x");
    }
    if (option->words != NULL) {
        (void)fprintf(telling->out, " -a '%s'", option->words);
    }
    (void)fprintf(telling->out, " -d '");
    put_quoted(telling->out, option->what);
    (void)fprintf(telling->out, "'\n");
}

static void fish(const struct kvp_commands *commands, FILE *out)
{
    (void)fprintf(out, "# fish completion of kvplane %s\ncomplete -c kvplane -f\n",
                  commands->version);
    for (size_t i = 0; i < commands->n; i++) {
        const struct kvp_command *command = &commands->list[i];
        struct telling telling = {out, command->name};
        if (command->what == NULL) {
            continue;
        }
        (void)fprintf(out, "complete -c kvplane -n __fish_use_subcommand -a %s -d '",
                      command->name);
        put_quoted(out, command->what);
        (void)fprintf(out, "'\n");
        if (command->words != NULL) {
            (void)fprintf(out, "complete -c kvplane -n '__fish_seen_subcommand_from %s' -a '",
                          command->name);
            put_words(commands, command, out);
            (void)fprintf(out, "'\n");
        }
        if (command->options != NULL) {
            command->options(command->name, fish_option, &telling);
        }
    }
}

static const struct {
    const char *shell;
    void (*write)(const struct kvp_commands *commands, FILE *out);
} shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

bool kvp_completion(const struct kvp_commands *commands, const char *shell, FILE *out)
{
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
        if (strcmp(shells[i].shell, shell) == 0) {
            shells[i].write(commands, out);
            return true;
        }
    }
    return false;
}
