// Numbers with their units. Every function takes a number or null and returns text.

const NONE = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// Three significant digits below 1000.
function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return Math.round(value).toString();
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, step, units, from = 0) {
  let index = from;
  let rest = value;
  while (Math.abs(rest) >= step * 0.9995 && index < units.length - 1) {
    rest /= step;
    index += 1;
  }
  return [rest, units[index]];
}

// 12345678 -> "12.3 M"
export function count(value) {
  if (!known(value)) return NONE;
  const [rest, unit] = scaled(value, 1000, ["", "k", "M", "G", "T"]);
  return `${unit === "" ? (Number.isInteger(rest) ? rest : digits(rest)) : digits(rest)}${
    unit === "" ? "" : ` ${unit}`}`;
}

// All digits, in groups.
export function exact(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : NONE;
}

export function rate(value) {
  return known(value) ? `${count(Math.abs(value) < 10 ? value : Math.round(value))}/s` : NONE;
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (!known(value)) return NONE;
  const [rest, unit] = scaled(value, 1024, BINARY);
  return `${unit === "B" ? Math.round(rest) : digits(rest)} ${unit}`;
}

export function bytesPerSecond(value) {
  return known(value) ? `${bytes(value)}/s` : NONE;
}

export function latency(us) {
  if (!known(us)) return NONE;
  const [rest, unit] = scaled(us, 1000, ["µs", "ms", "s"]);
  return `${digits(rest)} ${unit}`;
}

export function percent(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  // 99.97 must not be shown as 100.
  const places = size > 99 && size < 100 ? 2 : 1;
  return `${Number.isInteger(value) ? value : value.toFixed(places)} %`;
}

export function seconds(value) {
  if (!known(value)) return NONE;
  const whole = Math.floor(value);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

export function when(unixSeconds) {
  return known(unixSeconds) ? new Date(unixSeconds * 1000).toLocaleString() : "never";
}

export function factor(value) {
  if (!known(value)) return NONE;
  return `${value >= 10 ? Math.round(value) : value.toFixed(1)} times`;
}
