// SPDX-License-Identifier: Apache-2.0
// node run.mjs recorded.mjs API FOLDER: every answer that a test has recorded (tests/integration/recording.py) in
// FOLDER is one that the contract in API promises.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Contract } from './contract.mjs';

const [api, folder] = process.argv.slice(2);
const contracts = { daemon: new Contract(join(api, 'openapi.yaml')), store: new Contract(join(api, 'openapi-store.yaml')) };
const MOST = 12; // words about one kind of answer
const broken = new Map(); // contract, request and status -> what is wrong, the first answer of it and how many there are
let answers = 0;

for (const file of existsSync(folder) ? readdirSync(folder) : []) {
    for (const line of readFileSync(join(folder, file), 'utf8').split('\n').filter(Boolean)) {
        const answer = JSON.parse(line);
        const wrong = contracts[answer.server].judge(answer);
        answers++;
        if (wrong.length) {
            const what = `${answer.server}: ${answer.method} ${answer.target?.split('?')[0]} ${answer.status}`;
            const entry = broken.get(what) ?? { first: answer, times: 0, wrong: new Set() };
            entry.times++;
            wrong.forEach((word) => entry.wrong.add(word.replace(/\/\d+/g, '/N')));
            broken.set(what, entry);
        }
    }
}
for (const [what, { first, times, wrong }] of broken) {
    console.log(`${what}\n    ${[...wrong].slice(0, MOST).join('\n    ')}\n    ${times} times, first in ${first.test}: ${first.target}\n    ${first.body?.slice(0, 800)}`);
}
console.log(`${answers} different answers, ${broken.size} of which the contract does not know`);
process.exitCode = broken.size ? 1 : 0;
if (answers === 0) {
    console.log('SKIP: contract: the tests that ran have recorded nothing');
    process.exitCode = 77;
}
