/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_EXPLORE_MAIN_H
#define TESTS_EXPLORE_MAIN_H

#include "search.h"

/* A part of what is explored: how much of each may happen is the program's own business. */
struct explore_lens {
    const char *name;
    uint32_t depth; /* without --depth; 0: to the end */
};

/* What a program explores: its own lenses each begin with a struct explore_lens. main() is here:
 * the arguments, every lens (or the one named), its line, and the exit status, 0 if nothing was
 * found. */
struct explore {
    const struct search_model *model;
    const struct explore_lens *lenses; /* the first */
    size_t lens_bytes;
    uint32_t nlenses;
    void (*create)(const struct explore_lens *lens); /* its first state */
};
extern const struct explore explore;

#endif
