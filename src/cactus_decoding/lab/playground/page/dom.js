// Small helpers that build the page: whatever is shown goes in as text, never as markup.

/** Return a new element: attributes starting with "on" are listeners, true and false set or leave out an attribute. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a new SVG element. */
export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return text in which ``words`` between backquotes are shown as code, as a list of nodes. */
export function withCode(text) {
  return text.split(/`{1,2}([^`]+)`{1,2}/).map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

/** Return a sentence that begins with a capital letter and names nothing of Python. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Return a number with few digits, as people write it; an en dash for what is missing. */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

/** Whether a text is a value, as a word or as a number. */
export const spells = (value, text) => String(value) === text || (value !== null && Number(value) === Number(text));

/** Return a probability in percent. */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${short(100 * value)} %`;
}

/** Return a number from the server, where the infinite ones are words. */
export function numberOf(value) {
  if (value === "inf" || value === "-inf") return value === "inf" ? Infinity : -Infinity;
  return value === null || value === undefined ? NaN : Number(value);
}

/** Return text as it stands within a sentence, cut where it is long. */
export function quote(text) {
  return `“${text.length > 60 ? `${text.slice(0, 60)}…` : text}”`;
}

/** Return a token's text in quotation marks, with its ends and line breaks to be seen. */
export function quoted(text) {
  return make("q", { class: "literal" }, text.replaceAll("\n", "↵").replace(/^ | $/g, "␣"));
}

/** Return nats as people read them: what is less than any budget tells is not spelled out. */
export function nats(value) {
  return value > 0 && value < 1e-4 ? "< 0.0001" : short(value);
}

let count = 0;

/** Return an id that nothing else on the page has. */
export function freshId(stem) {
  count += 1;
  return `${stem}-${count}`;
}
