// What the form holds, as text: for the tab, so that reloading keeps it, and for a link, so that others have it too.
// It stands behind the # of an address, which browsers send to no server.

const KEPT = "cactus-play";

/** Return the text of a form's values and rules: names and values as in the query of an address. */
export function toText(values, rules) {
  const pairs = new URLSearchParams(rules.map((rule) => ["rule", rule]));
  for (const [name, value] of Object.entries(values)) pairs.append(name, value);
  return pairs.toString();
}

/** Return {values, rules, problems} of a text: what is named twice is a problem, and the first one counts. */
export function fromText(text) {
  const pairs = new URLSearchParams(text);
  const rules = pairs.getAll("rule");
  pairs.delete("rule");
  const values = {}, problems = [];
  for (const [name, value] of pairs) {
    if (Object.hasOwn(values, name)) problems.push(`${name} stands there twice`);
    else values[name] = value;
  }
  return { values, rules, problems };
}

/** Return the text behind the # of this page's address, and take it away: it is the form that counts from now on. */
export function takeFromAddress() {
  const text = location.hash.slice(1);
  if (text) history.replaceState(null, "", location.pathname);
  return text;
}

export const addressOf = (text) => `${location.origin}${location.pathname}#${text}`;

/** Keep the text for this tab. */
export function keep(text) {
  try {
    sessionStorage.setItem(KEPT, text);
  } catch {
    // a browser that keeps nothing: reloading begins anew
  }
}

/** Return what this tab keeps, or nothing. */
export function kept() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

/** Copy a link; return what to tell the reader. */
export async function copy(address) {
  try {
    await navigator.clipboard.writeText(address);
    return "The link is copied: it holds the prompt and all settings.";
  } catch { // not allowed, or not a secure context
    history.replaceState(null, "", address);
    return "The browser does not let this page copy: the link is in the address bar now.";
  }
}
