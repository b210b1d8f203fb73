// Arrows from the rows of a block table, logical blocks, to the squares of the pool, physical ones.

/** Draw an arrow for every row that is in sight; return how many there are. */
function drawArrows(svg, rows, pool, grid) {
  svg.replaceChildren();
  const frame = svg.getBoundingClientRect();
  const box = pool.getBoundingClientRect();
  if (!grid || !rows.length || !frame.width) return 0;
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const sight = rows[0].closest(".scroll").getBoundingClientRect();
  const scale = box.width / pool.width;
  let drawn = 0;
  for (const row of rows) {
    const line = row.getBoundingClientRect();
    const y = (line.top + line.bottom) / 2;
    if (y < sight.top || y > sight.bottom) continue;
    const block = Number(row.dataset.block);
    const left = ((block % grid.across) + 0.5) * grid.size * scale + box.left;
    const top = (Math.floor(block / grid.across) + 0.5) * grid.size * scale + box.top;
    const start = [line.left - frame.left, y - frame.top];
    const end = [left - frame.left, top - frame.top];
    const way = Math.atan2(end[1] - start[1], end[0] - start[0]);
    const wing = (by) => `${end[0] - 7 * Math.cos(way + by)} ${end[1] - 7 * Math.sin(way + by)}`;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", `M${start.join(" ")}L${end.join(" ")}M${wing(0.4)}L${end.join(" ")}L${wing(-0.4)}`);
    path.dataset.block = String(block);
    svg.append(path);
    drawn++;
  }
  return drawn;
}
