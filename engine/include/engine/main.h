/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MAIN_H
#define ENGINE_MAIN_H

#include <stddef.h>

/*
 * The two subcommands of this layer. argv[0] is the subcommand's name; the return value is the
 * process's exit code: 0 done, 1 failed, 2 a bad command line.
 *
 * `kvplane engine` attaches to a daemon and idles, or replays a trace, until SIGINT or SIGTERM.
 * `kvplane rehearse` plays an RL run with a daemon and two engines, and judges every byte read.
 */
int kve_engine_main(int argc, char **argv);
int kve_rehearse_main(int argc, char **argv);

/* Their command lines as tables, from which they are read and help is made. */
struct kve_option {
    const char *name;     /* without the dashes */
    const char *value;    /* what its value is called; NULL: it has none */
    const char *standard; /* its default, in words; "" = none worth saying */
    const char *what;
};
const struct kve_option *kve_engine_options(size_t *n_p);
const struct kve_option *kve_rehearse_options(size_t *n_p);

#endif
