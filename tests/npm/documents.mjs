// SPDX-License-Identifier: Apache-2.0
// node run.mjs documents.mjs FILE…: each is a valid OpenAPI document, every $ref of which leads somewhere.
import { readFileSync } from 'node:fs';
import { Validator } from '@seriousme/openapi-schema-validator';

for (const file of process.argv.slice(2)) {
    const validator = new Validator();
    const { valid, errors } = await validator.validate(readFileSync(file, 'utf8'));
    if (!valid) {
        console.log(`${file}: not OpenAPI`, JSON.stringify(errors, null, 2));
        process.exitCode = 1;
        continue;
    }
    console.log(`${file}: OpenAPI ${validator.version}`);
}
