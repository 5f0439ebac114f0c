/* SPDX-License-Identifier: Apache-2.0 */
/* What is installed beside the program, in files: at build, by the program itself. */
#include "commands.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_CAP = 4096 };

struct document {
    const char *folder; /* below the one that was given */
    const char *name;
    bool (*write)(const struct kvp_commands *commands, const char *of, FILE *out);
    const char *of;
};

static bool write_one(const struct kvp_commands *commands, const char *dir,
                      const struct document *document)
{
    char path[PATH_CAP];
    int n = snprintf(path, sizeof path, "%s/%s/%s", dir, document->folder, document->name);
    FILE *out = n < 0 || n >= PATH_CAP ? NULL : fopen(path, "we");
    bool ok = out != NULL && document->write(commands, document->of, out);
    if (out != NULL) {
        ok = !ferror(out) && ok;
        ok = fclose(out) == 0 && ok;
    }
    if (!ok) {
        (void)fprintf(stderr, "kvplane: %s: %s\n", path, strerror(errno));
    }
    return ok;
}

static bool make_folder(const char *dir, const char *name)
{
    char path[PATH_CAP];
    (void)snprintf(path, sizeof path, "%s%s%s", dir, name[0] != '\0' ? "/" : "", name);
    if (mkdir(path, 0777) == 0 || errno == EEXIST) {
        return true;
    }
    (void)fprintf(stderr, "kvplane: %s: %s\n", path, strerror(errno));
    return false;
}

bool kvp_write_documents(const struct kvp_commands *commands, const char *dir)
{
    static const struct document fixed[] = {
        {"man1", "kvplane.1", kvp_man, NULL},
        {"completions", "kvplane", kvp_completion, "bash"},
        {"completions", "_kvplane", kvp_completion, "zsh"},
        {"completions", "kvplane.fish", kvp_completion, "fish"},
    };
    bool ok = make_folder(dir, "") && make_folder(dir, "man1") && make_folder(dir, "completions");
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0] && ok; i++) {
        ok = write_one(commands, dir, &fixed[i]);
    }
    for (size_t i = 0; i < commands->n && ok; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "kvplane-%s.1", commands->list[i].name);
        struct document page = {"man1", name, kvp_man, commands->list[i].name};
        ok = commands->list[i].what == NULL || write_one(commands, dir, &page);
    }
    return ok;
}
