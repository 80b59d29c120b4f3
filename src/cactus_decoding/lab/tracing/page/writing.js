/* What the parts of a page with answers share: elements, and numbers and tokens as text that can do no harm. */
"use strict";

(function (scope) {
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function draw(parent, tag, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  function numberOf(value) {
    if (value === "inf") return Infinity;
    if (value === "-inf") return -Infinity;
    return value === null || value === undefined || value === "nan" ? NaN : Number(value);
  }

  /* Control characters as pictures, so that a token can neither hide nor command anything. */
  function visible(text) {
    return text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/[\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  }

  function quoted(text) {
    return "“" + visible(text).replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") + "”";
  }

  function percent(value) {
    const number = numberOf(value);
    if (Number.isNaN(number)) return "–";
    const part = 100 * number;
    if (part === 0 || part >= 99.995) return Math.round(part) + "\u00a0%";
    if (part < 0.01) return part.toExponential(0).replace(/e-(\d+)/, (_, power) => "·10⁻" + superscript(power)) + "\u00a0%";
    return (part < 1 ? part.toFixed(2) : part.toFixed(1)) + "\u00a0%";
  }

  function share(value) {
    const number = numberOf(value);
    return number > 0 && number < 0.0001 ? "< 0.01\u00a0%" : percent(number);
  }

  function superscript(text) {
    return text.replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  }

  function nats(value) {
    const number = numberOf(value);
    if (Number.isNaN(number)) return "–";
    if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
    if (number === 0) return "0";
    if (Math.abs(number) < 0.0001) return number < 0 ? "−0.0001" : "< 0.0001";
    return number.toFixed(Math.abs(number) < 10 ? 4 : 2);
  }

  scope.CactusWriting = { make, draw, numberOf, visible, quoted, percent, share, nats };
})(typeof window === "undefined" ? globalThis : window);
