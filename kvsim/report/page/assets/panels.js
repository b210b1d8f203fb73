// What stands beside the raster: causes stacked over time, the pool at an instant, the fleet.

const CAUSES = ["token_states", "reservation", "internal", "external", "free"];

/** Return the last sample at or before a time, or -1. */
function sampleAt(samples, time) {
  let low = 0;
  let high = samples.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples.time[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function drawStack(raster, samples, view, palette, background) {
  const [width, height] = raster.fit();
  const { context } = raster;
  raster.pixels.fill(background);
  for (let x = 0; x < width; x++) {
    const k = sampleAt(samples, view.t0 + ((x + 0.5) / width) * (view.t1 - view.t0));
    if (k < 0) continue;
    let below = 0;
    for (const name of CAUSES) {
      const share = samples[name][k] / 1000;
      const top = Math.round(height * (1 - Math.min(1, below + share)));
      const bottom = Math.round(height * (1 - below));
      for (let y = top; y < bottom; y++) raster.pixels[y * width + x] = palette[name];
      below += share;
    }
  }
  context.putImageData(raster.image, 0, 0);
}

/** Draw the pool at an instant, a square per block; return how many are in a row. */
function drawPool(raster, history, time, paint, background) {
  const [width, height] = raster.fit();
  const { context } = raster;
  const count = history.blocks.length;
  let size = Math.max(1, Math.floor(Math.sqrt((width * height) / count)));
  while (size > 1 && Math.ceil(count / Math.floor(width / size)) * size > height) size--;
  const across = Math.max(1, Math.floor(width / size));
  raster.pixels.fill(background);
  const gap = size > 3 ? 1 : 0;
  for (let block = 1; block < count; block++) {
    const line = history.blocks[block];
    const k = line.at(time);
    if (k < 0) continue;
    const found = paint(line, k, block);
    const colour = typeof found === "number" ? found : found(time);
    const left = (block % across) * size;
    const top = Math.floor(block / across) * size;
    for (let y = top; y < Math.min(height, top + size - gap); y++) {
      raster.pixels.fill(colour, y * width + left, y * width + left + size - gap);
    }
  }
  context.putImageData(raster.image, 0, 0);
  return { across, size };
}

function drawFleet(raster, fleet, view, background) {
  const [width, height] = raster.fit();
  const rows = fleet.replicas.length;
  const colours = shades(background);
  for (let y = 0; y < height; y++) {
    const row = Math.min(rows - 1, Math.floor((y / height) * rows));
    for (let x = 0; x < width; x++) {
      const at = (view.t0 + ((x + 0.5) / width) * (view.t1 - view.t0)) / view.duration;
      const column = Math.min(fleet.columns - 1, Math.max(0, Math.floor(at * fleet.columns)));
      raster.pixels[y * width + x] = colours[255 - Math.round(2.55 * fleet.use[row * fleet.columns + column])];
    }
  }
  raster.context.putImageData(raster.image, 0, 0);
}
