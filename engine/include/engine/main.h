/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MAIN_H
#define ENGINE_MAIN_H

/*
 * The two subcommands of this layer. argv[0] is the subcommand's name; the return value is the
 * process's exit code: 0 done, 1 failed, 2 a bad command line.
 *
 * `kvplane engine` attaches to a daemon and idles, or replays a trace, until SIGINT or SIGTERM.
 * `kvplane rehearse` plays an RL run with a daemon and two engines, and judges every byte read.
 */
int kve_engine_main(int argc, char **argv);
int kve_rehearse_main(int argc, char **argv);

#endif
