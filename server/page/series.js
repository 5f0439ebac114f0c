// SPDX-License-Identifier: Apache-2.0
// An instance's memory over time, kept in the page: a sample a second at most, for WINDOW_MS. The
// graph begins with a minute and grows to all of it.

import { h, s } from "./dom.js";
import { bytes, span } from "./format.js";

const WINDOW_MS = 10 * 60 * 1000;
const FIRST_MS = 60 * 1000;
const SAMPLES_MAX = 600;
const W = 240;
const H = 40;

/*
 * What is registered is awake. What the engine would have awake in all is only known from when it
 * had: the last time that every tag was resident and nothing was being done to it.
 */
export class Memory {
  samples = []; // {at, awake, asleep}
  all = null;

  add(instance, now) {
    const tags = Object.values(instance.tags);
    const awake = instance.regions?.bytes ?? 0;
    if (instance.attached && !instance.operation && tags.every((residency) => residency === "resident")) {
      this.all = awake;
    }
    const asleep = instance.attached && this.all !== null ? Math.max(0, this.all - awake) : 0;
    const last = this.samples.at(-1);
    if (last && now - last.at < 1000 && last.awake === awake && last.asleep === asleep) {
      return;
    }
    this.samples.push({ at: now, awake, asleep });
    while (this.samples.length > SAMPLES_MAX || this.samples[0].at < now - WINDOW_MS) {
      this.samples.shift();
    }
  }

  get last() {
    return this.samples.at(-1) ?? { awake: 0, asleep: 0 };
  }

  #width(now) {
    return Math.min(WINDOW_MS, Math.max(FIRST_MS, now - (this.samples[0]?.at ?? now)));
  }

  // Steps, not slopes: between two samples nothing is known to have changed.
  #area(now, top, value, below) {
    const x = (at) => (W - (now - at) * W / this.#width(now)).toFixed(1);
    const y = (n) => (H - n * (H - 2) / top).toFixed(1);
    const above = [];
    const back = [];
    for (let i = 0; i < this.samples.length; i++) {
      const end = this.samples[i + 1]?.at ?? now;
      const base = below(this.samples[i]);
      const n = base + value(this.samples[i]);
      above.push(`${x(this.samples[i].at)},${y(n)}`, `${x(end)},${y(n)}`);
      back.unshift(`${x(end)},${y(base)}`, `${x(this.samples[i].at)},${y(base)}`);
    }
    return `M${above.join("L")}L${back.join("L")}Z`;
  }

  graph(name, now) {
    const { awake, asleep } = this.last;
    const top = Math.max(1, ...this.samples.map((one) => one.awake + one.asleep));
    const text = `Memory of ${name}: ${bytes(awake)} awake, ${bytes(asleep)} asleep`;
    return h("figure", { class: "memory" },
      s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": text },
        s("line", { class: "base", x1: 0, x2: W, y1: H - 0.5, y2: H - 0.5 }),
        this.samples.length > 0 && [
          s("path", { class: "awake", d: this.#area(now, top, (one) => one.awake, () => 0) }),
          s("path", { class: "asleep", d: this.#area(now, top, (one) => one.asleep, (one) => one.awake) }),
        ]),
      h("figcaption", {},
        h("span", {}, h("i", { class: "key awake" }), `${bytes(awake)} awake`),
        h("span", {}, h("i", { class: "key asleep" }), this.all === null && awake === 0
          ? "asleep since before this page" : `${bytes(asleep)} asleep`),
        h("span", { class: "quiet" }, `last ${span(this.#width(now))}`)));
  }
}
