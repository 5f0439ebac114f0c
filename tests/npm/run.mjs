// SPDX-License-Identifier: Apache-2.0
// node run.mjs TEST ARGS…: runs tests/npm/TEST, or skips it, visibly, where `./dev test` has not installed what it uses.
import { existsSync } from 'node:fs';

const [test] = process.argv.splice(2, 1);
if (existsSync(new URL('node_modules/.installed', import.meta.url))) {
    process.argv[1] = test;
    await import(new URL(test, import.meta.url));
} else {
    console.log(`SKIP: ${test}: what it uses from npm is not installed (./dev test installs it)`);
    process.exit(77);
}
