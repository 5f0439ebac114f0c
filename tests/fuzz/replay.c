/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libFuzzer where there is none: runs a target over the files of its corpus, so that
 * every build keeps what the fuzzer once found. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0;
    int c;
    if (file == NULL) {
        return -1;
    }
    while ((c = fgetc(file)) != EOF) {
        data = realloc(data, size + 1); /* exactly: ASan sees one byte too many */
        data[size++] = (uint8_t)c;
    }
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        struct dirent *entry;
        while (folder != NULL && (entry = readdir(folder)) != NULL) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            files += entry->d_name[0] != '.' && run(path) == 0;
        }
        if (folder != NULL) {
            closedir(folder);
        }
    }
    printf("replayed %d files\n", files);
    return files > 0 ? 0 : 1; /* an empty corpus shows nothing */
}
