// SPDX-License-Identifier: Apache-2.0
// Numbers and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(n) {
  if (typeof n !== "number" || !Number.isFinite(n)) {
    return "–";
  }
  let unit = 0;
  while (n >= 1024 && unit < UNITS.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : Number(n.toFixed(1))} ${UNITS[unit]}`;
}

export function count(n, one, many = `${one}s`) {
  return `${n} ${n === 1 ? one : many}`;
}

/** A length of time, ms. */
export function span(ms) {
  if (typeof ms !== "number" || !Number.isFinite(ms)) {
    return "–";
  }
  if (ms < 1000) {
    return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  }
  const s = ms / 1000;
  if (s < 60) {
    return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  }
  const whole = Math.round(s);
  return whole < 3600 ? `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`
    : `${Math.floor(whole / 3600)} h ${Math.round(whole % 3600 / 60)} min`;
}

/** Time of day of Unix ms. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

export function percent(part, whole) {
  return whole > 0 ? Math.min(100, Math.max(0, 100 * part / whole)) : 0;
}

/** A long name (a lineage, a fingerprint) cut in its middle. */
export function short(text, max = 28) {
  return text.length <= max ? text : `${text.slice(0, max - 9)}…${text.slice(-8)}`;
}
