// SPDX-License-Identifier: Apache-2.0
// The REST API, as a page calls it: a token in the Authorization header, so that no other page can
// make the browser send it, and the event stream by fetch, since EventSource sends no header.

const ANSWER_MS = 10000;
const SILENT_MS = 25000; // the daemon says every few seconds that it lives
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15000];
const EVENT_MAX = 64 * 1024; // bytes of one event
const TOKEN_KEY = "kvplane-token";

/** The daemon's own word on why it was not done. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? `the answer was ${status}`);
    this.status = status;
    this.body = body;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN_KEY) ?? "",
  set: (text) => {
    if (text === "") {
      sessionStorage.removeItem(TOKEN_KEY);
    } else {
      sessionStorage.setItem(TOKEN_KEY, text);
    }
  },
};

function headers(more) {
  const text = token.get();
  return text === "" ? more : { ...more, Authorization: `Bearer ${text}` };
}

async function call(method, path, { signal, prefer } = {}) {
  const signals = signal ? [signal] : [];
  if (method === "GET") {
    signals.push(AbortSignal.timeout(ANSWER_MS)); // a verb has its own bounds, at the daemon
  }
  const answer = await fetch(path, {
    method,
    cache: "no-store",
    credentials: "omit",
    headers: headers(prefer ? { Accept: "application/json", Prefer: prefer } : { Accept: "application/json" }),
    signal: AbortSignal.any(signals),
  });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) {
    throw new Refused(answer.status, body);
  }
  return { status: answer.status, body };
}

export const get = async (path, signal) => (await call("GET", path, { signal })).body;
export const post = (path, signal) => call("POST", path, { signal, prefer: "respond-async" });

/** All pages of a list, up to max entries; {list, more}. */
export async function list(path, member, max, signal) {
  const all = [];
  let cursor = null;
  do {
    const page = await get(cursor === null ? path : `${path}?cursor=${encodeURIComponent(cursor)}`, signal);
    all.push(...page[member]);
    cursor = page.next ?? null;
  } while (cursor !== null && all.length < max);
  return { list: all.slice(0, max), more: cursor !== null || all.length > max };
}

/** Server-sent events in text that comes in pieces; add() gives those that are whole. */
export class EventReader {
  #text = "";

  add(piece) {
    const events = [];
    this.#text += piece;
    for (let end = this.#text.indexOf("\n\n"); end >= 0; end = this.#text.indexOf("\n\n")) {
      const event = EventReader.#parse(this.#text.slice(0, end));
      this.#text = this.#text.slice(end + 2);
      if (event !== null) {
        events.push(event);
      }
    }
    if (this.#text.length > EVENT_MAX) {
      throw new Error("an event without an end");
    }
    return events;
  }

  static #parse(text) {
    const data = text.split("\n").filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(5).trimStart()).join("\n");
    if (data === "") {
      return null; // a sign of life
    }
    try {
      return JSON.parse(data);
    } catch {
      return null;
    }
  }
}

/**
 * The event stream, for as long as it runs: on.event(event) for each, on.state(state) with
 * {is: "connecting" | "live" | "away" | "refused", since, again} whenever that changes.
 */
export class Stream {
  #on;
  #stop = null;
  #wake = () => {};
  #last = 0; // id of the last event; those of a daemon's successor are larger
  #tries = 0;
  #since = 0; // when it was lost, Unix ms; 0: it is not

  constructor(on) {
    this.#on = on;
  }

  start() {
    if (this.#stop === null) {
      this.#stop = new AbortController();
      this.#run(this.#stop.signal);
    }
  }

  stop() {
    this.#stop?.abort();
    this.#stop = null;
  }

  /** If it waits to try again: now. */
  now() {
    this.#tries = 0;
    this.#wake();
  }

  async #run(stopped) {
    while (!stopped.aborted) {
      this.#on.state({ is: this.#since > 0 ? "away" : "connecting", since: this.#since, again: 0 });
      try {
        await this.#read(stopped);
      } catch (error) {
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.stop();
          this.#on.state({ is: "refused", error });
          return;
        }
      }
      if (stopped.aborted) {
        return;
      }
      this.#since ||= Date.now();
      const wait = BACKOFF_MS[Math.min(this.#tries++, BACKOFF_MS.length - 1)] * (0.75 + Math.random() / 2);
      this.#on.state({ is: "away", since: this.#since, again: Date.now() + wait });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, wait);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
        stopped.addEventListener("abort", this.#wake, { once: true });
      });
      this.#wake = () => {};
    }
  }

  async #read(stopped) {
    const silent = new AbortController();
    const signal = AbortSignal.any([stopped, silent.signal]);
    let watch = setTimeout(() => silent.abort(), SILENT_MS);
    try {
      const answer = await fetch("/v1/kvplane/events", {
        cache: "no-store",
        credentials: "omit",
        headers: headers({ Accept: "text/event-stream", "Last-Event-ID": String(this.#last) }),
        signal,
      });
      if (!answer.ok) {
        throw new Refused(answer.status, await answer.json().catch(() => null));
      }
      this.#tries = 0;
      this.#since = 0;
      this.#on.state({ is: "live" });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const events = new EventReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        clearTimeout(watch);
        watch = setTimeout(() => silent.abort(), SILENT_MS);
        for (const event of events.add(value)) {
          if (event.id !== undefined) {
            this.#last = event.id;
          }
          this.#on.event(event);
        }
      }
    } finally {
      clearTimeout(watch);
      silent.abort();
    }
  }
}
