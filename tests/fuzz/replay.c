/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for libFuzzer where there is none: `TARGET [SECONDS] FOLDER…` runs a target over the
 * files of its corpus, so that every build keeps what the fuzzer once found, and then for so many
 * seconds of a processor over what chance makes of them: a smoke test, blind to coverage. It keeps
 * the input that fails; of a leak, which shows at the end, KVPLANE_SEED repeats the run.
 */
#include "fuzz.h"
#include "splitmix.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <time.h>

#define GROWTH    4096 /* bytes by which an input may become longer, in all its mutations */
#define MUTATIONS 8    /* of an input, one upon the other */
#define HANG_S    120  /* of one input */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
    __attribute__((weak));
extern void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

struct input {
    uint8_t *data;
    size_t size;
};

static struct input *corpus;
static size_t ncorpus;
static uint64_t state;
static struct input now; /* what the target has */

static size_t below(size_t n)
{
    return n == 0 ? 0 : (size_t)(splitmix_next(&state) % n);
}

/* ---- what is found ---- */

static void keep(void)
{
    char path[64];
    if (now.data == NULL) {
        return;
    }
    (void)snprintf(path, sizeof path, "found-%ld", (long)getpid());
    FILE *file = fopen(path, "wbe");
    if (file != NULL) {
        (void)fwrite(now.data, 1, now.size, file);
        (void)fclose(file);
        fprintf(stderr, "kept: %s/%s: into a folder of its own, and that to this program\n",
                getcwd((char[4096]){0}, 4096), path);
    }
    now.data = NULL;
}

static void on_abort(int number)
{
    keep();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void run(const uint8_t *data, size_t size)
{
    now =
        (struct input){malloc(size > 0 ? size : 1), size}; /* exactly: ASan sees a byte too many */
    kvb_assert(now.data != NULL);
    if (size > 0) {
        memcpy(now.data, data, size);
    }
    (void)alarm(HANG_S);
    LLVMFuzzerTestOneInput(now.data, size);
    (void)alarm(0);
    free(now.data);
    now.data = NULL;
}

/* ---- the corpus ---- */

static void read_file(const char *path)
{
    struct input input = {NULL, 0};
    FILE *file = fopen(path, "rbe");
    int c;
    if (file == NULL) {
        return;
    }
    while ((c = fgetc(file)) != EOF) {
        input.data = realloc(input.data, input.size + 1);
        kvb_assert(input.data != NULL);
        input.data[input.size++] = (uint8_t)c;
    }
    (void)fclose(file);
    corpus = realloc(corpus, (ncorpus + 1) * sizeof *corpus);
    kvb_assert(corpus != NULL);
    corpus[ncorpus++] = input;
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* In an order that a seed can count on. */
static void read_folder(const char *path)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, is_input, by_name);
    for (int i = 0; i < n; i++) {
        char file[4096];
        (void)snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        read_file(file);
        free(entries[i]);
    }
    free(entries);
}

/* ---- chance ---- */

static size_t insert(uint8_t *data, size_t size, size_t max_size, const uint8_t *from, size_t len)
{
    size_t at = below(size + 1);
    len = len < max_size - size ? len : max_size - size;
    memmove(data + at + len, data + at, size - at);
    for (size_t i = 0; i < len; i++) {
        data[at + i] = from != NULL ? from[i] : (uint8_t)below(256);
    }
    return size + len;
}

/* Of the kinds that libFuzzer's have. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xff, '"', '\\', '\n', ' ', '0', '9', '-', '{'};
    const struct input *other = &corpus[below(ncorpus)];
    size_t at = below(size), len = 1 + below(size - at < 64 ? size - at : 64);
    uint8_t copy[64];

    kvb_assert(size <= max_size);
    if (size == 0) {
        return insert(data, size, max_size, NULL, 1 + below(8));
    }
    len = len < size - at ? len : size - at;
    memcpy(copy, data + at, len);
    switch (below(7)) {
    case 0:
        data[at] ^= (uint8_t)(1u << below(8));
        return size;
    case 1:
        data[at] = odd[below(sizeof odd)];
        return size;
    case 2:
        return insert(data, size, max_size, NULL, 1 + below(8));
    case 3:
        memmove(data + at, data + at + len, size - at - len);
        return size - len;
    case 4:
        return insert(data, size, max_size, copy, len);
    case 5:
        memcpy(data + below(size - len + 1), copy, len);
        return size;
    default:
        at = below(other->size);
        return other->size == 0
                   ? size
                   : insert(data, size, max_size, other->data + at, 1 + below(other->size - at));
    }
}

static unsigned long mutate_for(unsigned seconds)
{
    size_t cap = GROWTH;
    unsigned long n = 0;
    for (size_t i = 0; i < ncorpus; i++) {
        cap = corpus[i].size + GROWTH > cap ? corpus[i].size + GROWTH : cap;
    }
    uint8_t *data = malloc(cap);
    kvb_assert(data != NULL);
    for (clock_t end = clock() + (clock_t)seconds * CLOCKS_PER_SEC; clock() < end; n++) {
        const struct input *from = &corpus[below(ncorpus)];
        size_t size = from->size;
        if (size > 0) {
            memcpy(data, from->data, size);
        }
        for (size_t left = 1 + below(MUTATIONS); left > 0; left--) {
            size = LLVMFuzzerCustomMutator != NULL
                       ? LLVMFuzzerCustomMutator(data, size, cap, (unsigned)splitmix_next(&state))
                       : LLVMFuzzerMutate(data, size, cap);
        }
        run(data, size);
    }
    free(data);
    return n;
}

int main(int argc, char **argv)
{
    int at = 1;
    unsigned seconds = 0;
    const char *seed = getenv("KVPLANE_SEED");
    state =
        seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    if (at < argc && isdigit((unsigned char)argv[at][0])) {
        seconds = (unsigned)strtoul(argv[at++], NULL, 10);
    }
    for (; at < argc; at++) {
        read_folder(argv[at]);
    }
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(keep);
    }
    (void)signal(SIGABRT, on_abort);
    (void)signal(SIGALRM, on_abort);
    for (size_t i = 0; i < ncorpus; i++) {
        run(corpus[i].data, corpus[i].size);
    }
    printf("replayed %zu files\n", ncorpus);
    if (ncorpus > 0 && seconds > 0) {
        printf("KVPLANE_SEED=%llu: ", (unsigned long long)state);
        (void)fflush(stdout);
        printf("%lu mutations of them\n", mutate_for(seconds));
    }
    for (size_t i = 0; i < ncorpus; i++) {
        free(corpus[i].data);
    }
    free(corpus);
    return ncorpus > 0 ? 0 : 1; /* an empty corpus shows nothing */
}
