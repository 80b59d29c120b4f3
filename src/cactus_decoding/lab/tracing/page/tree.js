/* drawCactusTree: the tree of one step's proposals, with the path that was kept. Plain JavaScript, no dependencies.
 *
 *   drawCactusTree(parent, nodes, options)  appends a picture to an element and returns it; its style is in answer.css.
 *     nodes     the step's proposals, parents before their children: objects with the fields of TracedNode
 *     options   next      {token, fate} that was drawn after the path, or null
 *               selected  how many kept tokens stand before the one that is looked at, or null
 *
 * Time runs from left to right; what was drawn from the draft's row has a round end, what is fixed has corners. Everything
 * is written as text, never as markup, whatever the tokens are.
 */
"use strict";

(function (scope) {
  const { draw, visible } = scope.CactusWriting;
  const COLUMN = 92, ROW = 22, BOX = 72, HIGH = 17, EDGE = 8, LETTERS = 9;
  const KEPT = new Set(["accepted", "relaxed", "matched"]);

  /* Where each node stands: leaves one below the other, and the others in the middle of their children. */
  function places(nodes) {
    const children = nodes.map(() => []), first = [], found = [];
    nodes.forEach((node, i) => (node.parent < 0 ? first : children[node.parent]).push(i));
    let row = 0;
    const put = (at, depth) => {
      const below = at < 0 ? first : children[at];
      const rows = below.map((child) => put(child, depth + 1));
      const y = rows.length ? (rows[0] + rows[rows.length - 1]) / 2 : row++;
      if (at >= 0) found[at] = { x: depth, y };
      return y;
    };
    return { root: { x: 0, y: put(-1, 0) }, found, rows: Math.max(row, 1) };
  }

  function shortened(text) {
    const letters = [...text];
    return letters.length > LETTERS ? letters.slice(0, LETTERS - 1).join("") + "…" : text;
  }

  function describe(node) {
    const kind = node.drawn ? "drawn" : "fixed";
    const draft = node.draft_prob === null || node.draft_prob === undefined ? "" : `, draft ${(100 * node.draft_prob).toFixed(1)} %`;
    const nats = Number(node.nats) > 0 ? `, ${Number(node.nats).toFixed(4)} nats` : "";
    return kind + draft + (node.fate ? `, ${node.fate} by ${node.rule}${nats}` : ", not judged");
  }

  function drawCactusTree(parent, nodes, { next = null, selected = null } = {}) {
    const { root, found, rows } = places(nodes);
    const depthOf = (i) => found[i].x;
    const kept = nodes.map((node, i) => i).filter((i) => KEPT.has(nodes[i].fate)).sort((a, b) => depthOf(a) - depthOf(b));
    const last = kept.length ? found[kept[kept.length - 1]] : root;
    const depth = Math.max(...found.map((place) => place.x), next ? last.x + 1 : 0);
    const leaf = kept.length > 0 && !nodes.some((node) => node.parent === kept[kept.length - 1]);
    const width = EDGE * 2 + 14 + depth * COLUMN, height = EDGE * 2 + (rows + (next && !leaf ? 1 : 0)) * ROW;
    const said = kept.map((i) => visible(nodes[i].token)).join(" ");
    const summary = `Tree of ${nodes.length} proposals; kept: ${said || "none"}` + (next ? `; then ${visible(next.token)}` : "");
    const svg = draw(parent, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary, class: "ca-tree" });
    const left = (place) => (place.x === 0 ? EDGE : EDGE + 14 + (place.x - 1) * COLUMN + (COLUMN - BOX));
    const middle = (place) => EDGE + place.y * ROW + ROW / 2;
    const end = (place) => (place.x === 0 ? EDGE + 8 : left(place) + BOX);
    const edge = (from, to, className) => {
      const [x1, y1, x2, y2] = [end(from), middle(from), left(to), middle(to)], bend = (x1 + x2) / 2;
      draw(svg, "path", { d: `M${x1} ${y1}C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`, class: className });
    };
    const box = (place, text, title, className, round) => {
      const group = draw(svg, "g", { class: className });
      draw(group, "title", {}, title);
      draw(group, "rect", { x: left(place), y: middle(place) - HIGH / 2, width: BOX, height: HIGH, rx: round ? HIGH / 2 : 2 });
      draw(group, "text", { x: left(place) + BOX / 2, y: middle(place) + 3.5, "text-anchor": "middle" }, shortened(visible(text).replace(/\n/g, "↵")));
    };
    nodes.forEach((node, i) => {
      if (!KEPT.has(node.fate)) edge(node.parent < 0 ? root : found[node.parent], found[i], "ca-branch");
    });
    kept.forEach((i) => edge(nodes[i].parent < 0 ? root : found[nodes[i].parent], found[i], `ca-branch ca-path ca-${nodes[i].fate}`));
    draw(svg, "circle", { cx: EDGE + 4, cy: middle(root), r: 4, class: "ca-root" });
    nodes.forEach((node, i) => {
      const here = selected !== null && kept[selected] === i ? " ca-at" : "";
      const fate = KEPT.has(node.fate) ? ` ca-${node.fate}` : node.fate === "rejected" ? " ca-rejected" : "";
      box(found[i], node.token, describe(node), `ca-node${fate}${here}`, node.drawn);
    });
    if (next) { // where proposals follow the same token, below everything, so that it hides none
      const place = { x: last.x + 1, y: leaf ? last.y : rows };
      edge(last, place, `ca-branch ca-path ca-${next.fate}`);
      box(place, next.token, next.fate, `ca-node ca-next ca-${next.fate}${selected === kept.length ? " ca-at" : ""}`, true);
    }
    return svg;
  }

  scope.drawCactusTree = drawCactusTree;
})(typeof window === "undefined" ? globalThis : window);
