/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_EXPLORE_MAIN_H
#define TESTS_EXPLORE_MAIN_H

#include "search.h"

/* A part of what is explored: how much of each may happen is the program's own business. */
struct explore_lens {
    const char *name;
    uint32_t depth; /* without --depth */
};

/* The arguments, every lens (or the one named), its line, and the exit status: 0 if nothing was
 * found. choose makes the first state of a lens. */
int explore_main(int argc, char **argv, const struct search_model *model,
                 const struct explore_lens *lenses, uint32_t nlenses,
                 void (*choose)(uint32_t index));

#endif
