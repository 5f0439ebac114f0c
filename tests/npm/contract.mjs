// SPDX-License-Identifier: Apache-2.0
// A REST contract (api/openapi*.yaml) as a judge of answers, by ajv, which npm's other validators of responses use too
// but which they do not let be strict: a member of an answer that the contract does not name is a fault of one of them.
// So every schema is compiled with `unevaluatedProperties: false` at each object whose `additionalProperties` the
// contract leaves unsaid.
import { readFileSync } from 'node:fs';
import Ajv from 'ajv/dist/2019.js';
import addFormats from 'ajv-formats';
import { parse } from 'yaml';

// What any answer may carry without being named for its response; info.description speaks of the first ones.
const EVERYWHERE = new Set(['content-type', 'content-length', 'x-request-id', 'date', 'connection', 'keep-alive',
    'transfer-encoding']);
const IN_PLACE = ['allOf', 'anyOf', 'oneOf'];
const METHODS = ['get', 'post', 'put', 'delete', 'patch', 'head', 'options'];

export class Contract {
    constructor(file) {
        this.document = parse(readFileSync(file, 'utf8'));
        this.ajv = new Ajv({ strict: true, strictTypes: false, strictRequired: false, allErrors: true });
        addFormats(this.ajv);
        this.ajv.addVocabulary(['example', 'x-statuses', 'x-event']);
        this.compiled = new Map();
        this.operations = [];
        for (const [path, methods] of Object.entries(this.document.paths)) {
            for (const method of METHODS.filter((m) => methods[m])) {
                const pattern = path.replace(/[.*+?^$()|[\]\\]/g, '\\$&').replace(/\{[^}]+\}/g, '([^/]+)');
                this.operations.push({ path, method: method.toUpperCase(), id: methods[method].operationId,
                    spec: methods[method], pattern: new RegExp(`^${pattern}/?$`) });
            }
        }
    }

    // What a $ref names, or the thing itself.
    resolve(thing) {
        while (thing?.$ref) {
            thing = thing.$ref.slice(2).split('/').reduce((at, name) => at[name.replace(/~1/g, '/')], this.document);
        }
        return thing;
    }

    // The operations of a path, whatever their method; of one that fits exactly, those alone.
    at(path) {
        const fitting = this.operations.filter((o) => o.pattern.test(path));
        const exact = fitting.filter((o) => !o.path.includes('{'));
        return exact.length ? exact : fitting;
    }

    // The schema with nothing left to other members; inPlace: where a schema around it says so.
    #strict(schema, inPlace = false) {
        const { $ref: _, ...copy } = this.resolve(schema);
        for (const word of IN_PLACE) {
            if (copy[word]) {
                copy[word] = copy[word].map((s) => this.#strict(s, inPlace || word === 'allOf'));
            }
        }
        if (copy.properties) {
            copy.properties = Object.fromEntries(Object.entries(copy.properties).map(([k, v]) => [k, this.#strict(v)]));
        }
        for (const word of ['items', 'additionalProperties']) {
            if (copy[word] && typeof copy[word] === 'object') {
                copy[word] = this.#strict(copy[word]);
            }
        }
        const choice = copy.anyOf || copy.oneOf;
        const object = copy.type === 'object' || copy.properties || copy.allOf;
        if (object && !inPlace && !choice && copy.additionalProperties === undefined) {
            copy.unevaluatedProperties = false;
        }
        return copy;
    }

    // Words about what is wrong with value, none if nothing is.
    fits(schema, value, what) {
        if (!this.compiled.has(schema)) {
            this.compiled.set(schema, this.ajv.compile(this.#strict(schema)));
        }
        const validate = this.compiled.get(schema);
        return validate(value) ? [] : validate.errors.map((e) =>
            `${what}${e.instancePath} ${e.message}${e.params.unevaluatedProperty ? ` (${e.params.unevaluatedProperty})` : ''}`);
    }

    // The response of an operation that stands for a status: its own, else the default where that names the status.
    response(operation, status) {
        const own = this.resolve(operation.spec.responses[status]);
        if (own) {
            return own;
        }
        const rest = this.resolve(operation.spec.responses.default);
        return rest?.['x-statuses']?.includes(status) ? rest : undefined;
    }

    // The statuses that an operation names, each with what its JSON is.
    jsonAnswers(operation) {
        return Object.keys(operation.spec.responses).filter((status) => status !== 'default')
            .map((status) => [Number(status), this.response(operation, status).content?.['application/json']])
            .filter(([, media]) => media);
    }

    // The examples beside a schema.
    examples({ example, examples = {} }) {
        return [...(example === undefined ? [] : [example]), ...Object.values(examples).map((e) => this.resolve(e).value)];
    }

    // Words about what is wrong with an answer as tests/integration/recording.py writes it down.
    judge({ method, target, status, headers, id, body, length, whole }) {
        const wrong = [];
        const path = target === null ? null : decode(target.split(/[?#]/)[0]);
        const here = path === null ? [] : this.at(path);
        const operation = here.find((o) => o.method === (method === 'HEAD' ? 'GET' : method));
        let response;
        if (operation) {
            response = this.response(operation, status);
            if (!response) {
                return [`${operation.id}: status ${status} is not documented`];
            }
        } else {
            response = this.resolve(this.document.components.responses.Error);
            const refused = here.length ? [405] : [404];
            if (!(path !== null && refused.includes(status)) && !response['x-statuses'].includes(status)) {
                return [`no operation, and status ${status}`];
            }
            if (path !== null && status === (here.length ? 404 : 405)) {
                return [`${here.length ? 'a method' : 'a route'} that is not there, and status ${status}`];
            }
        }
        if (status === 405 && headers.allow === undefined) {
            wrong.push('no Allow');
        }
        if (!id) {
            wrong.push('no X-Request-Id');
        }
        const documented = Object.entries(response.headers ?? {}).map(([name, h]) => [name.toLowerCase(), this.resolve(h)]);
        for (const [name, header] of documented) {
            if (headers[name] === undefined) {
                if (header.required) {
                    wrong.push(`header ${name} is missing`);
                }
            } else {
                const type = header.schema.type;
                const value = type === 'integer' || type === 'number' ? Number(headers[name]) : headers[name];
                wrong.push(...this.fits(header.schema, value, `header ${name}`));
            }
        }
        for (const name of Object.keys(headers)) {
            if (!EVERYWHERE.has(name) && !documented.some(([n]) => n === name)) {
                wrong.push(`header ${name} is not documented`);
            }
        }
        const stream = headers['content-type']?.startsWith('text/event-stream');
        if (!stream && headers['content-length'] === undefined && status !== 304) {
            wrong.push('no Content-Length');
        }
        if (method === 'HEAD' && length) {
            wrong.push('a body for HEAD');
        }
        const type = (headers['content-type'] ?? '').split(';')[0];
        if (!response.content) {
            return length ? [...wrong, 'a body where none is documented'] : wrong;
        }
        const media = response.content[type];
        if (!media) {
            return [...wrong, `content type ${type || 'absent'}, documented: ${Object.keys(response.content)}`];
        }
        if (method === 'HEAD' || body === null) {
            return wrong;
        }
        if (stream) {
            return [...wrong, ...this.#stream(media, body)];
        }
        if (!whole || type !== 'application/json') {
            return wrong;
        }
        return [...wrong, ...this.#json(media.schema, body, 'body')];
    }

    #json(schema, text, what) {
        let value;
        try {
            value = JSON.parse(text);
        } catch (error) {
            return [`${what} is not JSON: ${error.message}`];
        }
        return this.fits(schema, value, what);
    }

    // Every whole event of a stream; what its data is stands beside the media type, as x-event.
    #stream(media, text) {
        const wrong = [];
        for (const event of text.split('\n\n').slice(0, -1)) {
            const data = [];
            for (const line of event.split('\n')) {
                const [, name, value] = /^([a-z]*): ?(.*)$/.exec(line) ?? [];
                if (name === 'data') {
                    data.push(value);
                } else if (!['id', 'event', 'retry', ''].includes(name)) {
                    wrong.push(`a stream's line \`${line}\``);
                }
            }
            if (data.length) {
                wrong.push(...this.#json(media['x-event'], data.join('\n'), 'event'));
            }
        }
        return wrong;
    }
}

function decode(path) {
    try {
        return decodeURIComponent(path);
    } catch {
        return path;
    }
}
