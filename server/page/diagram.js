// SPDX-License-Identifier: Apache-2.0
// Where an instance is in its life, in a word and in a picture.

import { s } from "./dom.js";

/*
 * What each state is called, what its mark is (drawn beside the word, so that nothing hangs on
 * colour), and which tone it has.
 */
export const STATES = {
  awake: { text: "awake", tone: "good" },
  pausing: { text: "pausing", tone: "busy" },
  paused: { text: "paused", tone: "held" },
  draining: { text: "draining", tone: "busy" },
  sleeping: { text: "going to sleep", tone: "busy" },
  asleep: { text: "asleep", tone: "rest" },
  waking: { text: "waking", tone: "busy" },
  disconnected: { text: "disconnected", tone: "bad" },
  degraded: { text: "degraded", tone: "bad" },
};

const TO_SLEEP = ["sleep", "release_kv_cache_memory", "release_memory_occupation"];
const RELEASING = ["unregister", "offload", "release"];

/** One of STATES, of an instance's document. */
export function stateOf(instance) {
  const step = instance.operation?.step;
  const doing = instance.operation?.operation;

  if (!instance.attached) {
    return "disconnected";
  }
  if (doing === "wake" || step === "restore") {
    return "waking";
  }
  if (TO_SLEEP.includes(doing) && RELEASING.includes(step)) {
    return "sleeping";
  }
  if (TO_SLEEP.includes(doing) && step === "drain") {
    return "draining";
  }
  if (instance.scheduler === "pausing" || (step === "pause" && doing !== "resume")) {
    return "pausing";
  }
  if (instance.degraded) {
    return "degraded";
  }
  if (Object.values(instance.tags).some((residency) => residency !== "resident")) {
    return "asleep";
  }
  return instance.scheduler === "running" ? "awake" : "paused";
}

/** What a state leaves open. */
export function aside(instance) {
  const tags = Object.values(instance.tags);
  const away = tags.filter((residency) => residency !== "resident").length;
  const by = instance.stopped_by.filter((one) => one !== "degraded").map((one) => one.replaceAll("_", " "));
  const parts = [];
  if (away > 0 && away < tags.length) {
    parts.push("in part");
  }
  if (by.length > 0) {
    parts.push(`stopped by ${by.join(" and ")}`);
  }
  return parts.join(", ");
}

// The way down on the left, the way up on the right below.
const W = 372;
const ROW = 16;
const PLACES = {
  awake: [26, ROW],
  pausing: [90, ROW],
  paused: [154, ROW],
  draining: [218, ROW],
  sleeping: [282, ROW],
  asleep: [346, ROW],
  waking: [186, ROW + 42],
};

function arrow(x, y) {
  return s("path", { class: "tip", d: `M${x - 5},${y - 3.5}L${x},${y}L${x - 5},${y + 3.5}` });
}

/** The picture; the word stands beside it. */
export function diagram(name, state) {
  const order = ["awake", "pausing", "paused", "draining", "sleeping", "asleep"];
  const lit = PLACES[state] ? state : null;
  const marks = [];
  for (let i = 0; i + 1 < order.length; i++) {
    const from = PLACES[order[i]];
    const to = PLACES[order[i + 1]];
    marks.push(s("path", { class: "way", d: `M${from[0] + 13},${ROW}H${to[0] - 14}` }), arrow(to[0] - 13, ROW));
  }
  const [wx, wy] = PLACES.waking;
  marks.push(
    s("path", { class: "way", d: `M346,${ROW + 26}Q346,${wy} 330,${wy}H${wx + 14}` }),
    s("path", { class: "tip", d: `M${wx + 18},${wy - 3.5}L${wx + 13},${wy}L${wx + 18},${wy + 3.5}` }),
    s("path", { class: "way", d: `M${wx - 13},${wy}H42Q26,${wy} 26,${ROW + 26}` }),
    s("path", { class: "tip", d: `M22.5,${ROW + 31}L26,${ROW + 26}L29.5,${ROW + 31}` }),
  );
  for (const [place, [x, y]] of Object.entries(PLACES)) {
    const on = place === lit;
    marks.push(s("g", { class: on ? `place lit tone-${STATES[place].tone}` : "place" },
      on && s("circle", { class: "halo", cx: x, cy: y, r: 11 }),
      s("circle", { cx: x, cy: y, r: on ? 7 : 5 }),
      s("text", { x, y: place === "waking" ? y + 18 : y + 21, "text-anchor": "middle" }, place)));
  }
  return s("svg", {
    class: lit ? "life" : "life none", viewBox: `0 0 ${W} 82`, role: "img",
    "aria-label": `Life of ${name}: awake, pausing, paused, draining, sleeping, asleep, waking; now ${STATES[state].text}`,
  }, marks);
}

const MARKS = {
  good: "M3.5 8.5l3 3 6-7",
  held: "M5.5 4v8M10.5 4v8",
  rest: "M12.5 9.6A5 5 0 1 1 6.4 3.5a4.2 4.2 0 0 0 6.1 6.1z",
  busy: "M8 3a5 5 0 1 0 5 5M8 1v4l3-2z",
  bad: "M8 3.5v5.5M8 11.6v.9",
  none: "M4 8h8",
};

/** The mark of a tone, beside a word. */
export function mark(tone) {
  return s("svg", { class: `mark tone-${tone}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    s("path", { d: MARKS[tone] }));
}
