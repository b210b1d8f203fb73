// The prefix tree, lying on its side: width is tokens, shade is hits.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 16;

function treeRows(tree) {
  const count = tree.parent.length;
  const children = Array.from({ length: count }, () => []);
  const roots = [];
  for (let k = 0; k < count; k++) (tree.parent[k] < 0 ? roots : children[tree.parent[k]]).push(k);
  const top = new Array(count);
  const tall = new Array(count);
  const from = new Array(count);
  let next = 0;
  const place = (k, start) => {
    from[k] = start;
    top[k] = next;
    for (const child of children[k]) place(child, start + tree.tokens[k]);
    if (!children[k].length) next++;
    tall[k] = next - top[k];
  };
  roots.sort((a, b) => tree.hits[b] - tree.hits[a]);
  for (const k of roots) place(k, 0);
  return { top, tall, from, rows: next };
}

function drawTree(svg, tree, chosen, onChoose) {
  const { top, tall, from, rows } = treeRows(tree);
  const widest = Math.max(...tree.tokens.map((tokens, k) => from[k] + tokens), 1);
  const most = Math.max(...tree.hits, 1);
  svg.setAttribute("viewBox", `0 0 1000 ${rows * ROW}`);
  svg.setAttribute("height", rows * ROW);
  svg.replaceChildren();
  const background = pixel(css("--back"));
  tree.tokens.forEach((tokens, k) => {
    const bar = document.createElementNS(SVG, "rect");
    const colour = ramp(1 - Math.sqrt(tree.hits[k] / most), background);
    const text = `${tokens} tokens, ${tree.hits[k]} hits, ${tree.evictions[k]} blocks evicted`;
    const facts = {
      x: (1000 * from[k]) / widest, y: top[k] * ROW, width: Math.max(1, (1000 * tokens) / widest),
      height: tall[k] * ROW - 1, tabindex: 0, role: "button", "aria-label": text,
      fill: `rgb(${colour & 255},${(colour >> 8) & 255},${(colour >> 16) & 255})`,
      class: k === chosen ? "node chosen" : "node",
    };
    for (const [name, value] of Object.entries(facts)) bar.setAttribute(name, value);
    const title = document.createElementNS(SVG, "title");
    title.textContent = text;
    bar.append(title);
    bar.addEventListener("click", () => onChoose(k));
    bar.addEventListener("keydown", (event) => {
      if (event.key === "Enter") onChoose(k);
    });
    svg.append(bar);
  });
}
